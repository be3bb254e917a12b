"""What is planted, and which answers are right."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from tests.cluster.live.lab import Answer, Lab

VICTIM = "node003"
_LOST = ("node-death", "node-unreachable", "ray-node-dead")
_DEAD = ("worker-stopped", "signal-kill", "actor-fail")
_STUCK = ("worker-stopped", "straggler", "hang", "rccl-hang")


@dataclass(frozen=True)
class Planting:
    """One fault of a training that has run for some steps."""

    name: str
    plant: Callable[[Lab], None]
    classes: tuple[str, ...] = ("healthy",)  # any of them is right
    host: str = ""
    wait_s: float = 40.0  # from the planting to the question
    probe: tuple[str, ...] | None = None  # what a probe can know; None: the same
    directory: tuple[str, ...] | None = None  # what the directory can tell; None: the same
    alone: bool = False  # the job is not submitted through Ray
    patient: bool = False  # the driver waits for the other ranks
    ends: bool = False  # the training ends by the fault
    breaks: bool = False  # the cluster is of no use afterwards

    def expected(self, way: str) -> tuple[str, ...]:
        """Classes that are right when asked in this way."""
        chosen = {"probe": self.probe, "directory": self.directory}.get(way)
        return self.classes if chosen is None else chosen

    def is_right(self, answer: Answer) -> bool:
        """Whether class and host are those of the fault."""
        expected, said = self.expected(answer.way), summary(answer)
        if "any" in expected:
            return True
        return any(
            each.failure_class in expected
            and (each.failure_class == "unknown" or self.host in ("", *each.hosts))
            for each in said[: 1 if answer.way != "probe" else None]
        )


@dataclass(frozen=True)
class Said:
    """One claim of an answer."""

    failure_class: str
    hosts: tuple[str, ...]
    confidence: str
    text: str = ""


def summary(answer: Answer) -> list[Said]:
    """The verdict; of a probe its problems, or `healthy`."""
    document = answer.document
    if not document:
        return [Said(f"exit {answer.exit_code}", (), "", answer.complaint.strip()[-300:])]
    if answer.way != "probe":
        verdict = document["verdict"]
        hosts = tuple(verdict["hosts"])
        return [Said(verdict["class"], hosts, verdict["confidence"], verdict["summary"])]
    problems = [one for one in document["findings"] if one["severity"] != "info"]
    if not problems:
        return [Said("healthy", (), "")]
    return [
        Said(one["class"], (one["host"] or "",), one["confidence"], one["title"])
        for one in problems
    ]


def _signal(number: int) -> Callable[[Lab], None]:
    return lambda lab: lab.signal_rank(VICTIM, number)


def _steer(said: str) -> Callable[[Lab], None]:
    def plant(lab: Lab) -> None:
        (lab.steering / "fault-2").write_text(said)

    return plant


def _nothing(lab: Lab) -> None:
    """Nothing is wrong."""


def _second_job(lab: Lab) -> None:
    lab.submit("toy-second")


def _finish(lab: Lab) -> None:
    lab.finish()


def _kill_driver_rank(lab: Lab) -> None:
    lab.signal_rank(VICTIM, signal.SIGKILL)
    lab.wait_for_end()
    time.sleep(60)


PLANTINGS = (
    Planting("nothing", _nothing, wait_s=20),
    Planting("stopped", _signal(signal.SIGSTOP), ("worker-stopped",), VICTIM,
             directory=("unknown", "straggler", "hang")),
    Planting("stopped just now", _signal(signal.SIGSTOP), ("worker-stopped",), VICTIM, wait_s=3,
             directory=("any",)),
    Planting("stopped, job not Ray's", _signal(signal.SIGSTOP), ("worker-stopped",), VICTIM,
             directory=("unknown", "straggler", "hang"), alone=True),
    Planting("nothing, job not Ray's", _nothing, wait_s=20, alone=True),
    Planting("killed", _signal(signal.SIGKILL), _DEAD, VICTIM, wait_s=10, probe=("any",),
             ends=True),
    Planting("killed, driver waits", _signal(signal.SIGKILL), _DEAD, VICTIM, wait_s=10,
             directory=("any",), patient=True),
    Planting("segfault", _signal(signal.SIGSEGV), (*_DEAD, "segfault"), VICTIM, wait_s=10,
             probe=("any",), ends=True),
    Planting("spins", _steer("spin"), _STUCK, VICTIM, directory=("unknown", "straggler", "hang")),
    Planting("slow 1.5", _steer("1.5"), ("tgs-degradation", "straggler"), wait_s=60,
             probe=("any",)),
    Planting("two jobs", _second_job, wait_s=10),
    Planting("finished", _finish, wait_s=5, ends=True),
    Planting("failed a minute ago", _kill_driver_rank, _DEAD, VICTIM, wait_s=1, probe=("any",),
             ends=True),
    Planting("prometheus dead", lambda lab: lab.watched.kill_server(), ("unknown",),
             probe=("healthy",), directory=("any",)),
    Planting("exporter stopped", lambda lab: lab.watched.stop_exporter(VICTIM), ("exporter-down",),
             VICTIM, wait_s=90, probe=("any",)),
    Planting("agent stopped", lambda lab: lab.signal_agent(VICTIM, signal.SIGSTOP), _LOST, VICTIM,
             wait_s=5, directory=("any",), breaks=True, ends=True),
    Planting("link cut", lambda lab: lab.cluster.cut_link(VICTIM), _LOST, VICTIM, breaks=True,
             ends=True),
)  # fmt: skip
