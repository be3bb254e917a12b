"""Records of a whole event file, each checked; the format is that of `event_file`.

A file that is still written ends within a record, which is normal. A record whose content is
damaged is left out; behind a damaged length nothing can be found any more.

Source: as of `event_file`.
"""

from __future__ import annotations

import itertools
import struct
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from raydiag.event_file import CRC_MASK, CRC_TABLE, masked_crc
from raydiag.event_file import FOOTER_BYTES as _FOOTER
from raydiag.event_file import HEADER_BYTES as _HEADER

_LARGE_BYTES = 1 << 20  # longer than any scalar: passed over
_BATCH_BYTES = 1 << 24  # of records that are checked together


@dataclass(frozen=True)
class Records:
    """What is whole of a file."""

    contents: tuple[bytes, ...]
    cut: bool  # it ends within a record
    damage: str = ""  # what is wrong with it, in one line


def scan(data: bytes) -> Records:
    """All records whose checksums fit, in order."""
    places: list[tuple[int, int]] = []
    position, cut, damage = 0, False, ""
    while position < len(data):
        if position + _HEADER > len(data):
            cut = True
            break
        length, checksum = struct.unpack_from("<QI", data, position)
        if masked_crc(data[position : position + 8]) != checksum:
            lost_bytes = len(data) - position
            damage = f"damaged at byte {position}: the {lost_bytes} bytes from there on are lost"
            break
        end = position + _HEADER + length + _FOOTER
        if end > len(data):
            cut = True
            break
        if length <= _LARGE_BYTES:
            places.append((position + _HEADER, length))
        position = end
    intact = _intact(data, places)
    contents = tuple(data[start : start + length] for start, length in places if start in intact)
    damaged = len(places) - len(contents)
    if damaged:
        damage = "; ".join(filter(None, (f"{damaged} records are damaged and left out", damage)))
    return Records(contents, cut, damage)


def _intact(data: bytes, places: list[tuple[int, int]]) -> set[int]:
    """Where the contents begin whose checksum fits."""
    starts_by_length: dict[int, list[int]] = defaultdict(list)
    for start, length in places:
        starts_by_length[length].append(start)
    intact: set[int] = set()
    for length, starts in starts_by_length.items():
        batch_size = max(1, _BATCH_BYTES // max(1, length))
        for first in range(0, len(starts), batch_size):
            intact.update(_intact_of_length(data, starts[first : first + batch_size], length))
    return intact


def _intact_of_length(data: bytes, starts: list[int], length: int) -> Iterator[int]:
    places = np.array(starts)[:, None]
    octets = np.frombuffer(data, np.uint8)
    checksums = octets[places + length + np.arange(_FOOTER)].view("<u4")[:, 0]
    fits = _masked(_crcs(octets[places + np.arange(length)])) == checksums
    return itertools.compress(starts, fits)


# ---- CRC-32C


_CRC = np.array(CRC_TABLE, dtype=np.uint32)


def _crcs(rows: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """Of each row; rows of one length go through the table side by side."""
    crc = np.full(rows.shape[0], 0xFFFFFFFF, dtype=np.uint32)
    for column in rows.T:
        crc = _CRC[(crc ^ column) & 0xFF] ^ (crc >> 8)
    return np.asarray(crc ^ np.uint32(0xFFFFFFFF), dtype=np.uint32)


def _masked(crc: NDArray[np.uint32]) -> NDArray[np.uint32]:
    rotated = (crc >> np.uint32(15)) | (crc << np.uint32(17))
    return np.asarray(rotated + np.uint32(CRC_MASK), dtype=np.uint32)
