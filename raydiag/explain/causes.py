"""What caused what, by class, place and time: one finding for each fault, and its nearest cause."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Optional

from raydiag import catalog
from raydiag.catalog.failure_classes import FailureClass
from raydiag.explain import diagnosis
from raydiag.model import Confidence, Finding, Severity
from raydiag.playbooks.observations import Observation

_OVER_S = 600.0  # what ended so long before an effect did not cause it
_NEAR_S = 120.0  # causes that are all so near to an effect are told apart by how grave they are
_SLACK_S = 60.0  # times of one event differ by so much between sources


def ordered(observations: Iterable[Observation]) -> list[Observation]:
    """Completed, one for each fault and place, the gravest and earliest first."""
    best: dict[tuple[object, ...], Observation] = {}
    for one in observations:
        one = replace(one, finding=diagnosis.filled(one.finding))
        found = one.finding
        key = (found.failure_class, found.host, found.gpu, found.device)
        known = best.get(key)
        best[key] = one if known is None else _merged(known, one)
    return sorted(_specific(best.values()), key=lambda one: diagnosis.order(one.finding))


def _specific(observations: Iterable[Observation]) -> list[Observation]:
    """One fault of one device is one finding, of the class that says most about it."""
    left = list(observations)
    for special, general in catalog.more_specific():
        for one in [o for o in left if o.finding.failure_class == special]:
            same = [
                other
                for other in left
                if other.finding.failure_class == general
                and _place(other.finding) == _place(one.finding)
                and other.before_job == one.before_job
            ]
            for other in same:
                left.remove(other)
                left[left.index(one)] = one = _absorbed(one, other)
    return left


def _place(finding: Finding) -> tuple[object, ...]:
    return finding.host, finding.gpu, finding.device


def _absorbed(one: Observation, other: Observation) -> Observation:
    """The specific one, dated from the first sign, with the evidence of both."""
    onsets = [o.finding.onset for o in (one, other) if o.finding.onset is not None]
    evidence = (*one.finding.evidence, *other.finding.evidence)
    finding = replace(one.finding, onset=min(onsets, default=None), evidence=evidence)
    return replace(one, finding=finding, uncertainty_s=max(one.uncertainty_s, other.uncertainty_s))


def _merged(one: Observation, other: Observation) -> Observation:
    """Two that mean the same, as a log and a series do: the graver, with the evidence of both."""
    first, second = sorted((one, other), key=lambda o: diagnosis.order(o.finding))
    finding = first.finding
    onsets = [o.finding.onset for o in (one, other) if o.finding.onset is not None]
    extra = [item for item in second.finding.evidence if item not in finding.evidence]
    sure = max(first.finding.confidence, second.finding.confidence, key=certainty)
    finding = replace(
        finding,
        onset=min(onsets, default=None),
        evidence=(*finding.evidence, *extra),
        confidence=sure,
    )
    return replace(
        first,
        finding=finding,
        recovered=one.recovered and other.recovered,
        uncertainty_s=max(one.uncertainty_s, other.uncertainty_s),
        facts={**second.facts, **first.facts},
    )


def certainty(confidence: Confidence) -> int:
    return list(Confidence).index(confidence)


def causes(observed: Sequence[Observation], step_time_s: Optional[float]) -> list[Optional[int]]:
    """For each finding the position of what most likely caused it; None for a root."""
    places: dict[str, list[int]] = {}
    for number, one in enumerate(observed):
        places.setdefault(one.finding.failure_class, []).append(number)
    # By classes first: a fault of a thousand hosts is not compared with itself on all of them.
    able = {
        effect: sorted(
            number
            for one, numbers in places.items()
            if effect in catalog.failures()[one].can_cause
            for number in numbers
        )
        for effect in places
    }
    found = [
        _cause(index, able[one.finding.failure_class], observed, step_time_s)
        for index, one in enumerate(observed)
    ]
    return [
        None if _came_first(index, found, observed, step_time_s) else cause
        for index, cause in enumerate(found)
    ]


def _came_first(
    index: int,
    found: Sequence[Optional[int]],
    observed: Sequence[Observation],
    step_time_s: Optional[float],
) -> bool:
    """Whether it came before what caused its cause, which itself has no date to show that."""
    above, passed = found[index], {index}
    while above is not None and above not in passed and observed[above].finding.onset is None:
        passed.add(above)
        above = found[above]
    if above is None or above in passed or above == found[index]:
        return False
    return _is_later(observed[above], observed[index], step_time_s)


def _is_later(cause: Observation, effect: Observation, step_time_s: Optional[float]) -> bool:
    """It began after what it should explain, by more than the times are known to."""
    began, seen = cause.finding.onset, effect.finding.onset
    if began is None or seen is None:
        return False
    slack = max(cause.uncertainty_s, effect.uncertainty_s, _SLACK_S)
    if _class_of(effect).hang:
        slack += step_time_s or 0.0  # a hang dates from the last step, its cause from the next
    return began > seen + slack


def _cause(
    index: int,
    able: Iterable[int],
    observed: Sequence[Observation],
    step_time_s: Optional[float],
) -> Optional[int]:
    effect = observed[index]
    found = [
        number
        for number in able
        if number != index and _can_cause(observed[number], effect, step_time_s)
    ]
    return min(found, key=lambda number: _distance(observed[number], effect), default=None)


def _can_cause(cause: Observation, effect: Observation, step_time_s: Optional[float]) -> bool:
    """Whether place and time allow it."""
    one, other = cause.finding, effect.finding
    if cause.facts.get("cleared") and _class_of(effect).symptom:
        return False  # it ended, and what it should explain went on
    if cause.before_job and not effect.before_job:
        return False  # the job went well with it
    if _class_of(effect).cluster_wide and other.host is None and one.host is not None:
        return False  # of one host's fault the others would still have theirs
    here = one.host is None or other.host is None or one.host == other.host
    if not here and not _class_of(effect).felt_by_peers:
        return False
    apart = one.gpu is not None and other.gpu is not None and one.gpu != other.gpu
    if here and apart and not _class_of(effect).symptom:
        return False
    if one.onset is None or other.onset is None:
        return True
    if _is_later(cause, effect, step_time_s):
        return False
    return cause.until is None or not cause.recovered or cause.until >= other.onset - _OVER_S


def _class_of(observation: Observation) -> FailureClass:
    return catalog.failure(observation.finding.failure_class)


def _distance(cause: Observation, effect: Observation) -> tuple[bool, float, int, float]:
    """Sorts causes: dated, near, grave, then the earlier one."""
    one, other = cause.finding, effect.finding
    if one.onset is None or other.onset is None:
        return one.onset is None, 0.0, -rank(one), one.onset or 0.0
    moments = [one.onset, float(cause.facts.get("kill_time", one.onset))]
    apart = min(abs(other.onset - moment) for moment in moments)
    return False, apart if apart > _NEAR_S else 0.0, -rank(one), one.onset


def rank(finding: Finding) -> int:
    return (finding.severity or Severity.WARNING).rank
