"""A hotfix command on the head: asks the nodes, decides, and says what came of it."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from raydiag import records
from raydiag.errors import CannotRun, ParseError, RaydiagError, UsageError
from raydiag.hotfix import documents, plan, unfinished_rollouts
from raydiag.hotfix.ledger import Ledger
from raydiag.hotfix.messages import Inspection
from raydiag.hotfix.node_requests import NoAnswerFromNode, NodeRequests
from raydiag.hotfix.plan import HostState, NewFile, Plan, Wishes
from raydiag.hotfix.progress import CHANGING, FAILED, ROLLED_BACK, VERIFIED, RolloutProgress, Say
from raydiag.hotfix.rollback import Retreat
from raydiag.hotfix.rollout import Rollout, Stop
from raydiag.hotfix.rollout_status import status_document

_PATIENCE_S = 600.0  # of `rollback`, for a rollout that it has told to stop
_TELL_S = 20.0  # that it still waits: who is not heard for long is taken for dead


class Cluster(Protocol):
    """What the head has to say of the nodes, and the way to ask them."""

    @property
    def rows(self) -> Sequence[Mapping[str, Any]]:
        """node_id, hostname, address, alive, death_reason, asked."""

    def ask(
        self, requests: Mapping[str, Mapping[str, Any]], limit_s: float
    ) -> Mapping[str, Mapping[str, Any]]:
        """See `asking.Ask`."""

    def faults(self, nodes: Sequence[str]) -> Mapping[str, str]:
        """What probes see of the driver fault, by node; nodes without it are absent."""


def run(request: Mapping[str, Any], cluster: Cluster, say: Say) -> dict[str, Any]:
    """The document of the command. Raises UsageError and CannotRun.

    `request`: command, rollout, who, place (fields of `messages.Request`), files (name, content),
    canary, batch, verify_limit_s.
    """
    command = _COMMANDS[request["command"]]
    return command(request, cluster, say)


def _plan(request: Mapping[str, Any], cluster: Cluster, say: Say) -> dict[str, Any]:
    hosts = _hosts(cluster)
    made, hosts, _, _ = _made(request, hosts, cluster)
    return documents.plan_document("plan", made, hosts, *_planned(made))


def _planned(made: Plan) -> tuple[str, str]:
    """Outcome of a plan, and why nothing can be done where nothing can."""
    if made.canary:
        return documents.PLANNED, ""
    if made.reason or any(host.state == plan.REFUSED for host in made.hosts):
        return plan.REFUSED, made.reason or "no host may be changed"
    if all(host.state == plan.UNSEEN for host in made.hosts):
        raise CannotRun("none of the hosts asked for could be looked at")
    return documents.NOTHING, "every host that was seen has this content already"


def _made(
    request: Mapping[str, Any], hosts: list[HostState], cluster: Cluster
) -> tuple[Plan, list[HostState], NodeRequests, unfinished_rollouts.Ends]:
    """The plan, the hosts as far as they were seen, the nodes with what they suffer from, and what
    is to be recorded on them before they take part in it.
    """
    asked = [host.node_id for host in hosts if host.asked and not host.unseen]
    nodes = NodeRequests(cluster.ask, request["place"], cluster.faults(asked))
    names = tuple(file["name"] for file in request["files"])
    said = nodes.inspect(asked, names)
    others = [host.node_id for host in hosts if not host.asked and not host.unseen]
    if others and any(_is_shared(answer) for answer in said.values()):
        said.update(nodes.inspect(others, names))
        hosts = [host for host in hosts if host.asked or host.node_id in said]
    else:
        hosts = [host for host in hosts if host.asked]
    seen = {node: one for node, one in said.items() if not isinstance(one, NoAnswerFromNode)}
    ends = unfinished_rollouts.known_ends(nodes, seen, Ledger(request.get("ledger")))
    for node, ended in ends.items():
        open_ = tuple(one for one in seen[node].unfinished if one not in ended)
        seen[node] = dataclasses.replace(seen[node], unfinished=open_)
    silent = {node: one.reason for node, one in said.items() if isinstance(one, NoAnswerFromNode)}
    hosts = [_silenced(host, silent) for host in hosts]
    files = [_new_file(file) for file in request["files"]]
    wishes = Wishes(request.get("canary", ""), int(request.get("batch", 0)))
    made = plan.make(hosts, seen, files, wishes)
    changing = {host.node_id for host in made.hosts if host.state == plan.CHANGE}
    return made, hosts, nodes, {node: end for node, end in ends.items() if node in changing}


def _is_shared(answer: object) -> bool:
    """Whether other nodes may see the same files."""
    place = answer.directory if isinstance(answer, Inspection) else None
    return place is not None and place.network


def _silenced(host: HostState, silent: Mapping[str, str]) -> HostState:
    reason = silent.get(host.node_id)
    return HostState(host.node_id, host.name, host.address, host.asked, reason) if reason else host


def _new_file(file: Mapping[str, str]) -> NewFile:
    content = file["content"].encode()
    return NewFile(
        name=file["name"],
        sha256=hashlib.sha256(content).hexdigest(),
        size_bytes=len(content),
        content=base64.b64encode(content).decode(),
    )


def _apply(request: Mapping[str, Any], cluster: Cluster, say: Say) -> dict[str, Any]:
    ledger, name = Ledger(request.get("ledger")), request["rollout"]
    with ledger.lock(name):
        made, hosts, nodes, ends = _made(request, _hosts(cluster), cluster)
        outcome, reason = _planned(made)
        if outcome != documents.PLANNED:
            return documents.plan_document("apply", made, hosts, outcome, reason)
        say({"plan": documents.plan_document("plan", made, hosts, outcome, reason)})
        progress = RolloutProgress.begin(name, request["who"], request["place"], made, ledger, say)
        limit_s = float(request["verify_limit_s"])
        try:
            trouble = unfinished_rollouts.record(nodes, ends, request["who"])
            if trouble:
                raise Stop(trouble)
            Rollout(made, nodes, progress, lambda: ledger.stop_asked(name), limit_s).run()
        except Exception as error:
            # Whatever it was, hosts that were changed and not verified must not stay so.
            known = isinstance(error, (Stop, RaydiagError))
            reason = str(error) if known else f"{type(error).__name__}: {error}"[:500]
            progress.event(reason)
            _retreat(nodes, progress, request["who"], limit_s, reason)
        else:
            _end(progress, VERIFIED, "")
        record = progress.record
        state, reason = str(record["state"]), str(record["reason"])
        return documents.plan_document("apply", made, hosts, state, reason, record)


def _retreat(
    nodes: NodeRequests, progress: RolloutProgress, who: str, limit_s: float, reason: str
) -> None:
    """Undo what was done, if anything was, and say how the rollout ended."""
    if not progress.nodes(CHANGING, FAILED, VERIFIED):
        _end(progress, plan.REFUSED, reason)
        return
    undone = Retreat(nodes, progress, who, limit_s).run()
    _end(progress, ROLLED_BACK if undone else documents.INCOMPLETE, reason)


def _end(progress: RolloutProgress, state: str, reason: str) -> None:
    """A disk that is full now changes nothing of what the nodes have; their journals tell it."""
    try:
        progress.end(state, reason)
    except CannotRun as error:
        progress.event(str(error))


def _status(request: Mapping[str, Any], cluster: Cluster, say: Say) -> dict[str, Any]:
    name, ledger = request["rollout"], Ledger(request.get("ledger"))
    hosts, nodes = _hosts(cluster), NodeRequests(cluster.ask, request["place"])
    kept = [_as_now(record, hosts) for record in ledger.all()]
    found = status_document(name, hosts, nodes, kept, ledger.at_work())
    if name and not found["rollouts"]:
        raise UsageError(_unknown(name, ledger))
    return found


def _rollback(request: Mapping[str, Any], cluster: Cluster, say: Say) -> dict[str, Any]:
    """From the head's record; the nodes' journals say what there is to undo."""
    name, ledger = request["rollout"], Ledger(request.get("ledger"))
    ledger.read(name)  # raises for what names no rollout
    if ledger.at_work() == name:
        ledger.ask_to_stop(name, request["who"])
        say({"event": {"at": 0.0, "text": "its driver was told to stop; waiting for its end"}})
    patience_s = _PATIENCE_S if ledger.at_work() == name else 1.0
    with ledger.lock(name, patience_s, _Waiting(say)):
        hosts = _hosts(cluster)
        record = _recorded(request, hosts, cluster, ledger)
        nodes = NodeRequests(cluster.ask, {**request["place"], **record["place"]})
        progress = RolloutProgress(record, ledger, say)
        with contextlib.suppress(CannotRun):  # the nodes' journals tell as much
            progress.again()
        undone = Retreat(nodes, progress, request["who"], float(request["verify_limit_s"])).run()
        state = ROLLED_BACK if undone else documents.INCOMPLETE
        words = "rolled back by" if undone else "rollback asked for by"
        _end(progress, state, f"{words} {request['who']}")
        try:
            made = records.decode(Plan, record["plan"])
        except ParseError as error:
            raise CannotRun(f"the record of {name} cannot be understood: {error}") from None
        return documents.plan_document(
            "rollback", made, hosts, state, str(record["reason"]), progress.record
        )


class _Waiting:
    """Says now and then that somebody else's end is waited for."""

    def __init__(self, say: Say) -> None:
        self._say, self._told = say, time.monotonic()

    def __call__(self) -> None:
        if time.monotonic() - self._told > _TELL_S:
            self._told = time.monotonic()
            self._say({"event": {"at": time.time(), "text": "still waiting for its driver's end"}})


