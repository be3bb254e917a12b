"""What a pass over a log has learnt, as plain JSON, for going on where it stopped.

The file comes from the user's disk: only declared fields of declared types are taken from it, and
anything odd means that the log is read from its start.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import lru_cache
from itertools import starmap
from types import UnionType
from typing import Any, Optional, TypeVar, Union, cast, get_args, get_origin, get_type_hints

VERSION = 1
_DIGESTED_BYTES = 4096
_T = TypeVar("_T")


@dataclass
class Mark:
    """Where the reading of one file stopped, and what tells that it is still the same file."""

    offset: int
    line: int
    inode: int
    head: str  # digest of the file's first bytes, as many as lie before `offset`, 4096 at most
    edge: str  # digest of the 4096 bytes before `offset`
    learnt: Any = None  # JSON of the tallies


@dataclass
class PassState:
    """Marks by path, and which signatures they were made with."""

    fingerprint: str = ""
    marks: dict[str, Mark] = field(default_factory=dict)

    def dumps(self) -> str:
        """The text of a state file."""
        marks = {path: vars(mark) for path, mark in self.marks.items()}
        return json.dumps({"version": VERSION, "fingerprint": self.fingerprint, "marks": marks})

    @classmethod
    def loads(cls, text: str, fingerprint: str) -> PassState:
        """Empty unless the text is a state of this version and fingerprint."""
        try:
            document = json.loads(text)
            if document["version"] != VERSION or document["fingerprint"] != fingerprint:
                return cls(fingerprint)
            marks = {str(path): Mark(**mark) for path, mark in document["marks"].items()}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return cls(fingerprint)
        sound = {path: mark for path, mark in marks.items() if _sound(mark)}
        return cls(fingerprint, sound)

    def mark_for(self, path: str, size: int, inode: int) -> Optional[Mark]:
        """The mark of a file that is still what it was up to there; None otherwise."""
        mark = self.marks.get(path)
        if mark is None or mark.inode != inode or not 0 < mark.offset <= size:
            return None
        return mark if digests(path, mark.offset) == (mark.head, mark.edge) else None


def _sound(mark: Mark) -> bool:
    numbers = (mark.offset, mark.line, mark.inode)
    if any(type(number) is not int or number < 0 for number in numbers):
        return False
    return isinstance(mark.learnt, dict)


def digests(path: str, offset: int) -> tuple[str, str]:
    """Of the first bytes and of the last ones before `offset`; empty where it cannot be read."""
    try:
        with open(path, "rb") as log:
            head = log.read(min(offset, _DIGESTED_BYTES))
            log.seek(max(0, offset - _DIGESTED_BYTES))
            edge = log.read(min(offset, _DIGESTED_BYTES))
    except OSError:
        return "", ""
    return hashlib.sha256(head).hexdigest(), hashlib.sha256(edge).hexdigest()


def plain(value: Any) -> Any:
    """A tally as JSON values."""
    if is_dataclass(value) and not isinstance(value, type):
        return {name: plain(item) for name, item in vars(value).items()}
    if isinstance(value, array):
        return value.tolist()
    if isinstance(value, (bytes, bytearray)):
        return value.decode("latin-1")
    if isinstance(value, Mapping):
        return [[key, plain(item)] for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return list(map(plain, value))
    return value


@lru_cache(maxsize=256)
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def restored(kind: type[_T], value: Any) -> _T:
    """The tally again. Raises ValueError where the JSON is not of this kind."""
    return cast(_T, _restored(kind, value))


def _restored(kind: Any, value: Any) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        if value is None:
            return None
        return _restored(next(kind for kind in arguments if kind is not type(None)), value)
    if isinstance(kind, type) and is_dataclass(kind):
        return _record(kind, value)
    if kind in (bytes, bytearray):
        return kind(_checked(value, str).encode("latin-1"))
    if origin is array or kind is array:
        return array("d", map(_number, _checked(value, list)))
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        pairs = _checked(value, list)
        return {_restored(arguments[0], key): _restored(arguments[1], item) for key, item in pairs}
    if origin in (list, tuple):
        items = list(starmap(_restored, _typed(origin, arguments, value)))
        return items if origin is list else tuple(items)
    if kind is float:
        return _number(value)
    return _checked(value, kind)


def _record(kind: Any, value: Any) -> Any:
    hints = _hints(kind)
    values = _checked(value, dict)
    if set(values) != {field.name for field in fields(kind)}:
        raise ValueError(f"other fields than {kind.__name__}")
    return kind(**{name: _restored(hints[name], item) for name, item in values.items()})


def _typed(origin: Any, arguments: tuple[Any, ...], value: Any) -> list[tuple[Any, Any]]:
    items = _checked(value, list)
    if origin is list or arguments[1:] == (Ellipsis,):
        return [(arguments[0], item) for item in items]
    if len(items) != len(arguments):
        raise ValueError("another number of items")
    return list(zip(arguments, items, strict=True))


def _number(value: Any) -> float:
    if type(value) not in (int, float):
        raise ValueError("not a number")
    return float(value)


def _checked(value: Any, kind: Any) -> Any:
    if type(value) is not kind:
        raise ValueError(f"not of type {kind}")
    return value
