"""raydiag: find out, from inside a Ray cluster, why a training job hangs, slows down or dies."""

__version__ = "0.1.0"
