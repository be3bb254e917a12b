"""Paths of prometheus and promtool: beside RAYDIAG_PROMETHEUS, on PATH, or where make puts them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

_CACHE = Path(__file__).parents[1] / ".cache" / "prometheus" / "usr" / "bin"


def found(name: str) -> str | None:
    """Path of "prometheus" or "promtool"; None where there is none."""
    named = os.environ.get("RAYDIAG_PROMETHEUS")
    beside = str(Path(named).parent / name) if named else name
    candidates = map(shutil.which, (beside, name, str(_CACHE / name)))
    return next(filter(None, candidates), None)
