"""What a hotfix command has to say, as plain values; and its exit code.

The shape is the public contract; `raydiag/schemas/hotfix.json` states it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import Any

from raydiag.hotfix.plan import REFUSED, SAME, HostPlan, HostState, Plan
from raydiag.hotfix.progress import ROLLED_BACK, VERIFIED

PLANNED, NOTHING, INCOMPLETE = "planned", "nothing to do", "incomplete"
AT_WORK, DIED = "at work", "its driver died"

_HEALTHY = {PLANNED, NOTHING, VERIFIED, SAME}
_NEED_NO_ATTENTION = {VERIFIED, ROLLED_BACK, AT_WORK, REFUSED}
_DAMAGED_CONTENTS = {"neither", "missing", "unreadable", "mixed"}
_NOT_SHOWN = ("metrics", "plugin_log_bytes")  # of a host's plan


def record_document(
    command: str, plan: Plan, hosts: Sequence[HostState], record: Mapping[str, Any]
) -> dict[str, Any]:
    """Of what has been done of a plan, by its record."""
    document = plan_document(command, plan, hosts, str(record["state"]), str(record["reason"]))
    for name in ("rollout", "who", "began_at", "ended_at"):
        document[name] = record.get(name)
    document["events"] = list(record.get("events", ()))
    for host in document["hosts"]:
        outcome = record.get("hosts", {}).get(host["node_id"])
        if outcome:
            host.update(outcome=outcome["state"], outcome_reason=outcome["reason"])
            host.update(notes=list(outcome["notes"]), seen=outcome.get("seen"))
    return document


def plan_document(
    command: str, plan: Plan, hosts: Sequence[HostState], outcome: str, reason: str = ""
) -> dict[str, Any]:
    """Of a plan of which nothing has been done."""
    names = {host.node_id: host.host for host in plan.hosts}
    files = list(map(dataclasses.asdict, plan.files))
    for file in files:
        file.pop("content")
    nothing_done = dict.fromkeys(("rollout", "who", "began_at", "ended_at"))
    return {
        "command": command,
        **nothing_done,
        "events": [],
        "outcome": outcome,
        "reason": reason,
        "files": files,
        "canary": names.get(plan.canary),
        "batches": [list(map(names.__getitem__, batch)) for batch in plan.batches],
        "directories": _shared_directories(plan, names),
        "hosts": [_host(host, names) for host in plan.hosts],
        "findings": [],
        "coverage": coverage(hosts),
    }


def _host(host: HostPlan, names: Mapping[str, str]) -> dict[str, Any]:
    fields = dataclasses.asdict(host)
    for name in _NOT_SHOWN:
        fields.pop(name)
    fields.update(reasons=list(host.reasons), writer=names.get(host.writer), restart=host.restart)
    return {**fields, "outcome": None, "outcome_reason": "", "notes": [], "seen": None}


def _shared_directories(plan: Plan, names: Mapping[str, str]) -> list[dict[str, Any]]:
    """Directories that several hosts share: each is written once."""
    hosts_of: dict[str, list[HostPlan]] = {}  # by the directory's identity
    for host in plan.hosts:
        if host.directory is not None:
            hosts_of.setdefault(host.directory.identity, []).append(host)
    rows = []
    for identity, hosts in hosts_of.items():
        directory = hosts[0].directory
        if directory is None or len(hosts) < 2:
            continue
        writer = next((names[host.writer] for host in hosts if host.writer), None)
        row = {"identity": identity, "path": directory.path, "source": directory.source}
        rows.append({**row, "hosts": list(map(attrgetter("host"), hosts)), "writer": writer})
    return rows


def coverage(hosts: Iterable[HostState]) -> dict[str, Any]:
    """Which of the hosts that were asked answered."""
    asked_hosts = [host for host in hosts if host.asked]
    blind = [{"host": host.name, "reason": host.unseen} for host in asked_hosts if host.unseen]
    answered = len(asked_hosts) - len(blind)
    nodes = {"asked": len(asked_hosts), "answered": answered, "blind": blind}
    return {"nodes": nodes, "unread": [], "window": None}


def exit_code(document: Mapping[str, Any]) -> int:
    """0 done and verified, or nothing wrong with the plan; 1 failed or refused; 3 not all seen."""
    if _is_wrong(document):
        return 1
    return 3 if document["coverage"]["nodes"]["blind"] else 0


def _is_wrong(document: Mapping[str, Any]) -> bool:
    if document["command"] == "status":
        return any(map(_needs_attention, document["rollouts"]))
    if document["command"] == "rollback":
        return bool(document["outcome"] != ROLLED_BACK)
    states = set(map(itemgetter("state"), document["hosts"]))
    return REFUSED in states or document["outcome"] not in _HEALTHY


def _needs_attention(rollout: Mapping[str, Any]) -> bool:
    """Whether somebody has to look after a rollout."""
    contents = set(map(itemgetter("content"), rollout["hosts"]))
    return rollout["state"] not in _NEED_NO_ATTENTION or bool(contents & _DAMAGED_CONTENTS)
