"""FOLLOW: a job over time. It asks what others judge, and acts on nothing."""
