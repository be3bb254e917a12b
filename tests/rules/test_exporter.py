from __future__ import annotations

from typing import Any

import pytest

from raydiag.model import Confidence, Finding, NodeReport, ProbeResult, Severity, Status
from raydiag.probes.exporter import FILE, LOG, Exporter
from raydiag.probes.gpu_sensors import GpuSensors
from raydiag.rules.metrics_exporter import (
    exporter_down,
    exporter_plugin_timeouts,
    exporter_plugins_skipped,
    exporter_restarts,
    ghost_data,
)
from tests.rules.snapshots import NOW, report, snapshot

RULES = (
    exporter_down,
    ghost_data,
    exporter_plugin_timeouts,
    exporter_plugins_skipped,
    exporter_restarts,
)
GROUPS = ("gpu", "mem", "net", "procs", "rdma", "scrape", "tcp")


def state(**values: Any) -> Exporter:
    known: dict[str, Any] = {
        "port": 9400,
        "answer": "ok",
        "reason": "",
        "duration_s": 0.01,
        "body_bytes": 40_000,
        "samples": 388,
        "hw_samples": 380,
        "groups": GROUPS,
        "checksum": 1,
        "scrape_duration_s": 0.104,
        "data_time_s": NOW - 4.0,
        "data_age_s": 4.0,
        "switches_served": 5e6,
        "switches_now": None,
        "uptime_s": None,
        "file_age_s": 4.0,
        "log_age_s": 4000.0,
        "log_lines": (),
        "timed_out": {},
        "ends_in_timeout": False,
        "skipped": (),
        "restarts": (),
        "processes": (),
        "process_age_s": None,
    }
    return Exporter(**{**known, **values})


def silent(answer: str = "refused", **values: Any) -> Exporter:
    """One that gives no answer."""
    nothing: dict[str, Any] = {"samples": 0, "hw_samples": 0, "groups": (), "checksum": 0}
    unknown: dict[str, Any] = {"scrape_duration_s": None, "data_time_s": None, "data_age_s": None}
    return state(answer=answer, reason=f"says {answer}", **{**nothing, **unknown, **values})


def old(age_s: float, **values: Any) -> Exporter:
    return state(data_age_s=age_s, data_time_s=NOW - age_s, file_age_s=age_s, **values)


def node(host: str, first: Exporter, later: Exporter | None = None, gpus: int = 1) -> NodeReport:
    seen = () if later is None else (later,)
    result = ProbeResult("exporter", Status.OK, records=(first,), later=seen, interval_s=2.0)
    return report(host, results=[result], gpu_sensors=[sensor()] * gpus)


def without(host: str, gpus: int = 1) -> NodeReport:
    """A host where nothing of an exporter is left."""
    result = ProbeResult("exporter", Status.NO_DATA)
    return report(host, results=[result], gpu_sensors=[sensor()] * gpus)


def sensor() -> GpuSensors:
    return object.__new__(GpuSensors)  # that there is one is all that counts


def found(*reports: NodeReport, job_start: float | None = None) -> list[Finding]:
    seen = snapshot(*reports, job_start=job_start)
    return [finding for rule in RULES for finding in rule(seen)]


@pytest.mark.parametrize(
    "healthy",
    [
        (state(), state(checksum=2)),
        (state(), state()),  # both within one cycle
        (state(), None),
        (old(290.0), old(292.0)),
        (state(skipped=("tb_metrics_plugin",)), None),
        (state(scrape_duration_s=7.9), None),
        (state(timed_out={"gpu_metrics_plugin": 3}), None),  # once upon a time
        (state(restarts=(NOW - 90_000,)), None),
        (state(answer="ok", hw_samples=0, groups=(), data_age_s=None), None),  # another exporter
        (silent("timeout"), state()),
        (silent(file_age_s=9000.0, log_age_s=9000.0), None),  # of a job that is over
    ],
)
def test_healthy_is_silent(healthy: tuple[Exporter, Exporter | None]) -> None:
    assert not found(node("a", *healthy))
    assert not found(node("a", *healthy), job_start=NOW - 5000)


def test_values_of_a_file_that_nobody_writes_any_more() -> None:
    stuck = {"processes": ("loop 41 D 90000",), "process_age_s": 9e4}
    (finding,) = found(node("a", state()), node("b", old(900.0, **stuck), old(902.0, **stuck)))
    assert (finding.failure_class, finding.host) == ("ghost-data", "b")
    assert (finding.severity, finding.confidence) == (Severity.WARNING, Confidence.CONFIRMED)
    assert finding.onset == NOW - 902.0
    assert [piece.source for piece in finding.evidence] == [
        FILE,
        "http://127.0.0.1:9400/metrics",
        "/proc/<pid>/stat",
    ]
    assert "902 s ago" in finding.evidence[0].text


def test_one_sample_of_an_old_file_is_likely_ghost_data() -> None:
    (finding,) = found(node("a", old(301.0)))
    assert (finding.failure_class, finding.confidence) == ("ghost-data", Confidence.LIKELY)


def test_old_values_that_move_again_are_no_ghosts() -> None:
    assert not found(node("a", old(900.0), old(902.0, checksum=2)))


