"""How far a rollout is, on every host: kept on disk, and sent to whoever listens."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from raydiag.hotfix.ledger import RUNNING, Ledger
from raydiag.hotfix.plan import CHANGE, Plan

# States of a host in a rollout.
WAITING = "waiting"  # nothing was done there yet
CHANGING = "changing"
VERIFIED = "verified"
FAILED = "failed"
UNTOUCHED = "untouched"  # the rollout ended before it came to this host
ROLLED_BACK = "rolled back"
NOT_ROLLED_BACK = "not rolled back"

Say = Callable[[Mapping[str, Any]], None]


class RolloutProgress:
    """The record of one rollout. What is done next is on the disk before it is done."""

    def __init__(self, record: dict[str, Any], ledger: Ledger, say: Say) -> None:
        self.record = record
        self._ledger = ledger
        self._say = say

    @classmethod
    def begin(
        cls, rollout: str, who: str, place: Mapping[str, Any], plan: Plan, ledger: Ledger, say: Say
    ) -> RolloutProgress:
        """Raises CannotRun when no record can be kept: then nothing may be done."""
        bare = [dataclasses.replace(file, content="") for file in plan.files]
        plain = dataclasses.asdict(dataclasses.replace(plan, files=tuple(bare)))
        record = {
            "rollout": rollout,
            "who": who,
            "state": RUNNING,
            "reason": "",
            "began_at": time.time(),
            "ended_at": None,
            "place": dict(place),
            "plan": plain,
            "hosts": {},
            "events": [],
        }
        progress = cls(json.loads(json.dumps(record)), ledger, say)
        for host in plan.hosts:
            if host.state == CHANGE:
                progress._host(host.node_id)["host"] = host.host
        progress.save()
        return progress

    def save(self) -> None:
        """Write the record to the disk. Raises CannotRun."""
        self._ledger.write(self.record)

    def reopen(self) -> None:
        """Mark it as running again, on disk at once, so that a driver that dies is noticed."""
        self.record.update(state=RUNNING, ended_at=None)
        self.save()

    def event(self, text: str) -> None:
        """Something that happened; kept with the next `save`."""
        event = {"at": time.time(), "text": text}
        self.record["events"].append(event)
        self._say({"event": event})

    def set(self, nodes: Sequence[str], state: str, reason: str = "") -> None:
        """Give these hosts that state, and why they have it."""
        for node in nodes:
            self._host(node).update(state=state, reason=reason)

    def note(self, node: str, text: str) -> None:
        """Add a note about a host, once."""
        notes = self._host(node)["notes"]
        if text not in notes:
            notes.append(text)

    def fact(self, node: str, name: str, value: Any) -> None:
        """Something that was seen of the host, such as its new exporter."""
        self._host(node)[name] = json.loads(json.dumps(value))

    def state(self, node: str) -> str:
        """State of a host."""
        return str(self._host(node)["state"])

    def is_settled(self, node: str) -> bool:
        """Whether a host was never touched, or is put back already."""
        return self.state(node) in (WAITING, UNTOUCHED, ROLLED_BACK)

    def nodes(self, *states: str) -> list[str]:
        """Hosts in any of these states, by node id."""
        return [node for node, host in self.record["hosts"].items() if host["state"] in states]

    def end(self, state: str, reason: str = "") -> None:
        """The rollout's own state and, when it did not end well, why."""
        self.set(self.nodes(WAITING), UNTOUCHED)
        self.record.update(state=state, reason=reason, ended_at=time.time())
        self.save()

    def _host(self, node: str) -> dict[str, Any]:
        host: dict[str, Any] = self.record["hosts"].setdefault(
            node, {"host": node, "state": WAITING, "reason": "", "notes": []}
        )
        return host
