"""Where a node itself says another thing than its series do: told, and decided by nobody here."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from raydiag.model import Finding, HostUnread, NodeReport, Observation, Snapshot, Status

_UNCORRECTED = ("gpu-memory-error", "gpu-ras-error", "xgmi-error")


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
