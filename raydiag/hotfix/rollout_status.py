"""What became of rollouts, as the files themselves show: old, new or neither on every host.

The head's record says which hosts a rollout was to change, and the nodes' journals what was done;
both may have ended at any moment. The hash of a file has not.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from typing import Any, Optional, Union

from raydiag.hotfix.documents import AT_WORK, DIED, coverage
from raydiag.hotfix.ledger import RUNNING
from raydiag.hotfix.messages import Inspection, RolloutStatus, Statuses, TargetFile
from raydiag.hotfix.node_requests import NoAnswerFromNode, NodeRequests
from raydiag.hotfix.plan import HostState, seen_hosts

UNKNOWN = "unknown"
_NOT_A_NODE = "it is not a node of this cluster"
_NO_JOURNAL = RolloutStatus("", "", 0.0, "", ())
_NO_OUTCOME: Mapping[str, Any] = {"state": None, "reason": "", "notes": ()}

Hosts = Sequence[HostState]
Record = Mapping[str, Any]  # of a rollout on the head, or a part of it
_Look = Union[Inspection, NoAnswerFromNode]
_Looks = dict[str, _Look]  # by node id


@dataclass(frozen=True)
class _KnownRollout:
    """What head and nodes know of one rollout."""

    name: str
    record: Optional[Mapping[str, Any]]  # the head's
    journals: Mapping[str, RolloutStatus]  # by node id

    def planned(self) -> dict[str, Mapping[str, Any]]:
        """Hosts that it was to change, by node id."""
        hosts = self.record["plan"]["hosts"] if self.record else []
        return {host["node_id"]: host for host in hosts if host["state"] == "change"}

    def outcome_of(self, node: str) -> Mapping[str, Any]:
        """State, reason and notes of a host, as the head has them on record."""
        hosts: Mapping[str, Any] = self.record["hosts"] if self.record else {}
        return hosts.get(node) or _NO_OUTCOME

    def without_files(self, hosts: Sequence[HostState]) -> list[str]:
        """Live hosts whose journal names no file: those not reached, and those with a writer."""
        alive = seen_hosts(hosts)
        with_files = {node for node, journal in self.journals.items() if journal.files}
        return [node for node in self.planned() if node in alive and node not in with_files]

    def state(self, at_work: str) -> str:
        """Of the rollout; `at_work` is the one that is driven right now."""
        if self.record is None:
            ends = set(map(attrgetter("ended"), self.journals.values()))
            return ends.pop() if len(ends) == 1 and "" not in ends else DIED
        if at_work == self.name:
            return AT_WORK
        return DIED if self.record["state"] == RUNNING else str(self.record["state"])

    def summary(self) -> dict[str, Any]:
        """The fields of the document that the record has, or else the journals."""
        if self.record is not None:
            names = ("who", "reason", "began_at", "ended_at")
            fields = {name: self.record[name] for name in names}
            return {**fields, "recorded": True, "files": self.record["plan"]["files"]}
        journals = self.journals.values()
        who = next(map(attrgetter("who"), journals), "")
        fields = {"who": who, "reason": "the head has no record of it", "ended_at": None}
        fields["began_at"] = min(map(attrgetter("began_at"), journals), default=None)
        return {**fields, "recorded": False, "files": []}


def status_document(
    rollout: str, hosts: Hosts, nodes: NodeRequests, records: Sequence[Record], at_work: str
) -> dict[str, Any]:
    """Of that rollout, or of all that the head and the nodes know.

    `records`: the head's; `at_work`: the rollout that is driven right now.
    """
    answers = nodes.statuses(seen_hosts(hosts), rollout)
    hosts_seen = answers.without_silent(hosts)
    rollouts = _known_rollouts(rollout, records, answers.given)
    looks = _looks_at(rollouts, hosts_seen, nodes)
    rows = [_rollout(entry, hosts_seen, looks.get(entry.name, {}), at_work) for entry in rollouts]
    rows.sort(key=lambda row: (row["began_at"] or 0.0, row["rollout"]))
    head = {"command": "status", "rollout": rollout or None, "rollouts": rows}
    return {**head, "findings": [], "coverage": coverage(hosts_seen)}


def _known_rollouts(
    rollout: str, kept_records: Sequence[Record], statuses: Mapping[str, Statuses]
) -> list[_KnownRollout]:
    """That rollout, if it is known; every one for ""."""
    records = {str(record["rollout"]): record for record in kept_records}
    journals: dict[str, dict[str, RolloutStatus]] = {}  # by rollout and node
    for node, answer in statuses.items():
        for journal in answer.rollouts:
            journals.setdefault(journal.rollout, {})[node] = journal
    names = records.keys() | journals.keys()
    if rollout:
        names &= {rollout}
    return [_KnownRollout(name, records.get(name), journals.get(name, {})) for name in names]


def _rollout(rollout: _KnownRollout, hosts: Hosts, looks: _Looks, at_work: str) -> dict[str, Any]:
    planned = rollout.planned()
    by_id = {host.node_id: host for host in hosts}
    rows = []
    for node in {**planned, **rollout.journals}:
        host = by_id.get(node)
        if host is None:
            plan = planned[node]
            host = HostState(node, plan["host"], plan["address"], unseen=_NOT_A_NODE)
        outcome = rollout.outcome_of(node)
        journal = rollout.journals.get(node, _NO_JOURNAL)
        row = _host_row(host, journal, planned.get(node), looks.get(node))
        row.update(outcome=outcome["state"], outcome_reason=outcome["reason"])
        rows.append({**row, "notes": list(outcome["notes"])})
    rows.sort(key=itemgetter("host"))
    head = {"rollout": rollout.name, "state": rollout.state(at_work)}
    return {**head, **rollout.summary(), "hosts": rows}


def _looks_at(
    rollouts: Sequence[_KnownRollout], hosts: Hosts, nodes: NodeRequests
) -> dict[str, _Looks]:
    """By rollout: how hosts without a journal look now. Each is asked once for each place."""
    by_place: dict[str, list[_KnownRollout]] = {}
    unreached = {rollout.name: rollout.without_files(hosts) for rollout in rollouts}
    for rollout in rollouts:
        if rollout.record and unreached[rollout.name]:
            place = json.dumps(rollout.record["place"], sort_keys=True)
            by_place.setdefault(place, []).append(rollout)
    looks: dict[str, _Looks] = {}
    for place, of_place in by_place.items():
        names: set[str] = set()
        nodes_to_ask: set[str] = set()
        for rollout in of_place:
            names.update(map(itemgetter("name"), rollout.summary()["files"]))
            nodes_to_ask.update(unreached[rollout.name])
        answers = nodes.at(json.loads(place)).inspect(sorted(nodes_to_ask), tuple(sorted(names)))
        for rollout in of_place:
            looks[rollout.name] = {node: answers.by_node[node] for node in unreached[rollout.name]}
    return looks


def _host_row(
    host: HostState, journal: RolloutStatus, planned: Optional[Record], look: Optional[_Look]
) -> dict[str, Any]:
    """What is known of the host's files, by its journal or else by their hashes now."""
    files = list(map(dataclasses.asdict, journal.files))
    unseen = host.unseen
    if isinstance(look, NoAnswerFromNode):
        unseen = unseen or look.reason
    elif look is not None and planned is not None and not files:
        targets = look.targets()
        files = [_by_hash(change, targets.get(change["name"])) for change in planned["changes"]]
    content, touched = _content(files), journal is not _NO_JOURNAL
    return {
        "host": host.name,
        "node_id": host.node_id,
        "address": host.address,
        "content": content,
        "unseen": unseen,
        "ended": journal.ended,
        "touched": touched,
        "restarts": journal.restarts,
        "torn": journal.torn,
        "files": files,
    }


def _by_hash(change: Mapping[str, Any], target: Optional[TargetFile]) -> dict[str, Any]:
    digest = target.sha256 if target else ""
    contents = {change["new_sha256"]: "new", change["old_sha256"]: "old"}
    content = contents.get(digest, "neither" if digest else "missing")
    planned = {key: change[key] for key in ("name", "path", "old_sha256", "new_sha256")}
    return {**planned, "content": content, "sha256": digest}


def _content(files: Sequence[Record]) -> str:
    """Of all files of a host: "old", "new", "mixed" (each of them whole), or what is wrong."""
    contents: set[str] = set(map(itemgetter("content"), files))
    for wrong in ("unreadable", "missing", "neither"):
        if wrong in contents:
            return wrong
    if not contents:
        return UNKNOWN
    return contents.pop() if len(contents) == 1 else "mixed"
