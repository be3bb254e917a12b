"""What rollouts did on this node: a file per rollout, a JSON object per line, only appended.

A record is appended by a single write and reaches the disk before the call returns, so that a
rollout that is killed at any moment leaves whole records and at most one torn line at the end.
The old contents of files are kept beside, named by their hash: a change can be undone from here.

    {"at": 1770926290.1, "who": "ops@login1", "event": "intent", "name": "gpu_metrics_plugin.sh",
     "path": "/artifact/utils/gpu_metrics_plugin.sh", "old_sha256": "9f...", "new_sha256": "3c..."}
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import math
import os
import re
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Optional

from raydiag import ownership
from raydiag.errors import CannotRun
from raydiag.file_writing import write_file
from raydiag.untrusted import parsed, regular

_ROLLOUT = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,63}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_SUFFIX = ".jsonl"
_READ_LIMIT_BYTES = 16 << 20
CLOSED = "closed"
_LOCK, _LOCK_S = "lock", 10.0
_LOCK_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class JournalError(CannotRun):
    """The journal cannot be written or read; nothing may be changed then."""


@dataclass(frozen=True)
class History:
    """Records of one rollout, oldest first; `torn`: the last line was not written whole."""

    rollout: str
    records: list[dict[str, Any]]
    torn: bool = False

    @property
    def began_at(self) -> float:
        """Unix seconds; 0 where there is no record."""
        return number_of(self.records[0].get("at")) if self.records else 0.0

    @property
    def ended(self) -> str:
        """The outcome that it was closed with; "" while it is open."""
        last = self.records[-1] if self.records else {}
        return str(last.get("outcome") or "closed") if last.get("event") == CLOSED else ""


def default_directory() -> str:
    """~/.raydiag/hotfix/<host>: homes may be shared between nodes."""
    home = os.path.expanduser("~")
    return os.path.join(home, ".raydiag", "hotfix", short_host())


def short_host() -> str:
    """This machine's name up to its first dot."""
    return socket.gethostname().split(".")[0] or "localhost"


