"""Which of several errors was the first cause.

Collect everything; known cascades decide first, because a log does not keep the order of tasks;
else the earliest hard error, the order of the class table deciding between errors of one line.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Optional

from raydiag import catalog
from raydiag.catalog.failure_classes import Cascade
from raydiag.triage.symptoms import CONSEQUENCE, EITHER, ROOT, Symptom, first_of

_NEAR_LINES = 400  # a root that near explains an error that may be either
_NEAR_S = 120.0
_AWAITED_S = 7200.0  # so long peers wait for one that is gone, before they say so
_TRACEBACK_LINES = 60  # how far from its traceback what explains it may stand


@dataclass(frozen=True)
class FirstCause:
    """The first cause, and what follows from it."""

    symptom: Symptom
    rule: str
    cascade: tuple[str, ...]  # classes, the root first


_BARE_KILLED = "oom-bare-killed"


def cause(found: Sequence[Symptom]) -> Optional[FirstCause]:
    """The first cause among live symptoms; None without any."""
    if not found:
        return None
    candidates = _candidates(found)
    earliest = min(candidates, key=_rank)
    for known in catalog.cascades():
        # Out of their order only what can be nothing but a root comes first.
        roots = [
            one
            for one in candidates
            if one.failure_class in known.roots
            and (one.role == ROOT or (one.role == EITHER and one is earliest))
        ]
        if roots and _holds(known, roots, candidates, found):
            first = first_of(roots, roots[0].failure_class)
            return FirstCause(first, known.rule, chain(first, found))
    first = _earliest(candidates)
    alone = len({one.failure_class for one in found}) == 1
    rule = "the only error" if alone else "the earliest hard error"
    if first.role == CONSEQUENCE and not alone:
        rule = "the earliest error, itself the consequence of something that the log does not show"
    return FirstCause(first, rule, chain(first, found))


def chain(root: Symptom, found: Sequence[Symptom]) -> tuple[str, ...]:
    """The root's class, then the others in the order in which they appear."""
    return tuple(dict.fromkeys([root.failure_class, *(one.failure_class for one in found)]))


def _candidates(found: Sequence[Symptom]) -> list[Symptom]:
    """What can be a root: hard errors, else weak ones, else consequences.

    An exception that nothing explains is a hard error too, where the others only noticed that a
    peer was missing, or only say how the process ended: a task that raises is missed by all.
    """
    explained = _Explained(found)
    able = [one for one in found if one.role in (ROOT, EITHER) and not explained(one)]
    hard = [one for one in able if not one.weak]
    weak = [one for one in able if one.weak]
    if hard and all(_is_notice(one) for one in hard):
        first = min(hard, key=_rank)
        hard += [one for one in weak if _raised(one) and _is_behind(one, first)]
    # A weak line that raises says more than one that only sounds like an error.
    places = {(one.file, one.line) for one in found if _raised(one)}
    raised = [one for one in weak if (one.file, one.line) in places]
    return hard or raised or weak or _consequences(found)


def _consequences(found: Sequence[Symptom]) -> list[Symptom]:
    """Where nothing else is there: what was noticed, before tracebacks that end in those words."""
    explained = _Explained(found, (ROOT, EITHER, CONSEQUENCE))
    told = [one for one in found if not explained(one)]
    return [one for one in told if not one.weak] or told or list(found)


def _is_notice(one: Symptom) -> bool:
    """It tells that a process is gone, not why; so does a shell that says no more than Killed."""
    late = catalog.failure(one.failure_class).late_notice
    return one.role == EITHER and (late or one.row == _BARE_KILLED)


def _is_behind(one: Symptom, notice: Symptom) -> bool:
    """An exception may be why: it came before, and no step was done since a process was killed."""
    if one.order >= notice.order:
        return False
    if notice.row == _BARE_KILLED:
        here = one.file == notice.file and notice.line - one.line <= _TRACEBACK_LINES
        return here and one.last_step == notice.last_step
    return _near(one, notice) or _awaited(one, notice)


def _awaited(one: Symptom, notice: Symptom) -> bool:
    """A timeout is told a timeout later, and little is printed while all wait."""
    if one.near_time is None or notice.near_time is None:
        return False
    here = one.file == notice.file and notice.line - one.line <= _NEAR_LINES
    return here and notice.near_time - one.near_time <= _AWAITED_S


def _raised(one: Symptom) -> bool:
    return one.failure_class == "python-exception"


class _Explained:
    """Which exceptions another symptom says more of: by the same words, or at the same place."""

    def __init__(self, found: Sequence[Symptom], roles: Collection[str] = (ROOT, EITHER)) -> None:
        self._words: set[str] = set()
        self._lines: dict[tuple[str, str], list[int]] = {}  # (file, writer) -> lines, ascending
        for one in found:
            # What only says that a process ended stands on the line that opens a traceback.
            if _raised(one) or one.role not in roles or (one.role == CONSEQUENCE and one.weak):
                continue
            self._words |= {words for words in _words(one) if words}
            if one.is_specific and one.row != _BARE_KILLED:
                self._lines.setdefault((one.file, one.where), []).append(one.line)

    def __call__(self, one: Symptom) -> bool:
        if not _raised(one):
            return False
        if any(words in self._words for words in _words(one)):
            return True
        lines = self._lines.get((one.file, one.where), [])
        place = bisect_left(lines, one.line)
        return place < len(lines) and lines[place] - one.line <= _TRACEBACK_LINES


def _words(one: Symptom) -> tuple[Optional[str], Optional[str]]:
    """The exception that it stands in, and its own line."""
    return one.exception, one.match.text if one.match is not None else None


def _holds(
    known: Cascade,
    roots: Sequence[Symptom],
    candidates: Sequence[Symptom],
    found: Sequence[Symptom],
) -> bool:
    """An effect of it is there, and no other root stands before them all."""
    if not any(one.failure_class in known.effects for one in found):
        return False
    start = min(one.order for one in roots)
    return all(
        one.order > start
        for one in candidates
        if one.role == ROOT and one.failure_class not in known.roots | known.effects
    )


def _earliest(candidates: Sequence[Symptom]) -> Symptom:
    """By line; but an error that may be a consequence gives way to a root that stands near."""
    first = min(candidates, key=_rank)
    if first.role == EITHER:
        roots = [one for one in candidates if one.role == ROOT and _near(first, one)]
        first = min(roots, key=_rank, default=first)
    return first_of([one for one in candidates if one.role == first.role], first.failure_class)


def _rank(one: Symptom) -> tuple[tuple[int, int], int]:
    return one.order, one.priority


def _near(one: Symptom, other: Symptom) -> bool:
    if one.near_time is not None and other.near_time is not None:
        return abs(one.near_time - other.near_time) <= _NEAR_S
    return one.file == other.file and abs(one.line - other.line) <= _NEAR_LINES
