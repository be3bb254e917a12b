"""The resident agent: a job of ours on the head that stays, and answers callers on loopback.

The job's log has one short message, the port; the secret came with the package, and callers have it
from the job's metadata. Everything else goes over connections whose caller has proved that he knows
it, see `wire`. What a caller may ask, each a message with `do`:

    probe      a round over the nodes: the messages of `coordinator`, each with its `number`
    remember   what he found by it: `found`, `jobs`; no answer
    status     what the agent is at
    history    what it has seen
    leave      remove the memory's file: the agent is about to be stopped

A thread serves each caller, and one round runs at a time. Nothing survives this process: actors end
with their owner's job, and a lock that the kernel drops keeps a second agent away.
"""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import sqlite3
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any, Optional

import ray

from raydiag.cluster import coordinator
from raydiag.cluster.coordinator import END, NoNodes, Selection
from raydiag.cluster.resident import metrics, wire
from raydiag.cluster.resident.memory import NodeMemory
from raydiag.cluster.resident.warm import WarmActors, WarmRound

_FOLLOW_S = 15.0  # between looks at which nodes there are
_HANDSHAKE_S = 5.0
_MOST_CALLERS = 16
_CALLER_S = 660.0  # without a word of his
_BUSY_S = 1.0  # a caller waits so long for another one's round, then goes the long way
_SEND_S = 3.0  # for a caller to take what he is sent
_SAVE_S = 60.0
_STATUS_NODES = 20  # named in `status`; the others are counted

_Json = Mapping[str, Any]


