"""JUDGE: probe records -> findings. Pure functions of a snapshot, one file per domain, no I/O.

`judge` runs every rule and folds what they yield: one fault is one finding, whoever saw it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from raydiag import catalog
from raydiag.model import Confidence, Evidence, Finding, Severity, Snapshot
from raydiag.rules.blocked import d_state_accumulation, driver_faults
from raydiag.rules.clock import skewed_clocks
from raydiag.rules.clock_correction import on_one_clock
from raydiag.rules.cpu import cpu_contention, noisy_neighbours, thread_oversubscription
from raydiag.rules.exposure import exposed_endpoints
from raydiag.rules.gpu import bad_pages, thermal_throttling, uncorrectable_errors
from raydiag.rules.gpu_outliers import full_gpu_memory, hot_gpus, slow_gpus
from raydiag.rules.job_hosts import missing_hosts
from raydiag.rules.kernel import kernel_findings
from raydiag.rules.machines import by_host, distinct, machine_names
from raydiag.rules.memory import cgroup_memory_pressure
from raydiag.rules.metrics_exporter import (
    exporter_down,
    exporter_plugin_timeouts,
    exporter_plugins_skipped,
    exporter_restarts,
    ghost_data,
)
from raydiag.rules.network import (
    full_accept_queues,
    interface_errors,
    job_interfaces_down,
    tcp_aborts,
    tcp_retransmits,
)
from raydiag.rules.nodes import NODE_TABLE, dead_nodes, hung_reads, unreachable_nodes
from raydiag.rules.pcie import degraded_links, growing_link_errors
from raydiag.rules.pcie_paths import PciePaths
from raydiag.rules.peers import environment_mismatch, missing_gpus, version_skew
from raydiag.rules.previous_boot import crashes
from raydiag.rules.progress import stragglers
from raydiag.rules.rdma import ports_down, slow_ports
from raydiag.rules.rdma_counters import congestion, losses
from raydiag.rules.storage import exhausted_inodes, full_disks, stalled_storage
from raydiag.rules.worker_state import missing_workers, stopped_workers

_Scope = TypeVar("_Scope")

Rule = Callable[[Snapshot], Iterable[Finding]]

# The kernel log comes first: what it dates and names leads the evidence of a folded finding.
RULES: tuple[Rule, ...] = (
    kernel_findings,
    crashes,
    driver_faults,
    uncorrectable_errors,
    bad_pages,
    thermal_throttling,
    hot_gpus,
    slow_gpus,
    full_gpu_memory,
    growing_link_errors,
    degraded_links,
    d_state_accumulation,
    hung_reads,
    dead_nodes,
    unreachable_nodes,
    missing_hosts,
    cgroup_memory_pressure,
    full_disks,
    exhausted_inodes,
    stalled_storage,
    noisy_neighbours,
    thread_oversubscription,
    cpu_contention,
    job_interfaces_down,
    ports_down,
    slow_ports,
    losses,
    congestion,
    interface_errors,
    tcp_retransmits,
    tcp_aborts,
    full_accept_queues,
    missing_gpus,
    version_skew,
    environment_mismatch,
    skewed_clocks,
    exposed_endpoints,
    stopped_workers,
    missing_workers,
    stragglers,
    exporter_down,
    ghost_data,
    exporter_plugin_timeouts,
    exporter_plugins_skipped,
    exporter_restarts,
)

_CERTAINTY = (Confidence.POSSIBLE, Confidence.LIKELY, Confidence.CONFIRMED)


def judge(snapshot: Snapshot) -> list[Finding]:
    """Every finding that the records of a snapshot support, each fault once."""
    snapshot = on_one_clock(snapshot)
    machines = {name: machine for machine, name in machine_names(snapshot).items()}
    gpus = _GpuIndex.of(snapshot)
    faults: dict[Hashable, list[Finding]] = {}
    signs: dict[Hashable, set[Rule]] = {}
    for rule in RULES:
        for finding in rule(snapshot):
            named = gpus.name(finding)
            identity = _identity(named)
            faults.setdefault(identity, []).append(named)
            if finding.confidence is not Confidence.POSSIBLE:  # a hint is no sign
                signs.setdefault(identity, set()).add(rule)
    return [
        _placed(_weighed(gpus.name(_folded(same)), len(signs.get(fault, ()))), machines)
        for fault, same in faults.items()
    ]


def _placed(finding: Finding, machines: Mapping[str, tuple[str, str]]) -> Finding:
    """The finding with its short host name; where machines share that, with the address as well."""
    if finding.host is None or finding.host not in machines:
        return finding
    host, address = machines[finding.host]
    if finding.host == host:
        return finding
    text = f"this is {host} at {address}; another machine has the same name"
    evidence = (Evidence(NODE_TABLE, text), *finding.evidence)
    return replace(finding, host=host, address=address, evidence=evidence)


def _identity(finding: Finding) -> Hashable:
    """Machine, class, and what the fault sits on: a GPU, else a device, else a process."""
    place = (finding.failure_class, finding.host)
    if catalog.failure(finding.failure_class).whole_host:
        return place
    if finding.gpu is not None:
        return (*place, "gpu", finding.gpu)
    if finding.device is not None:
        return (*place, "device", finding.device)
    return (*place, "pid", finding.pid, finding.task)


def _folded(findings: Sequence[Finding]) -> Finding:
    """One finding out of all of the same fault: the gravest, the earliest, the surest of them."""
    if len(findings) == 1:
        return findings[0]
    severity = max((_severity(finding) for finding in findings), key=lambda one: one.rank)
    grave = [finding for finding in findings if _severity(finding) is severity]
    onsets = [finding.onset for finding in findings if finding.onset is not None]
    return replace(
        grave[0],
        gpu=_shared(finding.gpu for finding in findings),
        device=_shared(finding.device for finding in findings),
        pid=_shared(finding.pid for finding in findings),
        task=_shared(finding.task for finding in findings),
        severity=severity,
        onset=min(onsets, default=None),
        confidence=max((finding.confidence for finding in findings), key=_CERTAINTY.index),
        # The gravest explain: a note that a counter is old no longer holds beside an event.
        explanation=next((finding.explanation for finding in grave if finding.explanation), ""),
        evidence=tuple(dict.fromkeys(piece for one in findings for piece in one.evidence)),
    )


def _shared(values: Iterable[_Scope | None]) -> _Scope | None:
    """The only value that is there; None when there is none, or when they differ."""
    named = {value for value in values if value is not None}
    return named.pop() if len(named) == 1 else None


def _severity(finding: Finding) -> Severity:
    return finding.severity or catalog.failure(finding.failure_class).severity


def _weighed(finding: Finding, signs: int) -> Finding:
    """A driver fault needs two independent signs, kernel log and stuck tasks, to be confirmed."""
    if not catalog.failure(finding.failure_class).needs_two_signs:
        return finding
    if signs > 1:
        return replace(finding, confidence=Confidence.CONFIRMED)
    certainty = min(finding.confidence, Confidence.LIKELY, key=_CERTAINTY.index)
    return replace(finding, confidence=certainty)


@dataclass(frozen=True)
class _GpuIndex:
    """Index and PCI address of each GPU: the kernel log knows one, other sources the other."""

    indexes: Mapping[tuple[str, str], int]  # (machine, address) -> index
    addresses: Mapping[tuple[str, int], str]  # (machine, index) -> address

    @classmethod
    def of(cls, snapshot: Snapshot) -> _GpuIndex:
        indexes: dict[tuple[str, str], int] = {}
        addresses: dict[tuple[str, int], str] = {}
        for host, reports in by_host(snapshot).items():
            for probe in ("gpu_sensors", "ras", "nvidia"):
                for record in distinct(reports, probe, "address"):
                    indexes.setdefault((host, record.address), record.gpu)
                    addresses.setdefault((host, record.gpu), record.address)
            paths = PciePaths(distinct(reports, "pcie", "address"))
            for address, function in paths.functions.items():
                # The kernel blames the bridge above a GPU for what happens on the link to it.
                gpu = indexes.get((host, paths.bearer(function).address))
                if gpu is not None:
                    indexes.setdefault((host, address), gpu)
        return cls(indexes, addresses)

    def name(self, finding: Finding) -> Finding:
        """The finding with both names of its GPU, where one of them is known."""
        host, gpu, device = finding.host, finding.gpu, finding.device
        if host is None:
            return finding
        if gpu is None and device is not None:
            return replace(finding, gpu=self.indexes.get((host, device)))
        if gpu is not None and device is None:
            return replace(finding, device=self.addresses.get((host, gpu)))
        return finding
