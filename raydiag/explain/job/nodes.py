"""The nodes of a live cluster beside a job's log and metrics: what they show, and who answered.

A probe sees a node as it is now; most of what it finds has no date. Such a fact may well be older
than what it could explain, so a chain that rests on it is possible and no more.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

from raydiag import catalog, model
from raydiag.explain.diagnosis import NODES
from raydiag.model import Blind, Coverage, HostUnread, Observation, Status
from raydiag.rules.nodes import departed
from raydiag.rules.progress import Pace, paces
from raydiag.tsdb.discovery_types import short_name

_NAMED = 8
_SLACK_S = 300.0  # between what Ray calls the end and what the job died of
_LONG_S = 3600.0


@dataclass(frozen=True)
class LiveNodes:
    """A live cluster, after its nodes were probed."""

    snapshot: model.Snapshot
    cluster: Mapping[str, Any] = field(default_factory=dict)  # address, session_name, ray_version
    job: str = ""  # Ray's id of the job that is meant; "" where none is
    idle: bool = False  # Ray knows of no job that runs
    ended: float | None = None  # when the job ended, where it does not run now
    others: int = 0  # jobs that run in this cluster besides
    notes: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()  # Ray's ids of all of the cluster's
    ray_id: str = ""  # what workers of the job that is meant call it; "": of any job
    unplaced: bool = False  # which nodes are the job's, among those of others, nothing tells

    @property
    def present(self) -> list[model.NodeReport]:
        """Nodes that belong to the cluster; those that left it are history."""
        absent_ids = departed(self.snapshot)
        return [report for report in self.snapshot.nodes if report.node.node_id not in absent_ids]

    @property
    def hosts(self) -> tuple[str, ...]:
        """Host names of the nodes, each once."""
        return tuple(dict.fromkeys(map(attrgetter("node.host"), self.present)))

    @property
    def addresses(self) -> dict[str, str]:
        """Host name by IP address: series may know either."""
        return {
            report.node.address: report.node.host for report in self.present if report.node.address
        }

    @property
    def paces(self) -> list[Pace]:
        """Of the job's workers, or of all that train where none is meant; the latest first."""
        if self.ended is not None:
            return []
        of_all = paces(self.snapshot)
        return [
            pace for pace in of_all if not self.ray_id or pace.job_id in (self.ray_id, self.job)
        ]


def of_job(nodes: LiveNodes, nodelist: Sequence[str], start: float | None) -> LiveNodes:
    """Without what the job has nothing to do with: a cluster may be larger than one job."""
    snapshot = nodes.snapshot
    if snapshot.job_start is None and start is not None:
        snapshot = replace(snapshot, job_start=start)
    own_reports = [report for report in snapshot.nodes if _is_of(report, nodelist)]
    if not own_reports or len(own_reports) == len(snapshot.nodes):
        return _unplaced(replace(nodes, snapshot=snapshot), nodelist)
    left_out = len(snapshot.nodes) - len(own_reports)
    note = f"{left_out} of the cluster's nodes left out: not on the job's list"
    return replace(nodes, snapshot=replace(snapshot, nodes=own_reports), notes=(*nodes.notes, note))


def _unplaced(nodes: LiveNodes, nodelist: Sequence[str]) -> LiveNodes:
    """Where several jobs share a cluster, and nothing says which nodes are this one's."""
    if nodelist or not nodes.others or not nodes.job:
        return nodes
    note = (
        "other jobs run in this cluster, and the log does not say which nodes are this one's: what "
        "a node shows may be of no concern to it"
    )
    return replace(nodes, notes=(*nodes.notes, note), unplaced=True)


def absent(nodes: LiveNodes, nodelist: Sequence[str]) -> list[Blind]:
    """Hosts of the job that the cluster does not have: nobody has looked at them."""
    present_names: set[str] = set()
    for report in nodes.present:
        present_names |= {report.node.host, report.node.address}
    names = dict.fromkeys(map(short_name, nodelist))
    missing_names = itertools.filterfalse(present_names.__contains__, names)
    return [Blind(name, "on the job's list and not in the cluster") for name in missing_names]


def is_late(finding: model.Finding, nodes: LiveNodes) -> bool:
    """Whether it is of a time after the job, which it cannot have harmed.

    What has no date is of now: long after the end, or once others run, it tells nothing of the job.
    """
    if nodes.ended is None:
        return False
    if finding.onset is not None:
        return finding.onset > nodes.ended + _SLACK_S
    return nodes.others > 0 or nodes.snapshot.time > nodes.ended + _LONG_S


def foreign(nodes: LiveNodes, nodelist: Sequence[str]) -> str:
    """Why the cluster cannot be the job's; "" where nothing contradicts."""
    reports = nodes.snapshot.nodes
    if not nodelist or not reports or any(_is_of(report, nodelist) for report in reports):
        return ""
    listed = ", ".join(sorted(map(short_name, nodelist))[:_NAMED])
    return f"none of its nodes is on the job's list ({listed}), so what they show is not used"


def _is_of(report: model.NodeReport, nodelist: Sequence[str]) -> bool:
    names = {report.node.host, report.node.address}
    return not names.isdisjoint(map(short_name, nodelist))


def observed(of_nodes: model.Diagnosis) -> list[Observation]:
    """What the rules found on the nodes."""
    return [Observation(finding, NODES, finding.failure_class) for finding in of_nodes.findings]


def is_aside(observation: Observation, nodes: LiveNodes) -> bool:
    """Whether it is worth a repair, and never why the job fails or is slow."""
    if observation.playbook != NODES:
        return False
    of_node = catalog.failure(observation.finding.failure_class).of_node
    return of_node or is_late(observation.finding, nodes)


def unscraped(nodes: LiveNodes, no_metrics: str) -> tuple[HostUnread, ...]:
    """What exporters serve and nobody stores: a Prometheus is missing here that is wanted."""
    serving = {
        report.node.host
        for report in nodes.present
        if any(exporter.answer == "ok" for exporter in report.records("exporter"))
    }
    if not serving or not no_metrics:
        return ()
    reason = f"exporters answer on {len(serving)} nodes, and {no_metrics}"
    return (HostUnread("", "Prometheus", Status.ERROR, reason),)


def _hosts_of(blind: Iterable[Blind]) -> set[str]:
    return set(map(attrgetter("host"), blind))


def coverage(
    probed: Coverage,
    series: Coverage,
    others: Coverage,
    hosts: Sequence[str],
    missing: Iterable[Blind] = (),
) -> Coverage:
    """Of nodes and all other sources together. Blind is a node that did not answer itself.

    One that answered and has no series is seen in part, which is told as unread. One that the
    job has and the cluster does not know is blind. `others` has what else could not be read.
    """
    silent = _hosts_of(probed.blind)
    blind, unread = list(probed.blind), list(probed.unread)
    blind += [node for node in missing if node.host not in silent]
    for node in series.blind:
        if node.host in hosts:
            if node.host not in silent:
                unread.append(HostUnread(node.host, "metrics", Status.NO_DATA, node.reason))
        elif node.host == "" or node.host not in _hosts_of(blind):
            blind.append(node)
    strangers = len(blind) - len(probed.blind)
    return Coverage(
        probed.asked + strangers,
        probed.answered,
        tuple(blind),
        tuple(dict.fromkeys([*unread, *others.unread])),
        others.window or probed.window,
    )
