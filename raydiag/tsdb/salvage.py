"""Blocks whose chunk files are cut short: what is whole of them can still be read.

A server opens such a block, and then every query fails that touches one lost chunk. Samples that
are marked as deleted are never looked for; so a view gets tombstones for what is lost, and the
server answers with the rest.

Source: Prometheus storage format (tsdb/docs/format): index.md (series), chunks.md, tombstones.md.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from raydiag.errors import ParseError
from raydiag.tsdb.directory import crc32c, segments

_TOMBSTONES_HEAD = struct.pack(">IB", 0x0130BA30, 1)
_SEGMENT_HEAD_BYTES = 8
_CRC_BYTES = 4
_LONGEST_CHUNK = 1 << 16
_ALIGNMENT = 16  # of series in the index; a series is known by its offset in these units


@dataclass(frozen=True)
class Chunk:
    """One chunk as the index tells of it; times in milliseconds."""

    series: int
    start: int
    end: int
    segment: int  # from 0
    offset: int


@dataclass(frozen=True)
class Loss:
    """What of a block cannot be read."""

    chunks: tuple[Chunk, ...]
    of_chunks: int
    of_series: int

    @property
    def series(self) -> int:
        return len({one.series for one in self.chunks})


def is_cut_short(block: Path) -> bool:
    """Whether a chunk file of the block does not end with a whole chunk, or is not there."""
    files = segments(block)
    if [int(one.name) for one in files] != list(range(1, len(files) + 1)):
        return True
    return any(not _ends_whole(one) for one in files)


def _ends_whole(path: Path) -> bool:
    size = path.stat().st_size
    with open(path, "rb") as stream:
        stream.seek(max(_SEGMENT_HEAD_BYTES, size - _LONGEST_CHUNK))
        tail = stream.read()
    # From the end, because chunks are short: the first whose length fits is nearly always it.
    for start in range(len(tail) - 2 - _CRC_BYTES, -1, -1):
        length, data = _uvarint(tail, start)
        if data + 1 + length + _CRC_BYTES == len(tail):
            stored = struct.unpack_from(">I", tail, len(tail) - _CRC_BYTES)[0]
            if crc32c(tail[data:-_CRC_BYTES]) == stored:
                return True
    return False


def loss(block: Path) -> Loss:
    """Which chunks lie beyond the end of their file. Raises ParseError, OSError."""
    sizes = {int(one.name) - 1: one.stat().st_size for one in segments(block)}
    index = (block / "index").read_bytes()
    chunks = list(_chunks(index))
    by_segment: dict[int, list[Chunk]] = defaultdict(list)
    for one in sorted(chunks, key=lambda chunk: (chunk.segment, chunk.offset)):
        by_segment[one.segment].append(one)
    lost = []
    for segment, own in by_segment.items():
        size = sizes.get(segment, 0)
        ends = [one.offset for one in own[1:]]
        lost += [one for one, end in zip(own, ends, strict=False) if end > size]
        if segment not in sizes or not _ends_whole(block / "chunks" / f"{segment + 1:06d}"):
            lost.append(own[-1])
    return Loss(tuple(lost), len(chunks), len({one.series for one in chunks}))


def tombstones(lost: Loss, known: bytes = b"") -> bytes:
    """The content of a tombstones file that marks what is lost; `known` is the block's own."""
    data = bytearray(known[len(_TOMBSTONES_HEAD) : -_CRC_BYTES])
    for one in lost.chunks:
        data += _as_uvarint(one.series) + _as_varint(one.start) + _as_varint(one.end)
    return _TOMBSTONES_HEAD + bytes(data) + struct.pack(">I", crc32c(bytes(data)))


def _chunks(index: bytes) -> Iterator[Chunk]:
    """All chunks of all series. Raises ParseError."""
    version = index[4]
    if version != 2:
        raise ParseError(f"index has the unknown version {version}")
    toc = struct.unpack_from(">6Q", index, len(index) - 52)
    position, end = toc[1], toc[2]
    try:
        while position < end:
            position += -position % _ALIGNMENT
            if position >= end:
                return
            length, data = _uvarint(index, position)
            if length == 0:
                return
            yield from _of_series(index, position // _ALIGNMENT, data)
            position = data + length + _CRC_BYTES
    except IndexError:
        raise ParseError("index: its series end in the middle") from None


def _of_series(index: bytes, series: int, at: int) -> Iterator[Chunk]:
    labels, at = _uvarint(index, at)
    for _ in range(2 * labels):
        _, at = _uvarint(index, at)
    count, at = _uvarint(index, at)
    end = reference = 0
    for number in range(count):
        gap, at = _varint(index, at) if number == 0 else _uvarint(index, at)
        length, at = _uvarint(index, at)
        step, at = _uvarint(index, at) if number == 0 else _varint(index, at)
        start, reference = end + gap, reference + step
        end = start + length
        yield Chunk(series, start, end, reference >> 32, reference & 0xFFFFFFFF)


def _uvarint(data: bytes, at: int) -> tuple[int, int]:
    """The number, and where the next one starts. Raises IndexError at the end of the data."""
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value, at = _uvarint(data, at)
    return (value >> 1) ^ -(value & 1), at


def _as_uvarint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _as_varint(value: int) -> bytes:
    return _as_uvarint(value << 1 if value >= 0 else (-value << 1) - 1)
