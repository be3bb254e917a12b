"""Which Ray worker, and so which training rank, a process in the kernel log is or was.

The kernel counts pids outside of containers, Ray and /proc inside: equal numbers alone prove
nothing, the kernel's name of the process has to fit as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

from raydiag.model import Actor, Snapshot
from raydiag.probes.processes import RayProcess
from raydiag.probes.ray_logs import RayLog
from raydiag.rules.machines import Machine
from raydiag.rules.ranks import last_step, rank_of, workers_by_class

_COMM_LENGTH = 15  # the kernel cuts names of processes there
_TITLE = "ray::"  # Ray titles its workers "ray::<class>" and "ray::<class>.<method>"
_DESCRIPTIONS = {
    "raylet": "the raylet, Ray's own daemon on the node",
    "agent": "an agent of Ray's own on the node",
    "worker": "a Ray worker",
}
_CHILD = "a child of a Ray worker"
_START_SLACK_S = 2.0  # both times rest on whole seconds of btime


class Victim(NamedTuple):
    """A Ray process that a kernel event names."""

    description: str  # "Ray worker MaxTextTrainerActor (maxtext_trainer_3, rank 3), last step 118"
    task: str | None  # name of the actor, else its class; None when it is no actor
    certain: bool  # pid and name both fit


@dataclass(frozen=True)
class RayProcesses:
    """The Ray processes and actors of one host."""

    processes: Mapping[int, RayProcess]
    actors: Sequence[Actor]  # dead ones too
    steps: Mapping[int | None, str] = field(default_factory=dict)  # last step by pid, in words
    workers: Mapping[str, int] = field(default_factory=dict)  # of the whole cluster, by class

    @classmethod
    def of(cls, snapshot: Snapshot, machine: Machine) -> RayProcesses:
        """Those that the reports of one machine list; of several with one pid the first."""
        records = reversed(machine.records(RayProcess))
        ids = set(map(attrgetter("node.node_id"), machine.reports))
        actors = [actor for actor in snapshot.actors if actor.node_id in ids]
        logs = reversed(machine.records(RayLog))  # of several with one pid the first
        steps = {log.pid: last_step(log, machine.read_at) for log in logs}
        processes = {record.pid: record for record in records}
        return cls(processes, actors, steps, workers_by_class(snapshot))

    def victim(self, pid: int, name: str | None, time_s: float, killed: bool) -> Victim | None:
        """The Ray process with that pid and kernel name at that time; None when it is none.

        `killed`: the kernel ended it, so a living process with its pid is another one.
        """
        record = self.processes.get(pid)
        if record and not killed and not time_s < record.start_time_s - _START_SLACK_S:
            if _alike(name, record.comm):
                return self._of_record(record, bool(name))
            return None
        actor = self._actor_with_pid(pid, name, killed, record is not None)
        if actor is not None:
            return self._worker(actor, name is not None)
        if name is None or not name.startswith(_TITLE):
            return None
        # No pid fits, as from inside a container: one dead actor with that name is a fair guess.
        dead = [each for each in self.actors if not each.alive and _fits(name, each.class_name)]
        return self._worker(dead[0], False) if len(dead) == 1 else None

    def _actor_with_pid(
        self, pid: int, name: str | None, killed: bool, is_other_process: bool
    ) -> Actor | None:
        """`is_other_process`: a living process has the pid and is not meant, nor is its actor."""
        fitting = []
        for actor in self.actors:
            meant = actor.pid == pid and not (is_other_process and actor.alive)
            if meant and (name is None or _fits(name, actor.class_name)):
                fitting.append(actor)
        preferred = [actor for actor in fitting if actor.alive is not killed] or fitting
        return preferred[0] if len(preferred) == 1 else None

    def _of_record(self, record: RayProcess, certain: bool) -> Victim | None:
        living = [actor for actor in self.actors if actor.alive and actor.pid == record.worker_pid]
        if not living or record.role in ("raylet", "agent"):
            return Victim(_DESCRIPTIONS.get(record.role, _CHILD), None, certain)
        worker = self._worker(living[0], certain)
        if record.pid == record.worker_pid:
            return worker
        return Victim(f"a child of {worker.description}", worker.task, certain)

    def _worker(self, actor: Actor, certain: bool) -> Victim:
        record, step = self.processes.get(actor.pid), self.steps.get(actor.pid)
        place = record.place if record and actor.alive else {}
        rank = rank_of([actor.name], place, self.workers.get(actor.class_name, 0))
        names = ", ".join(filter(None, (actor.name, rank and f"rank {rank}")))
        description = f"Ray worker {actor.class_name}"
        if names:
            description += f" ({names})"
        if step:
            description += f", {step}"
        return Victim(description, actor.name or actor.class_name, certain)


def _alike(name: str | None, comm: str) -> bool:
    """Whether two kernel names may be of one process: Ray renames its workers as they go."""
    if not name or not comm or (name.startswith(_TITLE) and comm.startswith(_TITLE)):
        return True
    name, comm = name[:_COMM_LENGTH], comm[:_COMM_LENGTH]
    return name.startswith(comm) or comm.startswith(name)


def _fits(name: str, class_name: str) -> bool:
    """Whether a worker of that class has this kernel name, cut or with a method behind it."""
    title, dot, _ = name.partition(".")
    full = _TITLE + class_name
    if dot or len(name) < _COMM_LENGTH:
        return title == full
    return full.startswith(title)
