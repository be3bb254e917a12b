"""TensorBoard event files: host and time by the name, the records inside, and their scalars.

    events.out.tfevents.1795000200.mi2033.cluster.local

    length (8 bytes, little endian)  its checksum (4)  content  its checksum (4)

Checksums are CRC-32C, rotated and offset. A file that is still written ends within a record, which
is normal. Standard library only, Python 3.9.

Source: TensorFlow, core/lib/io/record_writer.cc, core/lib/hash/crc32c.h, core/util/event.proto,
core/framework/summary.proto and tensor.proto; names as in core/util/events_writer.cc.
"""

from __future__ import annotations

import itertools
import re
import struct
from collections.abc import Iterator
from typing import NamedTuple, Optional

from raydiag import protobuf
from raydiag.errors import ParseError

HEADER_BYTES, FOOTER_BYTES = 12, 4

_NAME = re.compile(r"^events\.out\.tfevents\.(?P<created>\d{1,12})\.(?P<host>.+)$")
_POLYNOMIAL = 0x82F63B78  # of CRC-32C, reflected
_CRC_MASK = 0xA282EAD8
_FORMS = {1: "f", 2: "d", 3: "i", 9: "q"}  # DataType: float, double, int32, int64
_VALUES = {5: "f", 6: "d"}  # TensorProto: float_val, double_val
_COUNTS = (7, 10)  # int_val, int64_val


class Name(NamedTuple):
    """What a file's name says."""

    created: float  # Unix seconds
    host: str  # with whatever the writer put after it, e.g. "mi2033.4711.0.v2"

    def is_of(self, host: str) -> bool:
        """Compared between dots, so that host001 is not host0012; either may be short or whole."""
        short = host if host.replace(".", "").isdigit() else host.split(".", 1)[0]
        return self.host.split(".", 1)[0] == short or f"{self.host}.".startswith(f"{host}.")


class ScalarValue(NamedTuple):
    """One number of one step."""

    tag: str  # "learning/loss"
    step: int
    time: float  # Unix seconds, when training wrote it
    value: float  # may be NaN or infinite


def name_of(path: str) -> Optional[Name]:
    """None for what is no event file by its name."""
    match = _NAME.match(path.rsplit("/", 1)[-1])
    return Name(float(match["created"]), match["host"]) if match else None


def metric_name(tag: str) -> str:
    """`tb_learning_loss` of "learning/loss", as the bridge names it."""
    return "tb_" + re.sub(r"[^a-zA-Z0-9]", "_", tag)


# ---- checksums


def _table() -> tuple[int, ...]:
    table = list(range(256))
    for _ in range(8):
        table = [crc >> 1 ^ _POLYNOMIAL * (crc & 1) for crc in table]
    return tuple(table)


_CRC_TABLE = _table()


def crc32c(content: bytes) -> int:
    """Castagnoli's checksum."""
    crc, table = 0xFFFFFFFF, _CRC_TABLE
    for byte in content:
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def masked_crc(content: bytes) -> int:
    """As it stands behind the content."""
    crc = crc32c(content)
    return ((crc >> 15 | crc << 17) + _CRC_MASK) & 0xFFFFFFFF


# ---- events


def scalars(event: bytes) -> Iterator[ScalarValue]:
    """The scalars of one Event message. Raises ParseError where it is none."""
    time, step, summaries = 0.0, 0, []
    for number, value in protobuf.fields(event):
        if number == 1:
            time = protobuf.double(value)
        elif number == 2:
            step = protobuf.signed(value)
        elif number == 5:
            summaries.append(protobuf.content(value))
    for number, value in itertools.chain.from_iterable(map(protobuf.fields, summaries)):
        if number == 1:
            tag, scalar = _tagged(protobuf.content(value))
            if tag and scalar is not None:
                yield ScalarValue(tag, step, time, scalar)


def _tagged(message: bytes) -> tuple[str, Optional[float]]:
    """Tag and number of one value of a summary; None for what is no single number."""
    tag, scalar = "", None
    for number, value in protobuf.fields(message):
        if number == 1:
            tag = protobuf.content(value).decode("utf-8", "replace")
        elif number == 2:
            scalar = protobuf.single(value)
        elif number == 8:
            scalar = _tensor_number(protobuf.content(value))
    return tag, scalar


def _tensor_number(tensor: bytes) -> Optional[float]:
    """The value of a tensor with one numeric element; None for others, such as texts."""
    data_type = ""
    elements: list[float] = []
    for number, value in protobuf.fields(tensor):
        if number == 1:
            data_type = _FORMS.get(protobuf.signed(value), "")
        elif number == 4 and data_type:
            elements += _elements(protobuf.content(value), data_type)
        elif number in _VALUES:  # packed, or one of them
            elements += _elements(protobuf.content(value), _VALUES[number])
        elif number in _COUNTS:
            elements += map(float, protobuf.integers(value))
    return elements[0] if data_type and len(elements) == 1 else None


def _elements(content: bytes, form: str) -> list[float]:
    """The first two, which is enough to tell one from several."""
    size = struct.calcsize(f"<{form}")
    if len(content) % size:
        raise ParseError("a tensor of half an element")
    count = min(2, len(content) // size)
    return list(map(float, struct.unpack_from(f"<{count}{form}", content)))
