"""The wire format of protocol buffers, as far as event files need it.

Source: Protocol Buffers documentation, "Encoding".
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Union

from raydiag.errors import ParseError

_VARINT, _BYTES = 0, 2
_WIDTHS = {1: 8, 5: 4}  # of 64 and 32 bits
_LONGEST = 10  # bytes of a number

# A number as it was sent (varint), or bytes: 4 and 8 of them for fixed widths.
Value = Union[int, bytes]


def fields(message: bytes) -> Iterator[tuple[int, Value]]:
    """Number and value of each field. Raises ParseError where the message is none."""
    position, end = 0, len(message)
    while position < end:
        key, position = _varint(message, position)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, position = _varint(message, position)
            yield number, value
            continue
        if kind == _BYTES:
            length, position = _varint(message, position)
        elif kind in _WIDTHS:
            length = _WIDTHS[kind]
        else:
            raise ParseError(f"a field of kind {kind}")
        if position + length > end or not number:
            raise ParseError("a field that reaches beyond its message")
        yield number, message[position : position + length]
        position += length


def _varint(message: bytes, position: int) -> tuple[int, int]:
    value = 0
    for index, byte in enumerate(message[position : position + _LONGEST]):
        value |= (byte & 0x7F) << 7 * index
        if not byte & 0x80:
            return value, position + index + 1
    raise ParseError("a number that does not end")


def signed(value: Value) -> int:
    """An int32 or int64: negative ones are sent as large ones."""
    if isinstance(value, bytes):
        raise ParseError("bytes where a number should be")
    return ((value + (1 << 63)) & ((1 << 64) - 1)) - (1 << 63)


def integers(value: Value) -> list[int]:
    """A repeated integer, packed or one by one."""
    if not isinstance(value, bytes):
        return [signed(value)]
    numbers, position = [], 0
    while position < len(value):
        number, position = _varint(value, position)
        numbers.append(signed(number))
    return numbers


def content(value: Value) -> bytes:
    """A string, bytes or a message."""
    if isinstance(value, bytes):
        return value
    raise ParseError("a number where bytes should be")


def double(value: Value) -> float:
    """A float of 64 bits."""
    return _unpacked("<d", value)


def single(value: Value) -> float:
    """A float of 32 bits."""
    return _unpacked("<f", value)


def _unpacked(form: str, value: Value) -> float:
    raw = content(value)
    if len(raw) != struct.calcsize(form):
        raise ParseError("a floating-point number of another width")
    return float(struct.unpack(form, raw)[0])
