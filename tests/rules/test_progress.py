from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydiag.model import Confidence, Finding, NodeReport, ProbeResult, Severity, Status
from raydiag.probes.ray_logs import RayLog
from raydiag.probes.scheduler import SchedulerState
from raydiag.rules.progress import paces, silent_jobs, stragglers
from tests.rules.snapshots import NOW, report, snapshot


def log(step: int | None, pid: int = 700, age_s: float | None = 0.1, **values: Any) -> RayLog:
    known: dict[str, Any] = {
        "component": "worker",
        "path": f"/tmp/ray/s/logs/worker-1-01000000-{pid}.out",
        "session": "s",
        "session_from": "raylet",
        "size_bytes": 1000,
        "log_changed_s": 0.1,
        "pid": pid,
        "process_age_s": 900.0,
        "job_id": "02000000",
        "actor": "Trainer",
        "title": f"Trainer(pid={pid})",
        "step": step,
        "step_format": "MaxText",
        "step_duration_s": 0.5,
        "step_stride": 1,
        "step_age_s": age_s,
        "step_line": f"completed step: {step}, seconds: 0.500,",
    }
    return RayLog(**{**known, **values})


def node(
    host: str, *logs: RayLog, later: tuple[RayLog, ...] = (), gap_s: float = 2.0
) -> NodeReport:
    result = ProbeResult("ray_logs", Status.OK, records=logs, later=later, interval_s=gap_s)
    return report(host, results=[result])


def found(*reports: NodeReport) -> list[Finding]:
    return list(stragglers(snapshot(*reports)))


def steps(*numbers: int, **values: Any) -> list[NodeReport]:
    """A worker on each of the hosts a, b, ...; the last one with `values`."""
    hosts = [node(chr(97 + n), log(number)) for n, number in enumerate(numbers[:-1])]
    return [*hosts, node(chr(96 + len(numbers)), log(numbers[-1], **values))]


def test_the_one_that_stopped_while_the_others_went_on() -> None:
    (finding,) = found(*steps(120, 121, 119, 57, age_s=31.5, pid=812))
    assert (finding.failure_class, finding.host, finding.pid) == ("straggler", "d", 812)
    assert finding.task == "Trainer(pid=812)"
    assert finding.onset == NOW - 31.5
    assert finding.confidence is Confidence.LIKELY
    assert finding.evidence[0].text == "completed step: 57, seconds: 0.500,"
    assert "3 other workers on 3 hosts are at step 119 to 121" in finding.evidence[1].text


def test_workers_of_one_host_are_one_finding() -> None:
    well = [node(host, log(90, 1), log(90, 2)) for host in "abc"]
    (finding,) = found(*well, node("d", log(40, 1, age_s=60), log(40, 2, age_s=60)))
    assert (finding.host, finding.pid, finding.task) == ("d", None, "Trainer")
    assert [piece.value for piece in finding.evidence] == [40, 40, 90]


def test_two_samples_show_who_stands_still() -> None:
    well = [node(host, log(90), later=(log(94),)) for host in "abc"]
    chatting = log(57, age_s=None)  # writes other lines all the time
    (finding,) = found(*well, node("d", chatting, later=(chatting,)))
    assert (finding.host, finding.confidence) == ("d", Confidence.CONFIRMED)
    assert not found(*well, node("d", chatting, later=(log(61, age_s=None),)))
    assert not found(*well, node("d", chatting, later=(chatting,), gap_s=1.0))


def test_far_behind_though_it_moves() -> None:
    assert len(found(*steps(500, 500, 501, 200))) == 1
    assert not found(*steps(500, 500, 501, 400))  # 50 s: may be the moment of reading


def test_of_two_workers_only_a_long_silence_tells() -> None:
    assert not found(*steps(120, 57, age_s=200))
    assert [finding.host for finding in found(*steps(120, 57, age_s=400))] == ["b"]


@pytest.mark.parametrize(
    "reports",
    [
        steps(120, 120, 121, 119),
        steps(120, 120, 120, 120, age_s=4000),  # all stand at one step, this log is the oldest
        [node(host, log(120, age_s=4000)) for host in "abcd"],
        steps(120, 120, 120, 118, age_s=30),
        steps(100, 70, 120, 57, age_s=30),  # each at its own step: trials, and one takes its time
        steps(120, 120, 120, 57, age_s=2),  # a pause
        steps(120, 120, 120, 57, age_s=30, job_id="01000000"),
        steps(120, 120, 120, 57, age_s=30, actor="Evaluator"),
        steps(120, 120, 120, 57, age_s=30, step_format="progress bar"),
        steps(120, 120, 120, 57, age_s=30, total_steps=60),
        steps(120, 120, 120, 57, age_s=30, process_age_s=200.0),  # began later
        [
            node(h, log(n, age_s=a, buffered=True))
            for h, n, a in zip("abcd", (120, 120, 120, 57), (0.1, 0.1, 0.1, 30.0), strict=True)
        ],
        [node("a"), node("b", log(None)), report("c")],
        [],
    ],
)
def test_silent(reports: list[NodeReport]) -> None:
    assert not found(*reports)


