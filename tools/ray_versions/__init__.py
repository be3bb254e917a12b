"""Which Rays and Pythons raydiag works with: tried on real ones, as a table in docs."""
