"""A hotfix command on the head: asks the nodes, decides, and says what came of it."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import functools
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from typing import Any, Protocol

from raydiag import records
from raydiag.errors import CannotRun, ParseError, RaydiagError, UsageError
from raydiag.hotfix import documents, plan, unfinished_rollouts
from raydiag.hotfix.cluster_hosts import hosts_of
from raydiag.hotfix.journal import sha256
from raydiag.hotfix.ledger import Ledger
from raydiag.hotfix.messages import Inspection
from raydiag.hotfix.node_requests import Answers, NodeRequests
from raydiag.hotfix.plan import HostState, NewFile, Plan, Wishes
from raydiag.hotfix.progress import CHANGING, FAILED, ROLLED_BACK, VERIFIED, RolloutProgress, Say
from raydiag.hotfix.rollback import Retreat
from raydiag.hotfix.rollout import Rollout
from raydiag.hotfix.rollout_status import status_document
from raydiag.hotfix.trial import Stop, try_files

_PATIENCE_S = 600.0  # of `rollback`, for a rollout that it has told to stop
_WAITING_NOTE_S = 20.0  # between notes that it still waits: a silent driver is taken for dead


class Cluster(Protocol):
    """What the head has to say of the nodes, and the way to ask them."""

    @property
    def rows(self) -> Sequence[Mapping[str, Any]]:
        """node_id, hostname, address, alive, death_reason, asked."""

    def ask(
        self, requests: Mapping[str, Mapping[str, Any]], limit_s: float
    ) -> Mapping[str, Mapping[str, Any]]:
        """See `node_requests.Ask`."""

    def faults(self, nodes: Sequence[str]) -> Mapping[str, str]:
        """What probes see of the driver fault, by node; nodes without it are absent."""


def run(request: Mapping[str, Any], cluster: Cluster, say: Say) -> dict[str, Any]:
    """The document of the command. Raises UsageError and CannotRun.

    `request`: command, rollout, who, place (fields of `messages.NodeRequest`), files (name,
    content), canary, batch, verify_limit_s.
    """
    command = _COMMANDS[request["command"]]
    return command(request, cluster, say)


# ---- plan


@dataclass(frozen=True)
class _Prepared:
    """A plan, and what it was made of."""

    plan: Plan
    hosts: Sequence[HostState]  # as far as they were seen
    nodes: NodeRequests
    ends: unfinished_rollouts.Ends  # to be recorded on the nodes before they take part

    def outcome(self) -> tuple[str, str]:
        """Outcome of the plan, and why nothing can be done where nothing can."""
        if self.plan.canary:
            return documents.PLANNED, ""
        states = set(map(attrgetter("state"), self.plan.hosts))
        if self.plan.reason or plan.REFUSED in states:
            return plan.REFUSED, self.plan.reason or "no host may be changed"
        if states <= {plan.UNSEEN}:
            raise CannotRun("none of the hosts asked for could be looked at")
        return documents.NOTHING, "every host that was seen has this content already"

    def document(self, command: str, outcome: str, reason: str = "") -> dict[str, Any]:
        """Before anything has been done."""
        return documents.plan_document(command, self.plan, self.hosts, outcome, reason)


def _plan(request: Mapping[str, Any], cluster: Cluster, say: Say) -> dict[str, Any]:
    """Tries the files as `apply` does, unless a rollout is at work beside it."""
    prepared, ledger = _prepare(request, cluster), Ledger(request.get("ledger"))
    outcome, reason = prepared.outcome()
    at_work = ledger.at_work()
    if at_work:
        busy = (
            f"nothing was tried: rollout {at_work} is at work on this cluster, and holds its lock"
        )
        reason = "; ".join(filter(None, (reason, busy)))
    elif outcome == documents.PLANNED:
        try:
            exporter = str(request["place"].get("exporter"))
            try_files(prepared.plan, prepared.nodes, exporter, lambda line: None)
        except Stop as stop:
            outcome, reason = plan.REFUSED, str(stop)
    return prepared.document("plan", outcome, reason)


def _prepare(request: Mapping[str, Any], cluster: Cluster) -> _Prepared:
    """Look at the nodes, and make the plan."""
    hosts = hosts_of(cluster.rows)
    alive = plan.seen_hosts(hosts)
    asked_nodes = [node for node, host in alive.items() if host.asked]
    nodes = NodeRequests(cluster.ask, request["place"], cluster.faults(asked_nodes))
    names = tuple(map(itemgetter("name"), request["files"]))
    answers = nodes.inspect(asked_nodes, names)
    not_asked = alive.keys() - set(asked_nodes)
    if not_asked and any(map(_may_be_shared, answers.given.values())):
        sharing = nodes.inspect(sorted(not_asked), names)
        answers = Answers({**answers.by_node, **sharing.by_node})
    hosts = [host for host in hosts if host.asked or host.node_id in answers.by_node]
    inspections = answers.given
    ends = unfinished_rollouts.known_ends(nodes, inspections, Ledger(request.get("ledger")))
    for node, outcomes in ends.items():
        unfinished = tuple(name for name in inspections[node].unfinished if name not in outcomes)
        inspections[node] = dataclasses.replace(inspections[node], unfinished=unfinished)
    hosts = answers.without_silent(hosts)
    files = list(map(_new_file, request["files"]))
    wishes = Wishes(request.get("canary", ""), int(request.get("batch", 0)))
    new_plan = plan.make(hosts, inspections, files, wishes)
    changing = {host.node_id for host in new_plan.hosts if host.state == plan.CHANGE}
    ends = {node: outcomes for node, outcomes in ends.items() if node in changing}
    return _Prepared(new_plan, hosts, nodes, ends)


def _may_be_shared(inspected: Inspection) -> bool:
    """Whether other nodes may see the same files."""
    return inspected.directory is not None and inspected.directory.network


def _new_file(file: Mapping[str, str]) -> NewFile:
    content = file["content"].encode()
    text = base64.b64encode(content).decode()
    return NewFile(file["name"], sha256(content), len(content), text)


# ---- apply


def _apply(request: Mapping[str, Any], cluster: Cluster, say: Say) -> dict[str, Any]:
    ledger, name = Ledger(request.get("ledger")), request["rollout"]
    with ledger.lock(name):
        prepared = _prepare(request, cluster)
        outcome, reason = prepared.outcome()
        if outcome != documents.PLANNED:
            return prepared.document("apply", outcome, reason)
        say({"plan": prepared.document("plan", outcome)})
        who, place = request["who"], request["place"]
        progress = RolloutProgress.begin(name, who, place, prepared.plan, ledger, say)
        _carry_out(prepared, progress, ledger, float(request["verify_limit_s"]))
        return documents.record_document("apply", prepared.plan, prepared.hosts, progress.record)


def _carry_out(
    prepared: _Prepared, progress: RolloutProgress, ledger: Ledger, limit_s: float
) -> None:
    """Do what is planned; if anything fails, undo it."""
    name, who = str(progress.record["rollout"]), str(progress.record["who"])
    nodes = prepared.nodes
    try:
        failure = unfinished_rollouts.record_ends(nodes, prepared.ends, who)
        if failure:
            raise Stop(failure)
        stop_asked = functools.partial(ledger.stop_asked, name)
        Rollout(prepared.plan, nodes, progress, stop_asked, limit_s).run()
    except Exception as error:
        # Whatever it was, hosts that were changed and not verified must not stay so.
        reason = str(error)
        if not isinstance(error, (Stop, RaydiagError)):
            reason = f"{type(error).__name__}: {error}"[:500]
        progress.event(reason)
        outcome = plan.REFUSED
        if progress.nodes(CHANGING, FAILED, VERIFIED):
            undone = Retreat(nodes, progress, who, limit_s).run()
            outcome = ROLLED_BACK if undone else documents.INCOMPLETE
        _end(progress, outcome, reason)
    else:
        _end(progress, VERIFIED, "")


def _end(progress: RolloutProgress, state: str, reason: str) -> None:
    """A disk that is full now changes nothing of what the nodes have; their journals tell it."""
    try:
        progress.end(state, reason)
    except CannotRun as error:
        progress.event(str(error))


# ---- status and rollback


def _status(request: Mapping[str, Any], cluster: Cluster, say: Say) -> dict[str, Any]:
    name, ledger = request["rollout"], Ledger(request.get("ledger"))
    hosts, nodes = hosts_of(cluster.rows), NodeRequests(cluster.ask, request["place"])
    ledger_records = [_with_node_ids_of_today(record, hosts) for record in ledger.all()]
    document = status_document(name, hosts, nodes, ledger_records, ledger.at_work())
    if name and not document["rollouts"]:
        raise _unknown_rollout(name, ledger)
    return document


def _rollback(request: Mapping[str, Any], cluster: Cluster, say: Say) -> dict[str, Any]:
    """From the head's record; the nodes' journals say what there is to undo."""
    name, ledger = request["rollout"], Ledger(request.get("ledger"))
    ledger.read(name)  # raises for what names no rollout
    patience_s = 1.0
    if ledger.at_work() == name:
        ledger.ask_to_stop(name, request["who"])
        say({"event": {"at": 0.0, "text": "its driver was told to stop; waiting for its end"}})
        patience_s = _PATIENCE_S
    with ledger.lock(name, patience_s, _waiting_notes(say)):
        return _undo(request, cluster, ledger, say)


def _undo(request: Mapping[str, Any], cluster: Cluster, ledger: Ledger, say: Say) -> dict[str, Any]:
    hosts = hosts_of(cluster.rows)
    record = _recorded(request, hosts, cluster, ledger)
    nodes = NodeRequests(cluster.ask, {**request["place"], **record["place"]})
    progress = RolloutProgress(record, ledger, say)
    with contextlib.suppress(CannotRun):  # the nodes' journals tell as much
        progress.reopen()
    who = request["who"]
    if Retreat(nodes, progress, who, float(request["verify_limit_s"])).run():
        _end(progress, ROLLED_BACK, f"rolled back by {who}")
    else:
        _end(progress, documents.INCOMPLETE, f"rollback asked for by {who}")
    try:
        made_plan = records.decode(Plan, record["plan"])
    except ParseError as error:
        name = request["rollout"]
        raise CannotRun(f"the record of {name} cannot be understood: {error}") from None
    return documents.record_document("rollback", made_plan, hosts, progress.record)


def _waiting_notes(say: Say) -> Callable[[], None]:
    """Notes now and then that somebody else's end is waited for."""
    noted_at = time.monotonic()

    def wait() -> None:
        """A look at the lock has found it held."""
        nonlocal noted_at
        if time.monotonic() - noted_at > _WAITING_NOTE_S:
            noted_at = time.monotonic()
            say({"event": {"at": time.time(), "text": "still waiting for its driver's end"}})

    return wait


