"""Which of several errors was the first cause.

Known cascades decide first, because a log does not keep the order of tasks. Otherwise it is the
earliest hard error; between errors of one line the order of the class table decides.
"""

from bisect import bisect_left
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import filterfalse
from operator import attrgetter

from raydiag import catalog
from raydiag.catalog.failure_classes import Cascade
from raydiag.triage.symptoms import (
    CONSEQUENCE,
    EITHER,
    ROOT,
    Symptom,
    cascade,
    classes,
    first_of,
    of_class,
    of_role,
    strong,
)

_NEAR_LINES = 400  # a root that near explains an error that may be either
_NEAR_S = 120.0
_PATIENCE_S = 7200.0  # so long peers wait for one that is gone before they report a timeout
_TRACEBACK_LINES = 60  # how far from its traceback the line that explains it may stand
_BARE_KILLED = "oom-bare-killed"
_NOTICES = (_BARE_KILLED, "nccl-desync")


@dataclass(frozen=True)
class FirstCause:
    """The first cause, and what follows from it."""

    symptom: Symptom
    rule: str
    cascade: tuple[str, ...]  # classes, the root first


def first_cause(symptoms: Sequence[Symptom]) -> FirstCause | None:
    """The first cause among live symptoms; None without any."""
    if not symptoms:
        return None
    candidates = _candidates(symptoms)
    for chain_rule in catalog.failure_table().cascades:
        roots = _possible_roots(chain_rule, candidates)
        if roots and _holds(chain_rule, roots, candidates, symptoms):
            return caused_by(first_of(roots, roots[0].failure_class), chain_rule.rule, symptoms)
    earliest = _earliest(candidates)
    if len(classes(symptoms)) == 1:
        rule = "the only error"
    elif earliest.role == CONSEQUENCE:
        rule = "the earliest error, itself the consequence of something that the log does not show"
    else:
        rule = "the earliest hard error"
    return caused_by(earliest, rule, symptoms)


def caused_by(root: Symptom, rule: str, symptoms: Sequence[Symptom]) -> FirstCause:
    """This symptom as the first cause of all the others."""
    return FirstCause(root, rule, cascade(root.failure_class, symptoms))


def of_their_own(symptoms: Sequence[Symptom]) -> list[Symptom]:
    """Without exceptions that only pass on what another symptom says: Ray's, of a dead actor."""
    return _unexplained(symptoms, (ROOT, EITHER, CONSEQUENCE))


# ---- candidates


def _candidates(symptoms: Sequence[Symptom]) -> list[Symptom]:
    """What can be a root: hard errors, else weak ones, else consequences.

    An exception that nothing explains is a hard error too where the other symptoms only show that
    a peer was missing or how the process ended: a task that raises is missed by all.
    """
    possible = of_role(_unexplained(symptoms, (ROOT, EITHER)), ROOT, EITHER)
    hard = strong(possible)
    weak = list(filter(attrgetter("weak"), possible))
    if hard:
        return hard + _exceptions_behind(hard, weak)
    # A weak line that raises says more than one that only sounds like an error.
    raising = set(map(attrgetter("place"), filter(attrgetter("is_exception"), symptoms)))
    raised = [symptom for symptom in weak if symptom.place in raising]
    return raised or weak or _consequences(symptoms)


def _exceptions_behind(hard: Sequence[Symptom], weak: Sequence[Symptom]) -> list[Symptom]:
    """Exceptions that may be why the others noticed something."""
    if not all(map(_is_notice, hard)):
        return []
    first = min(hard, key=attrgetter("rank"))
    exceptions = filter(attrgetter("is_exception"), weak)
    return [symptom for symptom in exceptions if _is_behind(symptom, first)]


def _consequences(symptoms: Sequence[Symptom]) -> list[Symptom]:
    """Where there is no other candidate: strong lines first, exceptions that they explain last."""
    unexplained = of_their_own(symptoms)
    return strong(unexplained) or unexplained or list(symptoms)


def _unexplained(symptoms: Sequence[Symptom], roles: Collection[str]) -> list[Symptom]:
    """Without exceptions that a symptom of one of these roles explains."""
    return list(filterfalse(_Explained(symptoms, roles), symptoms))


def _is_notice(symptom: Symptom) -> bool:
    """It says that a process is gone, not why; so does a shell that only prints Killed."""
    return symptom.row in _NOTICES or (symptom.role == EITHER and symptom.failure.late_notice)


