"""CPU time that the job wants and does not get: neighbours, too many threads, quotas, hypervisors.

Judged only while a job has run long enough that its start-up is over, on averages of minutes
together with what happens between the two samples: a burst is no fault, and a node on which the
trainer itself keeps all CPUs busy is well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from raydiag.model import Confidence, Evidence, Finding, NodeReport, Severity, Snapshot
from raydiag.probes.processes import RayProcess
from raydiag.probes.scheduler import SchedulerState
from raydiag.rules.growth import growth, pairs
from raydiag.rules.nodes import by_host, distinct

_SETTLED_S = 900.0  # of the job and of the node: covers what avg300 and load15 look back on
_FULL = 0.90  # of the CPUs' time
_MANY_RUNNABLE, _PER_CPU = 32, 4  # on a machine of a few CPUs, a few compilers reach the second
_STEAL = 0.10
_THROTTLED, _FEWEST_PERIODS = 0.5, 4
_IDLE = ("idle", "iowait", "steal")  # what a hypervisor takes is nobody's work on the node


@dataclass(frozen=True)
class CpuLoad:
    """One machine's CPUs between two samples."""

    host: str
    reports: Sequence[NodeReport]
    first: SchedulerState
    now: SchedulerState
    seconds: float
    time: float | None

    def share(self, states: Sequence[str], allowed: bool = False) -> float | None:
        """Share of all CPU time in some states, in that of the CPUs we may use where `allowed`."""
        before = self.first.allowed_ticks if allowed else self.first.ticks
        after = self.now.allowed_ticks if allowed else self.now.ticks
        moved = {state: growth(before.get(state), after[state]) or 0 for state in after}
        total = sum(moved.values())
        return sum(moved.get(state, 0) for state in states) / total if total else None

    @property
    def busy(self) -> float | None:
        """Share of the time of the CPUs that we may use in which they worked."""
        idle = self.share(_IDLE, allowed=True)
        return None if idle is None else 1 - idle

    @property
    def ours(self) -> float | None:
        """Share of the time of these CPUs that our control group used; None: cannot be told."""
        before, after = self.first.cgroup_usage_s, self.now.cgroup_usage_s
        if before is None or after is None or after < before or self.now.cgroup_is_root:
            return None
        return (after - before) / (self.seconds * self.now.cpus_allowed)

    @property
    def throttled(self) -> float | None:
        """Share of the quota's periods in which it stopped our group; None: no quota, or idle."""
        periods = growth(self.first.cgroup_periods, self.now.cgroup_periods)
        stopped = growth(self.first.cgroup_throttled, self.now.cgroup_throttled)
        if self.now.cgroup_quota_cpus is None or stopped is None:
            return None
        return stopped / periods if periods and periods >= _FEWEST_PERIODS else None

    @property
    def threads(self) -> int:
        """Threads of the job's processes, as far as they are visible."""
        found: list[RayProcess] = distinct(self.reports, "processes", "pid", "start_time_s")
        return sum(process.threads for process in found if process.role != "raylet")


def settled(snapshot: Snapshot) -> Iterator[CpuLoad]:
    """Machines with two samples, on which a job has run for a while."""
    if snapshot.job_start is None or snapshot.time - snapshot.job_start < _SETTLED_S:
        return
    for host, reports in by_host(snapshot).items():
        found = pairs(reports, "scheduler", "cgroup_path", "cpus_allowed")
        for first, now, _ in found[:1]:
            # By the node's own clock: what passed in between counts, not when the answer came.
            seconds = now.uptime_s - first.uptime_s
            if seconds > 0 and now.uptime_s >= _SETTLED_S:
                yield CpuLoad(host, reports, first, now, seconds, reports[0].collected_at or None)