def counter(served: float, live: int, age_s: float | None = 9e4, **values: Any) -> Exporter:
    """Nothing but the counter tells the age; 100 switches a second since boot."""
    return state(
        data_age_s=None,
        data_time_s=None,
        switches_served=served,
        switches_now=live,
        uptime_s=live / 100,
        process_age_s=age_s,
        **values,
    )


def test_a_counter_far_behind_the_kernel() -> None:
    (finding,) = found(node("a", counter(1e7, 10_200_000), counter(1e7, 10_200_200)))
    assert (finding.failure_class, finding.confidence) == ("ghost-data", Confidence.LIKELY)
    assert finding.onset is None
    assert "33 minutes" in finding.evidence[0].text


@pytest.mark.parametrize(
    "samples",
    [
        (counter(1e7, 10_002_000), counter(1e7, 10_002_200)),  # 20 s
        (counter(1e7, 10_200_000), counter(1e7, 10_210_000)),  # a busy node: 40 s at this rate
        (counter(1e7, 10_200_000), counter(1e7, 10_200_200, checksum=2)),  # it moves
        (counter(1e7, 10_200_000), None),
        (counter(1e7, 10_200_000, age_s=300.0), counter(1e7, 10_200_200, age_s=302.0)),
        (counter(2e7, 10_200_000), counter(2e7, 10_200_200)),  # ahead: another kernel's
    ],
)
def test_a_counter_that_tells_nothing(samples: tuple[Exporter, Exporter | None]) -> None:
    assert not found(node("a", *samples))


def test_an_exporter_that_hangs() -> None:
    (finding,) = found(node("a", silent("timeout"), silent("timeout")))
    assert (finding.failure_class, finding.host) == ("exporter-down", "a")
    assert finding.evidence[0].text == "says timeout; something listens on its port"


def test_an_exporter_that_was_there_in_this_job() -> None:
    gone = silent(file_age_s=200.0, log_age_s=None)
    (finding,) = found(node("a", gone, gone), job_start=NOW - 5000)
    assert finding.failure_class == "exporter-down"
    assert not found(node("a", gone, gone))  # no job runs: nobody needs it


def test_a_loop_without_an_answer() -> None:
    (finding,) = found(node("a", silent(processes=("loop 41 S 500",))))
    assert "loop 41 S 500" in finding.evidence[0].text


def test_most_others_have_one() -> None:
    peers = [node(host, state()) for host in "bcd"]
    (finding,) = found(without("a"), *peers)
    assert (finding.failure_class, finding.host) == ("exporter-down", "a")
    assert not found(without("a"), without("b"), *peers[1:])  # half of them
    assert not found(without("a", gpus=0), *peers)  # a head without GPUs


def test_an_exporter_without_a_sample() -> None:
    empty = silent("ok", process_age_s=400.0)
    (finding,) = found(node("a", empty, empty))
    assert finding.failure_class == "exporter-down"
    assert not found(node("a", silent("ok", process_age_s=20.0)))


@pytest.mark.parametrize(
    ("duration_s", "confidence"), [(8.4, Confidence.LIKELY), (11.9, Confidence.CONFIRMED)]
)
def test_a_cycle_that_takes_too_long(duration_s: float, confidence: Confidence) -> None:
    counts = {"gpu_metrics_plugin": 7}
    (finding,) = found(node("a", state(scrape_duration_s=duration_s, timed_out=counts)))
    assert finding.failure_class == "exporter-plugin-timeout"
    assert (finding.severity, finding.confidence) == (Severity.WARNING, confidence)
    assert "gpu_metrics_plugin 7" in finding.evidence[1].text


def test_a_log_that_ends_in_a_timeout() -> None:
    fresh = {"log_age_s": 9.0, "timed_out": {"gpu_metrics_plugin": 1}, "ends_in_timeout": True}
    (finding,) = found(node("a", state(**fresh)))
    assert finding.failure_class == "exporter-plugin-timeout"
    assert not found(node("a", state(**{**fresh, "log_age_s": 900.0})))


def test_long_cycles_of_the_past_are_ghosts_only() -> None:
    (finding,) = found(node("a", old(900.0, scrape_duration_s=11.9)))
    assert finding.failure_class == "ghost-data"


def test_a_plugin_that_is_not_run_any_more() -> None:
    rest = tuple(group for group in GROUPS if group != "gpu")
    skips = state(skipped=("gpu_metrics_plugin", "tb_metrics_plugin"), groups=rest)
    (finding,) = found(node("a", skips))
    assert finding.failure_class == "exporter-plugin-skipped"
    assert finding.evidence[0].source == LOG
    assert not found(node("a", skips, gpus=0))
    assert not found(node("a", state(skipped=("gpu_metrics_plugin",))))  # it serves them again


def test_restarts() -> None:
    line = "[2026-02-12T19:58:10Z] [Metrics Exporter] Watchdog: exited with code 137, restart #3"
    often = state(restarts=(NOW - 900, NOW - 60), log_lines=(line,))
    (finding,) = found(node("a", often))
    assert (finding.failure_class, finding.severity) == ("exporter-restarting", Severity.WARNING)
    assert (finding.onset, finding.evidence[0].text) == (NOW - 900, line)
    (finding,) = found(node("a", state(restarts=(NOW - 900,), log_lines=(line,))))
    assert finding.severity is Severity.INFO
    assert not found(node("a", often), job_start=NOW - 30)
