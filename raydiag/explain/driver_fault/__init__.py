"""EXPLAIN: is a GPU driver at fault, on which nodes, since when, and what must its admin know?

The order of reads is the node runner's: kernel log, blocked tasks, the exporter's history, and RAS
files only where none of these shows the fault. A node's verdict is separate from that on a job: a
fault in the driver's error path degrades monitoring, and compute takes another path.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from operator import attrgetter

from raydiag import catalog
from raydiag.catalog.driver_fault import words
from raydiag.explain.diagnosis import coverage as coverage_of
from raydiag.explain.driver_fault.nodes import NodeCase
from raydiag.explain.driver_fault.types import InvestigatedNode, Investigation, NodeVerdict
from raydiag.model import Coverage, Diagnosis, Finding, Snapshot
from raydiag.playbooks.node_failure.driver import DriverSigns
from raydiag.rules.clock import on_one_clock
from raydiag.rules.machines import Machine, machines

__all__ = ["Investigation", "NodeVerdict", "investigate", "of_logs"]


def of_logs(
    snapshot: Snapshot, diagnosis: Diagnosis, undated: Iterable[str], now_s: float
) -> Investigation:
    """Of kernel logs alone; `undated`: hosts whose log has no dates."""
    reason, hosts = "kernel logs alone were read", frozenset(undated)
    findings = []
    for finding in diagnosis.findings:
        findings.append(_without_times(finding) if finding.host in hosts else finding)
    # Of what the log is about, nobody knows until when it was written.
    coverage = replace(diagnosis.coverage, window=None)
    found = investigate(snapshot, findings, coverage, (), reason, hosts)
    return replace(found, seen_at=now_s)


def _without_times(finding: Finding) -> Finding:
    """Seconds since an unknown boot are no dates."""
    evidence = tuple(map(partial(replace, time=None), finding.evidence))
    told = catalog.failure(finding.failure_class).explanation
    return replace(finding, onset=None, evidence=evidence, explanation=told)


def investigate(
    snapshot: Snapshot,
    findings: Sequence[Finding],
    coverage: Coverage,
    all_series: Sequence[DriverSigns],
    no_series: str,
    undated: frozenset[str] = frozenset(),
) -> Investigation:
    """Every node with its verdict. `no_series`: why there are none."""
    snapshot = on_one_clock(snapshot)
    of_gpus: dict[str | None, list[Finding]] = {}
    for finding in findings:
        if finding.failure_class in words().classes:
            of_gpus.setdefault(finding.host, []).append(finding)
    series_of = {series.host: series for series in all_series}
    nodes, unreachable = [], list(_unreachable(snapshot))
    for machine in machines(snapshot):
        node = machine.reports[0].node
        own = filter(partial(_is_of, machine=machine), of_gpus.get(node.host, ()))
        series, is_dated = series_of.pop(node.host, None), node.host not in undated
        missing = no_series or "no series names this node"
        case = NodeCase(node.host, machine, snapshot, list(own), series, missing, is_dated)
        nodes.append(case.investigated())
    nodes += unreachable
    known = set(map(attrgetter("host"), nodes))
    for host, series in series_of.items():
        if host not in known:
            case = NodeCase(host, None, snapshot, of_gpus.get(host, ()), series, no_series)
            nodes.append(case.investigated())
    of_all = tuple(chain.from_iterable(of_gpus.values()))
    return Investigation(tuple(nodes), of_all, coverage, snapshot.time, "", no_series)


def _is_of(finding: Finding, machine: Machine) -> bool:
    """Of machines that share a host name, the one whose address the finding has."""
    return finding.address in (None, machine.reports[0].node.address)


def _unreachable(snapshot: Snapshot) -> Iterator[InvestigatedNode]:
    """Nodes that did not answer, without those that have left the cluster."""
    for blind in coverage_of(snapshot).blind:
        yield InvestigatedNode(blind.host, "", NodeVerdict.UNREACHABLE, blind.reason)
