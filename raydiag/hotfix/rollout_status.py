"""What became of rollouts, told by the files themselves: old, new or neither on every host.

The head's record says which hosts a rollout was to change, and the nodes' journals what was done;
both may have ended at any moment. The hash of a file has not.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any, Optional, Union

from raydiag.hotfix.documents import AT_WORK, DIED, coverage
from raydiag.hotfix.ledger import RUNNING
from raydiag.hotfix.messages import Inspection, RolloutStatus, Statuses, StatusRequest
from raydiag.hotfix.node_requests import NoAnswerFromNode, NodeRequests
from raydiag.hotfix.plan import HostState

_STATUS_S = 8.0
UNKNOWN = "unknown"
_GONE = "it is not a node of this cluster"


def status_document(
    rollout: str,
    hosts: Sequence[HostState],
    nodes: NodeRequests,
    kept: Sequence[Mapping[str, Any]],
    at_work: str,
) -> dict[str, Any]:
    """Of that rollout, or of all that the head and the nodes know.

    `kept`: the head's records; `at_work`: the rollout that is driven right now.
    """
    alive = [host.node_id for host in hosts if not host.unseen]
    said = nodes.ask(dict.fromkeys(alive, StatusRequest(rollout=rollout)), Statuses, _STATUS_S)
    seen = [
        dataclasses.replace(host, unseen=_silence(said.get(host.node_id)) or host.unseen)
        for host in hosts
    ]
    records = {str(one["rollout"]): one for one in kept}
    journals = _journals(said)
    known = {rollout} if rollout else records.keys() | journals.keys()
    names = [name for name in known if name in records or name in journals]
    looks = {
        name: _without_files(records.get(name), journals.get(name, {}), seen) for name in names
    }
    looked_at = _looked_at(looks, records, nodes)
    rows = [
        _rollout(
            name, records.get(name), journals.get(name, {}), seen, looked_at.get(name, {}), at_work
        )
        for name in names
    ]
    rows.sort(key=lambda row: (row["began_at"] or 0.0, row["rollout"]))
    return {
        "command": "status",
        "rollout": rollout or None,
        "rollouts": rows,
        "findings": [],
        "coverage": coverage(seen),
    }


def _silence(answer: Union[Statuses, NoAnswerFromNode, None]) -> str:
    return answer.reason if isinstance(answer, NoAnswerFromNode) else ""


def _journals(
    said: Mapping[str, Union[Statuses, NoAnswerFromNode]],
) -> dict[str, dict[str, RolloutStatus]]:
    """By rollout and node."""
    found: dict[str, dict[str, RolloutStatus]] = {}
    for node, answer in said.items():
        if not isinstance(answer, NoAnswerFromNode):
            for one in answer.rollouts:
                found.setdefault(one.rollout, {})[node] = one
    return found


def _rollout(
    name: str,
    record: Optional[Mapping[str, Any]],
    journals: Mapping[str, RolloutStatus],
    hosts: Sequence[HostState],
    looked_at: Mapping[str, Union[Inspection, NoAnswerFromNode]],
    at_work: str,
) -> dict[str, Any]:
    planned = _planned(record)
    by_id = {host.node_id: host for host in hosts}
    rows = []
    for node in {**planned, **journals}:
        host = by_id.get(node) or HostState(
            node, planned[node]["host"], planned[node]["address"], unseen=_GONE
        )
        told = record["hosts"].get(node) if record else None
        rows.append(_host(host, planned.get(node), journals.get(node), looked_at.get(node), told))
    rows.sort(key=lambda row: row["host"])
    first = min((one.began_at for one in journals.values()), default=None)
    return {
        "rollout": name,
        "who": record["who"] if record else next((one.who for one in journals.values()), ""),
        "state": _state(name, record, journals, at_work),
        "reason": record["reason"] if record else "the head has no record of it",
        "began_at": record["began_at"] if record else first,
        "ended_at": record["ended_at"] if record else None,
        "recorded": record is not None,
        "files": record["plan"]["files"] if record else [],
        "hosts": rows,
    }


def _state(
    name: str,
    record: Optional[Mapping[str, Any]],
    journals: Mapping[str, RolloutStatus],
    at_work: str,
) -> str:
    if record is None:
        ends = {one.ended for one in journals.values()}
        return ends.pop() if len(ends) == 1 and "" not in ends else DIED
    if at_work == name:
        return AT_WORK
    return DIED if record["state"] == RUNNING else str(record["state"])


def _planned(record: Optional[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Hosts that it was to change, by node id."""
    hosts = record["plan"]["hosts"] if record else []
    return {row["node_id"]: row for row in hosts if row["state"] == "change"}


