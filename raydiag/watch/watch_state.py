"""A watcher's memory on disk, and the lock that lets one watcher at a job.

The lock is the kernel's: a dead watcher holds none.
"""

import fcntl
import json
import os
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from raydiag import records, untrusted
from raydiag.errors import CannotRun, ParseError
from raydiag.file_writing import write_file
from raydiag.watch.following import Memory

_VERSION = 1
_KEPT_EVENTS = 200


@dataclass(frozen=True)
class _Written:
    """The state's own fields."""

    version: int
    words: tuple[str, ...]
    directory: str
    written: float


@dataclass
class WatchState:
    """What is written down after each look."""

    memory: Memory
    words: list[str]  # of the command that watches
    directory: str = "."  # where it was called
    events: list[dict[str, Any]] = field(default_factory=list)  # the newest, oldest first
    written: float = 0.0

    def add(self, event: dict[str, Any]) -> None:
        """Keeps the newest ones only."""
        self.events = [*self.events, event][-_KEPT_EVENTS:]


def usual_path(name: str) -> Path:
    """Of the state of what is watched under this name, below ~/.raydiag/watch."""
    return Path.home() / ".raydiag" / "watch" / f"{sha256(name.encode()).hexdigest()[:16]}.json"


def newest_path() -> Path | None:
    """The state that was written last."""
    states = list((Path.home() / ".raydiag" / "watch").glob("*.json"))
    return max(states, key=lambda path: path.stat().st_mtime, default=None)


def read_state(path: Path) -> WatchState | None:
    """None where there is none. Raises CannotRun for a file that is no state of ours."""
    try:
        with open(path, encoding="utf-8", opener=untrusted.regular) as file:
            fields = untrusted.parsed(file.read(untrusted.LIMIT_BYTES + 1))
        own = records.decode(_Written, fields)
        if own.version != _VERSION:
            raise ValueError("of another version")
        memory = records.decode(Memory, fields.get("memory"))
        events = [event for event in fields.get("events", ()) if type(event) is dict]
        return WatchState(memory, list(own.words), own.directory, events, own.written)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CannotRun(f"{path}: {error.strerror}") from None
    except (ValueError, ParseError, TypeError, AttributeError) as error:
        hint = "name another file with --state, or remove it"
        raise CannotRun(f"{path} is no state of `raydiag watch` ({error}): {hint}") from None


def write_state(path: Path, state: WatchState) -> None:
    """Whole or not at all. Raises CannotRun."""
    state.written = time.time()
    fields = {"version": _VERSION, **asdict(state)}
    try:
        write_file(str(path), json.dumps(fields).encode(), to_disk=False)
    except OSError as error:
        raise CannotRun(f"{path}: the state cannot be written: {error.strerror}") from None


class WatchLock:
    """Held for as long as this process lives, or until it is closed."""

    def __init__(self, path: Path) -> None:
        """Raises CannotRun where another watcher holds it."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            self._fd = os.open(f"{path}.lock", flags, 0o600)
        except OSError as error:
            raise CannotRun(f"{path}.lock: {error.strerror}") from None
        content = os.read(self._fd, 20)
        if content.strip() and not content.strip().isdigit():
            os.close(self._fd)
            raise CannotRun(f"{path}.lock is no lock of raydiag: name another file with --state")
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            pid = content.decode("ascii").strip() or "unknown"
            os.close(self._fd)
            raise CannotRun(f"process {pid} watches this job already ({path})") from None
        os.lseek(self._fd, 0, os.SEEK_SET)
        os.ftruncate(self._fd, 0)
        os.write(self._fd, str(os.getpid()).encode())

    def close(self) -> None:
        """Let another one watch."""
        with suppress(OSError):
            os.close(self._fd)
