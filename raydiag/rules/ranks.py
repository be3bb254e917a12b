"""Which rank of the training runs on a GPU or is a process, and how far it had come.

One line ties a fault of the hardware to the training: GPU, process, Ray worker, rank, last step.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from operator import attrgetter
from typing import NamedTuple

from raydiag.model import Actor, Snapshot
from raydiag.probes.gpu_sensors import GpuSensors
from raydiag.probes.nvidia import NvidiaGpu
from raydiag.probes.processes import RayProcess
from raydiag.probes.ray_logs import RayLog
from raydiag.rules.machines import Machine, machines
from raydiag.rules.visible_gpus import visible_gpus

# Of actors' names and of what a worker calls itself: Trainer(rank=3), trainer_3.
_RANK = re.compile(r"\brank[=:_]? ?(\d{1,9})(?!\d)", re.IGNORECASE)
_LAST_NUMBER = re.compile(r"_(\d{1,9})$")
_OWN_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK")
_INHERITED = "SLURM_PROCID"  # of a raylet that srun started, that of its node: names tell more


class GpuName(NamedTuple):
    """What a GPU is called on its node."""

    gpu: int  # index, in PCI order
    address: str  # PCI address
    uuid: str  # "GPU-..."; "" unknown


def gpu_names(machine: Machine) -> list[GpuName]:
    """Of each GPU that a probe saw, by index."""
    names: dict[int, GpuName] = {}
    for sensors in machine.records(GpuSensors):
        uuid = f"GPU-{sensors.unique_id}" if sensors.unique_id else ""
        names[sensors.gpu] = GpuName(sensors.gpu, sensors.address, uuid)
    for gpu in machine.records(NvidiaGpu):
        names.setdefault(gpu.gpu, GpuName(gpu.gpu, gpu.address, gpu.uuid))
    return sorted(names.values())


def last_step(log: RayLog, read_at: float | None) -> str:
    """`last step 118 (2026-11-20 03:12:07 UTC)`; "" for a log without a step."""
    if log.step is None:
        return ""
    text = f"last step {log.step}"
    if log.step_age_s is None or not read_at:
        return text
    at = datetime.fromtimestamp(read_at - log.step_age_s, timezone.utc)
    return f"{text} ({at:%Y-%m-%d %H:%M:%S} UTC)"


def rank_in(name: str, workers: int) -> str:
    """`3` of `Trainer(rank=3)` or `trainer_3`; "" where a name tells none.

    A number at its end is no rank where there are not so many `workers`: `llama3_405`.
    """
    if rank := _RANK.search(name):
        return rank[1]
    number = _LAST_NUMBER.search(name)
    return number[1] if number and int(number[1]) < workers else ""


def rank_of(names: Iterable[str], place: Mapping[str, str], workers: int) -> str:
    """By the variables of a process, else by what it is called; "" where nothing tells."""
    variables = map(place.get, _OWN_VARIABLES)
    told = (*variables, *(rank_in(name, workers) for name in names), place.get(_INHERITED))
    return next(filter(None, told), "")


def workers_by_class(snapshot: Snapshot) -> Counter[str]:
    """How many actors of each class there are, or have been."""
    return Counter(map(attrgetter("class_name"), snapshot.actors))


@dataclass(frozen=True)
class Rank:
    """A worker of the training."""

    task: str  # name of its actor, else of its class
    pid: int  # of the Ray worker
    rank: str  # "" where nothing tells
    step: str  # as `last_step`
    why: str  # how it is known that it uses the GPU
    gpus: tuple[int, ...]  # that it uses; empty: it is not known which

    @property
    def text(self) -> str:
        """In one line."""
        who = f"{self.task} (pid {self.pid})"
        if self.rank:
            who = f"rank {self.rank} ({self.task}, pid {self.pid})"
        return ", ".join(filter(None, (who, self.step)))


class Ranks:
    """The workers of one machine that train."""

    def __init__(self, machine: Machine, snapshot: Snapshot) -> None:
        self._machine = machine
        self._logs: Mapping[int | None, RayLog] = {
            log.pid: log for log in machine.records(RayLog) if log.component == "worker"
        }
        ids = set(map(attrgetter("node.node_id"), machine.reports))
        self._actors: Mapping[int, Actor] = {
            actor.pid: actor for actor in snapshot.actors if actor.node_id in ids and actor.alive
        }
        self._gpus = gpu_names(machine)
        self._workers = workers_by_class(snapshot)

    def on_gpu(self, gpu: int) -> Rank | None:
        """The one that uses that GPU; None where several may, or nothing tells."""
        told = [rank for rank in self._placed() if gpu in rank.gpus]
        alone = [rank for rank in told if len(rank.gpus) == 1] or told
        if not told:
            alone = list(self._only_one())
        pids = set(map(attrgetter("pid"), alone))
        return alone[0] if len(pids) == 1 else None

    def _placed(self) -> Iterator[Rank]:
        """Processes of workers whose variables name their GPUs."""
        uuids = [""] * (max(map(attrgetter("gpu"), self._gpus), default=-1) + 1)
        for name in self._gpus:
            uuids[name.gpu] = name.uuid
        for process in self._machine.working_processes():
            gpus, why = _placed_on(process.place, uuids)
            if gpus and process.worker_pid in self._logs.keys() | self._actors.keys():
                yield self._rank(process.worker_pid or 0, process, why, gpus)

    def _only_one(self) -> Iterator[Rank]:
        """Workers that print steps: where a node has one, all its GPUs are that one's."""
        records = self._machine.records(RayProcess)
        processes = dict(zip(map(attrgetter("pid"), records), records, strict=True))
        for pid, log in self._logs.items():
            if pid is not None and log.step is not None:
                why = "the only worker on its node that trains"
                yield self._rank(pid, processes.get(pid), why, ())

    def _rank(self, pid: int, process: RayProcess | None, why: str, gpus: Sequence[int]) -> Rank:
        log, actor = self._logs.get(pid), self._actors.get(pid)
        names = [actor.name, actor.class_name] if actor else []
        names += [log.title, log.actor] if log else []
        names = [*filter(None, names), "a Ray worker"]
        place = process.place if process else {}
        class_name = actor.class_name if actor else log.actor if log else ""
        rank = rank_of(names, place, self._workers[class_name])
        step = last_step(log, self._machine.read_at) if log else ""
        return Rank(names[0], pid, rank, step, why, tuple(gpus))