def _without_files(
    record: Optional[Mapping[str, Any]],
    journals: Mapping[str, RolloutStatus],
    hosts: Sequence[HostState],
) -> list[str]:
    """Hosts that have no journal of it: those it did not come to, and those that share a writer."""
    alive = {host.node_id for host in hosts if not host.unseen}
    return [
        node
        for node in _planned(record)
        if node in alive and not (node in journals and journals[node].files)
    ]


def _looked_at(
    wanted: Mapping[str, Sequence[str]],
    records: Mapping[str, Mapping[str, Any]],
    nodes: NodeRequests,
) -> dict[str, dict[str, Union[Inspection, NoAnswerFromNode]]]:
    """By rollout and node: how these look now. Each is asked once for all rollouts of a place."""
    places: dict[str, list[str]] = {}
    for name, some in wanted.items():
        if some:
            places.setdefault(json.dumps(records[name]["place"], sort_keys=True), []).append(name)
    found: dict[str, dict[str, Union[Inspection, NoAnswerFromNode]]] = {}
    for place, rollouts in places.items():
        files = {file["name"] for name in rollouts for file in records[name]["plan"]["files"]}
        asked = {node for name in rollouts for node in wanted[name]}
        seen = nodes.at(json.loads(place)).inspect(sorted(asked), tuple(sorted(files)))
        found.update({name: {node: seen[node] for node in wanted[name]} for name in rollouts})
    return found


def _host(
    host: HostState,
    planned: Optional[Mapping[str, Any]],
    journal: Optional[RolloutStatus],
    seen: Union[Inspection, NoAnswerFromNode, None],
    told: Optional[Mapping[str, Any]],
) -> dict[str, Any]:
    files = [dataclasses.asdict(one) for one in journal.files] if journal else []
    if not files and planned is not None and isinstance(seen, Inspection):
        files = _by_hash(planned, seen)
    reason = host.unseen or (seen.reason if isinstance(seen, NoAnswerFromNode) else "")
    return {
        "host": host.name,
        "node_id": host.node_id,
        "address": host.address,
        "content": _content([str(file["content"]) for file in files]),
        "unseen": reason,
        "ended": journal.ended if journal else "",
        "touched": bool(journal),
        "restarts": journal.restarts if journal else 0,
        "torn": bool(journal and journal.torn),
        "files": files,
        "outcome": told["state"] if told else None,
        "outcome_reason": told["reason"] if told else "",
        "notes": list(told["notes"]) if told else [],
    }


def _by_hash(planned: Mapping[str, Any], seen: Inspection) -> list[dict[str, Any]]:
    now = {target.name: target for target in seen.files}
    rows = []
    for change in planned["changes"]:
        target = now.get(change["name"])
        digest = target.sha256 if target else ""
        which = {change["new_sha256"]: "new", change["old_sha256"]: "old"}
        rows.append(
            {
                "name": change["name"],
                "path": change["path"],
                "content": which.get(digest, "neither" if digest else "missing"),
                "old_sha256": change["old_sha256"],
                "new_sha256": change["new_sha256"],
                "sha256": digest,
            }
        )
    return rows


def _content(files: Sequence[str]) -> str:
    """Of all files of a host: "old", "new", "mixed" (each of them whole), or what is wrong."""
    if not files:
        return UNKNOWN
    for wrong in ("unreadable", "missing", "neither"):
        if wrong in files:
            return wrong
    return files[0] if len(set(files)) == 1 else "mixed"
