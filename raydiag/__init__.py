"""raydiag: find out, from inside a Ray cluster, why a training job hangs, slows down or dies.

`from raydiag import probe, triage, diagnose`: see raydiag/api.py, which is imported when one of
them is asked for; `raydiag/__init__.pyi` has their types.
"""

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    if name not in ("probe", "triage", "diagnose", "Answer"):
        raise AttributeError(f"module 'raydiag' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module("raydiag.api"), name)
