"""Records of a whole event file, each checked; the format is that of `event_file`.

A file that is still written ends within a record, which is normal. A record whose content is
damaged is left out; behind a damaged length nothing can be found any more.

Source: as of `event_file`.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from raydiag.event_file import CRC_TABLE, masked_crc
from raydiag.event_file import FOOTER_BYTES as _FOOTER
from raydiag.event_file import HEADER_BYTES as _HEADER

_LARGE_BYTES = 1 << 20  # no scalar is so long: passed over
_MASK = 0xA282EAD8
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
        length, told = struct.unpack_from("<QI", data, position)
        if masked_crc(data[position : position + 8]) != told:
            rest = len(data) - position
            damage = f"damaged at byte {position}: the {rest} bytes from there on are lost"
            break
        end = position + _HEADER + length + _FOOTER
        if end > len(data):
            cut = True
            break
        if length <= _LARGE_BYTES:
            places.append((position + _HEADER, length))
        position = end
    contents, wrong = _checked(data, places)
    if wrong:
        damage = "; ".join(filter(None, (f"{wrong} records are damaged and left out", damage)))
    return Records(contents, cut, damage)


def _checked(data: bytes, places: list[tuple[int, int]]) -> tuple[tuple[bytes, ...], int]:
    """The contents whose checksum fits, and how many do not."""
    by_length: dict[int, list[int]] = defaultdict(list)
    for start, length in places:
        by_length[length].append(start)
    whole = np.frombuffer(data, np.uint8)
    good: set[int] = set()
    for length, starts in by_length.items():
        batch = max(1, _BATCH_BYTES // max(1, length))
        for first in range(0, len(starts), batch):
            part = starts[first : first + batch]
            rows = whole[np.array(part)[:, None] + np.arange(length)]
            told = [struct.unpack_from("<I", data, start + length)[0] for start in part]
            fits = _masked(_crcs(rows)) == np.array(told, dtype=np.uint32)
            good.update(start for start, fit in zip(part, fits, strict=True) if fit)
    contents = tuple(data[s : s + length] for s, length in places if s in good)
    return contents, len(places) - len(contents)


# ---- CRC-32C


_CRC = np.array(CRC_TABLE, dtype=np.uint32)


def _crcs(rows: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """Of each row; rows of one length go through the table side by side."""
    crc = np.full(rows.shape[0], 0xFFFFFFFF, dtype=np.uint32)
    for column in rows.T:
        crc = _CRC[(crc ^ column) & 0xFF] ^ (crc >> 8)
    return np.asarray(crc ^ np.uint32(0xFFFFFFFF), dtype=np.uint32)


def _masked(crc: NDArray[np.uint32]) -> NDArray[np.uint32]:
    turned = (crc >> np.uint32(15)) | (crc << np.uint32(17))
    return np.asarray(turned + np.uint32(_MASK), dtype=np.uint32)
