"""One fault, one finding: what the nodes show is joined to what log and series say of the same.

A series names a GPU by its index, the kernel by its PCI address, and a log often neither. Given one
name each, equal findings become one in the verdict. What is only another sight of a fault, such as
the kernel's line about a kill for want of memory, becomes its evidence.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from raydiag import catalog
from raydiag.model import Finding, Snapshot
from raydiag.playbooks.observations import Observation

_NEAR_S = 300.0
_GPU_PROBES = ("gpu_sensors", "ras", "nvidia")


def joined(
    told: Sequence[Observation], shown: Sequence[Observation], snapshot: Snapshot
) -> list[Observation]:
    """`told` by log and series, `shown` by the nodes; each fault under one name."""
    names = _Names(snapshot)
    own = [names.named(one) for one in shown]
    others = [_placed(names.named(one), own) for one in told]
    own = [_placed(one, others) for one in own]
    for index, one in enumerate(others):
        for sight in [other for other in own if _is_sight(other, one)]:
            own.remove(sight)
            others[index] = one = _with_evidence(one, sight)
    return [*others, *own]


def _is_sight(sight: Observation, of: Observation) -> bool:
    one, other = sight.finding, of.finding
    if one.failure_class not in catalog.failure(other.failure_class).also_reported_as:
        return False
    if one.host is None or one.host != other.host:
        return False
    if one.onset is None or other.onset is None:
        # A node that is gone has no second reason; one that came back may be lost anew.
        return other.failure_class == "node-death" and not of.recovered
    moments = (other.onset, float(of.facts.get("kill_time", other.onset)))
    return min(moments) - _NEAR_S <= one.onset <= max(moments) + _NEAR_S


def _with_evidence(one: Observation, sight: Observation) -> Observation:
    evidence = (*one.finding.evidence, *sight.finding.evidence)
    return replace(one, finding=replace(one.finding, evidence=evidence))


def _placed(one: Observation, others: Iterable[Observation]) -> Observation:
    """With the device of the only finding that can be about the same, where it names none."""
    finding = one.finding
    if finding.host is None or (finding.gpu is not None and finding.device is not None):
        return one
    same = {
        (other.finding.gpu, other.finding.device)
        for other in others
        if _may_be_same(finding, other.finding)
    }
    if len(same) != 1:
        return one
    gpu, device = same.pop()
    if gpu is None and device is None:
        return one
    return replace(one, finding=replace(finding, gpu=gpu, device=device))


def _may_be_same(one: Finding, other: Finding) -> bool:
    if (one.failure_class, one.host) != (other.failure_class, other.host):
        return False
    gpus = one.gpu is None or other.gpu is None or one.gpu == other.gpu
    devices = one.device is None or other.device is None or one.device == other.device
    return gpus and devices


class _Names:
    """Index and PCI address of each GPU, and host names by address."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._addresses: dict[tuple[str, int], str] = {}
        self._indexes: dict[tuple[str, str], int] = {}
        self._hosts: dict[str, str] = {}
        for report in snapshot.nodes:
            host = report.node.host
            self._hosts.setdefault(report.node.address, host)
            for probe in _GPU_PROBES:
                for record in report.records(probe):
                    self._addresses.setdefault((host, record.gpu), record.address)
                    self._indexes.setdefault((host, record.address), record.gpu)

    def named(self, one: Observation) -> Observation:
        finding = one.finding
        if finding.host is None:
            return one
        host = self._hosts.get(finding.host, finding.host)
        gpu, device = finding.gpu, finding.device
        if gpu is None and device is not None:
            gpu = self._indexes.get((host, device))
        elif gpu is not None and device is None:
            device = self._addresses.get((host, gpu))
        return replace(one, finding=replace(finding, host=host, gpu=gpu, device=device))