def noisy_neighbours(snapshot: Snapshot) -> Iterator[Finding]:
    """Others fill the CPUs that we may use, while our own control group uses less than half of it.

    Only where the group is limited: elsewhere it need not hold the whole job.
    """
    for load in settled(snapshot):
        now, busy, ours = load.now, load.busy, load.ours
        quota, cpus = now.cgroup_quota_cpus, now.cpus_allowed
        limited = (quota is not None and quota < cpus) or cpus < now.cpus_online
        if busy is None or ours is None or not limited:
            continue
        if busy < _FULL or ours >= busy / 2 or now.load15 < now.cpus_online:
            continue
        text = (
            f"CPUs busy {busy:.0%} of the time, our control group's part {ours:.0%} of it all; "
            f"load of 15 min {now.load15:g} on {now.cpus_online} CPUs"
        )
        # A group that its own quota stops waits as well, and no neighbour is to blame for that.
        waits = _sustained(now.cgroup_pressure or now.pressure) and not load.throttled
        yield _finding(load, "noisy-neighbour", waits, ("/proc/stat", text, busy))


def thread_oversubscription(snapshot: Snapshot) -> Iterator[Finding]:
    """Far more threads want to run than there are CPUs, or than the quota has time for."""
    for load in settled(snapshot):
        if pieces := _oversubscribed(load):
            yield _finding(load, "thread-oversubscription", _waits(load), *pieces)


def cpu_contention(snapshot: Snapshot) -> Iterator[Finding]:
    """CPU time that a quota or the hypervisor keeps from the job, however few its threads."""
    for load in settled(snapshot):
        pieces = [] if _oversubscribed(load) else _throttle(load)
        steal = load.share(("steal",))
        if steal is not None and steal >= _STEAL:
            text = f"the hypervisor took {steal:.0%} of the CPU time for others"
            pieces.append(("/proc/stat", text, steal))
        if pieces:
            yield _finding(load, "cpu-contention", _waits(load), *pieces)


_Piece = tuple[str, str, float]  # source, text, value


def _oversubscribed(load: CpuLoad) -> list[_Piece]:
    now, threads = load.now, load.threads
    processes = ("/proc/<pid>/stat", f"{threads} threads of the job's processes", float(threads))
    quota = now.cgroup_quota_cpus
    if quota is not None and threads > _PER_CPU * quota and (pieces := _throttle(load)):
        return [*pieces, processes]
    many = max(_PER_CPU * now.cpus_online, _MANY_RUNNABLE)
    runnable = min(load.first.running, now.running, now.load5, now.load15)
    busy, ours = load.busy, load.ours
    if runnable <= many or threads <= many or busy is None or busy < _FULL:
        return []
    if ours is not None and ours < busy / 2:  # they are somebody else's
        return []
    text = (
        f"{now.running} threads want to run on {now.cpus_online} CPUs; load {now.load5:g} "
        f"over 5 min, {now.load15:g} over 15 min"
    )
    return [("/proc/loadavg", text, now.load15), processes]


def _throttle(load: CpuLoad) -> list[_Piece]:
    throttled, quota = load.throttled, load.now.cgroup_quota_cpus
    if throttled is None or throttled < _THROTTLED:
        return []
    text = f"stopped by its quota of {quota:g} CPUs in {throttled:.0%} of the periods"
    return [(f"{load.now.cgroup_path}/cpu.stat", text, throttled)]


def _waits(load: CpuLoad) -> bool:
    return _sustained(load.now.cgroup_pressure or load.now.pressure)


def _sustained(pressure: Mapping[str, float]) -> bool:
    """Whether tasks have waited for a CPU for minutes; False where the kernel does not tell."""
    return pressure.get("cpu_some_avg60", 0) > 60 and pressure.get("cpu_some_avg300", 0) > 40


def _finding(load: CpuLoad, failure_class: str, waits: bool, *pieces: _Piece) -> Finding:
    """A warning where tasks have long waited for a CPU, else a remark."""
    pressure = load.now.cgroup_pressure or load.now.pressure
    source = f"{load.now.cgroup_path}/cpu.pressure"
    source = source if load.now.cgroup_pressure else "/proc/pressure/cpu"
    evidence = [Evidence(*piece, time=load.time) for piece in pieces]
    if "cpu_some_avg300" in pressure:
        text = (
            f"tasks waited for a CPU {pressure.get('cpu_some_avg60', 0):g} % of the last minute, "
            f"{pressure['cpu_some_avg300']:g} % of the last 5"
        )
        evidence.append(Evidence(source, text, pressure["cpu_some_avg300"], load.time))
    return Finding(
        failure_class,
        host=load.host,
        severity=Severity.WARNING if waits else Severity.INFO,
        confidence=Confidence.LIKELY,
        evidence=tuple(evidence),
    )