def _recorded(
    request: Mapping[str, Any], hosts: Sequence[HostState], cluster: Cluster, ledger: Ledger
) -> dict[str, Any]:
    """The head's record; where it has none, one made of what the nodes' journals tell."""
    name = request["rollout"]
    record = ledger.read(name)
    if record is not None:
        return _with_node_ids_of_today(record, hosts)
    nodes = NodeRequests(cluster.ask, request["place"])
    journaled = unfinished_rollouts.from_journals(name, hosts, nodes)
    if journaled is None:
        raise _unknown_rollout(name, ledger)
    who, place = journaled.who, request["place"]
    progress = RolloutProgress.begin(name, who, place, journaled.plan, ledger, lambda _: None)
    progress.record["began_at"] = journaled.began_at
    progress.event("the head had no record of it: this one is made of the nodes' journals")
    progress.set(list(progress.record["hosts"]), CHANGING)
    return progress.record


def _with_node_ids_of_today(record: dict[str, Any], hosts: Sequence[HostState]) -> dict[str, Any]:
    """A Ray that was started anew gives its nodes other ids."""
    text, ids = json.dumps(record), {host.node_id for host in hosts}
    for planned in record["plan"]["hosts"]:
        matches = [host for host in hosts if host.name == planned["host"]]
        matches = [host for host in matches if host.address == planned["address"]] or matches
        if planned["node_id"] not in ids and len(matches) == 1:
            text = text.replace(json.dumps(planned["node_id"]), json.dumps(matches[0].node_id))
    plain: dict[str, Any] = json.loads(text)
    return plain


def _unknown_rollout(name: str, ledger: Ledger) -> UsageError:
    latest = list(ledger.by_rollout())[-5:]
    hint = f"the last are {', '.join(latest)}" if latest else "there is none"
    return UsageError(f"no rollout {name!r} on record in {ledger.directory} of the head; {hint}")


_COMMANDS = {"plan": _plan, "apply": _apply, "status": _status, "rollback": _rollback}
