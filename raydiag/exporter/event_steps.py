"""Steps of an event file from an offset on, while somebody else still writes it.

Scalars of a step are written one after another within milliseconds and reach the file in blocks, so
a step may be seen half. It is given when the next one has begun, or when nothing more came for a
while. Behind a damaged place reading goes on at the next length whose checksum fits; damage at the
very end is a record that is being written, and is looked at again.

Source: as of `raydiag.event_file`.
"""

from __future__ import annotations

import os
import re
import struct
from dataclasses import dataclass, field

from raydiag import event_file
from raydiag.errors import ParseError
from raydiag.event_file import FOOTER_BYTES, HEADER_BYTES, ScalarValue, masked_crc

_FIRST_WINDOW_BYTES, _LARGEST_WINDOW_BYTES = 32 << 10, 2 << 20
_MOST_BYTES = 4 << 20  # in one go
_LARGE_BYTES = 100_000  # an image or the like: passed over by its length
# The length of a record is far below 2**24 and not zero, which is quick to look for.
_LENGTH = re.compile(rb"(?!\0\0\0)[\s\S]{3}\0{5}")
_MOST_TAGS = 500  # of a step; what a loop writes by mistake shall not become series
_SETTLED_S, _SETTLED_CUT_S = 5.0, 180.0  # writers flush every 120 s


@dataclass
class Step:
    """What training wrote of one step."""

    number: int
    time: float  # Unix seconds, of the first scalar
    end: int  # offset behind its last record
    values: dict[str, float] = field(default_factory=dict)  # by metric, e.g. "tb_learning_loss"


@dataclass
class Part:
    """What lies between an offset and the end of what was read."""

    start: int  # nothing of use lies before it: go on from here
    steps: list[Step] = field(default_factory=list)  # in the order of the file, each complete
    damaged: int = 0  # places passed over
    at_end: bool = False  # the file had no more than that


def read(fd: int, offset: int, now: float) -> Part:
    """Some steps from `offset` on; none only where there is none, or a large stretch without."""
    size = os.fstat(fd).st_size
    window, damaged, bytes_left = _FIRST_WINDOW_BYTES, 0, _MOST_BYTES
    while True:
        data = os.pread(fd, window, offset)
        part = _EventParser(data, offset, size).run(now)
        bytes_left -= len(data)
        if part.start > offset:
            damaged += part.damaged
            offset, window = part.start, _FIRST_WINDOW_BYTES
        elif window >= _LARGEST_WINDOW_BYTES:
            bytes_left = 0
        else:
            window *= 4
        if part.steps or part.at_end or bytes_left <= 0:
            part.damaged = max(part.damaged, damaged)
            return part


def tail(fd: int, most_bytes: int) -> int:
    """Offset of a record at most so far from the end; 0 for a small file."""
    size = os.fstat(fd).st_size
    if size <= most_bytes:
        return 0
    for start in range(size - most_bytes, size, _LARGEST_WINDOW_BYTES):
        header = _next_header(os.pread(fd, _LARGEST_WINDOW_BYTES + HEADER_BYTES, start), 0)
        if header >= 0:
            return start + header
    return size


class _EventParser:
    """One pass over bytes that begin with a record at the offset `base`."""

    def __init__(self, data: bytes, base: int, size: int) -> None:
        self.data, self.base, self.size = data, base, size
        self.part = Part(base, at_end=base + len(data) >= size)
        self.position = 0
        self.cut = False  # it ends within a record

    def run(self, now: float) -> Part:
        """The steps of these bytes; `now` is Unix time."""
        while self.position + HEADER_BYTES <= len(self.data) and self._record():
            if not self.part.steps:
                self.part.start = self.base + self.position
        self.cut = self.cut or self.position < len(self.data)
        self._settle(now)
        return self.part

    def _record(self) -> bool:
        """Take the record at the position; False where it ends too late, or is not one yet."""
        length, checksum = struct.unpack_from("<QI", self.data, self.position)
        if masked_crc(self.data[self.position : self.position + 8]) != checksum:
            return self._resume()
        start = self.position + HEADER_BYTES
        end = start + length + FOOTER_BYTES
        if self.base + end > self.size:
            self.cut = True
            return False
        if length > _LARGE_BYTES:
            self.position = end
            return True
        if end > len(self.data):
            return False
        content = self.data[start : start + length]
        record = _scalars_of(content)
        (checksum,) = struct.unpack_from("<I", self.data, end - FOOTER_BYTES)
        # Only what is used is worth a checksum.
        if record and masked_crc(content) != checksum:
            if self.base + end == self.size:
                self.cut = True
                return False
            self.part.damaged += 1
            record = []
        for scalar in record:
            self._take(scalar, self.base + end)
        self.position = end
        return True

    def _resume(self) -> bool:
        next_header = _next_header(self.data, self.position + 1)
        if next_header < 0 and self.part.at_end:
            self.cut = True
            return False
        if next_header < 0 and (self.part.steps or len(self.data) < _LARGEST_WINDOW_BYTES):
            return False  # a larger window may show more
        self.part.damaged += 1
        self.position = next_header if next_header >= 0 else len(self.data) - HEADER_BYTES + 1
        return True

    def _take(self, scalar: ScalarValue, end: int) -> None:
        steps = self.part.steps
        if not steps or steps[-1].number != scalar.step:
            steps.append(Step(scalar.step, scalar.time, end))
        steps[-1].end = end
        if len(steps[-1].values) < _MOST_TAGS:
            steps[-1].values[event_file.metric_name(scalar.tag)] = scalar.value

    def _settle(self, now: float) -> None:
        """Leave the last step away as long as more of it may come."""
        if self.part.steps:
            age_s = now - self.part.steps[-1].time
            patience_s = _SETTLED_CUT_S if self.cut else _SETTLED_S
            may_grow = age_s < patience_s if self.part.at_end else not self._is_alone()
            if may_grow:
                self.part.steps.pop()

    def _is_alone(self) -> bool:
        """Nothing that can be read follows for so long that there is nothing to wait for."""
        return len(self.part.steps) == 1 and len(self.data) >= _LARGEST_WINDOW_BYTES


def _scalars_of(content: bytes) -> list[ScalarValue]:
    try:
        return list(event_file.scalars(content))
    except (ParseError, OverflowError):
        return []


def _next_header(data: bytes, start: int) -> int:
    """Where the next record begins; -1: nowhere in these bytes."""
    candidate = _LENGTH.search(data, start)
    while candidate is not None and candidate.start() + HEADER_BYTES <= len(data):
        position = candidate.start()
        (checksum,) = struct.unpack_from("<I", data, position + 8)
        if masked_crc(data[position : position + 8]) == checksum:
            return position
        candidate = _LENGTH.search(data, position + 1)
    return -1
