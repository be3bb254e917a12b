"""CPU time that the job needs and does not get: neighbours, too many threads, quotas, hypervisors.

Judged only while a job has run long enough that its start-up is over, on averages of minutes
together with what happens between the two samples: a burst is no fault, and a node on which the
trainer itself keeps all CPUs busy is healthy.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from raydiag.model import Confidence, Evidence, Finding, Snapshot
from raydiag.probes.processes import RayProcess
from raydiag.probes.scheduler import SchedulerState
from raydiag.rules.grades import grown_counters, growth, warning_if
from raydiag.rules.machines import Machine, machines

_SETTLED_S = 900.0  # of the job and of the node: covers what avg300 and load15 look back on
_FULL = 0.90  # of the CPUs' time
_MANY_RUNNABLE, _PER_CPU = 32, 4  # on a machine of a few CPUs, a few compilers reach the second
_STEAL = 0.10
_THROTTLED, _FEWEST_PERIODS = 0.5, 4
_IDLE = ("idle", "iowait", "steal")  # what a hypervisor takes is nobody's work on the node
_SUSTAINED_60_S, _SUSTAINED_300_S = 60, 40  # percent of the time in which tasks waited for a CPU


class CpuLoad(NamedTuple):
    """One machine's CPUs between two samples."""

    machine: Machine
    first: SchedulerState
    now: SchedulerState
    seconds: float

    @property
    def busy(self) -> float | None:
        """Share of the time of the CPUs that we may use in which they worked."""
        idle = _share(self.first.allowed_ticks, self.now.allowed_ticks, _IDLE)
        return None if idle is None else 1 - idle

    @property
    def job_share(self) -> float | None:
        """Share of the time of these CPUs that our control group used; None: unknown."""
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
        processes = self.machine.records(RayProcess)
        return sum(each.threads for each in processes if each.role in ("worker", "child"))

    @property
    def pressure(self) -> Mapping[str, float]:
        """Pressure stall information of our control group, else of the node."""
        return self.now.cgroup_pressure or self.now.pressure

    @property
    def tasks_wait(self) -> bool:
        """Whether tasks have waited for a CPU for minutes; False where the kernel does not tell."""
        last_minute = self.pressure.get("cpu_some_avg60", 0)
        last_minutes = self.pressure.get("cpu_some_avg300", 0)
        return last_minute > _SUSTAINED_60_S and last_minutes > _SUSTAINED_300_S


def settled_loads(snapshot: Snapshot) -> Iterator[CpuLoad]:
    """Machines with two samples, on which a job has run for a while."""
    if snapshot.job_start is None or snapshot.time - snapshot.job_start < _SETTLED_S:
        return
    for machine in machines(snapshot):
        for samples in machine.samples(SchedulerState)[:1]:
            first, now = samples.first, samples.later
            # By the node's own clock: what passed in between counts, not when the answer came.
            seconds = now.uptime_s - first.uptime_s
            if seconds > 0 and now.uptime_s >= _SETTLED_S:
                yield CpuLoad(machine, first, now, seconds)


def noisy_neighbours(snapshot: Snapshot) -> Iterator[Finding]:
    """Others fill the CPUs that we may use, while our own control group uses less than half of it.

    Only where the group is limited: elsewhere it need not hold the whole job.
    """
    for load in settled_loads(snapshot):
        now, busy, job_share = load.now, load.busy, load.job_share
        if busy is None or job_share is None or not _is_limited(now):
            continue
        if busy < _FULL or job_share >= busy / 2 or now.load15 < now.cpus_online:
            continue
        text = (
            f"CPUs busy {busy:.0%} of the time, {job_share:.0%} by our control group; "
            f"15 min load average {now.load15:g} on {now.cpus_online} CPUs"
        )
        # A group that its own quota stops waits too, which no neighbour causes.
        is_warning = load.tasks_wait and not load.throttled
        evidence = load.machine.evidence("/proc/stat", text, busy)
        yield _finding(load, "noisy-neighbour", is_warning, [evidence])


