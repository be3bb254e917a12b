"""What the nodes show is joined to what log and series say of the same fault.

Every finding gets the names of its machine and GPU; one that names no device gets that of the only
finding that can be about the same. Then `merge` sees that they are one fault. What is only another
report of an event, such as the kernel's line about an out-of-memory kill, becomes its evidence.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from raydiag import catalog
from raydiag.explain.merge import with_evidence_of
from raydiag.explain.names import Names
from raydiag.model import Finding, Observation, Snapshot

_NEAR_S = 300.0


def join(
    observed: Iterable[Observation], of_nodes: Iterable[Observation], snapshot: Snapshot
) -> list[Observation]:
    """What log and series show, then what only the nodes show; each fault under one name."""
    names = Names(snapshot)
    only_nodes = [_named(observation, names) for observation in of_nodes]
    joined = [_with_device(_named(observation, names), only_nodes) for observation in observed]
    only_nodes = [_with_device(observation, joined) for observation in only_nodes]
    for index, event in enumerate(joined):
        reports = [observation for observation in only_nodes if _is_report(observation, event)]
        for report in reports:
            only_nodes.remove(report)
            joined[index] = event = with_evidence_of(event, report)
    return [*joined, *only_nodes]


def _named(observation: Observation, names: Names) -> Observation:
    return replace(observation, finding=names.named(observation.finding))


def _is_report(observation: Observation, event: Observation) -> bool:
    """Whether it only reports what the other one says more of."""
    report, finding = observation.finding, event.finding
    if report.failure_class not in catalog.failure(finding.failure_class).also_reported_as:
        return False
    if report.host is None or report.host != finding.host:
        return False
    if report.onset is None or finding.onset is None:
        # A node that is gone has no second reason; one that came back may be lost anew.
        return finding.failure_class == "node-death" and not event.recovered
    moments = (finding.onset, float(event.facts.get("kill_time", finding.onset)))
    return min(moments) - _NEAR_S <= report.onset <= max(moments) + _NEAR_S


def _with_device(observation: Observation, candidates: Sequence[Observation]) -> Observation:
    """With the device of the only finding that can be about the same, where it names none."""
    finding = observation.finding
    if finding.host is None or (finding.gpu is not None and finding.device is not None):
        return observation
    devices = {
        (candidate.finding.gpu, candidate.finding.device)
        for candidate in candidates
        if _may_be_same(finding, candidate.finding)
    }
    if len(devices) != 1:
        return observation
    gpu, device = devices.pop()
    if gpu is None and device is None:
        return observation
    return replace(observation, finding=replace(finding, gpu=gpu, device=device))


def _may_be_same(finding: Finding, candidate: Finding) -> bool:
    """Neither contradicts the other: what one leaves open, the other may know."""
    same_gpu = finding.gpu is None or candidate.gpu in (None, finding.gpu)
    same_device = finding.device is None or candidate.device in (None, finding.device)
    return finding.class_and_host == candidate.class_and_host and same_gpu and same_device
