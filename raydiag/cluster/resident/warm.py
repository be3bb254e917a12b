"""Actors that stay on the nodes while the resident agent is up, and one round of questions to them.

They follow the cluster: a node that joins gets one, that of a node which is gone is forgotten. An
actor is at one question at a time. Who does not answer keeps it, and with it the node's slot, so
that nothing piles up on a node that hangs; it costs the next rounds a short wait each.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Optional

import ray

from raydiag import memory_import
from raydiag.cluster import coordinator
from raydiag.cluster.actor import RaydiagNodeActor
from raydiag.cluster.coordinator import Coordinator

_SILENT_PATIENCE_S = 3.0  # for nodes that did not answer the round before either
_WEDGED_S = 120.0  # then the actor itself is given up, and the node gets another one
_MOST_BUNDLES = 8  # packed ones that are kept: callers mostly ask the same
_STARTS_AT_ONCE = 200

Say = Callable[[int, Mapping[str, Any]], None]


@dataclass
class Slot:
    """The actor of one node."""

    handle: Any
    starting: Any = None  # ref of its first call, until that was answered
    busy: Any = None  # ref of a probe whose round has ended without its answer
    late_since: Optional[float] = None  # time.monotonic() of the first round that it let down


class WarmActors:
    """One slot per living node. Calls come from several threads."""

    def __init__(self, modules: Mapping[str, str], entrypoint: str) -> None:
        self.entrypoint = entrypoint
        self.slots: dict[str, Slot] = {}
        self.restarts = 0  # actors that had to be placed anew on a living node
        self._lock = threading.Lock()
        self._class = ray.remote(RaydiagNodeActor)
        on_nodes = {name: text for name, text in modules.items() if ".cluster" not in name}
        # Compiled once: that costs more than all the rest.
        self._codes = {name: memory_import.compiled(name, on_nodes[name]) for name in on_nodes}
        self._bundles: dict[str, bytes] = {}

    def follow(self, nodes: list[dict[str, Any]]) -> None:
        """Have a slot on each living node of `ray.nodes()`, and on no other."""
        living = {node["NodeID"] for node in nodes if node["Alive"]}
        with self._lock:
            for node_id in self.slots.keys() - living:
                self._drop(node_id)
            for node_id in sorted(living - self.slots.keys())[:_STARTS_AT_ONCE]:
                self._place(node_id)

    def slot(self, node_id: str) -> Slot:
        """Of a living node; its actor is placed where it has none, or a wedged one."""
        with self._lock:
            slot = self.slots.get(node_id)
            late_since = slot.late_since if slot is not None else None
            if late_since is not None and time.monotonic() - late_since > _WEDGED_S:
                self.restarts += 1
                self._drop(node_id)
                slot = None
            return slot or self._place(node_id)

    def replace(self, node_id: str) -> Slot:
        """Another actor for a node whose actor has died."""
        with self._lock:
            self.restarts += 1
            self._drop(node_id)
            return self._place(node_id)

    def drop(self, node_id: str) -> None:
        """Forget a node; should it still live, it gets a new actor with the next look."""
        with self._lock:
            self._drop(node_id)

    def packed(self, request: Mapping[str, Any]) -> bytes:
        """The bundle for the nodes with that request."""
        key = json.dumps(request, sort_keys=True)
        with self._lock:
            if key not in self._bundles:
                while len(self._bundles) >= _MOST_BUNDLES:
                    self._bundles.pop(next(iter(self._bundles)))
                self._bundles[key] = memory_import.packed(self._codes, request)
            return self._bundles[key]

    def _place(self, node_id: str) -> Slot:
        handle = coordinator.placed(self._class, node_id)
        self.slots[node_id] = slot = Slot(handle, starting=handle.identify.remote())
        return slot

    def _drop(self, node_id: str) -> None:
        slot = self.slots.pop(node_id, None)
        if slot is not None:
            coordinator.end_actor(slot.handle)


class WarmRound(Coordinator):
    """One round over actors that live already; what it says goes to `say`, not to a log."""

    def __init__(self, actors: WarmActors, request: Mapping[str, Any], say: Say) -> None:
        super().__init__({}, {**request, "nonce": "", "entrypoint": actors.entrypoint})
        self._warm, self._say = actors, say
        self._debtors: set[str] = set()  # nodes that owe the answer of an earlier round
        self._retried: set[str] = set()
        self.is_cut_short = False  # nobody wants the answers any more

    def say(self, number: int, message: Mapping[str, Any]) -> None:
        """Hand one message on. A caller who is gone ends the round, and no actor."""
        if self.is_cut_short:
            return
        try:
            self._say(number, message)
        except OSError:
            self.is_cut_short = True

    def _packed(self) -> bytes:
        return self._warm.packed(self.request["node"])

    def _ask(self, node_id: str) -> None:
        self.bundle = self.bundle or self._packed()
        self.asked_at.setdefault(node_id, time.monotonic())
        self._ask_slot(node_id, self._warm.slot(node_id))

    def _ask_slot(self, node_id: str, slot: Slot) -> None:
        self.actors[node_id] = slot.handle
        if slot.late_since is not None:
            self._debtors.add(node_id)
        if slot.busy is not None:
            self.calls[slot.busy] = (node_id, "earlier")
        elif slot.starting is not None:
            self.calls[slot.starting] = (node_id, "identify")
        else:
            self._probe(node_id, slot.handle)

    def _take(self, node_id: str, method: str, ref: Any) -> None:
        slot = self._warm.slots.get(node_id)
        self._debtors.discard(node_id)
        if slot is not None:
            slot.late_since = None
        if method == "earlier" and slot is not None:
            slot.busy = None
            self._ask_slot(node_id, slot)
            return
        super()._take(node_id, method, ref)

    def _identified(self, node_id: str, identity: Mapping[str, Any]) -> None:
        super()._identified(node_id, identity)
        slot = self._warm.slots.get(node_id)
        if slot is not None:
            slot.starting = None

    def _failed(self, node_id: str, error: Exception) -> None:
        """An actor that has died, and not with its node, is placed once more."""
        is_dead = isinstance(error, ray.exceptions.RayActorError)
        if is_dead and node_id not in self._retried and self._left_s() > 1:
            self._retried.add(node_id)
            self._ask_slot(node_id, self._warm.replace(node_id))
            return
        self.silent[node_id] = ("unreachable", coordinator.in_one_line(error))
        if is_dead or not isinstance(error, ray.exceptions.RayTaskError):
            self._warm.drop(node_id)

    def _release(self, node_id: str) -> None:
        """It stays."""

    def _left_s(self) -> float:
        left_s = 0.0 if self.is_cut_short else super()._left_s()
        if self.calls and all(node_id in self._debtors for node_id, _ in self.calls.values()):
            left_s = min(left_s, self.started + _SILENT_PATIENCE_S - time.monotonic())
        return left_s

    def _patience_s(self) -> float:
        return round(time.monotonic() - self.started, 1)

    def _clean_up(self) -> None:
        """Whoever is still at it keeps his slot; who was not given his time owes nothing."""
        for ref, (node_id, method) in self.calls.items():
            slot = self._warm.slots.get(node_id)
            if slot is None:
                continue
            if not self.is_cut_short:
                slot.late_since = slot.late_since or time.monotonic()
            if method == "probe":
                slot.busy = ref
