from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from raydiag.model import Finding, NodeReport, ProbeResult, Severity, Snapshot, Status
from raydiag.probes.processes import RayProcess
from raydiag.probes.scheduler import SchedulerState
from raydiag.rules.cpu import cpu_contention, noisy_neighbours, thread_oversubscription
from tests.rules.snapshots import NOW, report, snapshot

Rule = Callable[[Snapshot], Iterator[Finding]]
RULES: tuple[Rule, ...] = (noisy_neighbours, thread_oversubscription, cpu_contention)
WAITING = {"cpu_some_avg60": 70.0, "cpu_some_avg300": 55.0}
QUIET = {"cpu_some_avg60": 70.0, "cpu_some_avg300": 5.0}


def state(**fields: Any) -> SchedulerState:
    """A node of 64 CPUs, its group limited to 16 of them by a quota, with little to do."""
    ticks = {"user": 1000, "system": 100, "idle": 9000, "iowait": 0, "steal": 0}
    quiet = SchedulerState(
        uptime_s=90_000.0,
        cpus_online=64,
        cpus_allowed=64,
        load1=3.0,
        load5=3.0,
        load15=3.0,
        tasks=900,
        running=3,
        blocked=0,
        context_switches=5000,
        ticks=ticks,
        allowed_ticks=ticks,
        pressure={"cpu_some_avg60": 1.0, "cpu_some_avg300": 1.0},
        cgroup_version=2,
        cgroup_path="/sys/fs/cgroup/job",
        cgroup_is_root=False,
        cgroup_quota_cpus=16.0,
        cgroup_cpus=64,
        cgroup_usage_s=100.0,
        cgroup_periods=1000,
        cgroup_throttled=10,
        cgroup_throttled_s=1.0,
        cgroup_pressure={"cpu_some_avg60": 1.0, "cpu_some_avg300": 1.0},
    )
    return replace(quiet, **fields)


def after(
    first: SchedulerState,
    *,
    busy: float = 0.1,
    steal: float = 0.0,
    ours: float = 0.05,
    throttled: int = 0,
    **fields: Any,
) -> SchedulerState:
    """One second on: shares of all CPU time, and stopped ones of ten periods."""
    total = first.cpus_online * 100
    moved = {"user": busy, "steal": steal, "idle": 1 - busy - steal}
    ticks = {one: n + round(moved.get(one, 0) * total) for one, n in first.ticks.items()}
    later = replace(
        first,
        uptime_s=first.uptime_s + 1,
        ticks=ticks,
        allowed_ticks=ticks,
        cgroup_usage_s=(first.cgroup_usage_s or 0) + ours * first.cpus_allowed,
        cgroup_periods=(first.cgroup_periods or 0) + 10,
        cgroup_throttled=(first.cgroup_throttled or 0) + throttled,
    )
    return replace(later, **fields)


def trainer(threads: int) -> RayProcess:
    return RayProcess(
        pid=7, ppid=1, start_time_s=1.0, comm="ray::Trainer", command="ray::Trainer",
        role="worker", worker_pid=7, state="S", threads=threads, rss_bytes=1, environment={},
    )  # fmt: skip


def node(first: SchedulerState, later: SchedulerState, threads: int = 8) -> NodeReport:
    result = ProbeResult(
        "scheduler", Status.OK, records=[first], later=[later], interval_s=later.uptime_s
    )
    return report("a", results=[result], processes=[trainer(threads)])


def judged(rule: Rule, *reports: NodeReport, job_age_s: float | None = 7200) -> list[Finding]:
    start = None if job_age_s is None else NOW - job_age_s
    return list(rule(snapshot(*reports, job_start=start)))


def full_node(**fields: Any) -> NodeReport:
    """Others fill the node, our group uses little of it and waits."""
    first = state(load15=80.0, cgroup_pressure=WAITING, **fields)
    return node(first, after(first, busy=0.97, ours=0.1))


def test_a_node_that_others_fill_is_a_noisy_neighbour() -> None:
    (finding,) = judged(noisy_neighbours, full_node())
    assert (finding.failure_class, finding.host) == ("noisy-neighbour", "a")
    assert finding.severity is Severity.WARNING
    assert finding.evidence[0].value == pytest.approx(0.97, abs=0.01)
    assert "10% by our" in finding.evidence[0].text


@pytest.mark.parametrize("pressure", [{}, QUIET])
def test_a_neighbour_whom_nobody_waits_for_is_a_remark(pressure: dict[str, float]) -> None:
    first = state(load15=80.0, cgroup_pressure=pressure, pressure={})
    (finding,) = judged(noisy_neighbours, node(first, after(first, busy=0.97, ours=0.1)))
    assert finding.severity is Severity.INFO


def test_a_group_that_its_quota_stops_does_not_wait_for_neighbours() -> None:
    first = state(load15=80.0, cgroup_pressure=WAITING)
    later = after(first, busy=0.97, ours=0.25, throttled=9)
    (finding,) = judged(noisy_neighbours, node(first, later))
    assert finding.severity is Severity.INFO


@pytest.mark.parametrize(
    "quiet",
    [
        full_node(cgroup_is_root=True),  # what is ours cannot be told
        full_node(cgroup_quota_cpus=None),  # may not hold all of the job
        node(state(load15=80.0), after(state(load15=80.0), busy=0.97, ours=0.9)),  # the trainer
        node(state(load15=80.0), after(state(load15=80.0), busy=0.5, ours=0.1)),
        node(state(load15=20.0), after(state(load15=20.0), busy=0.97, ours=0.1)),  # a burst
    ],
)
def test_no_neighbour(quiet: NodeReport) -> None:
    assert judged(noisy_neighbours, quiet) == []


