"""The coordinator: the driver of our job on the head. One pinned actor per node, one answer each.

It places the actors, collects until the deadline whatever state the nodes are in, checks that each
answer comes from the node that was asked, and writes everything to the job's log as frames. It
judges nothing. What it says:

    0        start: the cluster, the nodes asked, the nodes dead
    1..n     one message per node, numbered in the order of its list, each as soon as it is there
    999,999  end: how many messages there are

Progress lines are plain frames numbered from 1,000,000 up.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import json
import os
import signal
import sys
import threading
import time
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import ray
from ray.experimental import internal_kv
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raydiag import memory_import
from raydiag.cluster import actor as actor_module
from raydiag.cluster import frames
from raydiag.cluster.actor import RaydiagNodeActor
from raydiag.memory_import import PACKAGE_PREFIX, STORE
from raydiag.untrusted import parsed

END = 999_999
PROGRESS = 1_000_000
_MOST_ACTORS_AT_ONCE = 500
_ANSWER_MARGIN_S = 0.25  # from the last answer to the frames being readable
_PAUSE_S, _FEW = 0.02, 64  # between looks at what has come, while few are out
_PACKAGE_KEPT_S = 86_400  # the sender's clock may be off
_LOOK_S = 0.2  # for the control store to say which nodes are dead
_STAGES = {
    "identify": "its probe actor did not start",
    "probe": "its probe actor started and did not answer",
    "earlier": "it is still at what an earlier probe asked it",
}
# NodeDeathInfo.Reason of Ray's common.proto, by number.
_DEATH_REASONS = (
    "UNSPECIFIED",
    "EXPECTED_TERMINATION",
    "UNEXPECTED_TERMINATION",
    "AUTOSCALER_DRAIN_PREEMPTED",
    "AUTOSCALER_DRAIN_IDLE",
)


class NoNodes(Exception):
    """There is nothing to ask; the message is for the user."""


class Selection(Exception):
    """The nodes asked for do not exist; the message is for the user."""


class Coordinator:
    """One collection over one cluster. `request`: see `raydiag.cluster.collect`."""

    def __init__(self, modules: Mapping[str, str], request: Mapping[str, Any]) -> None:
        self.request = request
        self.nonce = str(request["nonce"])
        self.started = time.monotonic()
        self.deadline = self.started + float(request["deadline_s"]) - _ANSWER_MARGIN_S
        self.modules = modules
        self.bundle = b""
        self.actors: dict[str, Any] = {}  # node id -> actor handle
        self.calls: dict[Any, tuple[str, str]] = {}  # object ref -> (node id, method)
        self.numbers: dict[str, int] = {}  # node id -> number of its message
        self.answered: set[str] = set()
        self.silent: dict[str, tuple[str, str]] = {}  # node id -> status and reason
        self.asked_at: dict[str, float] = {}
        self.probed_at: dict[str, float] = {}  # node id -> Unix s of the call to its runner

    @functools.cached_property
    def actor_class(self) -> Any:
        """Made once: each would be exported by itself."""
        return ray.remote(RaydiagNodeActor)

    def say(self, number: int, message: Mapping[str, Any]) -> None:
        """Write one message to the log."""
        say(self.nonce, number, message)

    def run(self) -> None:
        """Ask the selected nodes; write what they answer, or why they do not."""
        nodes = ray.nodes()
        selected = select(nodes, self.request["select"])
        self._say_start(selected)
        alive = [node["NodeID"] for node in selected if node["Alive"]]
        self.numbers = {node_id: number for number, node_id in enumerate(alive, start=1)}
        try:
            self._collect(alive)
            self._explain_missing()
            self.say(END, {"messages": len(alive), "duration_s": time.monotonic() - self.started})
        finally:
            self._clean_up()

    def _say_start(self, selected: list[dict[str, Any]]) -> None:
        self.say(0, {**cluster_joined(), "nodes": list(map(row, selected))})

    def _collect(self, node_ids: list[str]) -> None:
        waiting = list(reversed(node_ids))
        reported_at = time.monotonic()
        while waiting or self.calls:
            left_s = self._left_s()
            if left_s <= 0:
                return
            while waiting and len(self.calls) < _MOST_ACTORS_AT_ONCE:
                self._ask(waiting.pop())
            self.bundle = self.bundle or self._packed()  # while the actors start
            # In one batch where they come close together: ray.wait looks at all that it is given.
            pause_s = _PAUSE_S if len(self.calls) <= _FEW else 5 * _PAUSE_S
            ready, _ = ray.wait(
                list(self.calls), num_returns=len(self.calls), timeout=min(pause_s, left_s)
            )
            for ref in ready:
                node_id, method = self.calls.pop(ref)
                self._take(node_id, method, ref)
            if time.monotonic() - reported_at > 0.4:
                reported_at = time.monotonic()
                counts = {"answered": len(self.answered), "asked": len(node_ids)}
                self.say(PROGRESS + int((reported_at - self.started) * 1000), counts)

    def _left_s(self) -> float:
        """Until nobody is waited for any more."""
        return self.deadline - time.monotonic()

    def _packed(self) -> bytes:
        modules = {name: text for name, text in self.modules.items() if ".cluster" not in name}
        return memory_import.packed(modules, self.request["node"])

    def _ask(self, node_id: str) -> None:
        self.asked_at[node_id] = time.monotonic()
        self.actors[node_id] = handle = placed(self.actor_class, node_id)
        self.calls[handle.identify.remote()] = (node_id, "identify")

    def _take(self, node_id: str, method: str, ref: Any) -> None:
        """Book an answer; a node's own goes out at once, so that nobody's silence can lose it."""
        try:
            answer = ray.get(ref, timeout=1)
            if not isinstance(answer, bytes):
                raise TypeError(f"{method} returned {type(answer).__name__}, not bytes")
            if method == "identify":
                self._identified(node_id, parsed(answer))
                return
            times, _, answer = answer.partition(b"\n")
            came_at, left_at = map(float, times.split())
            message = {
                "status": "answered",
                "answer": base64.b64encode(answer).decode(),
                # The call came after we made it, and the answer left before we had it.
                "clock_offset_s": [left_at - time.time(), came_at - self.probed_at[node_id]],
            }
            self.answered.add(node_id)
            self._answered(node_id, answer)
            self._say_node(node_id, message)
        except Exception as error:
            self._failed(node_id, error)
            return
        self._release(node_id)

    def _answered(self, node_id: str, answer: bytes) -> None:
        """For who keeps answers."""

    def _failed(self, node_id: str, error: Exception) -> None:
        self.silent[node_id] = ("unreachable", in_one_line(error))
        self._end_actor(node_id)

    def _release(self, node_id: str) -> None:
        """The node has answered: nothing more is asked of its actor."""
        self._end_actor(node_id)

    def _say_node(self, node_id: str, message: dict[str, Any]) -> None:
        asked_at = self.asked_at.get(node_id, self.started)
        message["duration_s"] = time.monotonic() - asked_at
        self.say(self.numbers[node_id], message)

    def _identified(self, node_id: str, identity: Mapping[str, Any]) -> None:
        if identity["node_id"] != node_id:
            raise RuntimeError(
                f"the answer came from node {identity['node_id']} ({identity['hostname']})"
            )
        self._probe(node_id, self.actors[node_id])

    def _probe(self, node_id: str, handle: Any) -> None:
        budget_s = self.deadline - time.monotonic() - 0.1
        self.probed_at[node_id] = time.time()
        ref = handle.probe.remote(self.request["entrypoint"], self.bundle, budget_s)
        self.calls[ref] = (node_id, "probe")

    def _explain_missing(self) -> None:
        """Every node that was asked gets a message, if only the reason why there is no answer."""
        stage = dict(self.calls.values())
        for node_id in self.numbers.keys() - self.answered - self.silent.keys():
            progress = _STAGES.get(stage.get(node_id, ""), "it was not reached")
            reason = f"no answer within {self._patience_s():g} s: {progress}"
            self.silent[node_id] = ("timeout", reason)
        lost = _lost_nodes() if self.silent else {}
        for node_id, (status, reason) in self.silent.items():
            if node_id in lost:
                status, reason = "dead", f"Ray lost the node while it was probed: {lost[node_id]}"
            self._say_node(node_id, {"status": status, "reason": reason})

    def _patience_s(self) -> float:
        """How long a node that did not answer was given."""
        return float(self.request["deadline_s"])

    def _end_actor(self, node_id: str) -> None:
        end_actor(self.actors.pop(node_id, None))

    def _clean_up(self) -> None:
        for node_id in list(self.actors):
            self._end_actor(node_id)


def _lost_nodes() -> dict[str, str]:
    """Node id -> reason of the nodes that Ray calls dead now; empty when it does not say soon."""
    reasons: dict[str, str] = {}

    def read_nodes() -> None:
        for node in ray.nodes():
            if not node["Alive"]:
                reasons[node["NodeID"]] = _death_reason(node)

    thread = threading.Thread(target=read_nodes, daemon=True)
    thread.start()
    thread.join(_LOOK_S)
    return dict(reasons)


def say(nonce: str, number: int, message: Mapping[str, Any]) -> None:
    """Write one message to the job's log, as frames."""
    for line in frames.encode(nonce, number, zlib.compress(json.dumps(message).encode())):
        # One write a line: whoever else writes to the log can only come between lines.
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


