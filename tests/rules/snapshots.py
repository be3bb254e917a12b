"""Snapshots of made-up clusters, for the rules to judge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from raydiag.model import Node, NodeReport, NodeStatus, ProbeResult, Snapshot, Status, StuckReader

NOW = 1_700_000_000.0


def report(
    host: str,
    *,
    node_id: str = "",
    address: str = "",
    status: NodeStatus = NodeStatus.OK,
    stuck: Sequence[StuckReader] = (),
    results: Sequence[ProbeResult] = (),
    reason: str = "",
    **records: Sequence[Any],
) -> NodeReport:
    """A node that answered: `records` by probe name, or whole `results`."""
    probes = {name: ProbeResult(name, Status.OK, records=found) for name, found in records.items()}
    probes.update({result.probe: result for result in results})
    return NodeReport(
        Node(node_id or f"id-{host}", f"{host}.example.net", address or f"addr-{host}"),
        status,
        probes=probes,
        stuck=stuck,
        reason=reason,
        collected_at=NOW,
    )


def dead(host: str, reason: str, *, node_id: str = "", address: str = "") -> NodeReport:
    node = Node(node_id or f"dead-{host}", host, address or f"addr-{host}", False, reason)
    return NodeReport(node, NodeStatus.DEAD, reason="dead")


def snapshot(*reports: NodeReport, job_start: float | None = None) -> Snapshot:
    return Snapshot(reports, NOW, job_start)