def _recorded(
    request: Mapping[str, Any], hosts: Sequence[HostState], cluster: Cluster, ledger: Ledger
) -> dict[str, Any]:
    """The head's record; where it has none, one made of what the nodes' journals tell."""
    name = request["rollout"]
    record = ledger.read(name)
    if record is not None:
        return _as_now(record, hosts)
    found = unfinished_rollouts.told(name, hosts, NodeRequests(cluster.ask, request["place"]))
    if found is None:
        raise UsageError(_unknown(name, ledger))
    progress = RolloutProgress.begin(
        name, found.who, request["place"], found.plan, ledger, lambda message: None
    )
    progress.record["began_at"] = found.began_at
    progress.event("the head had no record of it: this one is made of the nodes' journals")
    progress.set(list(progress.record["hosts"]), CHANGING)
    return progress.record


def _as_now(record: dict[str, Any], hosts: Sequence[HostState]) -> dict[str, Any]:
    """The record with the node ids of today: a Ray that was started anew gives its nodes others."""
    text, ids = json.dumps(record), {host.node_id for host in hosts}
    for then in record["plan"]["hosts"]:
        same = [host for host in hosts if host.name == then["host"]]
        same = [host for host in same if host.address == then["address"]] or same
        if then["node_id"] not in ids and len(same) == 1:
            text = text.replace(json.dumps(then["node_id"]), json.dumps(same[0].node_id))
    plain: dict[str, Any] = json.loads(text)
    return plain


