"""Processes that do not run though they should: training workers, and Ray's own on the node.

A rank that does not run holds up all others, so nothing is waited for: neither a missing step nor
a timeout.
"""

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from statistics import median
from typing import Any

from raydiag import catalog
from raydiag.model import Actor, Evidence, Finding, Severity, Snapshot
from raydiag.probes.processes import RayProcess
from raydiag.probes.ray_logs import RayLog
from raydiag.rules.machines import Machine, machine_names, machines
from raydiag.rules.progress import paces, waiting

_SETTLED_S = 300.0  # of the job; until then workers may still be starting
_STOPPED = {
    "T": "stopped (state T), as by SIGSTOP",
    "t": "traced (state t), as by a debugger",
}
_ENDED = {
    "Z": "a zombie (state Z): it has exited and was not reaped",
    "X": "a zombie (state X): it has exited",
}
_NUMBERS = re.compile(r"\d+")
_TITLE, _IDLE = "ray::", "ray::IDLE"


def stopped_workers(snapshot: Snapshot) -> Iterator[Finding]:
    """Ray workers with work, and what they started, that are stopped; workers that are zombies.

    One finding for a worker. Zombie children are left to `ended_children`.
    """
    for machine in machines(snapshot):
        actors = _live_actors(snapshot, machine)
        by_worker: dict[int | None, list[RayProcess]] = {}
        for process in machine.working_processes():
            if _halted_state(process):
                by_worker.setdefault(process.worker_pid, []).append(process)
        for worker_pid, processes in by_worker.items():
            first = min(processes, key=lambda process: (process.role != "worker", process.pid))
            actor = actors.get(worker_pid or 0)
            task = _task(actor) if actor else _title(first) or None
            known: dict[str, Any] = {"pid": first.pid, "task": task}
            known["onset"] = _last_step_at(machine, first.worker_pid)
            evidence = _halted_evidence(machine, processes)
            yield machine.finding("worker-stopped", *evidence, severity=Severity.CRITICAL, **known)


def stopped_ray_processes(snapshot: Snapshot) -> Iterator[Finding]:
    """Raylets and Ray's agents that are stopped or zombies; one finding for a machine.

    The training may go on without them for a while: Ray's control store declares a node dead only
    when its health checks have failed for some time. A raylet that has exited beside one that lives
    is that of an earlier session, or of another cluster.
    """
    for machine in machines(snapshot):
        processes = list(machine.records(RayProcess))
        living = set(map(attrgetter("role"), itertools.filterfalse(_halted_state, processes)))
        halted = []
        for process in processes:
            is_left = process.role == "raylet" and process.state in _ENDED and "raylet" in living
            is_halted = process.state in (*_STOPPED, *_ENDED)
            if process.role in ("raylet", "agent") and is_halted and not is_left:
                halted.append(process)
        if halted:
            evidence = _halted_evidence(machine, halted)
            yield machine.finding(
                "ray-node-dead", *evidence, variant="process-stopped", pid=halted[0].pid
            )


def _last_step_at(machine: Machine, worker_pid: int | None) -> float | None:
    """Since when a rank may not have run: its last step, by its own file."""
    for log in machine.records(RayLog):
        if log.pid == worker_pid and log.step_age_s is not None and machine.read_at:
            return machine.read_at - log.step_age_s
    return None


def _halted_evidence(machine: Machine, processes: Iterable[RayProcess]) -> Iterator[Evidence]:
    for process in processes:
        text = f"pid {process.pid} ({process.comm}) is {_halted_state(process)}"
        yield machine.evidence(f"/proc/{process.pid}/stat", text)


def missing_workers(snapshot: Snapshot) -> Iterator[Finding]:
    """Workers that are gone while Ray lists their actor as alive.

    Only of actor classes that print training steps: other actors come and go while a job runs.
    """
    if snapshot.job_start is None or snapshot.time - snapshot.job_start < _SETTLED_S:
        return
    all_machines = machines(snapshot)
    training_classes = _training_classes(all_machines)
    for machine in all_machines:
        processes = machine.records(RayProcess)
        if "raylet" not in map(attrgetter("role"), processes):
            continue  # processes are hidden, or numbered otherwise than Ray does
        present = set(map(attrgetter("pid"), processes))
        for pid, actor in _live_actors(snapshot, machine).items():
            if pid in present or actor.class_name not in training_classes:
                continue
            text = f"no process {pid}, though Ray lists actor {_task(actor)} as alive"
            evidence, known = machine.evidence("/proc", text), {"pid": pid, "task": _task(actor)}
            yield machine.finding("worker-stopped", evidence, variant="missing", **known)


