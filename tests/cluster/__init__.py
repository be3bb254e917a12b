"""Real components for tests: hosts with a real Ray, a FUSE file that hangs, fake device trees."""
