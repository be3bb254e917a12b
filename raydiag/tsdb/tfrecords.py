"""Records of a whole event file, each checked; the format is that of `event_file`.

A file that is still written ends within a record, which is normal. A record whose content is
damaged is left out; behind a damaged length nothing can be found any more.

Source: as of `event_file`.
"""

import struct
from dataclasses import dataclass

from raydiag.event_file import FOOTER_BYTES, HEADER_BYTES, masked_crc

_LARGE_BYTES = 1 << 20  # longer than any scalar: passed over


@dataclass(frozen=True)
class Records:
    """What is whole of a file."""

    contents: tuple[bytes, ...]
    cut: bool  # it ends within a record
    damage: str = ""  # what is wrong with it, in one line


def scan(data: bytes) -> Records:
    """All records whose checksums fit, in order."""
    contents: list[bytes] = []
    position, cut, damage, damaged = 0, False, "", 0
    while position < len(data) and not cut:
        start = position + HEADER_BYTES
        if start > len(data):
            cut = True
            break
        length, checksum = struct.unpack_from("<QI", data, position)
        if masked_crc(data[position : position + 8]) != checksum:
            lost_bytes = len(data) - position
            damage = f"damaged at byte {position}: the {lost_bytes} bytes from there on are lost"
            break
        position = start + length + FOOTER_BYTES
        cut = position > len(data)
        if not cut and length <= _LARGE_BYTES:
            content = data[start : start + length]
            (checksum,) = struct.unpack_from("<I", data, start + length)
            if masked_crc(content) == checksum:
                contents.append(content)
            else:
                damaged += 1
    if damaged:
        damage = "; ".join(filter(None, (f"{damaged} records are damaged and left out", damage)))
    return Records(tuple(contents), cut, damage)