def dead_ranks(snapshot: Snapshot) -> Iterator[Finding]:
    """Ranks that Ray knows to be dead while the others wait for them."""
    names = machine_names(snapshot)
    hosts = {report.node.node_id: names[report.node.machine] for report in snapshot.nodes}
    waiting_ranks = set(waiting(snapshot))
    for actor in snapshot.actors:
        is_missed = (actor.job_id, actor.class_name) in waiting_ranks
        if is_missed and not actor.alive and actor.pid and actor.node_id in hosts:
            text = f"actor {_task(actor)} (pid {actor.pid}) is dead, and the others make no step"
            evidence = (Evidence("Ray's list of actors", text, time=snapshot.time),)
            known = dict(catalog.variant("worker-stopped", "died"), pid=actor.pid)
            known.update(host=hosts[actor.node_id], task=_task(actor))
            yield Finding("worker-stopped", evidence=evidence, **known)


def ended_children(snapshot: Snapshot) -> Iterator[Finding]:
    """What trained below a worker and has exited, while the job is late for its next step.

    That it trained, its peers show: the other hosts have more of its name that live. Helpers of one
    rank that nobody reaped have none, data loaders that ended have ended on all hosts alike.
    """
    if not any(map(attrgetter("is_late"), paces(snapshot))):
        return
    ended = []
    at_work = [machine for machine in machines(snapshot) if machine.working_processes()]
    living = list(map(_living_children, at_work))
    for index, machine in enumerate(at_work):
        others = [*living[:index], *living[index + 1 :]]
        children = [
            process
            for process in filter(_is_ended_child, machine.working_processes())
            if _is_missed(_name(process), living[index], others)
        ]
        if children:
            ended.append((machine, children))
    if len(ended) == 1:
        machine, children = ended[0]
        evidence = [
            machine.evidence(f"/proc/{child.pid}/stat", f"pid {child.pid} is {_ENDED['Z']}")
            for child in children
        ]
        yield machine.finding("worker-stopped", *evidence, variant="missing", pid=children[0].pid)


def _living_children(machine: Machine) -> Counter[str]:
    """How many of each name."""
    processes = itertools.filterfalse(_is_ended_child, machine.working_processes())
    return Counter(_name(process) for process in processes if process.role == "child")


def _is_missed(name: str, here: Counter[str], others: Sequence[Counter[str]]) -> bool:
    """Whether most other hosts have more children of that name that live."""
    return bool(others) and median(counts[name] for counts in others) > here[name]


def _name(process: RayProcess) -> str:
    """Without the number of a rank."""
    return _NUMBERS.sub("", process.comm)


def _is_ended_child(process: RayProcess) -> bool:
    return process.role == "child" and process.state in _ENDED


def _halted_state(process: RayProcess) -> str:
    """In what state a process does not run; empty when it does, or has no work."""
    if process.comm.startswith(_IDLE):
        return ""
    if process.role != "child" and process.state in _ENDED:
        return _ENDED[process.state]
    return _STOPPED.get(process.state, "")


def _live_actors(snapshot: Snapshot, machine: Machine) -> Mapping[int, Actor]:
    """By pid."""
    node_ids = set(map(attrgetter("node.node_id"), machine.reports))
    actors = {}
    for actor in snapshot.actors:
        if actor.alive and actor.pid and actor.node_id in node_ids:
            actors[actor.pid] = actor
    return actors


def _training_classes(all_machines: Iterable[Machine]) -> set[str]:
    """Actor classes whose workers have printed steps."""
    classes = set()
    for machine in all_machines:
        for log in machine.records(RayLog):
            if log.step is not None and log.actor:
                classes.add(log.actor)
    return classes


def _task(actor: Actor) -> str:
    return actor.name or actor.class_name


def _title(process: RayProcess) -> str:
    """The class in a worker's title, `ray::Trainer.train`; empty without one."""
    title = process.command or process.comm
    if not title.startswith(_TITLE):
        return ""
    return title.removeprefix(_TITLE).partition(".")[0]
