"""Which worker does otherwise than all others while none makes a step: it is busy, or it sleeps.

Ranks that wait for each other sleep, or all spin in the collective. What a worker has started
counts as its load: it may be what trains.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from raydiag.model import Confidence, Evidence, Finding, Snapshot
from raydiag.probes.ray_logs import RayLog
from raydiag.probes.scheduler import SchedulerState
from raydiag.rules.machines import Machine, machines

_LEAST_WORKERS = 3  # of two, either may be the one that waits
_BUSY, _SPINS, _UNLIKE = 0.15, 0.3, 5.0  # of one CPU, on nodes that others load; times as much
_LEAST_BUSY = 0.04  # on a node where many wait for a CPU: some of the kernel's clock ticks


@dataclass(frozen=True)
class Load:
    """What one worker used between the two samples."""

    machine: Machine
    log: RayLog  # the later sample
    cpus: float | None  # None: it is not known
    interval_s: float

    @property
    def used(self) -> float:
        """CPUs; 0 where that is not known."""
        return self.cpus or 0.0

    def scaled(self, cpus: float) -> float:
        """What remains of a load on a node where more threads want to run than there are CPUs."""
        for node in self.machine.records(SchedulerState):
            share = 2 * node.cpus_allowed / max(1, node.running)
            return max(_LEAST_BUSY, cpus * min(1.0, share))
        return cpus


def loads_beside(snapshot: Snapshot, log: RayLog) -> list[Load]:
    """Of all workers of the same job and actor class, also of those that print nothing."""
    alike = (log.session, log.job_id, log.actor)
    return [load for load in _loads(snapshot) if _kind(load.log) == alike]


def _loads(snapshot: Snapshot) -> Iterator[Load]:
    for machine in machines(snapshot):
        for samples in machine.newest(RayLog):
            first, later, cpus = samples.first, samples.later, None
            if first.component != "worker":
                continue
            if samples.seconds and first.cpu_s is not None and later.cpu_s is not None:
                # Less than before: something of what it had started has ended meanwhile.
                cpus = max(0.0, later.cpu_s - first.cpu_s) / samples.seconds
            yield Load(machine, later, cpus, samples.seconds)


def _kind(log: RayLog) -> tuple[str, str, str]:
    return log.session, log.job_id, log.actor


def unlike(loads: Sequence[Load]) -> list[Load]:
    """The only one that is busy, or that sleeps."""
    if len(loads) < _LEAST_WORKERS or None in map(attrgetter("cpus"), loads):
        return []
    ordered = sorted(loads, key=attrgetter("used"))
    lowest, second, top = ordered[0].used, ordered[1].used, ordered[-1].used
    if top >= ordered[-1].scaled(_BUSY) and top >= _UNLIKE * ordered[-2].used:
        return ordered[-1:]
    if second >= ordered[1].scaled(_SPINS) and second >= _UNLIKE * lowest:
        return ordered[:1]
    return []


def odd_workers(loads: Sequence[Load], onset: float | None) -> Iterator[Finding]:
    """The one that does otherwise; the others wait for it."""
    for load in unlike(loads):
        others = sorted(other.used for other in loads if other is not load)
        text = f"used {load.used:.2f} CPUs, while {len(others)} others of its kind, none of which "
        text += f"makes a step, used {others[0]:.2f} to {others[-1]:.2f}"
        last_line = filter(None, [load.log.step_line])
        evidence = [Evidence(load.log.path, line, time=onset) for line in last_line]
        pid, task = load.log.pid, load.log.title or load.log.actor or None
        known: dict[str, Any] = {"pid": pid, "task": task, "onset": onset}
        yield Finding(
            "straggler",
            host=load.machine.name,
            confidence=Confidence.LIKELY,
            evidence=(load.machine.evidence(f"/proc/{pid}/stat", text, load.used), *evidence),
            **known,
        )
