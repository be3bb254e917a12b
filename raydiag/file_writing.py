"""Write all of some bytes: a single write may take a part of them."""

from __future__ import annotations

import os


def write_all(fd: int, data: bytes) -> None:
    """Write all of it. Raises OSError."""
    unwritten = memoryview(data)
    while unwritten:
        unwritten = unwritten[os.write(fd, unwritten) :]


def memory_file(name: str, content: bytes) -> int:
    """A file without a place that has this content, and lives as long as its descriptor."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC)
    try:
        write_all(fd, content)
    except OSError:
        os.close(fd)
        raise
    return fd