def thread_oversubscription(snapshot: Snapshot) -> Iterator[Finding]:
    """Far more threads want to run than there are CPUs, or than the quota has time for."""
    for load in settled_loads(snapshot):
        if oversubscription := _oversubscription(load):
            yield _finding(load, "thread-oversubscription", load.tasks_wait, oversubscription)


def cpu_contention(snapshot: Snapshot) -> Iterator[Finding]:
    """CPU time that a quota or the hypervisor keeps from the job, however few its threads."""
    for load in settled_loads(snapshot):
        causes = [] if _oversubscription(load) else _throttling(load)
        steal = _share(load.first.ticks, load.now.ticks, ("steal",))
        if steal is not None and steal >= _STEAL:
            text = f"the hypervisor took {steal:.0%} of the CPU time for others"
            causes.append(load.machine.evidence("/proc/stat", text, steal))
        if causes:
            yield _finding(load, "cpu-contention", load.tasks_wait, causes)


def _share(
    before: Mapping[str, int], after: Mapping[str, int], states: Sequence[str]
) -> float | None:
    """Share of the time that was spent in these states; None: no time has passed."""
    spent = grown_counters(before, after)
    if not spent:
        return None
    return sum(spent.get(state, 0) for state in states) / sum(spent.values())


def _is_limited(now: SchedulerState) -> bool:
    quota_cpus = now.cgroup_quota_cpus
    has_quota = quota_cpus is not None and quota_cpus < now.cpus_allowed
    return has_quota or now.cpus_allowed < now.cpus_online


def _oversubscription(load: CpuLoad) -> list[Evidence]:
    """What shows that there are too many threads; empty when nothing does."""
    threads, quota_cpus = load.threads, load.now.cgroup_quota_cpus
    evidence: list[Evidence] = []
    if quota_cpus is not None and threads > _PER_CPU * quota_cpus:
        evidence = _throttling(load)
    if not evidence and _is_overrun(load, threads):
        now = load.now
        text = (
            f"{now.running} runnable threads on {now.cpus_online} CPUs; load average {now.load5:g} "
            f"over 5 min, {now.load15:g} over 15 min"
        )
        evidence = [load.machine.evidence("/proc/loadavg", text, now.load15)]
    if evidence:
        text = f"{threads} threads of the job's processes"
        evidence.append(load.machine.evidence("/proc/<pid>/stat", text, float(threads)))
    return evidence


def _is_overrun(load: CpuLoad, threads: int) -> bool:
    """Whether far more threads want to run than there are CPUs, and they are the job's."""
    now, busy, job_share = load.now, load.busy, load.job_share
    many = max(_PER_CPU * now.cpus_online, _MANY_RUNNABLE)
    runnable = min(load.first.running, now.running, now.load5, now.load15)
    if runnable <= many or threads <= many or busy is None or busy < _FULL:
        return False
    return job_share is None or job_share >= busy / 2


def _throttling(load: CpuLoad) -> list[Evidence]:
    throttled, quota_cpus = load.throttled, load.now.cgroup_quota_cpus
    if throttled is None or throttled < _THROTTLED:
        return []
    text = f"throttled by its quota of {quota_cpus:g} CPUs in {throttled:.0%} of the periods"
    return [load.machine.evidence(f"{load.now.cgroup_path}/cpu.stat", text, throttled)]


def _finding(
    load: CpuLoad, failure_class: str, is_warning: bool, causes: Sequence[Evidence]
) -> Finding:
    """A warning where tasks have long waited for a CPU, else a note."""
    evidence, severity = (*causes, *_pressure_evidence(load)), warning_if(is_warning)
    return load.machine.finding(
        failure_class, *evidence, severity=severity, confidence=Confidence.LIKELY
    )


def _pressure_evidence(load: CpuLoad) -> Iterator[Evidence]:
    source = "/proc/pressure/cpu"
    if load.now.cgroup_pressure:
        source = f"{load.now.cgroup_path}/cpu.pressure"
    last_minutes = load.pressure.get("cpu_some_avg300")
    if last_minutes is not None:
        text = (
            f"tasks waited for a CPU {load.pressure.get('cpu_some_avg60', 0):g} % of the last "
            f"minute, {last_minutes:g} % of the last 5"
        )
        yield load.machine.evidence(source, text, last_minutes)
