"""What rollouts have done here, told from the journal and the files themselves; and its undoing.

The journal says what a file was and what it was to become, and the file's hash says which of the
two it is. So the answer is true whenever the rollout was killed, also between two records.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from raydiag.hotfix import replace
from raydiag.hotfix.journal import History, Journal, JournalError
from raydiag.hotfix.messages import (
    SHELL,
    FileStatus,
    RestoredFile,
    Rollback,
    RolledBack,
    RolloutStatus,
    Statuses,
)
from raydiag.hotfix.process import SCRIPT
from raydiag.hotfix.replace import Current, Replacement, ReplaceRefused

_FILE_EVENTS = ("intent", "replaced", "restore intent", "restored")


@dataclass(frozen=True)
class _Change:
    """One file of one rollout, first to last record."""

    name: str
    path: str
    old_sha256: str  # before the rollout; "" where there was no file
    new_sha256: tuple[str, ...]  # what it was to become; more than one if it was replaced again
    event: str
    at: float
    who: str


def _changes(history: History) -> Iterator[_Change]:
    """One for each path, in order. Records that make no sense are passed over."""
    found: dict[str, _Change] = {}
    for record in history.records:
        event, path = record.get("event"), record.get("path")
        if event not in _FILE_EVENTS or not isinstance(path, str):
            continue
        first = found.get(path)
        new = () if event.startswith("resto") else (str(record.get("new_sha256", "")),)
        found[path] = _Change(
            name=str(record.get("name", "")),
            path=path,
            old_sha256=first.old_sha256 if first else str(record.get("old_sha256", "")),
            new_sha256=((*first.new_sha256, *new) if first else new),
            event=str(event),
            at=_number(record.get("at")),
            who=str(record.get("who", "")),
        )
    yield from found.values()


def _number(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0


def statuses(journal: Journal, rollout: str = "") -> Statuses:
    """Of that rollout, or of all. Raises JournalError."""
    histories = [journal.history(rollout)] if rollout else list(journal.histories())
    known = [_status(one) for one in histories if one.records or one.torn]
    places = {os.path.dirname(file.path) for one in known for file in one.files}
    left = [os.path.join(place, name) for place in places for name in replace.leftovers(place)]
    return Statuses(tuple(known), tuple(sorted(left)))


def _status(history: History) -> RolloutStatus:
    records = history.records
    return RolloutStatus(
        rollout=history.rollout,
        who=str(records[0].get("who", "")) if records else "",
        began_at=_number(records[0].get("at")) if records else 0.0,
        ended=history.ended,
        files=tuple(_file_status(history.rollout, change) for change in _changes(history)),
        restarts=sum(record.get("event") == "restart intent" for record in records),
        torn=history.torn,
    )


def _file_status(rollout: str, change: _Change) -> FileStatus:
    content, digest = _which(change)
    return FileStatus(
        rollout=rollout,
        name=change.name,
        path=change.path,
        content=content,
        old_sha256=change.old_sha256,
        new_sha256=change.new_sha256[-1] if change.new_sha256 else "",
        sha256=digest,
        event=change.event,
        at=change.at,
        who=change.who,
    )


def _now(change: _Change) -> Current:
    return replace.current(os.path.dirname(change.path), os.path.basename(change.path))


def _which(change: _Change) -> tuple[str, str]:
    """Which of its contents the file has, and its hash."""
    try:
        digest = _now(change).sha256
    except (ReplaceRefused, OSError):
        return "unreadable", ""
    if digest == change.old_sha256:
        return "old", digest
    if digest in change.new_sha256:
        return "new", digest
    return ("neither" if digest else "missing"), digest


def rollback(journal: Journal, request: Rollback, plugin_log_bytes: int) -> RolledBack:
    """Give every file of the rollout its old content, unless somebody else changed it since."""
    try:
        history = journal.history(request.rollout)
    except JournalError as error:
        return RolledBack((), False, str(error))
    changes = [one for one in _changes(history) if request.name in ("", one.name)]
    if not changes and history.torn and not history.records:
        return RolledBack((), False, "the record of this rollout is torn: it changed nothing yet")
    files = []
    for change in reversed(changes):
        restart = change.name == SCRIPT and request.exporter == SHELL
        outcome, reason, at = _restore(journal, request, change)
        _, digest = _which(change)
        files.append(
            RestoredFile(
                name=change.name,
                path=change.path,
                outcome=outcome,
                reason=reason,
                sha256=digest,
                at=at,
                plugin_log_bytes=plugin_log_bytes,
                restart=restart,
            )
        )
        if os.path.isdir(os.path.dirname(change.path)):
            replace.clean(os.path.dirname(change.path))
    done = all(one.outcome in ("restored", "removed", "already") for one in files)
    return RolledBack(tuple(files), done, "" if files else "this node has no record of it")


def _restore(journal: Journal, request: Rollback, change: _Change) -> tuple[str, str, float]:
    """Outcome, reason and time of it."""
    content, _ = _which(change)
    if content == "old":
        return "already", "", 0.0
    if content != "new":
        return "refused", f"{change.path} is neither old nor new: it was changed since", 0.0
    try:
        old = journal.kept(change.old_sha256) if change.old_sha256 else None
        now = _now(change)
        if now.sha256 not in change.new_sha256:
            raise ReplaceRefused(f"{change.path} was changed by somebody else a moment ago")
        one = Replacement(
            journal=journal,
            rollout=request.rollout,
            who=request.who,
            name=change.name,
            old=now,
            content=old,
            events=("restore intent", "restored"),
        )
        one.run()
    except (ReplaceRefused, JournalError) as error:
        return "failed", str(error), 0.0
    return ("restored" if old is not None else "removed"), "", one.at
