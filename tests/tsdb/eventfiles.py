"""Writes TensorBoard event files by hand, so that their reader is tested against another hand.

Source: TensorFlow, record_writer.cc, event.proto, summary.proto, tensor.proto.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path


def crc32c(content: bytes) -> int:
    """Bit by bit."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def record(content: bytes) -> bytes:
    def masked(part: bytes) -> bytes:
        crc = crc32c(part)
        return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)

    length = struct.pack("<Q", len(content))
    return length + masked(length) + content + masked(content)


def varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def message(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def event(time: float, step: int, values: Iterable[bytes]) -> bytes:
    summary = b"".join(message(1, value) for value in values)
    body = message(5, summary) if summary else message(3, b"brain.Event:2")
    return b"\x09" + struct.pack("<d", time) + b"\x10" + varint(step) + body


def scalar(tag: str, value: float) -> bytes:
    return message(1, tag.encode()) + b"\x15" + struct.pack("<f", value)


def tensor(tag: str, dtype: int, content: bytes) -> bytes:
    """`content`: fields of a TensorProto besides its type."""
    return message(1, tag.encode()) + message(8, b"\x08" + varint(dtype) + content)


def write(
    directory: Path,
    scalars: Mapping[str, Sequence[tuple[int, float, float]]],
    host: str = "mi10",
    created: int = 1_795_300_000,
) -> Path:
    """`scalars`: (step, wall time, value) by tag; one event for each, as tensorboardX writes."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"events.out.tfevents.{created}.{host}"
    rows = [(time, step, tag, value) for tag, all_ in scalars.items() for step, time, value in all_]
    events = [event(float(created), 0, ())]
    events += [event(time, step, [scalar(tag, value)]) for time, step, tag, value in sorted(rows)]
    path.write_bytes(b"".join(map(record, events)))
    return path
