"""The end of a log file that others write to: its text from a byte on, and its size."""

from __future__ import annotations

import os
from typing import Optional

from raydiag.untrusted import regular

TAIL_BYTES = 4 << 20


def tail(path: str, begin: Optional[int] = None) -> str:
    """The file's text from that byte on, or its last 4 MiB; "" when it cannot be read."""
    try:
        with open(regular(path, os.O_RDONLY), "rb") as file:
            bytes_now = os.fstat(file.fileno()).st_size
            file.seek(max(0, bytes_now - TAIL_BYTES) if begin is None else begin)
            return file.read(TAIL_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


def size(path: str) -> int:
    """Bytes of a file; 0 when there is none."""
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
