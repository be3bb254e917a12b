"""Nodes that are gone, silent, or left a reader of ours stuck; and reports grouped by machine."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from operator import attrgetter
from typing import Any

from raydiag.model import (
    Confidence,
    Evidence,
    Finding,
    Node,
    NodeReport,
    NodeStatus,
    Severity,
    Snapshot,
    Status,
    StuckReader,
    Unread,
)

# Ray's DeathReason and its message. The word boundary matters: UNEXPECTED_TERMINATION holds
# EXPECTED_TERMINATION.
_PLANNED_END = re.compile(r"\bEXPECTED_TERMINATION\b|drain|autoscaler", re.IGNORECASE)
_UNPLANNED_END = "UNEXPECTED_TERMINATION"

# Reasons of `cluster.collect` and `cluster.actor` where the node did answer.
_ANSWER_UNUSABLE = (
    "its answer was lost",
    "its answer does not make sense",
    "another one on the head",  # another version of Python
    "node runner: ended before it answered",
)

_NEWS_S = 86_400.0
NODE_TABLE = "Ray node table (GCS)"


def machine_names(snapshot: Snapshot) -> dict[tuple[str, str], str]:
    """By `Node.machine` what rules call a machine: its host name alone where that is unique.

    Where several machines share one, the address stands behind it, so that no two are mixed up.
    `judge` gives findings the host name back.
    """
    machines = dict.fromkeys(report.node.machine for report in snapshot.nodes)
    sharing = Counter(host for host, _ in machines)
    return {
        (host, address): host if sharing[host] == 1 else f"{host} ({address})"
        for host, address in machines
    }


def by_host(snapshot: Snapshot) -> dict[str, list[NodeReport]]:
    """Reports of the nodes that answered, by the machine's name (see `machine_names`).

    One machine may run several Ray nodes, which then report the same hardware.
    """
    names = machine_names(snapshot)
    hosts: dict[str, list[NodeReport]] = {}
    for report in snapshot.nodes:
        if report.status in (NodeStatus.OK, NodeStatus.PARTIAL):
            hosts.setdefault(names[report.node.machine], []).append(report)
    return hosts


def distinct(reports: Sequence[NodeReport], probe: str, *identity: str) -> list[Any]:
    """One probe's records on one machine, the first of each identity (names of fields)."""
    key = attrgetter(*identity)
    found: dict[Any, Any] = {}
    for report in reports:
        for record in report.records(probe):
            found.setdefault(key(record), record)
    return list(found.values())


def departed(snapshot: Snapshot) -> Mapping[str, str]:
    """Ids of dead nodes whose absence is no fault, with the reason why.

    Ray ended the node on purpose; or its machine is in the cluster again under another id, which
    the address tells, since another machine may have the same host name; or it was lost before
    the job that runs now began (without a job: more than a day ago).
    """
    began = snapshot.time - _NEWS_S if snapshot.job_start is None else snapshot.job_start
    addresses = {report.node.address for report in snapshot.nodes if not _is_dead(report)} - {""}
    absent: dict[str, str] = {}
    for report in snapshot.nodes:
        node = report.node
        if not _is_dead(report):
            continue
        if node.address in addresses:
            absent[node.node_id] = "the machine has rejoined the cluster under another node id"
        elif _was_planned(node):
            absent[node.node_id] = "Ray ended this node on purpose"
        elif node.ended_at is not None and node.ended_at < began:
            absent[node.node_id] = f"it ended {_when(node.ended_at)}, before what runs now"
    return absent


def dead_nodes(snapshot: Snapshot) -> Iterator[Finding]:
    """Nodes that Ray's global control store lists as dead."""
    absent, names = departed(snapshot), machine_names(snapshot)
    for report in snapshot.nodes:
        node = report.node
        if not _is_dead(report):
            continue
        reason = node.death_reason or report.reason or "no reason given"
        why = absent.get(node.node_id, "")
        yield Finding(
            "ray-node-dead",
            host=names[node.machine],
            severity=Severity.INFO if why else Severity.CRITICAL,
            onset=node.ended_at,
            evidence=(
                Evidence(
                    NODE_TABLE,
                    f"node {node.node_id} at {node.address} is dead: {reason}",
                    time=node.ended_at,
                ),
            ),
            explanation=f"No fault of now: {why}." if why else "",
        )


