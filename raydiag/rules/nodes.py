"""Nodes that are dead or unreachable, and sources whose reads hang."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from typing import Any

from raydiag import catalog, model
from raydiag.model import Evidence, Finding, Node, NodeReport, NodeStatus, Severity, Snapshot
from raydiag.rules.machines import machine_names

# Ray's DeathReason and its message. The word boundary matters: UNEXPECTED_TERMINATION holds
# EXPECTED_TERMINATION.
_PLANNED_END = re.compile(r"\bEXPECTED_TERMINATION\b|drain|autoscaler", re.IGNORECASE)
_UNPLANNED_END = "UNEXPECTED_TERMINATION"

# Reasons of `cluster.collect` and `cluster.actor` where the node did answer.
_ANSWER_UNUSABLE = (
    "its answer was lost",
    "its answer cannot be decoded",
    "another one on the head",  # another version of Python
    "node runner: ended before it answered",
)

_NEWS_S = 86_400.0
NODE_TABLE = "Ray node table (GCS)"


def departed(snapshot: Snapshot) -> Mapping[str, str]:
    """Ids of dead nodes whose absence is no fault, with the reason why.

    Ray ended the node on purpose; or its machine is in the cluster again under another id, which
    the address tells, since another machine may have the same host name; or it was lost before
    the job that runs now began (without a job: more than a day ago).
    """
    live_reports = itertools.filterfalse(is_dead, snapshot.nodes)
    addresses = {report.node.address for report in live_reports} - {""}
    reasons: dict[str, str] = {}
    for report in filter(is_dead, snapshot.nodes):
        if reason := _departure(snapshot, report.node, addresses):
            reasons[report.node.node_id] = reason
    return reasons


def _departure(snapshot: Snapshot, node: Node, live_addresses: set[str]) -> str:
    """Why the absence of a dead node is no fault; empty when it may be one."""
    began = snapshot.time - _NEWS_S if snapshot.job_start is None else snapshot.job_start
    if node.address in live_addresses:
        return "the machine has rejoined the cluster under another node id"
    if _was_planned(node):
        return "Ray ended this node on purpose"
    if node.ended_at is None or node.ended_at >= began:
        return ""
    ended = datetime.fromtimestamp(node.ended_at, timezone.utc)
    return f"it ended {ended:%Y-%m-%d %H:%M} UTC, before what runs now"


def dead_nodes(snapshot: Snapshot) -> Iterator[Finding]:
    """Nodes that Ray's global control store lists as dead."""
    departures, names = departed(snapshot), machine_names(snapshot)
    for report in filter(is_dead, snapshot.nodes):
        node = report.node
        reason = node.death_reason or report.reason or "no reason given"
        text = f"node {node.node_id} at {node.address} is dead: {reason}"
        known: dict[str, Any] = {"severity": Severity.CRITICAL, "onset": node.ended_at}
        if departure := departures.get(node.node_id):
            known.update(severity=Severity.INFO, explanation=f"Not a present fault: {departure}.")
        evidence = (Evidence(NODE_TABLE, text, time=node.ended_at),)
        yield Finding("ray-node-dead", names[node.machine], evidence=evidence, **known)


def unreachable_nodes(snapshot: Snapshot) -> Iterator[Finding]:
    """Nodes that Ray believes alive and that gave no answer, or none that could be used."""
    names = machine_names(snapshot)
    for report in snapshot.nodes:
        if is_dead(report) or report.status not in (NodeStatus.TIMEOUT, NodeStatus.UNREACHABLE):
            continue
        node = report.node
        reason = report.reason or f"no answer ({report.status.value})"
        source, waited_s = f"node {node.node_id} at {node.address}", report.duration_s or None
        known: Mapping[str, Any] = {"severity": Severity.CRITICAL}
        if any(phrase in reason for phrase in _ANSWER_UNUSABLE):
            known = catalog.variant("node-unreachable", "unusable-answer")
        evidence = (Evidence(source, reason, waited_s, snapshot.time),)
        yield Finding("node-unreachable", names[node.machine], evidence=evidence, **known)


def hung_reads(snapshot: Snapshot) -> Iterator[Finding]:
    """Sources whose reads hang: reader processes that hang in the kernel, or had to be killed.

    A wait for NFS can be killed, so of a hung mount no stuck reader is left.
    """
    names = machine_names(snapshot)
    stuck_sources = set()
    for report in snapshot.nodes:
        for reader in report.stuck:
            stuck_sources.add((report.node.machine, reader.source))
            yield _hung_read(names[report.node.machine], reader, report.collected_at or None)
    for report in snapshot.nodes:
        for unread in _unread_mounts(report):
            if (report.node.machine, unread.source) not in stuck_sources:
                yield _hung_mount(names[report.node.machine], unread, report.collected_at or None)


def _unread_mounts(report: NodeReport) -> Iterator[model.Unread]:
    """Mount points that had all their time; not those that the runner reached late or never."""
    storage = report.probes.get("storage")
    for unread in storage.unread if storage else ():
        reason = unread.reason.removeprefix(f"{unread.source}: ")
        timed_out = unread.status is model.Status.TIMEOUT and reason.startswith("no answer within")
        if timed_out and unread.source.startswith("/"):
            yield unread


def _hung_mount(host: str, unread: model.Unread, read_at: float | None) -> Finding:
    evidence = (Evidence(unread.source, unread.reason, time=read_at),)
    known = catalog.variant("hung-read", "mount")
    return Finding("hung-read", host, device=unread.source, evidence=evidence, **known)


def _hung_read(host: str, reader: model.StuckReader, read_at: float | None) -> Finding:
    symbol = reader.wchan or "an unknown place"
    text = f"pid {reader.pid} of probe {reader.probe} waits in {symbol} for {reader.seconds:.0f} s"
    evidence = (Evidence(reader.source, text, reader.seconds, read_at),)
    known = dict(catalog.variant("hung-read", "stuck-reader"), device=reader.source)
    # When the read began: the source has hung at least since then.
    known["onset"] = read_at - reader.seconds if read_at else None
    return Finding("hung-read", host, pid=reader.pid, evidence=evidence, **known)


def is_dead(report: NodeReport) -> bool:
    """Whether Ray lists the node as dead."""
    return report.status is NodeStatus.DEAD or not report.node.alive


def _was_planned(node: Node) -> bool:
    reason = node.death_reason
    return _UNPLANNED_END not in reason.upper() and bool(_PLANNED_END.search(reason))
