"""Measure a job's logs: find them, stream them once, say what they hold."""