def _when(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def unreachable_nodes(snapshot: Snapshot) -> Iterator[Finding]:
    """Nodes that Ray holds for alive and that gave no answer, or none that could be used."""
    names = machine_names(snapshot)
    for report in snapshot.nodes:
        if _is_dead(report) or report.status not in (NodeStatus.TIMEOUT, NodeStatus.UNREACHABLE):
            continue
        node = report.node
        reason = report.reason or f"no answer ({report.status.value})"
        finding = Finding(
            "node-unreachable",
            host=names[node.machine],
            severity=Severity.CRITICAL,
            evidence=(
                Evidence(
                    f"node {node.node_id} at {node.address}",
                    reason,
                    value=report.duration_s or None,
                    time=snapshot.time,
                ),
            ),
        )
        yield _answered(finding) if any(word in reason for word in _ANSWER_UNUSABLE) else finding


def _answered(finding: Finding) -> Finding:
    """The finding for a node that did answer: raydiag's trouble, and no sign of a sick node."""
    return replace(
        finding,
        severity=Severity.WARNING,
        title="The answer of a node could not be used",
        explanation=(
            "The node was reached; its answer, and not the node, was the trouble. Nothing is known "
            "of the node's state."
        ),
        next_steps=(
            "Run raydiag again; what was lost on the way comes then.",
            "Where the Python versions differ, start Ray on the node with the Python of the head.",
        ),
    )


def hung_reads(snapshot: Snapshot) -> Iterator[Finding]:
    """Sources that do not answer: guarded readers of ours hang in the kernel, or had to be ended.

    A wait for NFS can be killed, so of a hung mount no stuck reader is left.
    """
    names = machine_names(snapshot)
    stuck = {(one.node.machine, reader.source) for one in snapshot.nodes for reader in one.stuck}
    for report in snapshot.nodes:
        host, seen = names[report.node.machine], report.collected_at or None
        for reader in report.stuck:
            yield _hung_read(host, reader, seen)
        storage = report.probes.get("storage")
        for item in storage.unread if storage else ():
            if (report.node.machine, item.source) not in stuck and _missed_its_deadline(item):
                yield _hung_mount(host, item, seen)


def _missed_its_deadline(item: Unread) -> bool:
    """Whether a mount point had all its time; not so what the runner came to late or never."""
    late = item.reason.removeprefix(f"{item.source}: ").startswith("no answer within")
    return late and item.status is Status.TIMEOUT and item.source.startswith("/")


def _hung_mount(host: str, item: Unread, seen: float | None) -> Finding:
    return Finding(
        "hung-read",
        host=host,
        device=item.source,
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
        evidence=(Evidence(item.source, item.reason, time=seen),),
        explanation=(
            "The file system mounted here did not tell its usage in time. The reader could be "
            "ended, so nothing is stuck; a network file system whose server is gone, or that is "
            "overloaded, behaves like this."
        ),
    )


def _hung_read(host: str, reader: StuckReader, seen: float | None) -> Finding:
    where = f"waits in {reader.wchan}" if reader.wchan else "waits in an unknown place"
    return Finding(
        "hung-read",
        host=host,
        device=reader.source,
        pid=reader.pid,
        severity=Severity.WARNING,
        # When the read began: the source has hung at least since then.
        onset=seen - reader.seconds if seen else None,
        evidence=(
            Evidence(
                reader.source,
                f"pid {reader.pid} of probe {reader.probe} {where} for {reader.seconds:.0f} s",
                value=reader.seconds,
                time=seen,
            ),
        ),
        explanation=(
            "Reading this source does not come back from the kernel. One stuck reader is left on "
            "the node (it cannot be killed); raydiag does not read the source again until that "
            "reader is gone."
        ),
    )


def _is_dead(report: NodeReport) -> bool:
    return report.status is NodeStatus.DEAD or not report.node.alive


def _was_planned(node: Node) -> bool:
    reason = node.death_reason
    return _UNPLANNED_END not in reason.upper() and bool(_PLANNED_END.search(reason))