def test_fast_steps_that_are_read_at_different_moments_are_silent() -> None:
    """One node is read 8 s before the others, in which these make 400 steps."""
    fast: dict[str, Any] = {"step_duration_s": 0.02, "age_s": 0.02}
    early = log(1000, **fast)
    others = [node(host, replace(log(1400, **fast), pid=n)) for n, host in enumerate("abc")]
    assert not found(*others, node("d", early))


@given(st.integers(0, 10**6), st.integers(1, 12), st.floats(0, 1e6), st.floats(0.001, 1e4))
def test_equal_steps_accuse_nobody(step: int, hosts: int, age_s: float, duration_s: float) -> None:
    workers = [log(step, age_s=age_s, step_duration_s=duration_s) for _ in range(hosts)]
    assert not found(*(node(f"n{n}", worker) for n, worker in enumerate(workers)))


@given(st.lists(st.integers(0, 2000), min_size=1, max_size=12), st.floats(0, 1e5))
def test_never_most_of_them(numbers: list[int], age_s: float) -> None:
    accused = found(*(node(f"n{n}", log(s, age_s=age_s)) for n, s in enumerate(numbers)))
    assert 2 * len(accused) <= len(numbers)


@pytest.mark.parametrize(("stride", "step_s"), [(100, 1.0), (20, 3.0), (10, None)])
def test_logs_that_print_now_and_then_are_not_compared_by_their_last_line(
    stride: int, step_s: float | None
) -> None:
    line_s = stride * (step_s or 5.0)
    values: dict[str, Any] = {"step_stride": stride, "step_duration_s": step_s}
    # The nodes are read while a new line is due: some have it already, some not yet.
    early = [node(host, log(900 - stride, age_s=line_s - 0.5, **values)) for host in "ab"]
    late = [node(host, log(900, age_s=0.3, **values)) for host in "cdefgh"]
    assert found(*early, *late) == []


def test_a_log_that_prints_now_and_then_stands_still_at_last() -> None:
    values: dict[str, Any] = {"step_stride": 20, "step_duration_s": 1.0}
    stopped = node("a", log(400, age_s=290.0, **values))
    (finding,) = found(stopped, *(node(host, log(700, **values)) for host in "bcd"))
    assert finding.host == "a"


def test_a_line_seen_once_tells_no_distance() -> None:
    once: dict[str, Any] = {"step_stride": None}
    assert (
        found(*(node(h, log(n, age_s=40.0, **once)) for h, n in zip("abc", (9, 9, 3), strict=True)))
        == []
    )


@pytest.mark.parametrize("age_s", [20.0, 60.0, 299.0])
def test_of_two_workers_the_one_that_stopped(age_s: float) -> None:
    moving = node("a", log(200), later=(log(203),))
    still = log(57, age_s=age_s)
    (finding,) = found(moving, node("b", still, later=(still,)))
    assert finding.host == "b"
    slow = node("b", log(57, age_s=0.4), later=(log(58, age_s=0.4),))
    assert found(moving, slow) == []


def test_one_half_line_does_not_hide_the_worker_that_stopped() -> None:
    well = [node(host, log(200)) for host in "abc"]
    (finding,) = found(*well, node("d", log(57, age_s=60.0, buffered=True)))
    assert finding.host == "d"
    held_back = [node(host, log(200, buffered=True)) for host in "abc"]
    assert found(*held_back, node("d", log(57, age_s=60.0, buffered=True))) == []


def hung(
    *loads: float | None, age_s: float = 40.0, scheduler: ProbeResult | None = None
) -> list[NodeReport]:
    """One worker on each host, all at one step; what CPUs they used in the two seconds."""
    reports = []
    for number, load in enumerate(loads):
        first = log(50, age_s=age_s, cpu_s=None if load is None else 90.0)
        later = log(50, age_s=age_s + 2, cpu_s=None if load is None else 90.0 + 2 * load)
        logs = ProbeResult("ray_logs", Status.OK, records=[first], later=(later,), interval_s=2.0)
        reports.append(report(f"node{number}", results=list(filter(None, (logs, scheduler)))))
    return reports


@pytest.mark.parametrize(("running", "accused"), [(27, ["node2"]), (1, [])])
def test_who_spins_where_many_wait_for_a_cpu(running: int, accused: list[str]) -> None:
    """27 threads on two CPUs leave a spinning one a twelfth of a CPU."""
    state = SchedulerState(
        90_000.0, 2, 2, 23.0, 21.0, 18.0, 1700, running, 0, 5000, ticks={}, allowed_ticks={},
        pressure={},
    )  # fmt: skip
    scheduler = ProbeResult("scheduler", Status.OK, records=[state])
    reports = hung(0.01, 0.01, 0.083, 0.01, scheduler=scheduler)
    assert [finding.host for finding in found(*reports)] == accused


