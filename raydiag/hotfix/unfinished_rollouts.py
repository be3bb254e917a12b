"""What rollouts left behind that the head or the nodes alone know: an end, or a whole record.

A node that vanishes between the last look at it and the record of the end comes back with a
rollout that seems to be open there; a new head has no record of what the nodes' journals tell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import Any, Optional

from raydiag.hotfix.ledger import Ledger
from raydiag.hotfix.messages import Close, Inspection, RolloutStatus
from raydiag.hotfix.node_requests import NodeRequests
from raydiag.hotfix.plan import CHANGE, FileChange, HostPlan, HostState, NewFile, Plan, seen_hosts
from raydiag.hotfix.progress import ROLLED_BACK, VERIFIED

# Outcome of a host that the head has on record -> what its files must be for that to be true still.
_CONTENTS = {VERIFIED: "new", ROLLED_BACK: "old"}

Ends = dict[str, dict[str, str]]  # node id -> rollout -> outcome


def known_ends(nodes: NodeRequests, seen: Mapping[str, Inspection], ledger: Ledger) -> Ends:
    """Of rollouts that seem open on a node, those that ended there, by record and files."""
    if not any(map(attrgetter("unfinished"), seen.values())):
        return {}
    records = ledger.by_rollout()
    recorded: Ends = {}  # rollout -> node id -> outcome
    for node, inspected in seen.items():
        for rollout in inspected.unfinished:
            outcome = _recorded_outcome(records.get(rollout), inspected.host, node)
            if outcome:
                recorded.setdefault(rollout, {})[node] = outcome
    ends: Ends = {}
    for rollout, outcomes in recorded.items():
        for node, statuses in nodes.statuses(outcomes, rollout).given.items():
            outcome = outcomes[node]
            if statuses.rollouts and statuses.contents() <= {_CONTENTS[outcome]}:
                ends.setdefault(node, {})[rollout] = outcome
    return ends


def _recorded_outcome(record: Optional[Mapping[str, Any]], host: str, node: str) -> str:
    """How the rollout ended on that host; "" when the head does not know that it did."""
    if record is None:
        return ""
    recorded: Optional[Mapping[str, Any]] = record["hosts"].get(node)
    if recorded is None:  # under the id that it had before Ray was started anew
        same_host = [entry for entry in record["hosts"].values() if entry["host"] == host]
        recorded = same_host[0] if len(same_host) == 1 else {}
    state = str(recorded.get("state", ""))
    # A rollout that is verified on one host, and not as a whole, has still to be rolled back.
    ended = record["state"] == VERIFIED if state == VERIFIED else state == ROLLED_BACK
    return state if ended else ""


def record_ends(nodes: NodeRequests, ends: Ends, who: str) -> str:
    """Have the nodes record these ends; why one could not be, or ""."""
    for rollout in dict.fromkeys(chain.from_iterable(ends.values())):
        requests = {}
        for node, outcomes in ends.items():
            if rollout in outcomes:
                requests[node] = Close(rollout=rollout, who=who, outcome=outcomes[rollout])
        for _, reason in nodes.close(requests):
            return f"the end of {rollout} could not be recorded: {reason}"
    return ""


@dataclass(frozen=True)
class JournaledRollout:
    """A rollout as the nodes' journals tell it."""

    plan: Plan
    who: str
    began_at: float


def from_journals(
    rollout: str, hosts: Sequence[HostState], nodes: NodeRequests
) -> Optional[JournaledRollout]:
    """The rollout as far as the nodes' journals tell it; None when they do not know it.

    Nodes that are alive and silent stand in it as well: they may have been changed.
    """
    alive = seen_hosts(hosts)
    answers = nodes.statuses(alive, rollout)
    journals = {}
    for node, statuses in answers.given.items():
        if statuses.rollouts:
            journals[node] = statuses.rollouts[-1]
    if not journals:
        return None
    writers = _writers(journals, nodes.inspect(journals, ()).given)
    plans = []
    for node in (*journals, *answers.missing):
        changes, writer = _changes(journals.get(node)), writers.get(node, node)
        place = (alive[node].name, node, alive[node].address)
        plans.append(HostPlan(*place, CHANGE, changes=changes, writer=writer))
    plans.sort(key=lambda plan: (plan.host, plan.node_id))
    batch = tuple(map(attrgetter("node_id"), plans))
    changed = chain.from_iterable(map(attrgetter("changes"), plans))
    digests = {change.name: change.new_sha256 for change in changed}
    files = [NewFile(name, digest, 0) for name, digest in digests.items()]
    plan = Plan(tuple(files), tuple(plans), (batch,))
    first = min(journals.values(), key=lambda journal: journal.began_at)
    return JournaledRollout(plan, first.who, first.began_at)


def _changes(status: Optional[RolloutStatus]) -> tuple[FileChange, ...]:
    changes = []
    for file in status.files if status else ():
        digests = (file.old_sha256, file.new_sha256)
        changes.append(FileChange(file.name, file.path, *digests, restart=False))
    return tuple(changes)


def _writers(
    journals: Mapping[str, RolloutStatus], seen: Mapping[str, Inspection]
) -> dict[str, str]:
    """Node -> the one that wrote the directory which both see."""
    writer_of: dict[str, str] = {}  # by the directory's identity
    readers: dict[str, str] = {}  # node -> that identity
    for node, inspected in seen.items():
        if inspected.directory is None:
            continue
        if journals[node].files:
            writer_of[inspected.directory.identity] = node
        else:
            readers[node] = inspected.directory.identity
    return {node: writer_of[place] for node, place in readers.items() if place in writer_of}
