"""A directory of our own for one temporary server; what a killed run left is removed by the next.

The owner's file holds a pid for people, and a lock for us: the kernel lets go of the lock when the
owner ends, however it ends, also in another PID namespace that shares the directory.

Source: flock(2).
"""

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from raydiag.errors import CannotRun

_PREFIX = "raydiag-tsdb-"
_OWNER = "owner"
_BEING_MADE_S = 600.0  # a directory without an owner's file is left alone for this time


@contextlib.contextmanager
def directory() -> Iterator[Path]:
    """A new directory that only this user can enter, gone afterwards. Raises CannotRun."""
    remove_leftovers()
    try:
        path = Path(tempfile.mkdtemp(prefix=_PREFIX))
    except OSError as error:
        raise CannotRun(_no_room(error)) from None
    try:
        with contextlib.closing(_own(path)):
            yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _own(path: Path) -> IO[str]:
    """The owner's file, locked for as long as it is open."""
    try:
        owner = open(path / _OWNER, "w", encoding="ascii")  # noqa: SIM115
        fcntl.flock(owner, fcntl.LOCK_EX)
        owner.write(f"pid {os.getpid()}\n")  # only now: without it, the lock is not yet held
        owner.flush()
    except OSError as error:
        raise CannotRun(_no_room(error)) from None
    return owner


def remove_leftovers() -> list[Path]:
    """Remove the directories of runs of this user that are over; returns which."""
    removed = []
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        if _is_ours(path) and _is_over(path):
            shutil.rmtree(path, ignore_errors=True)
            removed.append(path)
    return removed


def _is_ours(path: Path) -> bool:
    """A real directory of this user that nobody else can write to."""
    try:
        status = path.lstat()
    except OSError:
        return False
    private = stat.S_IMODE(status.st_mode) == 0o700
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and private


def _is_over(path: Path) -> bool:
    try:
        with open(path / _OWNER, "rb") as owner:
            fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if owner.read():
                return True
    except BlockingIOError:
        return False
    except OSError:
        pass
    # No owner yet: it is being made, unless that was long ago.
    try:
        return time.time() - path.lstat().st_mtime > _BEING_MADE_S
    except OSError:
        return False


def _no_room(error: OSError) -> str:
    parent = tempfile.gettempdir()
    return f"no place for a private view in {parent}: {error.strerror}; TMPDIR names another one"
