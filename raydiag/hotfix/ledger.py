"""What the head remembers of rollouts: one JSON file for each, replaced whole at every step.

~/.raydiag/rollouts/<id>.json, of the user whose Ray runs on the head. The nodes' journals say what
was done to files; the ledger says which nodes were to change, in which order, and why it ended.
Whoever drives a rollout holds the file `lock` there, which the kernel lets go with its process.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Optional

from raydiag.errors import CannotRun, UsageError
from raydiag.file_writing import write_all, write_file
from raydiag.hotfix.journal import is_rollout, number_of, sync_directory
from raydiag.untrusted import parsed, regular

_SUFFIX = ".json"
_STOP = ".stop"
_LOCK = "lock"
_LIMIT_BYTES = 64 << 20
RUNNING = "running"


class Ledger:
    """The files of one directory. Every method raises CannotRun where that cannot be had."""

    def __init__(self, directory: Optional[str] = None) -> None:
        self.directory = directory or os.path.join(os.path.expanduser("~"), ".raydiag", "rollouts")

    @contextlib.contextmanager
    def lock(
        self, rollout: str, patience_s: float = 1.0, waiting: Callable[[], object] = lambda: None
    ) -> Iterator[None]:
        """Be the only driver of this head; `waiting` is called at each look at the lock.

        Raises CannotRun when somebody else is.
        """
        with self._explained():
            os.makedirs(self.directory, mode=0o700, exist_ok=True)
            fd = os.open(self._path(_LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            limit = time.monotonic() + patience_s
            while not _locked(fd):
                if time.monotonic() > limit:
                    holder = _holder(fd)
                    text = f"rollout {holder or '(unknown)'} is at work on this cluster: wait for "
                    text += f"its end, or stop it: raydiag hotfix rollback {holder}"
                    raise CannotRun(text)
                waiting()
                time.sleep(0.2)
            with contextlib.suppress(OSError):  # the name is for people; a full disk has no room
                os.ftruncate(fd, 0)
                os.pwrite(fd, rollout.encode(), 0)
            yield
        finally:
            os.close(fd)

    def at_work(self) -> str:
        """The rollout that is driven right now; "" when none is."""
        try:
            fd = os.open(self._path(_LOCK), os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return ""
        try:
            return "" if _locked(fd) else _holder(fd) or "(unknown)"
        finally:
            os.close(fd)

    def write(self, record: Mapping[str, Any]) -> None:
        """Keep the record: afterwards the old one or this one is on the disk, never a part."""
        path = self._path(f"{record['rollout']}{_SUFFIX}")
        with self._explained():
            write_file(path, json.dumps(record).encode())
            sync_directory(self.directory)

    def read(self, rollout: str) -> Optional[dict[str, Any]]:
        """The record; None when there is none. Raises CannotRun when it cannot be understood."""
        if not is_rollout(rollout):
            raise UsageError(f"not the id of a rollout: {rollout[:80]!r}")
        path = self._path(f"{rollout}{_SUFFIX}")
        with self._explained():
            try:
                with open(path, "rb", opener=regular) as file:
                    text = file.read(_LIMIT_BYTES)
            except FileNotFoundError:
                return None
        with contextlib.suppress(ValueError):
            record = parsed(text, _LIMIT_BYTES)
            if isinstance(record, dict):
                return record
        raise CannotRun(f"{path}: is not a record of a rollout")

    def all(self) -> list[dict[str, Any]]:
        """Every record that can be read, the oldest first."""
        try:
            names = os.listdir(self.directory)
        except OSError:
            return []
        records = []
        for name in names:
            with contextlib.suppress(CannotRun, UsageError):
                record = name.endswith(_SUFFIX) and self.read(name[: -len(_SUFFIX)])
                if record:
                    records.append(record)
        records.sort(key=lambda record: (number_of(record.get("began_at")), str(record["rollout"])))
        return records

    def by_rollout(self) -> dict[str, dict[str, Any]]:
        """Every record that can be read, by the rollout's id."""
        return {str(record["rollout"]): record for record in self.all()}

    def ask_to_stop(self, rollout: str, who: str) -> None:
        """Tell the driver of that rollout, if there is one, to stop and roll back."""
        path = self._path(rollout + _STOP)
        with self._explained():
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                with contextlib.suppress(OSError):  # the file itself is what asks
                    write_all(fd, who.encode())
            finally:
                os.close(fd)

    def stop_asked(self, rollout: str) -> str:
        """Who asked this rollout to stop; "" when nobody did."""
        try:
            with open(self._path(rollout + _STOP), "rb", opener=regular) as file:
                return file.read(200).decode("utf-8", "replace").strip() or "somebody"
        except OSError:
            return ""

    def _path(self, name: str) -> str:
        return os.path.join(self.directory, name)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            words = f"{self.directory}: cannot keep a record of the rollout: {error.strerror}"
            raise CannotRun(words) from None


def _holder(fd: int) -> str:
    return os.pread(fd, 200, 0).decode("utf-8", "replace").strip()


def _locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
