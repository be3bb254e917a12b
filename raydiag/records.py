"""Records that come as JSON, from a node or from a file, back into the dataclasses that they were.

A node may run other code than ours, or lie, and a file may be damaged: every value is checked
against its field's type, and nothing else than plain values ever comes out.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, Union

from raydiag.errors import ParseError

Record = TypeVar("Record")
_LARGEST = 2.5e11  # seconds: the year 9892; no temperature, power or share comes near
_Check = Callable[[Any], Any]  # returns the value to keep; raises ValueError
# Optional[X], and X | None where Python is new enough to have it.
_UNIONS = (Union, getattr(types, "UnionType", Union))


def decode(record: type[Record], data: Mapping[str, Any]) -> Record:
    """One record. Fields that it does not have are ignored.

    Raises ParseError when a field is missing, of the wrong type, or a number that nothing real
    has: NaN, beyond 64 bits, or a fraction so large that as a time no calendar could name it.
    """
    if not isinstance(data, dict):
        raise ParseError(f"{record.__name__}: not an object: {str(data)[:80]}")
    values = {}
    for name, required, plain, check in _fields(record):  # type: ignore[arg-type]
        if name in data:
            value = data[name]
            # A thousand nodes send a million values: most are taken without a call.
            if type(value) is not plain:
                try:
                    value = check(value)
                except ValueError as error:
                    shown = repr(value)[:80]
                    raise ParseError(f"{record.__name__}.{name}: {shown} is not {error}") from None
            values[name] = value
        elif required:
            raise ParseError(f"{record.__name__}: field {name} is missing")
    return record(**values)


@functools.cache
def _fields(record: type) -> list[tuple[str, bool, object, _Check]]:
    """(name, whether it must be there, type whose every value is good, check) of each field."""
    hints = typing.get_type_hints(record)
    return [
        (
            field.name,
            field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING,
            hints[field.name] if hints[field.name] in (str, bool) else None,
            _check(hints[field.name]),
        )
        for field in dataclasses.fields(record)
    ]


def _check(kind: Any) -> _Check:
    inner = [_check(argument) for argument in typing.get_args(kind) if argument is not Ellipsis]
    origin = typing.get_origin(kind)
    if origin in _UNIONS:
        return lambda value: None if value is None else inner[0](value)
    if origin is tuple and len(inner) > 1:
        return lambda value: tuple(check(item) for check, item in _pairs(inner, value))
    if origin in (tuple, list):
        return lambda value: origin(inner[0](item) for item in _exactly(list, value))
    if origin in (dict, Mapping):
        key = typing.get_args(kind)[0]  # JSON has texts only
        return lambda value: {key(k): inner[1](v) for k, v in _exactly(dict, value).items()}
    if origin is array or kind is array:
        return _doubles
    if kind in (bytes, bytearray):
        return lambda value: kind(_exactly(str, value).encode("latin-1"))
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return functools.partial(decode, kind)
    return _NUMBERS.get(kind, functools.partial(_exactly, kind))


def _exactly(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise ValueError(f"of type {kind.__name__}")
    return value


def _pairs(checks: Sequence[_Check], value: Any) -> Iterable[tuple[_Check, Any]]:
    if len(_exactly(list, value)) != len(checks):
        raise ValueError(f"a list of {len(checks)}")
    return zip(checks, value)


def _doubles(value: Any) -> array[float]:
    try:
        return array("d", _exactly(list, value))
    except TypeError:
        raise ValueError("a list of numbers") from None


def _integer(value: Any) -> int:
    if type(value) is not int or not -(2**63) <= value < 2**64:
        raise ValueError("a 64-bit integer")
    return value


def _number(value: Any) -> float:
    if type(value) not in (int, float) or not abs(value) <= _LARGEST:  # NaN is not either
        raise ValueError(f"a number up to {_LARGEST:g}")
    return float(value)


_NUMBERS: dict[Any, _Check] = {int: _integer, float: _number}