def _unknown(name: str, ledger: Ledger) -> str:
    known = [str(record["rollout"]) for record in ledger.all()][-5:]
    there = f"the last are {', '.join(known)}" if known else "there is none"
    return f"no rollout {name!r} on record in {ledger.directory} of the head; {there}"


def _hosts(cluster: Cluster) -> list[HostState]:
    """Machines by name: one that has several Ray nodes has one exporter."""
    found: dict[tuple[str, str], HostState] = {}
    named = _names(cluster.rows)
    for row in cluster.rows:
        short = named[row["node_id"]]
        reason = "" if row["alive"] else f"dead: {row['death_reason'] or 'Ray lost it'}"
        host = HostState(row["node_id"], short, row["address"], bool(row["asked"]), reason)
        other = found.get((short, row["address"]))
        if other is None or (other.unseen and not host.unseen):
            found[short, row["address"]] = host
    return sorted(found.values(), key=lambda host: (host.name, host.address))


def _names(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """By node id: the short host name, unless several machines have it: then the full one, or else
    the address.
    """
    addresses: dict[str, set[str]] = {}
    for row in rows:
        for name in {row["hostname"], row["hostname"].split(".")[0]} if row["alive"] else ():
            addresses.setdefault(str(name), set()).add(str(row["address"]))
    named = {}
    for row in rows:
        full, address = str(row["hostname"]), str(row["address"])
        short = full if full == address else full.split(".")[0]
        unique = (name for name in (short, full) if len(addresses.get(name, ())) <= 1)
        named[str(row["node_id"])] = next(unique, address) if row["alive"] else short
    return named


_COMMANDS = {"plan": _plan, "apply": _apply, "status": _status, "rollback": _rollback}
