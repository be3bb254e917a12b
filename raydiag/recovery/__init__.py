"""RECOVER: what to do about a job that has ended, and doing it once."""
