"""JUDGE: probe records -> findings. Pure functions of a snapshot, one file per domain, no I/O.

`judge` runs every rule; `explain.diagnosis` merges what they yield, so that one fault is one
finding.
"""

from collections.abc import Callable, Iterable, Iterator

from raydiag.model import Finding, Snapshot
from raydiag.rules import metrics_exporter, network, storage, worker_state
from raydiag.rules.absent_ranks import late_by_ras, late_by_recorder
from raydiag.rules.blocked import d_state_accumulation, driver_faults
from raydiag.rules.clock import on_one_clock, skewed_clocks
from raydiag.rules.cpu import cpu_contention, noisy_neighbours, thread_oversubscription
from raydiag.rules.exposure import exposed_endpoints
from raydiag.rules.gpu import (
    bad_pages,
    row_remapping,
    thermal_throttling,
    uncorrectable_errors,
)
from raydiag.rules.gpu_outliers import full_gpu_memory, hot_gpus, slow_gpus
from raydiag.rules.kernel import kernel_findings
from raydiag.rules.loss import diverged_loss
from raydiag.rules.nodes import dead_nodes, hung_reads, missing_hosts, unreachable_nodes
from raydiag.rules.pcie import degraded_links, growing_link_errors
from raydiag.rules.peers import environment_mismatch, missing_gpus, version_skew
from raydiag.rules.previous_boot import crashes
from raydiag.rules.progress import silent_jobs, stragglers
from raydiag.rules.rdma import ports_down, slow_ports
from raydiag.rules.rdma_counters import congestion, losses

Rule = Callable[[Snapshot], Iterable[Finding]]

# The kernel log comes first: what it dates and names leads the evidence of a folded finding.
# fmt: off
RULES: tuple[Rule, ...] = (
    kernel_findings, crashes, driver_faults,
    uncorrectable_errors, bad_pages, row_remapping, thermal_throttling, hot_gpus, slow_gpus,
    full_gpu_memory, growing_link_errors, degraded_links, d_state_accumulation, hung_reads,
    dead_nodes, unreachable_nodes, missing_hosts, storage.cgroup_memory_pressure,
    storage.full_disks, storage.exhausted_inodes, storage.stalled_storage,
    noisy_neighbours, thread_oversubscription, cpu_contention,
    network.job_interfaces_down, ports_down, slow_ports, losses, congestion,
    network.interface_errors, network.tcp_retransmits, network.tcp_aborts,
    network.full_accept_queues, missing_gpus, version_skew, environment_mismatch, skewed_clocks,
    exposed_endpoints, worker_state.stopped_workers, worker_state.missing_workers,
    worker_state.stopped_ray_processes, worker_state.dead_ranks, worker_state.ended_children,
    stragglers, late_by_recorder, late_by_ras, silent_jobs, diverged_loss,
    metrics_exporter.exporter_down, metrics_exporter.ghost_data,
    metrics_exporter.exporter_plugin_timeouts, metrics_exporter.exporter_plugins_skipped,
    metrics_exporter.exporter_restarts,
)
# fmt: on


def judge(snapshot: Snapshot) -> Iterator[tuple[str, Finding]]:
    """What each rule finds, with the rule's name. Several rules may find the same fault.

    Hosts are named as in `rules.machines.machine_names`; all times are of the head's clock.
    """
    snapshot = on_one_clock(snapshot)
    for rule in RULES:
        for finding in rule(snapshot):
            yield rule.__name__, finding
