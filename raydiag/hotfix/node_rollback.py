"""What rollouts have done here, by the journal and the files themselves; and how to undo it.

The journal says what a file was and what it was to become, and the file's hash says which of the
two it is. So the answer is true whenever the rollout was killed, also between two records.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Optional

from raydiag.hotfix import messages, replace
from raydiag.hotfix.journal import History, Journal, JournalError, number_of
from raydiag.hotfix.messages import FileStatus, RestoredFile, Rollback, RolledBack
from raydiag.hotfix.process import SCRIPT
from raydiag.hotfix.replace import Current, Replacement, ReplaceRefused

_RESTORE_EVENTS = ("restore intent", "restored")
_FILE_EVENTS = ("intent", "replaced", *_RESTORE_EVENTS)
_RESTORED = ("restored", "removed", "already")


@dataclass
class _Change:
    """One file of one rollout, first to last record."""

    name: str
    path: str
    old_sha256: str  # before the rollout; "" where there was no file
    new_sha256: list[str]  # what it was to become; more than one if it was replaced again
    event: str
    at: float
    who: str

    def current(self) -> Current:
        """The file as it is. Raises ReplaceRefused or OSError."""
        return replace.current(os.path.dirname(self.path), os.path.basename(self.path))

    def content(self) -> tuple[str, str]:
        """Which of its contents the file has, and its hash."""
        try:
            digest = self.current().sha256
        except (ReplaceRefused, OSError):
            return "unreadable", ""
        if digest == self.old_sha256:
            return "old", digest
        if digest in self.new_sha256:
            return "new", digest
        return "neither" if digest else "missing", digest


def _changes(history: History) -> Iterator[_Change]:
    """One for each path, in order. Records that cannot be understood are ignored."""
    changes: dict[str, _Change] = {}
    for record in history.records:
        event, path = record.get("event"), record.get("path")
        if event not in _FILE_EVENTS or not isinstance(path, str) or not _can_be(path):
            continue
        change = changes.get(path)
        if change is None:
            old_sha256 = str(record.get("old_sha256", ""))
            change = changes[path] = _Change("", path, old_sha256, [], "", 0.0, "")
        change.name, change.who = str(record.get("name", "")), str(record.get("who", ""))
        change.event, change.at = str(event), number_of(record.get("at"))
        if event not in _RESTORE_EVENTS:
            change.new_sha256.append(str(record.get("new_sha256", "")))
    yield from changes.values()


def _can_be(path: str) -> bool:
    try:
        return b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        return False


def statuses(journal: Journal, rollout: str = "") -> messages.Statuses:
    """Of that rollout, or of all. Raises JournalError."""
    histories = [journal.history(rollout)] if rollout else journal.histories()
    known = [_status(history) for history in histories if history.records or history.torn]
    directories: set[str] = set()
    for status in known:
        directories.update(os.path.dirname(file.path) for file in status.files)
    leftovers: list[str] = []
    for directory in directories:
        leftovers += [os.path.join(directory, name) for name in replace.leftovers(directory)]
    return messages.Statuses(tuple(known), tuple(sorted(leftovers)))


def _status(history: History) -> messages.RolloutStatus:
    records, name = history.records, history.rollout
    who = str(records[0].get("who", "")) if records else ""
    files = tuple(map(functools.partial(_file_status, name), _changes(history)))
    restarts = sum(record.get("event") == "restart intent" for record in records)
    ended = (history.began_at, history.ended)
    return messages.RolloutStatus(name, who, *ended, files, restarts, history.torn)


def _file_status(rollout: str, change: _Change) -> FileStatus:
    content, digest = change.content()
    digests = (change.old_sha256, (change.new_sha256 or [""])[-1], digest)
    last = (change.event, change.at, change.who)
    return FileStatus(rollout, change.name, change.path, content, *digests, *last)


def rollback(
    journal: Journal, request: Rollback, directory: str, plugin_log_bytes: int
) -> RolledBack:
    """Give every file of the rollout its old content, unless somebody else changed it since.

    Only what a plan could have chosen in `directory`, whatever a record says. Raises JournalError.
    """
    history = journal.history(request.rollout)
    changes = [change for change in _changes(history) if request.name in ("", change.name)]
    if not changes:
        is_torn = history.torn and not history.records
        torn = "the record of this rollout is torn: it changed nothing yet"
        return RolledBack((), not is_torn, torn if is_torn else "this node has no record of it")
    files = []
    for change in reversed(changes):
        doubt = _doubt(request, change, directory)
        if doubt:
            files.append(RestoredFile(change.name, change.path, "refused", doubt))
        else:
            files.append(_restored_file(journal, request, change, plugin_log_bytes))
    replace.clean(directory)
    return RolledBack(tuple(files), all(file.outcome in _RESTORED for file in files))


def _doubt(request: Rollback, change: _Change, directory: str) -> str:
    """Why that record is not of a file that a plan would choose; "" when it is."""
    reason = replace.name_refusal(request.exporter, change.name)
    try:
        if not reason and replace.current(directory, change.name).path != change.path:
            reason = f"the journal has {change.path}, which is not {change.name} of {directory}"
    except ReplaceRefused as error:
        reason = str(error)
    return reason


def _restored_file(
    journal: Journal, request: Rollback, change: _Change, plugin_log_bytes: int
) -> RestoredFile:
    outcome, reason, restored_at = _restore(journal, request, change)
    _, digest = change.content()
    restart = change.name == SCRIPT and request.exporter == messages.SHELL
    now = (digest, restored_at, plugin_log_bytes, restart)
    return RestoredFile(change.name, change.path, outcome, reason, *now)


def _restore(journal: Journal, request: Rollback, change: _Change) -> tuple[str, str, float]:
    """Outcome, reason and time of it."""
    content, _ = change.content()
    if content == "old":
        return "already", "", 0.0
    if content != "new":
        return "refused", f"{change.path} is neither old nor new: it was changed since", 0.0
    old: Optional[bytes] = None
    try:
        if change.old_sha256:
            old = journal.kept(change.old_sha256)
        current = change.current()
        if current.sha256 not in change.new_sha256:
            raise ReplaceRefused(f"{change.path} was changed by someone else a moment ago")
        names = (request.rollout, request.who, change.name)
        replacement = Replacement(journal, *names, current, old, _RESTORE_EVENTS)
        replacement.run()
    except (ReplaceRefused, JournalError) as error:
        return "failed", str(error), 0.0
    return "removed" if old is None else "restored", "", replacement.at
