"""Write all of some bytes: a single write may take a part of them."""

from __future__ import annotations

import contextlib
import os


def write_all(fd: int, data: bytes) -> None:
    """Write all of it. Raises OSError."""
    unwritten = memoryview(data)
    while unwritten:
        unwritten = unwritten[os.write(fd, unwritten) :]


def write_file(path: str, content: bytes, mode: int = 0o600, to_disk: bool = True) -> None:
    """Afterwards the old file or this one is there, never a part, also after a crash of ours.

    `to_disk`: also after one of the machine, once the directory is synchronised. Raises OSError.
    """
    new = f"{path}.{os.getpid()}"
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(new, flags, mode), "wb") as file:
            file.write(content)
            file.flush()
            if to_disk:
                os.fsync(file.fileno())
        os.replace(new, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(new)  # half of it would take the room that is missing
        raise


def memory_file(name: str, content: bytes) -> int:
    """A file without a place that has this content, and lives as long as its descriptor."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC)
    try:
        write_all(fd, content)
    except OSError:
        os.close(fd)
        raise
    return fd
