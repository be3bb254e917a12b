"""MEASURE: one file per probe, facts about one node, no opinion.

A probe is a generator over frozen dataclasses (its records), marked with `@probe`, in the file of
the same name. It takes a `Host`, then the source it should read (only if it names `sources`), then
keyword options that the caller may send. It may also yield `Unread` for a part that it could not
read, and raises NoData, Denied, ParseError or ReadError when it has nothing at all.

Probes run in guarded children (`sandbox`), so a probe may block; what it yielded before it blocked
is kept. They need the standard library only and run on Python 3.9.
"""

from __future__ import annotations

import importlib
import pkgutil
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any, Optional, Union

from raydiag.errors import ParseError
from raydiag.host import Host

# The two kinds of guarded child, see `confinement`: `files` is the tighter one, `processes` can
# see other processes' wchan, stack, fd and environ.
FILES = "files"
PROCESSES = "processes"

# When a probe runs. FIRST looks for a GPU driver fault without touching the driver. LAST touches
# what such a fault hangs: it is skipped when FIRST saw one, and stops after its first hang.
FIRST, NORMAL, LAST = 0, 1, 2


@dataclass(frozen=True)
class Probe:
    """A registered probe: what the runner must know to run it."""

    name: str
    function: Callable[..., Iterator[Any]]
    record: type
    timeout_s: float  # for one source
    reader: str  # FILES or PROCESSES
    stage: int  # FIRST, NORMAL or LAST
    sources: Optional[Callable[[Host], Sequence[str]]]  # None: the probe is its own only source


_registered: dict[str, Probe] = {}


def probe(
    record: type,
    timeout_s: float = 3.0,
    reader: str = FILES,
    stage: int = NORMAL,
    sources: Optional[Callable[[Host], Sequence[str]]] = None,
) -> Callable[[Callable[..., Iterator[Any]]], Callable[..., Iterator[Any]]]:
    """Register the decorated generator under its own name, which is also its module's name.

    With `sources`, the function is called once per source, each under its own deadline: a source
    that hangs costs its own value and no other.
    """

    def register(function: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        name = function.__name__
        _registered[name] = Probe(name, function, record, timeout_s, reader, stage, sources)
        return function

    return register


def names() -> list[str]:
    """Names of all probes that the package carries, in alphabetical order."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def load(name: str) -> Probe:
    """The probe of that name; imports its module only. Raises KeyError for an unknown name."""
    try:
        importlib.import_module(f"{__name__}.{name}")
    except ModuleNotFoundError:
        raise KeyError(name) from None
    return _registered[name]


def decode(record: type, data: Mapping[str, Any]) -> Any:
    """Rebuild a record from the JSON object that came from a node.

    Fields we do not know are ignored. Raises ParseError when one is missing or of the wrong type:
    a node may run other code than ours, or lie.
    """
    if not isinstance(data, dict):
        raise ParseError(f"{record.__name__}: not an object: {str(data)[:80]}")
    values = {}
    hints = _hints(record)
    for field in fields(record):
        if field.name in data:
            values[field.name] = _checked(hints[field.name], data[field.name], record, field.name)
        elif field.default is MISSING and field.default_factory is MISSING:
            raise ParseError(f"{record.__name__}: field {field.name} is missing")
    return record(**values)


_hint_cache: dict[type, dict[str, Any]] = {}


def _hints(record: type) -> dict[str, Any]:
    if record not in _hint_cache:
        _hint_cache[record] = typing.get_type_hints(record)
    return _hint_cache[record]


def _checked(kind: Any, value: Any, record: type, name: str) -> Any:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is Union and value is None:
        return None
    if origin is Union:
        return _checked(inner[0], value, record, name)
    if origin is tuple and isinstance(value, (list, tuple)):
        return tuple(_checked(inner[0], item, record, name) for item in value)
    if origin is dict and isinstance(value, dict):
        return {str(key): _checked(inner[1], item, record, name) for key, item in value.items()}
    if kind is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if isinstance(kind, type) and type(value) is kind:
        return value
    raise ParseError(f"{record.__name__}.{name}: {str(value)[:80]!r} is not {kind}")
