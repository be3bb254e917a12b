"""What rollouts left behind that the head or the nodes alone know: an end, or a whole record.

A node that vanishes between the last look at it and the record of the end comes back with a
rollout that seems to be open there; a new head has no record of what the nodes' journals tell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional, Union

from raydiag.hotfix.ledger import Ledger
from raydiag.hotfix.messages import (
    Close,
    Closed,
    Inspection,
    RolloutStatus,
    Statuses,
    StatusRequest,
)
from raydiag.hotfix.node_requests import NoAnswerFromNode, NodeRequests
from raydiag.hotfix.plan import CHANGE, FileChange, HostPlan, HostState, NewFile, Plan
from raydiag.hotfix.progress import ROLLED_BACK, VERIFIED

_STATUS_S, _CLOSE_S = 8.0, 5.0
# Outcome of a host that the head has on record -> what its files must be for that to be true still.
_CONTENTS = {VERIFIED: "new", ROLLED_BACK: "old"}

Ends = dict[str, dict[str, str]]  # node id -> rollout -> outcome


def known_ends(nodes: NodeRequests, seen: Mapping[str, Inspection], ledger: Ledger) -> Ends:
    """Of rollouts that seem open on a node, those that ended there, by record and files."""
    open_ = {rollout for one in seen.values() for rollout in one.unfinished}
    records = {str(one["rollout"]): one for one in ledger.all()} if open_ else {}
    waiting: dict[str, list[str]] = {}
    for node, one in seen.items():
        for rollout in one.unfinished:
            if _outcome(records.get(rollout), one.host, node):
                waiting.setdefault(rollout, []).append(node)
    found: Ends = {}
    for rollout, some in waiting.items():
        request = StatusRequest(rollout=rollout)
        for node, answer in nodes.ask(dict.fromkeys(some, request), Statuses, _STATUS_S).items():
            known = [] if isinstance(answer, NoAnswerFromNode) else answer.rollouts
            outcome = _outcome(records[rollout], seen[node].host, node)
            contents = {file.content for one in known for file in one.files}
            if known and contents <= {_CONTENTS[outcome]}:
                found.setdefault(node, {})[rollout] = outcome
    return found


def _outcome(record: Optional[Mapping[str, Any]], host: str, node: str) -> str:
    """How the rollout ended on that host; "" when the head does not know that it did."""
    if record is None:
        return ""
    done: Optional[Mapping[str, Any]] = record["hosts"].get(node)
    if done is None:  # under the id that it had before Ray was started anew
        same = [one for one in record["hosts"].values() if one["host"] == host]
        done = same[0] if len(same) == 1 else {}
    state = str(done.get("state", ""))
    # A rollout that is verified on one host, and not as a whole, has still to be rolled back.
    ended = record["state"] == VERIFIED if state == VERIFIED else state == ROLLED_BACK
    return state if ended else ""


def record(nodes: NodeRequests, ends: Ends, who: str) -> str:
    """Have the nodes record these ends; why one could not be, or ""."""
    for rollout in dict.fromkeys(rollout for some in ends.values() for rollout in some):
        requests = {
            node: Close(rollout=rollout, who=who, outcome=some[rollout])
            for node, some in ends.items()
            if rollout in some
        }
        for answer in nodes.ask(requests, Closed, _CLOSE_S).values():
            if isinstance(answer, NoAnswerFromNode) or not answer.recorded:
                return f"the end of {rollout} could not be recorded: {answer.reason}"
    return ""


@dataclass(frozen=True)
class Told:
    """A rollout as the nodes' journals tell it."""

    plan: Plan
    who: str
    began_at: float


def told(rollout: str, hosts: Sequence[HostState], nodes: NodeRequests) -> Optional[Told]:
    """The rollout as far as the nodes' journals tell it; None when they do not know it.

    Nodes that are alive and silent stand in it as well: they may have been changed.
    """
    alive = {host.node_id: host for host in hosts if not host.unseen}
    request = StatusRequest(rollout=rollout)
    said = nodes.ask(dict.fromkeys(alive, request), Statuses, _STATUS_S)
    journals = {
        node: one
        for node, answer in said.items()
        if not isinstance(answer, NoAnswerFromNode)
        for one in answer.rollouts
    }
    if not journals:
        return None
    silent = [node for node, answer in said.items() if isinstance(answer, NoAnswerFromNode)]
    writers = _writers(journals, nodes.inspect(journals, ()))
    plans = [
        HostPlan(
            host=alive[node].name,
            node_id=node,
            address=alive[node].address,
            state=CHANGE,
            changes=_changes(journals.get(node)),
            writer=writers.get(node, node),
        )
        for node in (*journals, *silent)
    ]
    new = {change.name: change.new_sha256 for one in plans for change in one.changes}
    files = tuple(NewFile(name, digest, 0) for name, digest in new.items())
    plans.sort(key=lambda plan: (plan.host, plan.node_id))
    plan = Plan(files, tuple(plans), (tuple(plan.node_id for plan in plans),))
    first = min(journals.values(), key=lambda one: one.began_at)
    return Told(plan, first.who, first.began_at)


def _changes(status: Optional[RolloutStatus]) -> tuple[FileChange, ...]:
    return tuple(
        FileChange(one.name, one.path, one.old_sha256, one.new_sha256, False)
        for one in (status.files if status else ())
    )


def _writers(
    journals: Mapping[str, RolloutStatus], seen: Mapping[str, Union[Inspection, NoAnswerFromNode]]
) -> dict[str, str]:
    """Node -> the one that wrote the directory which both see."""
    places = {
        node: one.directory.identity
        for node, one in seen.items()
        if not isinstance(one, NoAnswerFromNode) and one.directory is not None
    }
    wrote = {places[node]: node for node, one in journals.items() if one.files and node in places}
    return {
        node: wrote[place]
        for node, place in places.items()
        if place in wrote and not journals[node].files
    }
