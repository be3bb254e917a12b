"""Which of several errors was the first cause.

Collect everything; known cascades decide first, because a log does not keep the order of tasks;
else the earliest hard error, the order of the class table deciding between errors of one line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional

from raydiag.triage.symptoms import CONSEQUENCE, EITHER, MECHANISMS, ROOT, Symptom, first_of

_NEAR_LINES = 400  # a root that near explains an error that may be either
_NEAR_S = 120.0
_TRACEBACK_LINES = 60  # how far from its traceback what explains it may stand


@dataclass(frozen=True)
class Cascade:
    """A known way from one failure to others, whatever order the log shows them in."""

    rule: str
    roots: frozenset[str]
    effects: frozenset[str]


@dataclass(frozen=True)
class Cause:
    """The first cause, and what follows from it."""

    symptom: Symptom
    rule: str
    cascade: tuple[str, ...]  # classes, the root first


_COLLECTIVE = frozenset(("nccl-timeout", "nccl-error", "rendezvous-fail"))
# Noticed by those who waited in vain, or how a process ended.
_NOTICED = _COLLECTIVE | MECHANISMS | {"heartbeat-timeout", "train-timeout"}
_ENDS = MECHANISMS | {"heartbeat-timeout", "train-timeout", "hang", "unknown-death"}

CASCADES = (
    Cascade(
        "cascade: a task runs out of memory, its peers fail in the next collective",
        frozenset(("oom-host", "oom-gpu")),
        _COLLECTIVE | _ENDS,
    ),
    Cascade(
        "cascade: a GPU fails, the work on it and its peers follow",
        frozenset(("gpu-hardware-error",)),
        _COLLECTIVE | _ENDS | {"python-exception"},
    ),
    Cascade(
        "cascade: the network fails, the collective stalls until a timeout ends the job",
        frozenset(("nccl-error",)),
        frozenset(("nccl-timeout", "hang", "train-timeout", "heartbeat-timeout")),
    ),
    Cascade(
        "cascade: the compiler fails, the exception ends the process",
        frozenset(("xla-compile-fail",)),
        frozenset(("oom-gpu", "python-exception", "subprocess-fail", "actor-fail")),
    ),
    Cascade(
        "cascade: the disk is full, the checkpoint cannot be written",
        frozenset(("disk-full",)),
        frozenset(("checkpoint-fs-error", "python-exception")),
    ),
)


def cause(found: Sequence[Symptom]) -> Optional[Cause]:
    """The first cause among live symptoms; None without any."""
    if not found:
        return None
    candidates = _candidates(found)
    for known in CASCADES:
        roots = [one for one in candidates if one.failure_class in known.roots]
        # Out of their order only what can be nothing but a root comes first.
        roots = [one for one in roots if one.role == ROOT or one is min(candidates, key=_rank)]
        if roots and _holds(known, roots, candidates, found):
            first = first_of(roots, roots[0].failure_class)
            return Cause(first, known.rule, chain(first, found))
    first = _earliest(candidates)
    alone = len({one.failure_class for one in found}) == 1
    rule = "the only error" if alone else "the earliest hard error"
    if first.role == CONSEQUENCE and not alone:
        rule = "the earliest error, itself the consequence of something that the log does not show"
    return Cause(first, rule, chain(first, found))


def chain(root: Symptom, found: Sequence[Symptom]) -> tuple[str, ...]:
    """The root's class, then the others in the order in which they appear."""
    return tuple(dict.fromkeys([root.failure_class, *(one.failure_class for one in found)]))


def _candidates(found: Sequence[Symptom]) -> list[Symptom]:
    """What can be a root: hard errors, else weak ones, else consequences.

    An exception that nothing explains is a hard error too, where the others only noticed that a
    peer was missing, or only say how the process ended: a task that raises is missed by all.
    """
    able = [one for one in found if one.role in (ROOT, EITHER) and not is_explained(one, found)]
    hard = [one for one in able if not one.weak]
    weak = [one for one in able if one.weak]
    if hard and all(one.failure_class in _NOTICED and one.role == EITHER for one in hard):
        first = min(hard, key=_rank)
        hard += [
            one for one in weak if _raised(one) and one.order < first.order and _near(one, first)
        ]
    # A weak line that raises says more than one that only sounds like an error.
    places = {(one.file, one.line) for one in found if _raised(one)}
    raised = [one for one in weak if (one.file, one.line) in places]
    return hard or raised or weak or list(found)


def _raised(one: Symptom) -> bool:
    return one.failure_class == "python-exception"


def is_explained(one: Symptom, found: Sequence[Symptom]) -> bool:
    """An exception of which another symptom says more, by the same words or at the same place."""
    if one.failure_class != "python-exception":
        return False
    for other in found:
        if other.failure_class == "python-exception" or other.role not in (ROOT, EITHER):
            continue
        if other.failure_class in MECHANISMS and other.order < one.order:
            continue
        if one.exception and one.exception in (other.exception, other.match and other.match.text):
            return True
        near = 0 <= other.line - one.line <= _TRACEBACK_LINES and other.file == one.file
        if near and other.is_specific and (one.where == other.where):
            return True
    return False


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
