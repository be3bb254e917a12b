"""Files and JSON that somebody else wrote: nothing waits for them, and limits hold."""

from __future__ import annotations

import errno
import json
import os
import stat
import zlib
from typing import Any, Union

LIMIT_BYTES = 16 << 20
_DEEPEST = 64  # no document of ours, of Prometheus or of py-spy comes near
_NESTING = frozenset({dict, list})


def regular(path: str, flags: int) -> int:
    """As `opener` of open(): opens without waiting. Raises OSError for what is no regular file."""
    fd = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "is not a regular file", path)
    return fd


def parsed(text: Union[bytes, str], limit_bytes: int = LIMIT_BYTES) -> Any:
    """Its values. Raises ValueError for what is no JSON, too long, or nested too deeply."""
    if len(text) > limit_bytes:
        raise ValueError(f"more than {limit_bytes} bytes")
    try:
        document = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    level: list[Any] = [[document]]
    for _ in range(_DEEPEST):
        lists = [each.values() if type(each) is dict else each for each in level]
        level = []
        for values in lists:
            # A cluster's records are a million values, nearly all of them plain.
            if not _NESTING.isdisjoint(map(type, values)):
                level += [value for value in values if type(value) in _NESTING]
        if not level:
            return document
    raise ValueError("nested too deeply")


def inflated(packed: bytes, limit_bytes: int = LIMIT_BYTES) -> Any:
    """The content of zlib-compressed JSON. Raises ValueError as `parsed`, and for what is none."""
    stream = zlib.decompressobj()
    try:
        text = stream.decompress(packed, limit_bytes)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if not stream.eof:
        raise ValueError("cut short, or over the size limit")
    return parsed(text, limit_bytes)
