"""Values of a pickle that is data and nothing else; none of its code is ever looked up or run.

Python's own unpickler would import and call what a pickle names, and reserve as much memory as it
asks for. Here no operation exists that does: a pickle with one is refused.

Source: pickletools (Lib/pickletools.py); of the operations those by which dictionaries, lists,
tuples, strings and numbers are written, by Python (protocols 2 to 5) and by PyTorch's C++ pickler.
"""

from __future__ import annotations

import struct
from typing import Any, Callable

_MOST_BYTES = 32 << 20
_MOST_VALUES = 4_000_000  # a value takes some 60 bytes, however few its pickle does
_DEEPEST = 64
_MARK = object()
_CONSTANTS = {b"N": None, b"\x88": True, b"\x89": False}
_EMPTY: dict[bytes, Callable[[], Any]] = {b"}": dict, b"]": list, b")": tuple}
_NUMBERS = {b"J": "<i", b"K": "<B", b"M": "<H", b"G": ">d"}
_TEXTS = {b"X": "<I", b"\x8c": "<B", b"\x8d": "<Q"}
_BYTES = {b"U": "<B", b"T": "<i", b"C": "<B", b"B": "<I", b"\x8e": "<Q"}
_SHORT_TUPLES = {b"\x85": 1, b"\x86": 2, b"\x87": 3}
_LONGEST_INTEGER = 64  # bytes


def values(data: bytes) -> Any:
    """What a pickle holds. Raises ValueError for one that is cut short, too large, or not data."""
    if len(data) > _MOST_BYTES:
        raise ValueError(f"more than {_MOST_BYTES >> 20} MiB")
    try:
        value = _Reader(data).value()
    except (IndexError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise ValueError(f"is no pickle of plain values: {type(error).__name__}") from None
    _bounded(value)
    return value


def _bounded(value: Any) -> None:
    """Raises ValueError for what is nested too deeply, holds itself, or one part very often."""
    level, count = [value], 0
    for _ in range(_DEEPEST):
        inner: list[Any] = []
        for each in level:
            inner += each.values() if type(each) is dict else each
            if len(inner) > _MOST_VALUES:
                raise ValueError("holds too many values")
        count += len(inner)
        level = [each for each in inner if type(each) in (dict, list, tuple)]
        if count > _MOST_VALUES:
            raise ValueError("holds too many values")
        if not level:
            return
    raise ValueError("nested too deeply")


class _Reader:
    """A stack and a memo, as the operations of a pickle need them."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def value(self) -> Any:
        """The value at the end of the operations."""
        for _ in range(_MOST_VALUES):
            operation = self._take(1)
            if operation == b".":
                value = self._stack.pop()
                if self._stack or value is _MARK or type(value) not in (dict, list, tuple):
                    raise ValueError("is no pickle of a dictionary or list")
                return value
            self._run(operation)
        raise ValueError("holds too many values")

    def _run(self, operation: bytes) -> None:
        """One operation. Raises ValueError for one that is not among the known ones."""
        if operation in _CONSTANTS:
            self._stack.append(_CONSTANTS[operation])
        elif operation in _TEXTS:
            text = self._take(self._number(_TEXTS[operation]))
            self._stack.append(text.decode("utf-8", "replace"))
        elif operation in _BYTES:
            self._stack.append(self._take(self._number(_BYTES[operation])).decode("latin-1"))
        elif operation in _NUMBERS:
            self._stack.append(self._number(_NUMBERS[operation]))
        elif operation in _EMPTY:
            self._stack.append(_EMPTY[operation]())
        elif operation in _SHORT_TUPLES:
            count = _SHORT_TUPLES[operation]
            parts = self._stack[-count:]
            if len(parts) < count:
                raise ValueError("is cut short")
            self._stack[-count:] = [tuple(parts)]
        elif operation in _ACTIONS:
            _ACTIONS[operation](self)
        else:
            raise ValueError(f"holds more than data: operation {operation!r} at {self._at - 1}")

    def _take(self, count: int) -> bytes:
        part = self._data[self._at : self._at + count]
        if count < 0 or len(part) < count:
            raise ValueError("is cut short")
        self._at += count
        return part

    def _number(self, form: str) -> Any:
        return struct.unpack(form, self._take(struct.calcsize(form)))[0]

    def _long(self) -> None:
        size = self._take(1)[0]
        if size > _LONGEST_INTEGER:
            raise ValueError("holds an integer that no counter has")
        self._stack.append(int.from_bytes(self._take(size), "little", signed=True))

    def _since_mark(self) -> list[Any]:
        """What was pushed since the last mark, which is taken off with it."""
        place = len(self._stack) - 1
        while self._stack[place] is not _MARK:
            place -= 1
            if place < 0:
                raise ValueError("has an end without a beginning")
        parts = self._stack[place + 1 :]
        del self._stack[place:]
        return parts

    def _set_items(self) -> None:
        parts = self._since_mark()
        self._add_pairs(parts)

    def _set_item(self) -> None:
        parts = self._stack[-2:]
        del self._stack[-2:]
        self._add_pairs(parts)

    def _add_pairs(self, parts: list[Any]) -> None:
        container = self._stack[-1]
        if type(container) is not dict or len(parts) % 2:
            raise ValueError("adds pairs to what is no dictionary")
        for key, value in zip(parts[::2], parts[1::2]):
            if type(key) not in (str, int):
                raise ValueError("has a key that is neither text nor a number")
            container[key] = value

    def _append(self) -> None:
        value = self._stack.pop()
        self._add_values([value])

    def _appends(self) -> None:
        self._add_values(self._since_mark())

    def _add_values(self, parts: list[Any]) -> None:
        container = self._stack[-1]
        if type(container) is not list:
            raise ValueError("appends to what is no list")
        container += parts

    def _put(self, form: str) -> None:
        self._memo[self._number(form)] = self._stack[-1]

    def _get(self, form: str) -> None:
        self._stack.append(self._memo[self._number(form)])

    def _memoize(self) -> None:
        self._memo[len(self._memo)] = self._stack[-1]

    def _push_tuple(self) -> None:
        self._stack.append(tuple(self._since_mark()))


_ACTIONS: dict[bytes, Callable[[_Reader], Any]] = {
    b"\x80": lambda reader: reader._take(1),  # protocol
    b"\x95": lambda reader: reader._take(8),  # length of a frame: nothing is read ahead here
    b"(": lambda reader: reader._stack.append(_MARK),
    b"\x8a": _Reader._long,
    b"t": _Reader._push_tuple,
    b"u": _Reader._set_items,
    b"s": _Reader._set_item,
    b"a": _Reader._append,
    b"e": _Reader._appends,
    b"q": lambda reader: reader._put("<B"),
    b"r": lambda reader: reader._put("<I"),
    b"h": lambda reader: reader._get("<B"),
    b"j": lambda reader: reader._get("<I"),
    b"\x94": _Reader._memoize,
}
