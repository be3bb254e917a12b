"""What the nodes show is joined to what log and series say of the same fault.

Every finding gets the names of its machine and GPU; one that names no device gets that of the only
finding that can be about the same. Then `merge` sees that they are one fault. What is only another
report of an event, such as the kernel's line about an out-of-memory kill, becomes its evidence.
Where a node itself says another thing than its series do, that is told, and decided by nobody here.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from raydiag import catalog
from raydiag.explain.merge import with_evidence_of
from raydiag.explain.names import Names
from raydiag.model import Finding, HostUnread, NodeReport, Observation, Snapshot, Status

_NEAR_S = 300.0
_UNCORRECTED = ("gpu-memory-error", "gpu-ras-error", "xgmi-error")


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


def contradictions(observations: Iterable[Observation], snapshot: Snapshot) -> Iterator[HostUnread]:
    """Of `told` by the series, what the same host's own files, read just now, do not show."""
    reports: dict[str, list[NodeReport]] = {}
    for report in snapshot.nodes:
        reports.setdefault(report.node.host, []).append(report)
    for observation in observations:
        of_host = reports.get(observation.finding.host or "", ())
        if observation.recovered or not of_host:
            continue
        if observation.finding.failure_class in _UNCORRECTED and _counts_none(
            observation.finding, of_host
        ):
            reason = (
                f"the metrics count uncorrected errors of GPU {observation.finding.gpu} and "
                "the node itself none: its driver was loaded again, or one of them is wrong"
            )
            yield HostUnread(of_host[0].node.host, "ras", Status.ERROR, reason)
        if observation.finding.failure_class == "rdma-port-down" and _is_active(
            observation.finding, of_host
        ):
            reason = (
                f"the metrics call {observation.finding.device} down and the node itself ACTIVE"
            )
            yield HostUnread(of_host[0].node.host, "rdma", Status.ERROR, reason)


def _counts_none(finding: Finding, reports: Sequence[NodeReport]) -> bool:
    counts = {record.ue for record in _records(reports, "ras") if record.gpu == finding.gpu}
    return counts == {0}


def _is_active(finding: Finding, reports: Sequence[NodeReport]) -> bool:
    device, _, port = (finding.device or "").partition("/")
    states = set()
    for record in _records(reports, "rdma"):
        if record.device == device and str(record.port) == (port or "1"):
            states.add(record.state)
    return states == {"ACTIVE"}


def _records(reports: Iterable[NodeReport], probe: str) -> Iterator[Any]:
    return itertools.chain.from_iterable(report.records(probe) for report in reports)