def placed(actor_class: Any, node_id: str) -> Any:
    """The handle of a new actor that is pinned to a node and takes nothing of it."""
    placement = NodeAffinitySchedulingStrategy(node_id, soft=False)
    options = dict.fromkeys(("num_cpus", "num_gpus", "max_restarts", "max_task_retries"), 0)
    return actor_class.options(scheduling_strategy=placement, **options).remote()


def end_actor(handle: Any) -> None:
    """End an actor of ours; cleaning up must not change the outcome."""
    with contextlib.suppress(Exception):
        ray.kill(handle, no_restart=True)


def cluster_joined() -> dict[str, Any]:
    """What a start message says; without a session where this Ray does not tell it."""
    context = ray.get_runtime_context()
    if hasattr(context, "get_session_name"):  # Ray 2.41
        session = context.get_session_name()
    else:
        session = getattr(context.worker.node, "session_name", "")
    names = {"session_name": str(session), "ray_version": ray.__version__}
    return {"time": time.time(), "gcs_address": context.gcs_address, **names}


def row(node: Mapping[str, Any]) -> dict[str, Any]:
    """A node of `ray.nodes()` as the fields of `model.Node`."""
    return {
        "node_id": node["NodeID"],
        "hostname": node["NodeManagerHostname"],
        "address": node["NodeManagerAddress"],
        "alive": bool(node["Alive"]),
        "death_reason": _death_reason(node),
    }