@pytest.mark.parametrize(
    ("loads", "age_s", "accused"),
    [
        ((0.05, 0.04, 0.9, 0.06), 40.0, ["node2"]),  # it spins outside of the barrier
        ((1.0, 0.98, 1.0, 0.01), 40.0, ["node3"]),  # the others spin in the collective
        ((0.05, 0.04, 0.9, 0.06), 20.0, []),
        ((0.05, 0.9, 0.9, 0.06), 40.0, []),
        ((0.01, 0.02, 0.23, 0.01), 40.0, ["node2"]),  # others load its node
        ((0.05, 0.2, 0.9, 0.06), 40.0, []),
        ((0.05, None, 0.9, 0.06), 40.0, []),
        ((0.05, 0.9), 40.0, []),
        ((0.05, 0.04, 0.06), 40.0, []),
    ],
)
def test_in_a_hang_the_one_that_does_otherwise(
    loads: tuple[float | None, ...], age_s: float, accused: list[str]
) -> None:
    assert [finding.host for finding in found(*hung(*loads, age_s=age_s))] == accused


def test_one_that_prints_no_steps_is_busy_while_the_one_that_does_waits() -> None:
    """As Megatron has the last rank alone print."""
    spins, prints = 0.97, 3
    reports = []
    for number, load in enumerate((0.02, spins, 0.01, 0.03)):
        logs = [log(50 if number == prints else None, age_s=40.0, cpu_s=cpu_s)
                for cpu_s in (90.0, 90.0 + 2 * load)]  # fmt: skip
        reports.append(node(f"node{number}", logs[0], later=(logs[1],)))
    (finding,) = found(*reports)
    assert (finding.host, finding.pid, finding.onset) == ("node1", 700, NOW - 40)
    assert "used 0.97 CPUs, while 3 others" in finding.evidence[0].text


def driver(age_s: float | None, job: str = "toy-1", **values: Any) -> NodeReport:
    named = {"component": "driver", "pid": None, "job_id": job, "actor": "", "title": ""}
    return node("head", log(57, age_s=age_s, **{**named, **values}))


@pytest.mark.parametrize(("job", "silent_s"), [("toy-1", [40.0]), ("toy-2", [])])
def test_steps_that_the_driver_of_a_running_job_prints(job: str, silent_s: list[float]) -> None:
    seen = replace(snapshot(driver(40.0, job)), running=("toy-1",))
    assert [pace.silent_s for pace in paces(seen)] == silent_s


def test_what_workers_print_counts_before_what_is_forwarded() -> None:
    workers = [node(host, log(90)) for host in "abc"]
    seen = replace(snapshot(*workers, driver(40.0)), running=("toy-1",))
    assert [pace.silent_s for pace in paces(seen)] == [0.1]
    other = driver(40.0, step_format="Megatron")
    seen = replace(snapshot(*workers, other), running=("toy-1",))
    assert [pace.silent_s for pace in paces(seen)] == [40.0, 0.1]


def test_a_step_is_no_newer_than_its_file() -> None:
    undated: dict[str, Any] = {"age_s": None, "log_changed_s": 33.0}
    workers = [node(host, log(90, **undated)) for host in "abc"]
    assert [pace.silent_s for pace in paces(snapshot(*workers))] == [33.0]


def silent(age_s: float, **values: Any) -> list[Finding]:
    workers = [node("a", log(50, age_s=age_s, **values)), node("b", log(51))]
    return list(silent_jobs(snapshot(*workers, job_start=NOW - 7200)))


def test_a_job_without_a_step_is_told_and_from_a_stall_on_a_problem() -> None:
    (late,) = silent(40.0)
    assert (late.failure_class, late.host, late.severity) == ("hang", None, Severity.INFO)
    assert late.onset == NOW - 40.0
    assert "2 ranks at step 50, the last one 40 s ago, usually 0.5 s" in late.evidence[0].text
    (stalled,) = silent(310.0)
    assert stalled.severity is Severity.WARNING
    assert silent(29.0) == []
    assert silent(310.0, step_duration_s=90.0) == []


def test_who_writes_in_blocks_or_without_times_is_not_called_late() -> None:
    unknown: list[dict[str, Any]] = [{"age_s": None}, {"age_s": 310.0, "buffered": True}]
    for values in unknown:
        workers = [node(host, log(50, **values)) for host in "ab"]
        assert list(silent_jobs(snapshot(*workers, job_start=NOW - 7200))) == []
