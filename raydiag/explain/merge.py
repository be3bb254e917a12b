"""One fault is one finding, whatever saw it: a log, series, a kernel, a counter.

The most severe sighting leads: its texts and its evidence come first. The merged finding is dated
from the first sign and is as certain as the most certain one.
"""

import itertools
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

from raydiag import catalog
from raydiag.catalog.completion import order, severity_of
from raydiag.model import Finding, Observation


def merge(observations: Iterable[Observation], by_process: bool = False) -> list[Observation]:
    """Each fault once, in the order in which faults were first seen.

    `by_process`: what concerns no device is told apart by process. Only observations of one source
    name processes alike.
    """
    faults: dict[Hashable, list[Observation]] = {}
    for observation in observations:
        fault = fault_of(observation.finding, by_process)
        faults.setdefault(fault, []).append(observation)
    return [_merged(sightings) for sightings in faults.values()]


def fault_of(finding: Finding, by_process: bool = False) -> Hashable:
    """Class and place: what two findings of the same fault have in common."""
    place = finding.class_and_host
    if catalog.failure(finding.failure_class).whole_host:
        return place
    if finding.gpu is not None:
        return (*place, "gpu", finding.gpu)
    if finding.device is not None:
        return (*place, "device", finding.device)
    return (*place, "process", finding.pid, finding.task) if by_process else place


def _merged(sightings: Sequence[Observation]) -> Observation:
    if len(sightings) == 1:
        return sightings[0]
    ranked = sorted(sightings, key=lambda observation: order(observation.finding))
    facts: dict[str, float | str] = {}
    for observation in reversed(ranked):
        facts.update(observation.facts)
    return replace(
        ranked[0],
        finding=_merged_finding(list(map(attrgetter("finding"), ranked))),
        recovered=all(map(attrgetter("recovered"), sightings)),
        uncertainty_s=max(map(attrgetter("uncertainty_s"), sightings)),
        facts=facts,
    )


def _merged_finding(ranked: Sequence[Finding]) -> Finding:
    """One finding out of all of the same fault; the first one leads."""
    lead = ranked[0]
    severity = severity_of(lead)
    # A note that a counter is old no longer holds beside a more severe event.
    explaining = (
        finding for finding in ranked if finding.explanation and severity_of(finding) is severity
    )
    explained = next(explaining, lead)
    evidence = itertools.chain.from_iterable(map(attrgetter("evidence"), ranked))
    return replace(
        lead,
        gpu=_only("gpu", ranked),
        device=_only("device", ranked),
        pid=_only("pid", ranked),
        task=_only("task", ranked),
        severity=severity,
        onset=earliest_onset(ranked),
        confidence=max(map(attrgetter("confidence"), ranked), key=attrgetter("rank")),
        explanation=explained.explanation,
        before_job=explained.before_job,
        known=next(filter(None, map(attrgetter("known"), ranked)), None),
        evidence=tuple(dict.fromkeys(evidence)),
    )


def earliest_onset(findings: Iterable[Finding]) -> float | None:
    """Unix seconds; None where none of them has a date."""
    return min((finding.onset for finding in findings if finding.onset is not None), default=None)


def _only(attribute: str, findings: Iterable[Finding]) -> Any:
    """The only value that is there; None when there is none, or when they differ."""
    named = set(map(attrgetter(attribute), findings)) - {None}
    return named.pop() if len(named) == 1 else None


# ---- several findings of one event


def with_most_specific(observations: Iterable[Observation]) -> list[Observation]:
    """One fault of one device under the class that says most of it; the others are evidence."""
    remaining = list(observations)
    for special, general in catalog.more_specific():
        for specific in _of_class(special, remaining):
            for general_one in _of_class(general, remaining):
                if _same_place_and_time(specific, general_one):
                    remaining.remove(general_one)
                    dated = _dated_from_first_sign(
                        with_evidence_of(specific, general_one), general_one
                    )
                    remaining[remaining.index(specific)] = specific = dated
    return remaining


def _of_class(failure_class: str, observations: Iterable[Observation]) -> list[Observation]:
    return [
        observation
        for observation in observations
        if observation.finding.failure_class == failure_class
    ]


def _same_place_and_time(first: Observation, second: Observation) -> bool:
    place = attrgetter("host", "gpu", "device", "before_job")
    return bool(place(first.finding) == place(second.finding))


def _dated_from_first_sign(observation: Observation, sign: Observation) -> Observation:
    onset = earliest_onset((observation.finding, sign.finding))
    return replace(
        observation,
        finding=replace(observation.finding, onset=onset),
        uncertainty_s=max(observation.uncertainty_s, sign.uncertainty_s),
    )


def with_evidence_of(observation: Observation, sign: Observation) -> Observation:
    """The observation, with what the other one rests on."""
    evidence = (*observation.finding.evidence, *sign.finding.evidence)
    return replace(observation, finding=replace(observation.finding, evidence=evidence))