def sha256(data: bytes) -> str:
    """Hash of a content, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def is_rollout(name: str) -> bool:
    """Whether it can name a rollout: letters, digits and "-", at most 64."""
    return bool(_ROLLOUT.fullmatch(name))


class Journal:
    """The records in one directory, which the first record creates for its owner alone."""

    def __init__(self, directory: Optional[str] = None) -> None:
        self.directory = directory or default_directory()

    def append(self, rollout: str, who: str, event: str, **fields: object) -> float:
        """Record an event; returns its time. Raises JournalError when it is not on the disk."""
        if not is_rollout(rollout):
            raise JournalError(f"not the name of a rollout: {rollout[:80]!r}")
        at = time.time()
        record = {"at": at, "who": who, "event": event, **fields}
        line = json.dumps(record).encode() + b"\n"
        try:
            self._make_directory()
            self._append(self._path(rollout), line)
        except OSError as error:
            raise JournalError(f"{self.directory}: {error.strerror}") from None
        return at

    def _append(self, path: str, line: bytes) -> None:
        fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            size = os.fstat(fd).st_size
            if size and os.pread(fd, 1, size - 1) != b"\n":
                line = b"\n" + line  # the torn line of one that was killed stays a line of its own
            if os.write(fd, line) != len(line):
                raise OSError(28, "no space left: the record was not written whole")
            os.fsync(fd)
        finally:
            os.close(fd)
        sync_directory(self.directory)

    def history(self, rollout: str) -> History:
        """Records of that rollout; none when this node does not know it. Raises JournalError."""
        if not is_rollout(rollout):
            raise JournalError(f"not the name of a rollout: {rollout[:80]!r}")
        try:
            text = _content(self._path(rollout))
        except FileNotFoundError:
            return History(rollout, [])
        records = []
        for line in text.split(b"\n"):
            with contextlib.suppress(ValueError):
                record = parsed(line)
                if isinstance(record, dict):
                    records.append(record)
        return History(rollout, records, torn=bool(text) and not text.endswith(b"\n"))

    def histories(self) -> Iterator[History]:
        """Every rollout that this node knows, in the order of their beginnings."""
        try:
            names = os.listdir(self.directory)
        except FileNotFoundError:
            return
        except OSError as error:
            raise JournalError(f"{self.directory}: {error.strerror}") from None
        rollouts = [name[: -len(_SUFFIX)] for name in names if name.endswith(_SUFFIX)]
        histories = [self.history(rollout) for rollout in rollouts if is_rollout(rollout)]
        yield from sorted(histories, key=lambda history: history.began_at)

    def unfinished(self, but: str = "") -> list[str]:
        """Rollouts that were not closed, without that one."""
        unfinished = [history.rollout for history in self.histories() if not history.ended]
        return [rollout for rollout in unfinished if rollout != but]

    def keep(self, content: bytes) -> str:
        """Keep a file's content; returns its hash. Raises JournalError."""
        digest = sha256(content)
        path = self._backup_path(digest)
        try:
            self._make_directory()
            try:
                self.kept(digest)  # then a way back needs no room on a disk that has become full
            except JournalError:
                write_file(path, content)
            sync_directory(self.directory)
        except OSError as error:
            raise JournalError(f"{path}: {error.strerror}") from None
        return digest

    def kept(self, digest: str) -> bytes:
        """Content of that hash. Raises JournalError when it is not here, or is not whole."""
        path = self._backup_path(digest)
        try:
            content = _content(path)
        except FileNotFoundError as error:
            raise JournalError(f"{path}: {error.strerror}") from None
        if sha256(content) != digest:
            raise JournalError(f"{path}: its content is not what was kept")
        return content

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """While no other rollout changes a file of this node. Raises JournalError."""
        try:
            self._make_directory()
            fd = os.open(os.path.join(self.directory, _LOCK), _LOCK_FLAGS, 0o600)
        except OSError as error:
            raise JournalError(f"{self.directory}: {error.strerror}") from None
        try:
            deadline = time.monotonic() + _LOCK_S
            while not _is_locked(fd):
                if time.monotonic() > deadline:
                    raise JournalError("another rollout is changing files here: try again")
                time.sleep(0.02)
            yield
        finally:
            os.close(fd)

    def _make_directory(self) -> None:
        os.makedirs(self.directory, mode=0o700, exist_ok=True)
        status = os.stat(self.directory)
        if status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise OSError(1, "others may write there")
        # What would not be believed later is refused before anything is changed.
        reason = ownership.changeable(self.directory)
        if reason:
            raise OSError(1, reason)

    def _path(self, rollout: str) -> str:
        return os.path.join(self.directory, f"{rollout}{_SUFFIX}")

    def _backup_path(self, digest: str) -> str:
        if not _DIGEST.fullmatch(digest):
            raise JournalError(f"not the hash of a content: {digest[:80]!r}")
        return os.path.join(self.directory, f"{digest}.old")


def _content(path: str) -> bytes:
    """A file of the journal. Raises FileNotFoundError, else JournalError; also where others may
    have written it.
    """
    try:
        reason = ownership.changeable(path)
        if reason:
            raise JournalError(f"{path} is not believed: {reason}")
        # Not as the opener: Python would call ioctl() then, which a guarded reader may not.
        with open(regular(path, os.O_RDONLY), "rb") as file:
            return file.read(_READ_LIMIT_BYTES)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise JournalError(f"{path}: {error.strerror}") from None


def _is_locked(fd: int) -> bool:
    """Whether we hold the lock now; also where the file system has none."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # what is left is that a file is read again just before it is replaced
    return True


def number_of(value: object) -> float:
    """A number of a record; 0 for anything else."""
    try:
        number = float(value) if isinstance(value, (int, float)) else 0.0
    except OverflowError:
        return 0.0
    return number if math.isfinite(number) else 0.0


def sync_directory(path: str) -> None:
    """A new or renamed name survives a crash of the machine only after this."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
