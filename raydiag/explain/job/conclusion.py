"""The last word on a job of a live cluster: what a fact of now may explain, and what was seen."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Optional

from raydiag import catalog
from raydiag.explain import verdict
from raydiag.explain.diagnosis import filled
from raydiag.explain.job.nodes import PLAYBOOK, LiveNodes, is_late
from raydiag.explain.verdict import Explained, JobCase, JobVerdict
from raydiag.model import Chain, Confidence, Diagnosis, Severity
from raydiag.playbooks.observations import Observation

_SICK = ("failed", "hanging")


def concluded(case: JobCase, nodes: Optional[LiveNodes], no_log: str, no_metrics: str) -> Explained:
    """The verdict on all sources; `no_log` and `no_metrics` say why there are none."""
    found = _explained(case, nodes) if nodes is not None else verdict.explain(case)
    if nodes is None and not no_log:
        return found
    told = _modest(found, nodes)
    if told.failure_class == verdict.HEALTHY:
        told = _well(told, case, nodes, no_log, no_metrics)
    return replace(found, verdict=told)


def _explained(case: JobCase, nodes: LiveNodes) -> Explained:
    """Asides are the verdict only where nothing else is wrong."""
    asides = [one for one in case.observations if _is_aside(one, nodes)]
    rest = [one for one in case.observations if not _is_aside(one, nodes)]
    found = verdict.explain(replace(case, observations=rest))
    wrong = any(one.severity is not Severity.INFO for one in found.diagnosis.findings)
    if not asides:
        return found
    if not wrong and case.status not in _SICK:
        return verdict.explain(case)
    return _with(found, asides)


def _is_aside(one: Observation, nodes: LiveNodes) -> bool:
    if one.playbook != PLAYBOOK:
        return False
    of_node = catalog.failure(one.finding.failure_class).of_node
    return of_node or is_late(one.finding, nodes)


def _with(found: Explained, asides: Iterable[Observation]) -> Explained:
    """Listed after everything else, each by itself."""
    more = [replace(one, finding=filled(one.finding)) for one in asides]
    findings = [one.finding for one in more]
    told = found.diagnosis
    whole = Diagnosis(
        [*told.findings, *findings],
        [*told.chains, *(Chain((one,), one.confidence) for one in findings)],
        told.coverage,
    )
    return replace(found, diagnosis=whole, observations=(*found.observations, *more))


def _modest(found: Explained, nodes: Optional[LiveNodes]) -> JobVerdict:
    """A fact without a date that is made the cause of something is a possible cause, no more.

    So is one of a node that may be of no concern to the job.
    """
    chains = found.diagnosis.chains
    if not chains or chains[0].findings[0].failure_class != found.verdict.failure_class:
        return found.verdict
    root, *effects = chains[0].findings
    seen = next((one for one in found.observations if one.finding is root), None)
    if seen is None or seen.playbook != PLAYBOOK:
        return found.verdict
    unplaced = nodes is not None and nodes.unplaced
    if not unplaced and (not effects or root.onset is not None):
        return found.verdict
    return replace(found.verdict, confidence=Confidence.POSSIBLE)


def _well(
    told: JobVerdict, case: JobCase, nodes: Optional[LiveNodes], no_log: str, no_metrics: str
) -> JobVerdict:
    """Says where nothing is wrong: what was not there to be looked at is no proof of health."""
    number = case.coverage.answered
    places = [f"on {number} node{'' if number == 1 else 's'}"] if nodes is not None else []
    places += ["in the metrics"] if not no_metrics else []
    places += ["in the job's log"] if not no_log else []
    text = f"Nothing is wrong {' and '.join(places)}"
    if case.status == "idle":
        return replace(told, summary=f"{text}; no job runs here.")
    lacks = [f"no log: {no_log}"] if no_log else []
    lacks += [f"no metrics: {no_metrics}"] if no_metrics else []
    if not lacks:
        return replace(told, summary=f"{text}.")
    text = f"{text}; there is {'; '.join(lacks)}."
    return replace(told, summary=text, confidence=Confidence.LIKELY)
