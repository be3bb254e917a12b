"""A toy training on a Ray of its own, with one planted fault, diagnosed while it hangs."""