def test_a_smaller_cpuset_is_a_limit_too() -> None:
    (finding,) = judged(noisy_neighbours, full_node(cgroup_quota_cpus=None, cpus_allowed=16))
    assert finding.failure_class == "noisy-neighbour"


def stormy(**fields: Any) -> SchedulerState:
    values = {"running": 400, "load5": 390.0, "load15": 380.0, "cgroup_is_root": True}
    return state(**{**values, "pressure": WAITING, "cgroup_pressure": {}, **fields})


def test_a_storm_of_threads_is_oversubscription() -> None:
    first = stormy()
    (finding,) = judged(thread_oversubscription, node(first, after(first, busy=1.0), 900))
    assert (finding.failure_class, finding.severity) == (
        "thread-oversubscription",
        Severity.WARNING,
    )
    assert finding.evidence[0].value == 380.0
    assert finding.evidence[1].text == "900 threads of the job's processes"


@pytest.mark.parametrize(
    ("first", "busy", "threads"),
    [
        (stormy(running=100), 1.0, 900),
        (stormy(load15=90.0), 1.0, 900),  # it has just begun
        (stormy(), 0.5, 900),
        (stormy(), 1.0, 100),  # somebody else's
        (stormy(cgroup_is_root=False, cgroup_quota_cpus=None), 1.0, 900),  # uses 5 % of it
        # A small machine under a few builds.
        (stormy(cpus_online=2, running=30, load5=31.0, load15=32.0), 1.0, 900),
    ],
)
def test_many_threads_alone_are_no_oversubscription(
    first: SchedulerState, busy: float, threads: int
) -> None:
    assert judged(thread_oversubscription, node(first, after(first, busy=busy), threads)) == []


def test_a_quota_far_below_the_threads_is_oversubscription_and_not_contention() -> None:
    first = state(cgroup_pressure=WAITING)
    throttled = node(first, after(first, busy=0.4, ours=0.25, throttled=8), 700)
    (finding,) = judged(thread_oversubscription, throttled)
    assert finding.severity is Severity.WARNING
    assert finding.evidence[0].text == "throttled by its quota of 16 CPUs in 80% of the periods"
    assert finding.evidence[0].source == "/sys/fs/cgroup/job/cpu.stat"
    assert judged(cpu_contention, throttled) == []


def test_a_quota_that_stops_few_threads_is_contention() -> None:
    first = state(cgroup_pressure=WAITING)
    throttled = node(first, after(first, busy=0.4, ours=0.25, throttled=8), 20)
    (finding,) = judged(cpu_contention, throttled)
    assert (finding.failure_class, finding.severity) == ("cpu-contention", Severity.WARNING)
    assert judged(thread_oversubscription, throttled) == []


def test_steal_is_contention() -> None:
    first = state(pressure=WAITING, cgroup_pressure={})
    (finding,) = judged(cpu_contention, node(first, after(first, busy=0.6, steal=0.2)))
    assert finding.severity is Severity.WARNING
    assert "hypervisor took 20%" in finding.evidence[0].text
    assert finding.evidence[1].source == "/proc/pressure/cpu"


@pytest.mark.parametrize("pressure", [{}, QUIET])
def test_without_long_waits_it_is_a_remark(pressure: dict[str, float]) -> None:
    first = state(pressure=pressure, cgroup_pressure=pressure)
    (finding,) = judged(cpu_contention, node(first, after(first, steal=0.2, throttled=9)))
    assert finding.severity is Severity.INFO


@pytest.mark.parametrize(
    "later",
    [
        {"steal": 0.05},
        {"throttled": 4},
        {"cgroup_throttled": 5},  # counted anew
        {"throttled": 9, "cgroup_periods": 1001},  # too few periods
    ],
)
def test_little_taken_away_is_nothing(later: dict[str, Any]) -> None:
    first = state(pressure=WAITING, cgroup_pressure=WAITING)
    assert judged(cpu_contention, node(first, after(first, busy=0.4, **later))) == []


def worst() -> NodeReport:
    """Everything at once."""
    first = stormy(cgroup_is_root=False, cgroup_pressure=WAITING)
    return node(first, after(first, busy=0.9, steal=0.1, ours=0.1, throttled=10), 900)


@pytest.mark.parametrize("rule", RULES)
def test_a_young_job_or_none_is_not_judged(rule: Rule) -> None:
    assert judged(rule, worst()) != []
    for age in (None, 300.0, -60.0):
        assert judged(rule, worst(), job_age_s=age) == []


@pytest.mark.parametrize("rule", RULES)
def test_a_node_just_booted_or_sampled_once_is_not_judged(rule: Rule) -> None:
    first = stormy(uptime_s=300.0)
    assert judged(rule, node(first, after(first, steal=0.2, busy=0.8), 900)) == []
    assert judged(rule, report("a", scheduler=[first], processes=[trainer(900)])) == []


@pytest.mark.parametrize("rule", RULES)
def test_a_trainer_that_keeps_all_cpus_busy_is_well(rule: Rule) -> None:
    first = state(
        running=70, load5=66.0, load15=66.0, pressure=WAITING, cgroup_pressure=WAITING,
        cgroup_quota_cpus=None,
    )  # fmt: skip
    assert judged(rule, node(first, after(first, busy=1.0, ours=0.98), 2000)) == []
