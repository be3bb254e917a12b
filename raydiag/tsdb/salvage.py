"""Blocks whose chunk files are cut short: what is whole of them can still be read.

A server opens such a block, and then every query fails that touches one lost chunk. Samples that
are marked as deleted are never looked for; so a view gets tombstones for what is lost, and the
server answers with the rest.

Source: Prometheus storage format (tsdb/docs/format): index.md (series), chunks.md, tombstones.md.
"""

import itertools
import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

from raydiag.errors import ParseError
from raydiag.event_file import crc32c
from raydiag.tsdb.directory import segments
from raydiag.untrusted import regular

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
        """How many series have lost chunks."""
        return _count_series(self.chunks)


def is_cut_short(block: Path) -> bool:
    """Whether a chunk file of the block does not end with a whole chunk, or is not there."""
    files = segments(block)
    numbers = [int(file.name) for file in files]
    return numbers != list(range(1, len(files) + 1)) or not all(map(_ends_whole, files))


def _ends_whole(path: Path) -> bool:
    size = path.stat().st_size
    with open(path, "rb", opener=regular) as stream:
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
    sizes = {int(file.name) - 1: file.stat().st_size for file in segments(block)}
    with open(block / "index", "rb", opener=regular) as file:
        index = file.read()
    chunks = list(_chunks(index))
    by_segment: dict[int, list[Chunk]] = defaultdict(list)
    for chunk in sorted(chunks, key=attrgetter("segment", "offset")):
        by_segment[chunk.segment].append(chunk)
    lost: list[Chunk] = []
    for segment, in_order in by_segment.items():
        size = sizes.get(segment, 0)
        for chunk, following in itertools.pairwise(in_order):
            if following.offset > size:
                lost.append(chunk)
        if segment not in sizes or not _ends_whole(block / "chunks" / f"{segment + 1:06d}"):
            lost.append(in_order[-1])
    return Loss(tuple(lost), len(chunks), _count_series(chunks))


def _count_series(chunks: Iterable[Chunk]) -> int:
    return len({chunk.series for chunk in chunks})


def tombstones(lost: Loss, existing: bytes = b"") -> bytes:
    """The content of a tombstones file that marks what is lost; `existing` is the block's."""
    data = bytearray(existing[len(_TOMBSTONES_HEAD) : -_CRC_BYTES])
    for chunk in lost.chunks:
        data += _as_uvarint(chunk.series) + _as_varint(chunk.start) + _as_varint(chunk.end)
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


def _of_series(index: bytes, series: int, position: int) -> Iterator[Chunk]:
    labels, position = _uvarint(index, position)
    for _ in range(2 * labels):
        _, position = _uvarint(index, position)
    count, position = _uvarint(index, position)
    end = reference = 0
    read_gap, read_step = _varint, _uvarint  # of the first chunk; then the other way round
    for _ in range(count):
        gap, position = read_gap(index, position)
        length, position = _uvarint(index, position)
        step, position = read_step(index, position)
        read_gap, read_step = _uvarint, _varint
        start, reference = end + gap, reference + step
        end = start + length
        yield Chunk(series, start, end, reference >> 32, reference & 0xFFFFFFFF)


def _uvarint(data: bytes, position: int) -> tuple[int, int]:
    """The number, and where the next one starts. Raises IndexError at the end of the data."""
    value = shift = 0
    while True:
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position += 1
        if byte < 0x80:
            return value, position
        shift += 7


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value, position = _uvarint(data, position)
    return (value >> 1) ^ -(value & 1), position


def _as_uvarint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _as_varint(value: int) -> bytes:
    return _as_uvarint(value << 1 if value >= 0 else (-value << 1) - 1)