class Agent:
    """One agent over one cluster. `request`: secret, version, every_s, round, metrics_port."""

    def __init__(self, modules: Mapping[str, str], request: _Json) -> None:
        self.request = request
        self.started_at = time.time()
        self.joined = coordinator.cluster_joined()
        self.actors = WarmActors(modules, str(request["entrypoint"]))
        self.memory = NodeMemory(str(self.joined["session_name"]))
        self.counts = dict.fromkeys(("rounds", "own_rounds", "callers", "refused"), 0)
        self.last_round: dict[str, float] = {}  # at, seconds, asked, answered, silent
        self.is_wanted = threading.Event()  # a caller waits for the round of our own to end
        self._round = threading.Lock()
        self._callers = threading.BoundedSemaphore(_MOST_CALLERS)
        self._unsaved_since: Optional[float] = None

    def serve(self) -> None:
        """Until this process is ended."""
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen(_MOST_CALLERS)
            self.actors.follow(ray.nodes())
            port = {**self.joined, "port": listener.getsockname()[1]}
            coordinator.say(str(self.request["nonce"]), 0, port)
            threading.Thread(target=self._follow, daemon=True).start()
            if self.request["every_s"]:
                threading.Thread(target=self._own_rounds, daemon=True).start()
            while True:
                connection, _ = listener.accept()
                self._welcome(connection)

    def _welcome(self, connection: socket.socket) -> None:
        if not self._callers.acquire(blocking=False):
            self.counts["refused"] += 1
            connection.close()
            return
        threading.Thread(target=self._serve_caller, args=(connection,), daemon=True).start()

    def _serve_caller(self, connection: socket.socket) -> None:
        try:
            with connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                channel = wire.admitted(connection, str(self.request["secret"]), _HANDSHAKE_S)
                self.counts["callers"] += 1
                while True:
                    asked = channel.receive(_CALLER_S)
                    connection.settimeout(_SEND_S)
                    self._answer(channel, asked)
        except wire.NotTrusted:
            self.counts["refused"] += 1
        except (OSError, EOFError, ValueError, KeyError, TypeError):
            pass  # he is gone, or what he says makes no sense
        finally:
            self._callers.release()

    def _answer(self, channel: wire.Channel, asked: _Json) -> None:
        wanted = asked["do"]
        if wanted == "probe":
            self._probe(channel, asked["request"])
        elif wanted == "remember":
            self.memory.remember(asked["found"], asked["jobs"])
            self._changed()
        elif wanted == "history":
            channel.send({**self.memory.history(), "agent": self.status()})
        elif wanted == "leave":
            self.memory.remove()
            channel.send({})
        else:
            channel.send(self.status())

    # ---- rounds

    def _probe(self, channel: wire.Channel, request: _Json) -> None:
        def say(number: int, message: _Json) -> None:
            channel.send({**message, "number": number})

        self.is_wanted.set()
        is_ours = self._round.acquire(timeout=_BUSY_S)
        self.is_wanted.clear()
        if not is_ours:
            say(END, {"busy": True})
            return
        try:
            _RememberedRound(self, request, say).run()
        except Selection as error:
            say(END, {"usage": str(error)})
        except NoNodes as error:
            say(END, {"failed": str(error)})
        finally:
            self._round.release()
            self._changed()

    def _own_rounds(self) -> None:
        """The low-rate rounds of `--every`: only what they leave in the memory counts."""
        every_s = float(self.request["every_s"])
        while True:
            began = time.monotonic()
            with self._round, contextlib.suppress(NoNodes, ray.exceptions.RayError):
                own_round = _OwnRound(self, self.request["round"], lambda *_: None)
                own_round.run()
                self.counts["own_rounds"] += not own_round.is_cut_short
            self._save()
            time.sleep(max(1.0, every_s - (time.monotonic() - began)))

    def _changed(self) -> None:
        self._unsaved_since = self._unsaved_since or time.monotonic()

    def _follow(self) -> None:
        """Nodes that join get an actor before anybody asks; and the memory gets its copy."""
        while True:
            time.sleep(_FOLLOW_S)
            with contextlib.suppress(Exception):  # a control store that is slow is asked again
                self.actors.follow(ray.nodes())
            since = self._unsaved_since
            if since is not None and time.monotonic() - since > _SAVE_S:
                self._save()

    def _save(self) -> None:
        """An odd record of a node must not end the thread that follows the cluster."""
        self._unsaved_since = None
        with contextlib.suppress(ValueError, OverflowError, sqlite3.Error):
            self.memory.save()

    def status(self) -> dict[str, Any]:
        """What `raydiag agent status` shows."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        late = [node_id for node_id, slot in list(self.actors.slots.items()) if slot.late_since]
        return {
            "version": self.request["version"],
            "started_at": self.started_at,
            "time": time.time(),
            "pid": os.getpid(),
            "every_s": self.request["every_s"],
            "metrics_port": self.request["metrics_port"],
            "nodes": len(self.actors.slots),
            "late_nodes": late[:_STATUS_NODES],
            "late": len(late),
            "actor_restarts": self.actors.restarts,
            "stuck_readers": self.memory.stuck_readers(),
            "last_round": self.last_round or None,
            "memory_file": self.memory.path,
            "memory_trouble": self.memory.trouble,
            "cpu_s": usage.ru_utime + usage.ru_stime,
            "rss_bytes": _rss_bytes(),
            **self.counts,
        }


class _RememberedRound(WarmRound):
    """A round that also tells what is remembered of nodes without an answer, and remembers."""

    def __init__(self, agent: Agent, request: _Json, say: Any) -> None:
        super().__init__(agent.actors, request, say)
        self._agent = agent
        self._rows: dict[str, dict[str, Any]] = {}

    def run(self) -> None:
        """As `Coordinator.run`."""
        try:
            super().run()
        finally:
            self._count()

    def _count(self) -> None:
        if not self.is_cut_short:
            self._agent.counts["rounds"] += 1
            self._agent.last_round = {
                "at": time.time(),
                "seconds": time.monotonic() - self.started,
                "asked": len(self.numbers),
                "answered": len(self.answered),
                "silent": len(self.silent),
            }

    def _say_start(self, selected: list[dict[str, Any]]) -> None:
        rows = list(map(coordinator.row, selected))
        self._rows = {row["node_id"]: row for row in rows}
        for row in rows:
            if not row["alive"]:
                row["last_words"] = self._agent.memory.last_words(row["node_id"])
        known, since = self._agent.memory.known(), self._agent.started_at
        joined = {**self._agent.joined, "time": time.time()}
        self.say(0, {**joined, "nodes": rows, "known": known, "agent_since": since})

    def _answered(self, node_id: str, answer: bytes) -> None:
        self._agent.memory.answered(self._rows[node_id], answer)

    def _say_node(self, node_id: str, message: dict[str, Any]) -> None:
        is_silent = message["status"] != "answered" and not self.is_cut_short
        if is_silent:
            message["last_words"] = self._agent.memory.last_words(node_id)
            self._agent.memory.was_silent(node_id)
        super()._say_node(node_id, message)


class _OwnRound(_RememberedRound):
    """A round that nobody asked for: it ends as soon as somebody asks for one."""

    def _left_s(self) -> float:
        self.is_cut_short = self.is_cut_short or self._agent.is_wanted.is_set()
        return super()._left_s()


def _rss_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _lock(session: str) -> socket.socket:
    """Held while this process lives. Raises OSError while another agent of the session does."""
    lock = socket.socket(socket.AF_UNIX)
    lock.bind(f"\0raydiag-agent-{session}")
    return lock


def _exported_jobs() -> str:
    """The file to which this Ray writes jobs' metadata, and with it our secret; "" for none."""
    logs = ray.get_runtime_context().worker.node.get_logs_dir_path()
    path = os.path.join(logs, "export_events", "event_EXPORT_SUBMISSION_JOB.log")
    return path if os.path.exists(path) else ""


def main(modules: Mapping[str, str], request: _Json) -> None:
    """Entry of the job. Does not return: the job is stopped, or killed."""
    os.nice(19)
    with coordinator.joined_cluster():
        exported = _exported_jobs()
        if exported:
            sys.exit(
                f"raydiag: no agent: Ray exports jobs' metadata, and its secret, to {exported}"
            )
        session = str(coordinator.cluster_joined()["session_name"])
        try:
            lock = _lock(session)
        except OSError:
            sys.exit("raydiag: another agent of this cluster is up")
        with lock:
            agent = Agent(modules, request)
            port = int(request["metrics_port"])
            try:
                metrics.serve(agent.status, port)
            except (OSError, ImportError) as error:
                sys.exit(f"raydiag: no metrics on port {port}: {error}")
            agent.serve()