def _placed_on(place: Mapping[str, str], uuids: Sequence[str]) -> tuple[Sequence[int], str]:
    """GPUs that the variables of a process leave it, and which variables tell so."""
    gpus, local = visible_gpus(place, uuids), place.get("LOCAL_RANK", "")
    told = {name: value for name, value in place.items() if name.endswith("VISIBLE_DEVICES")}
    among: Sequence[int] = range(len(uuids)) if gpus is None else gpus
    if local.isdecimal() and len(among) > 1 and int(local) < len(among):
        told["LOCAL_RANK"], gpus = local, [among[int(local)]]
    return gpus or (), ", ".join(map("=".join, told.items()))


@dataclass(frozen=True)
class RankProcess:
    """The Ray worker in which a global rank trains."""

    host: str | None
    pid: int | None  # of the worker
    task: str | None  # what it called itself last, as in the findings of `rules.progress`
    pids: frozenset[int]  # its own and those that it started

    def holds(self, host: str, pid: int) -> bool:
        """Whether that process is the rank's."""
        return host == self.host and pid in self.pids


def rank_processes(snapshot: Snapshot) -> dict[int, RankProcess]:
    """By global rank; without those that several processes claim, as of two jobs."""
    claims: dict[int, dict[tuple[str, int], RankProcess]] = {}
    workers = workers_by_class(snapshot)
    for machine in machines(snapshot):
        for pid, log in _worker_logs(machine).items():
            family = [each for each in machine.working_processes() if each.worker_pid == pid]
            pids = frozenset([pid, *map(attrgetter("pid"), family)])
            process = RankProcess(machine.name, pid, log.title or log.actor, pids)
            for rank in _global_ranks(log, family, workers[log.actor]):
                claims.setdefault(rank, {})[machine.name, pid] = process
    return {
        rank: next(iter(processes.values()))
        for rank, processes in claims.items()
        if len(processes) == 1
    }


def _worker_logs(machine: Machine) -> dict[int, RayLog]:
    logs = machine.records(RayLog)
    return {log.pid: log for log in logs if log.component == "worker" and log.pid is not None}


def _global_ranks(log: RayLog, family: Iterable[RayProcess], workers: int) -> Iterator[int]:
    """Of a worker and what it started: one by its own name, or one for each GPU's process."""
    names, told = (log.title, log.actor), set()
    for process in family:
        told.add(rank_of(names, process.place, workers))
    told = told or {rank_of(names, {}, workers)}
    return map(int, filter(str.isdecimal, told))
