"""What a pass over a log has learnt, as plain JSON, for going on where it stopped.

The file comes from the user's disk: values of the declared types are taken from it, and anything
odd means that the log is read from its start.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from dataclasses import dataclass, field
from typing import Any, TypeVar

from raydiag.untrusted import parsed, regular

VERSION = 3
_LIMIT_BYTES = 64 << 20
_DIGESTED_BYTES = 4096
_TYPES = {"offset": int, "line": int, "inode": int, "head": str, "edge": str}
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
        return json.dumps({"made_by": _made_by(self.fingerprint, marks), "marks": marks})

    @classmethod
    def loads(cls, text: str, fingerprint: str) -> PassState:
        """Empty unless the text is a whole state of this version and fingerprint."""
        try:
            document = parsed(text, _LIMIT_BYTES)
            marks = document["marks"]
            if document["made_by"] != _made_by(fingerprint, marks):
                return cls(fingerprint)
            return cls(fingerprint, {path: _mark(mark) for path, mark in marks.items()})
        except (ValueError, KeyError, TypeError, AttributeError):
            return cls(fingerprint)

    def mark_for(self, path: str, size: int, inode: int) -> Mark | None:
        """The mark of a file that is still what it was up to there; None otherwise."""
        mark = self.marks.get(path)
        if mark is None or mark.inode != inode or not 0 < mark.offset <= size:
            return None
        return mark if digests(path, mark.offset) == (mark.head, mark.edge) else None


def _mark(fields: dict[str, Any]) -> Mark:
    """Raises TypeError, KeyError."""
    for name, kind in _TYPES.items():
        if type(fields[name]) is not kind:
            raise TypeError(f"{name} is not of type {kind.__name__}")
    return Mark(**fields)


def _made_by(fingerprint: str, marks: object) -> list[object]:
    """Version, fingerprint and a digest, by which a damaged state is known."""
    digest = hashlib.sha256(json.dumps(marks).encode()).hexdigest()
    return [VERSION, fingerprint, digest]


def digests(path: str, offset: int) -> tuple[str, str]:
    """Of the first bytes and of the last ones before `offset`; empty where it cannot be read."""
    try:
        with open(path, "rb", opener=regular) as log:
            head = log.read(min(offset, _DIGESTED_BYTES))
            log.seek(max(0, offset - _DIGESTED_BYTES))
            edge = log.read(min(offset, _DIGESTED_BYTES))
    except OSError:
        return "", ""
    return hashlib.sha256(head).hexdigest(), hashlib.sha256(edge).hexdigest()


def plain(tally: object) -> Any:
    """A tally as it is now, as JSON values that `records.decode` takes."""
    return json.loads(json.dumps(tally, default=_plain))


def _plain(value: Any) -> object:
    if isinstance(value, array):
        return value.tolist()
    if isinstance(value, (bytes, bytearray)):
        return value.decode("latin-1")
    return vars(value)
