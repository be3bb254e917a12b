"""The nodes of a live cluster beside a job's log and metrics: what they show, and who answered.

A probe sees a node as it is now; most of what it finds has no date. Such a fact may well be older
than what it could explain, so a chain that rests on it is possible and no more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Optional

from raydiag.model import Coverage, Diagnosis, HostUnread, NodeReport, Snapshot, Status
from raydiag.playbooks.observed import Observation
from raydiag.rules.nodes import departed
from raydiag.tsdb.discovered import short_name

PLAYBOOK = "nodes"
_NAMED = 8


@dataclass(frozen=True)
class Nodes:
    """A live cluster, after its nodes were probed."""

    snapshot: Snapshot
    cluster: Mapping[str, Any] = field(default_factory=dict)  # address, session_name, ray_version
    job: str = ""  # Ray's id of the job that is meant; "" where none is
    idle: bool = False  # Ray knows of no job that runs
    notes: tuple[str, ...] = ()

    @property
    def present(self) -> list[NodeReport]:
        """Nodes that belong to the cluster; those that left it are history."""
        gone = departed(self.snapshot)
        return [one for one in self.snapshot.nodes if one.node.node_id not in gone]

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(one.node.host for one in self.present))

    @property
    def addresses(self) -> dict[str, str]:
        """Host name by IP address: series may know either."""
        return {one.node.address: one.node.host for one in self.present if one.node.address}


def of_job(nodes: Nodes, nodelist: Sequence[str], start: Optional[float]) -> Nodes:
    """Without what the job has nothing to do with: a cluster may be larger than one job."""
    snapshot = nodes.snapshot
    if snapshot.job_start is None and start is not None:
        snapshot = replace(snapshot, job_start=start)
    own = [one for one in snapshot.nodes if _is_of(one, nodelist)]
    if not own or len(own) == len(snapshot.nodes):
        return replace(nodes, snapshot=snapshot)
    left = len(snapshot.nodes) - len(own)
    note = f"{left} of the cluster's nodes left out: not on the job's list"
    return replace(nodes, snapshot=replace(snapshot, nodes=own), notes=(*nodes.notes, note))


def foreign(nodes: Nodes, nodelist: Sequence[str]) -> str:
    """Why the cluster cannot be the job's; "" where nothing contradicts."""
    seen = nodes.snapshot.nodes
    if not nodelist or not seen or any(_is_of(one, nodelist) for one in seen):
        return ""
    listed = ", ".join(sorted(map(short_name, nodelist))[:_NAMED])
    return f"none of its nodes is on the job's list ({listed}), so what they show is not used"


def _is_of(report: NodeReport, nodelist: Sequence[str]) -> bool:
    names = {short_name(one) for one in nodelist}
    return bool({report.node.host, report.node.address} & names)


def observed(found: Diagnosis) -> Iterator[Observation]:
    """What the rules found on the nodes."""
    for one in found.findings:
        yield Observation(one, PLAYBOOK, one.failure_class)


def coverage(
    probed: Coverage, series: Optional[Coverage], others: Coverage, hosts: Sequence[str]
) -> Coverage:
    """Of nodes and all other sources together. Blind is a node that did not answer itself.

    One that answered and has no series is seen in part, which is told as unread. One that the
    job has and the cluster does not know is blind. `others` has what else could not be read.
    """
    blind, unread = list(probed.blind), list(probed.unread)
    for one in series.blind if series is not None else ():
        if one.host not in hosts:
            blind.append(one)
        elif one.host not in {two.host for two in probed.blind}:
            unread.append(HostUnread(one.host, "metrics", Status.NO_DATA, one.reason))
    strangers = len(blind) - len(probed.blind)
    return Coverage(
        probed.asked + strangers,
        probed.answered,
        tuple(blind),
        tuple(dict.fromkeys([*unread, *others.unread])),
        others.window or probed.window,
    )
