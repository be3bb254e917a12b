"""Actors that stay on their nodes for as many operations as a job of ours has for them.

`NodeActors.ask` hands each node its own request, waits until a deadline whatever state the nodes
are in, and never lets one node's silence cost another's answer. It judges nothing.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import CodeType
from typing import Any

import ray

from raydiag import memory_import
from raydiag.cluster import coordinator
from raydiag.cluster.actor import RaydiagNodeActor
from raydiag.untrusted import inflated

_START_S = 30.0  # for an actor, on a node that is alive
_MARGIN_S = 5.0  # from the limit of an operation to the answer being here
_AT_ONCE = 200
_LOOK_S, _BEAT_S = 0.05, 2.0
_ANSWER_LIMIT_BYTES = 64 << 20
_FAULT_PROBES = ("kernel_log", "d_state")
_FAULT_S = 12.0

Request = Mapping[str, Any]
Answers = dict[str, dict[str, Any]]  # by node id


class NodeActors:
    """The nodes of the cluster. `rows`: see `raydiag.hotfix.head`."""

    def __init__(
        self, modules: Mapping[str, str], request: Mapping[str, Any], beat: Callable[[], None]
    ) -> None:
        """`beat` is called every few seconds while the nodes are at work."""
        self._request, self._beat = request, beat
        self._beaten = time.monotonic()
        # Compiled once: that costs more than all the rest.
        self._codes = {name: memory_import.compiled(name, text) for name, text in modules.items()}
        self._class = ray.remote(RaydiagNodeActor)
        self._actors: dict[str, Any] = {}
        nodes = ray.nodes()
        selected = coordinator.select(nodes, request["select"])
        selected_ids = {node["NodeID"] for node in selected}
        self.rows = []
        for node in nodes:
            self.rows.append({**coordinator.row(node), "asked": node["NodeID"] in selected_ids})
        self._known = {str(row["node_id"]) for row in self.rows}

    def ask(self, requests: Mapping[str, Request], limit_s: float) -> Answers:
        """Answers by node id; {"error": ..., "lost": true} where none came in time."""
        return self._run(self._request, requests, limit_s)

    def faults(self, nodes: Sequence[str]) -> dict[str, str]:
        """What the kernel log and blocked tasks show of the driver fault, by node."""
        probing, symbols = self._request["probing"], self._request["probing"]["symbols"]
        request = {"probes": list(_FAULT_PROBES), "options": probing["options"]}
        answers = self._run(probing, dict.fromkeys(nodes, request), _FAULT_S)
        faults_by_node = {}
        for node, answer in answers.items():
            for name, result in answer.get("probes", {}).items():
                records = json.dumps(result.get("records"))
                symbol = next((symbol for symbol in symbols if symbol in records), "")
                if symbol:
                    faults_by_node[node] = f"{symbol} in what the probe {name} saw"
        return faults_by_node

    def close(self) -> None:
        """End the actors; nothing that they have started is in the middle of anything then."""
        for node in list(self._actors):
            self._drop(node)

    def _run(self, program: Request, requests: Mapping[str, Request], limit_s: float) -> Answers:
        """`program` has an `entrypoint` and its `modules`."""
        codes = {name: self._codes[name] for name in program["modules"]}
        answers: Answers = {}
        nodes = list(requests)
        packed: dict[str, bytes] = {}
        for start in range(0, len(nodes), _AT_ONCE):
            batch = {node: requests[node] for node in nodes[start : start + _AT_ONCE]}
            answers.update(self._enlist(batch))
            refs = {}
            for node in batch.keys() - answers.keys():
                bundle = _packed(packed, codes, batch[node])
                probing = self._actors[node].probe.remote(program["entrypoint"], bundle, limit_s)
                refs[probing] = node
            answers.update(self._gather(refs, limit_s + _MARGIN_S, _inflated))
        return answers

    def _enlist(self, nodes: Iterable[str]) -> Answers:
        """Have an actor on each of these nodes; what is wrong with those that get none."""
        failed, refs = {}, {}
        for node in nodes:
            if node not in self._known:
                failed[node] = _lost("it is no longer a node of this cluster")
            elif node not in self._actors:
                self._actors[node] = actor = coordinator.placed(self._class, node)
                refs[actor.identify.remote()] = node
        for node, identity in self._gather(refs, _START_S, json.loads).items():
            if identity.get("node_id") != node:
                reason = identity.get("error") or f"{identity.get('hostname')} answered for it"
                failed[node] = _lost(str(reason))
                self._drop(node)
        return failed

    def _gather(
        self, refs: dict[Any, str], limit_s: float, read: Callable[[bytes], dict[str, Any]]
    ) -> Answers:
        answers: Answers = {}
        limit = time.monotonic() + limit_s
        while refs and time.monotonic() < limit:
            ready, _ = ray.wait(list(refs), num_returns=len(refs), timeout=_LOOK_S)
            for ref in ready:
                node = refs.pop(ref)
                try:
                    answers[node] = read(ray.get(ref, timeout=1))
                except Exception as error:
                    # Whatever a node does costs its own answer and no other's.
                    answers[node] = _lost(_in_words(error))
                    self._drop(node)
            if time.monotonic() - self._beaten > _BEAT_S:
                self._beaten = time.monotonic()
                self._beat()
        for node in refs.values():
            answers[node] = _lost(f"no answer within {limit_s:g} s")
            self._drop(node)  # another one would have to wait for what this one is at
        return answers

    def _drop(self, node: str) -> None:
        with contextlib.suppress(Exception):  # cleaning up must not change the outcome
            ray.kill(self._actors.pop(node), no_restart=True)


def _in_words(error: Exception) -> str:
    """Ray tells the death of an actor with its whole life."""
    if isinstance(error, ray.exceptions.RayActorError):
        node = "node has died" in str(error) or "node was terminated" in str(error)
        return f"Ray lost {'the node' if node else 'our actor there'} while it was asked"
    return coordinator.in_one_line(error)


def _lost(reason: str) -> dict[str, Any]:
    return {"error": reason, "lost": True}


def _packed(packed: dict[str, bytes], codes: Mapping[str, CodeType], request: Request) -> bytes:
    """The bundle with that request; most requests are the same for many nodes."""
    key = json.dumps(request)
    if key not in packed:
        packed[key] = memory_import.packed(codes, request)
    return packed[key]


def _inflated(answer: bytes) -> dict[str, Any]:
    content = inflated(answer.partition(b"\n")[2], _ANSWER_LIMIT_BYTES)
    if not isinstance(content, dict):
        raise ValueError("its answer is not an object")
    return content