def _is_behind(symptom: Symptom, notice: Symptom) -> bool:
    """An exception may be why: it came before, and no step was done since a process was killed."""
    if symptom.order >= notice.order:
        return False
    if notice.row != _BARE_KILLED:
        return _is_near(symptom, notice) or _was_awaited(symptom, notice)
    is_close = symptom.file == notice.file and notice.line - symptom.line <= _TRACEBACK_LINES
    return is_close and symptom.last_step == notice.last_step


def _was_awaited(symptom: Symptom, notice: Symptom) -> bool:
    """A timeout is reported a timeout later, and little is printed while all wait."""
    if symptom.near_time is None or notice.near_time is None:
        return False
    is_close = symptom.file == notice.file and notice.line - symptom.line <= _NEAR_LINES
    return is_close and notice.near_time - symptom.near_time <= _PATIENCE_S


class _Explained:
    """Which exceptions another symptom explains: by the same words, or at the same place."""

    def __init__(self, symptoms: Sequence[Symptom], roles: Collection[str]) -> None:
        self._texts: set[str] = set()
        self._lines: dict[tuple[str, str], list[int]] = {}  # (file, writer) -> lines, ascending
        for symptom in of_role(symptoms, *roles):
            # What only says that a process ended stands on the line that opens a traceback.
            only_an_end = symptom.role == CONSEQUENCE and symptom.weak
            if not symptom.is_exception and not only_an_end:
                self._add(symptom)

    def _add(self, symptom: Symptom) -> None:
        self._texts.update(filter(None, _texts(symptom)))
        if symptom.is_specific and symptom.row != _BARE_KILLED:
            self._lines.setdefault((symptom.file, symptom.where), []).append(symptom.line)

    def __call__(self, symptom: Symptom) -> bool:
        """Another symptom says more of this exception."""
        if not symptom.is_exception:
            return False
        if not self._texts.isdisjoint(_texts(symptom)):
            return True
        lines = self._lines.get((symptom.file, symptom.where), [])
        index = bisect_left(lines, symptom.line)
        return index < len(lines) and lines[index] - symptom.line <= _TRACEBACK_LINES


def _texts(symptom: Symptom) -> tuple[str | None, str | None]:
    """The exception that it stands in, and its chain_classes line."""
    if symptom.match is None:
        return symptom.exception, None
    return symptom.exception, symptom.match.text


# ---- cascades and order


def _possible_roots(chain_rule: Cascade, candidates: Sequence[Symptom]) -> list[Symptom]:
    """A root may stand anywhere; what may be a consequence counts only where it comes first."""
    earliest = min(candidates, key=attrgetter("rank"))
    roots = of_class(of_role(candidates, ROOT, EITHER), *chain_rule.roots)
    return [symptom for symptom in roots if symptom.role == ROOT or symptom is earliest]


def _holds(
    chain_rule: Cascade,
    roots: Sequence[Symptom],
    candidates: Sequence[Symptom],
    symptoms: Sequence[Symptom],
) -> bool:
    """An effect of it is there, and no other root stands before them all."""
    if chain_rule.effects.isdisjoint(classes(symptoms)):
        return False
    start = min(map(attrgetter("order"), roots))
    chain_classes = chain_rule.roots | chain_rule.effects
    return all(
        symptom.order > start or symptom.failure_class in chain_classes
        for symptom in of_role(candidates, ROOT)
    )


def _earliest(candidates: Sequence[Symptom]) -> Symptom:
    """By line; but an error that may be a consequence gives way to a root that stands near."""
    first = min(candidates, key=attrgetter("rank"))
    if first.role == EITHER:
        roots = [symptom for symptom in of_role(candidates, ROOT) if _is_near(first, symptom)]
        if first.is_exception:
            roots = list(filterfalse(_is_notice, roots))
        first = min(roots, key=attrgetter("rank"), default=first)
    return first_of(of_role(candidates, first.role), first.failure_class)


def _is_near(symptom: Symptom, other: Symptom) -> bool:
    if symptom.near_time is not None and other.near_time is not None:
        return abs(symptom.near_time - other.near_time) <= _NEAR_S
    return symptom.file == other.file and abs(symptom.line - other.line) <= _NEAR_LINES
