"""What was decided about a job, a JSON object a line: only ever added to, on disk before it counts.

A line that is not whole was never on disk, and nothing followed from it: it is cut off. The lock is
the kernel's: a dead process holds none.
"""

import fcntl
import json
import os
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path

from raydiag import records
from raydiag.errors import CannotRun, ParseError
from raydiag.file_writing import write_all
from raydiag.recovery.decision import (
    EndedAttempt,
    RecoveryAction,
    RecoveryDecision,
    RecoveryHistory,
)

_MOST_BYTES = 16 << 20
_RESTARTS = (RecoveryAction.REATTEMPT.value, RecoveryAction.EVICT.value)


@dataclass(frozen=True)
class JournalEntry:
    """One line."""

    at: float  # Unix s
    job: str
    attempt: EndedAttempt
    action: str
    reason: str
    hosts: tuple[str, ...] = ()
    not_before: float = 0.0


def usual_path(job: str) -> str:
    """Of the journal of what goes by that name, below ~/.raydiag/recover. Raises CannotRun."""
    directory = Path.home() / ".raydiag" / "recover"
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise CannotRun(f"{directory}: {error.strerror}: name a file with --journal") from None
    return str(directory / f"{sha256(job.encode()).hexdigest()[:16]}.journal")


class RecoveryJournal:
    """Held by one process at a time, until it is closed. All methods raise CannotRun."""

    def __init__(self, path: str) -> None:
        self.path = path
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            self._fd = os.open(path, flags, 0o600)
        except OSError as error:
            raise CannotRun(f"{path}: {error.strerror}") from None
        try:
            self.entries = self._locked_entries()
        except CannotRun:
            self.close()
            raise

    def _locked_entries(self) -> tuple[JournalEntry, ...]:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise CannotRun(f"{self.path}: another `raydiag recover` holds it") from None
        try:
            content = os.pread(self._fd, _MOST_BYTES + 1, 0)
        except OSError as error:
            raise CannotRun(f"{self.path}: {error.strerror}") from None
        if len(content) > _MOST_BYTES:
            raise CannotRun(f"{self.path}: longer than {_MOST_BYTES >> 20} MiB: move it away")
        whole = content[: content.rfind(b"\n") + 1]
        rest = content[len(whole) :]
        if _is_whole(rest):  # all but its newline came to the disk
            self._write(b"\n")
            whole = content = content + b"\n"
        entries = tuple(map(self._entry, whole.splitlines()))
        if whole != content:
            self._cut(whole, content[len(whole) :])
        return entries

    def _cut(self, whole: bytes, rest: bytes) -> None:
        """The rest is ours only where it begins as our lines do."""
        if not b'{"at": '.startswith(rest[:7]):
            raise CannotRun(f"{self.path} is no journal of `raydiag recover`: name another file")
        try:
            os.ftruncate(self._fd, len(whole))
        except OSError as error:
            raise CannotRun(f"{self.path}: {error.strerror}") from None

    def _entry(self, line: bytes) -> JournalEntry:
        try:
            entry = records.decode(JournalEntry, json.loads(line))
            RecoveryAction(entry.action)
        except (ValueError, RecursionError, ParseError) as error:
            hint = "nothing is decided without it: move it away to begin anew"
            raise CannotRun(f"{self.path}: a line is damaged ({error}): {hint}") from None
        return entry

    def _write(self, content: bytes) -> None:
        """On disk when this returns, the name of the file too."""
        try:
            write_all(self._fd, content)
            os.fsync(self._fd)
            directory = os.open(os.path.dirname(self.path) or ".", os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
        except OSError as error:
            raise CannotRun(f"{self.path}: {error.strerror}") from None

    def add(
        self, job: str, attempt: EndedAttempt, decision: RecoveryDecision, at: float
    ) -> JournalEntry:
        """On disk when this returns."""
        action, reason = decision.action.value, decision.reason
        entry = JournalEntry(at, job, attempt, action, reason, decision.hosts, decision.not_before)
        self._write(json.dumps(asdict(entry)).encode() + b"\n")
        self.entries = (*self.entries, entry)
        return entry

    def decided(self, attempt: EndedAttempt) -> JournalEntry | None:
        """What was decided about this very attempt, where a new attempt was to follow."""
        for entry in reversed(self.entries):
            if entry.attempt.ended == attempt.ended and entry.action in _RESTARTS:
                return entry
        return None

    def history(self) -> RecoveryHistory:
        """Of the attempts that were to be followed by another."""
        restarts = [entry for entry in self.entries if entry.action in _RESTARTS]
        evicted: dict[str, None] = {}
        for entry in restarts:
            evicted.update(dict.fromkeys(entry.hosts))
        stops = [entry.reason for entry in self.entries if entry.action == "STOP"]
        return RecoveryHistory(
            tuple(entry.attempt for entry in restarts),
            tuple(entry.at for entry in restarts),
            tuple(evicted),
            stops[0] if stops else "",
        )

    def close(self) -> None:
        """Let another process have it."""
        os.close(self._fd)


def _is_whole(line: bytes) -> bool:
    """Whether it is an entry."""
    try:
        records.decode(JournalEntry, json.loads(line))
    except (ValueError, RecursionError, ParseError):
        return False
    return True
