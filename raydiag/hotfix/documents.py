"""What a hotfix command has to say, as plain values; and its exit code.

The shape is the public contract; `raydiag/schemas/hotfix.json` states it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Optional

from raydiag.hotfix.plan import REFUSED, SAME, HostPlan, HostState, Plan
from raydiag.hotfix.progress import ROLLED_BACK, VERIFIED

PLANNED, NOTHING, INCOMPLETE = "planned", "nothing to do", "incomplete"
AT_WORK, DIED = "at work", "its driver died"

_WELL = {PLANNED, NOTHING, VERIFIED, SAME}


def plan_document(
    command: str,
    plan: Plan,
    hosts: Sequence[HostState],
    outcome: str,
    reason: str = "",
    record: Optional[Mapping[str, Any]] = None,
) -> dict[str, Any]:
    """Of `plan`, and of `apply` with its record."""
    done = record or {}
    names = {host.node_id: host.host for host in plan.hosts}
    return {
        "command": command,
        "rollout": done.get("rollout"),
        "who": done.get("who"),
        "outcome": outcome,
        "reason": reason,
        "began_at": done.get("began_at"),
        "ended_at": done.get("ended_at"),
        "files": [
            {"name": file.name, "sha256": file.sha256, "size_bytes": file.size_bytes}
            for file in plan.files
        ],
        "canary": names.get(plan.canary),
        "batches": [[names[node] for node in batch] for batch in plan.batches],
        "directories": _directories(plan, names),
        "hosts": [_host(host, names, done.get("hosts", {})) for host in plan.hosts],
        "events": list(done.get("events", [])),
        "findings": [],
        "coverage": coverage(hosts),
    }


def _host(host: HostPlan, names: Mapping[str, str], done: Mapping[str, Any]) -> dict[str, Any]:
    plain = dataclasses.asdict(host)
    for name in ("metrics", "plugin_log_bytes", "node_id", "host", "address", "writer"):
        plain.pop(name)
    result = done.get(host.node_id)
    return {
        "host": host.host,
        "node_id": host.node_id,
        "address": host.address,
        **plain,
        "reasons": list(host.reasons),
        "writer": names.get(host.writer),
        "restart": host.restart,
        "outcome": result["state"] if result else None,
        "outcome_reason": result["reason"] if result else "",
        "notes": list(result["notes"]) if result else [],
        "seen": result.get("seen") if result else None,
    }


def _directories(plan: Plan, names: Mapping[str, str]) -> list[dict[str, Any]]:
    """Those that several hosts share: each is written once."""
    found: dict[str, list[HostPlan]] = {}
    for host in plan.hosts:
        if host.directory is not None:
            found.setdefault(host.directory.identity, []).append(host)
    shared = {identity: hosts for identity, hosts in found.items() if len(hosts) > 1}
    rows = []
    for identity, hosts in shared.items():
        place = hosts[0].directory
        assert place is not None
        rows.append(
            {
                "identity": identity,
                "path": place.path,
                "source": place.source,
                "hosts": [host.host for host in hosts],
                "writer": next((names[one.writer] for one in hosts if one.writer), None),
            }
        )
    return rows


def coverage(hosts: Iterable[HostState]) -> dict[str, Any]:
    """Which of the hosts that were asked answered."""
    asked = [host for host in hosts if host.asked]
    blind = [{"host": one.name, "reason": one.unseen} for one in asked if one.unseen]
    return {
        "nodes": {"asked": len(asked), "answered": len(asked) - len(blind), "blind": blind},
        "unread": [],
        "window": None,
    }


def exit_code(document: Mapping[str, Any]) -> int:
    """0 done and verified, or nothing wrong with the plan; 1 failed or refused; 3 not all seen."""
    blind = bool(document["coverage"]["nodes"]["blind"])
    if document["command"] == "status":
        wrong = any(_is_wrong(rollout) for rollout in document["rollouts"])
    elif document["command"] == "rollback":
        wrong = document["outcome"] != ROLLED_BACK
    else:
        refused = any(host["state"] == REFUSED for host in document["hosts"])
        wrong = refused or document["outcome"] not in _WELL
    return 1 if wrong else 3 if blind else 0


def _is_wrong(rollout: Mapping[str, Any]) -> bool:
    """Whether somebody has to look after it."""
    open_ = rollout["state"] not in (VERIFIED, ROLLED_BACK, AT_WORK, REFUSED)
    odd = {"neither", "missing", "unreadable", "mixed"}
    return open_ or any(host["content"] in odd for host in rollout["hosts"])
