"""What an operator has written down that recovery may do; and what is true of failure classes."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib.resources import files
from pathlib import Path
from typing import Any

from raydiag.catalog.rows import loaded
from raydiag.errors import CatalogError, UsageError
from raydiag.untrusted import regular

_MOST_BYTES = 1 << 16
_CHOICES = {"unknown": ("reattempt", "diagnose")}
_KINDS = ("never", "job", "broken", "host")
_LARGEST = 1e7


@dataclass(frozen=True)
class RecoveryPolicy:
    """The fields are the keys of a policy file; times are seconds.

    The numbers are what `benchmarks/recovery_policies.py` decided: docs/recovery.md.
    """

    most_restarts: int = 100  # of one job
    window: float = 86_400.0
    most_in_window: int = 12  # restarts
    most_bad: int = 1  # attempts in a row that ended before their first save
    wait: float = 15.0  # before a new attempt; twice as long after each bad one in a row
    longest_wait: float = 1800.0
    unknown: str = "reattempt"  # or diagnose: a person looks before each attempt
    evict_after: int = 2  # times that a host shows the same cause
    evict_broken_at_once: bool = True  # what does not heal by itself and is confirmed
    most_evicted: int = 8  # hosts of one job
    most_evicted_at_once: int = 2


def read_policy(path: str) -> RecoveryPolicy:
    """Raises UsageError for a file that is not understood as a whole."""
    try:
        with open(path, encoding="utf-8", opener=regular) as file:
            text = file.read(_MOST_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        problem = getattr(error, "strerror", None) or "no text"
        raise UsageError(f"--policy {path}: {problem}") from None
    try:
        content = loaded(text, path)
    except (CatalogError, RecursionError) as error:
        raise UsageError(f"--policy {error}") from None
    return _policy(path, content)


def _policy(path: str, content: object) -> RecoveryPolicy:
    if content is None:
        return RecoveryPolicy()
    known = {field.name: field.default for field in fields(RecoveryPolicy)}
    if not isinstance(content, dict):
        raise UsageError(f"--policy {path}: not a mapping of names to values")
    values: dict[str, Any] = {}
    for name, value in content.items():
        if name not in known:
            raise UsageError(f"--policy {path}: {name!r} is no key; there are {', '.join(known)}")
        problem = _problem(name, value, type(known[name]))
        if problem:
            raise UsageError(f"--policy {path}: {name}: {value!r} is not {problem}")
        values[name] = value
    return RecoveryPolicy(**values)


def _problem(name: str, value: object, kind: type) -> str:
    """What the value should be; "" for one that is good."""
    if name in _CHOICES:
        return "" if value in _CHOICES[name] else " or ".join(_CHOICES[name])
    if kind is bool:
        return "" if type(value) is bool else "true or false"
    least = 1 if name in ("evict_after", "window") else 0
    if type(value) is int and least <= value <= _LARGEST:
        return ""
    if kind is float and type(value) is float and least <= value <= _LARGEST:
        return ""
    words = "a number" if kind is float else "a whole number"
    return f"{words} from {least} to {_LARGEST:.0f}"


@functools.cache
def kinds() -> Mapping[str, str]:
    """Failure class -> "never", "job", "broken" or "host", for those that stand in a list.

    Raises CatalogError.
    """
    name = "restarts.yaml"
    table = loaded(Path(str(files(__package__).joinpath(name))).read_text("utf-8"), name)
    if not isinstance(table, dict) or tuple(table) != _KINDS:
        raise CatalogError(f"{name}: the lists are {', '.join(_KINDS)}")
    kind_of: dict[str, str] = {}
    for kind in _KINDS:
        for failure_class in table[kind]:
            if failure_class in kind_of:
                raise CatalogError(f"{name}: {failure_class} stands in two lists")
            kind_of[failure_class] = kind
    return kind_of