def _death_reason(node: Mapping[str, Any]) -> str:
    """Ray's words on why a node is dead; its reason is a number in some versions."""
    if node["Alive"]:
        return ""
    reason = node.get("DeathReason")
    if isinstance(reason, int) and reason < len(_DEATH_REASONS):
        reason = _DEATH_REASONS[reason]
    parts = [str(part) for part in (reason, node.get("DeathReasonMessage")) if part]
    return ": ".join(parts) or "no reason given"


def in_one_line(error: Exception) -> str:
    """Ray puts the traceback of a task before its error, and remarks after all others."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    shown_lines = lines[-1:] if isinstance(error, ray.exceptions.RayTaskError) else lines
    return f"{type(error).__name__}: {' '.join(shown_lines)[:400]}"


def _host_names(node: Mapping[str, Any]) -> tuple[str, ...]:
    """The full host name, and the short one unless the name is an address."""
    name = node["NodeManagerHostname"]
    return (name,) if name == node["NodeManagerAddress"] else (name, name.split(".")[0])


def _names(node: Mapping[str, Any]) -> tuple[str, ...]:
    """Whatever the user may call it."""
    return (node["NodeID"], node["NodeManagerAddress"], *_host_names(node))


def select(nodes: list[dict[str, Any]], names: Any) -> list[dict[str, Any]]:
    """Nodes by short host name, full host name, address or node id; None means all."""
    if not any(node["Alive"] for node in nodes):
        raise NoNodes("the cluster has no node that is alive")
    if names is None:
        return nodes
    chosen = []
    host_names = sorted({_host_names(node)[-1] for node in nodes if node["Alive"]})
    for name in names:
        matching = [node for node in nodes if name in _names(node)]
        if not matching:
            listed = ", ".join(host_names[:20])
            if host_names[20:]:
                listed += f" and {len(host_names) - 20} more"
            raise Selection(f"no node {name!r} in this cluster; it has: {listed}")
        alive = [node for node in matching if node["Alive"]]
        chosen += [node for node in alive or matching[-1:] if node not in chosen]
    return chosen


@contextlib.contextmanager
def joined_cluster() -> Iterator[None]:
    """What `arrival` has joined, while the block runs; afterwards nothing holds this process."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ray.init installed its own
    signal.alarm(0)  # the limit for joining
    ray.cloudpickle.register_pickle_by_value(actor_module)
    try:
        yield
    finally:
        sys.stdout.flush()
        _exit_after(3, 0)
        _drop_old_packages()
        ray.shutdown()


def _drop_old_packages() -> None:
    """Those that were sent ahead of jobs that never ran; their names say when."""
    for key in internal_kv._internal_kv_list(f"{STORE}{PACKAGE_PREFIX}"):
        sent_at = key.decode().partition(PACKAGE_PREFIX)[2].partition("-")[0]
        if sent_at.isdecimal() and time.time() - int(sent_at) > _PACKAGE_KEPT_S:
            internal_kv._internal_kv_del(key)


def _exit_after(seconds: float, status: int) -> None:
    """End the process then, whatever it is at."""
    timer = threading.Timer(seconds, os._exit, args=(status,))
    timer.daemon = True
    timer.start()


def main(modules: Mapping[str, str], request: Mapping[str, Any]) -> None:
    """Entry of the job. Exits 0 when the end message is out."""
    # The job must end also when the cluster hangs: our stop request could not reach us then.
    limit_s = float(request["deadline_s"]) + 60
    _exit_after(limit_s, 1)
    with joined_cluster():
        coordinator = Coordinator(modules, request)
        try:
            coordinator.run()
        except Selection as error:
            coordinator.say(END, {"usage": str(error)})
        except NoNodes as error:
            coordinator.say(END, {"failed": str(error)})
