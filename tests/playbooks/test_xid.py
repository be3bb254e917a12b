"""Numbers of NVIDIA's driver, as dcgm-exporter shows the last one of each GPU."""

from __future__ import annotations

import numpy as np
import pytest

from raydiag.model import Severity, Status, Window
from raydiag.playbooks.node_failure.error_counters import judge_xids
from raydiag.playbooks.report_writer import ReportWriter
from raydiag.timeline.answers import Answers
from raydiag.timeline.context import Context, TrainingJob
from raydiag.timeline.run_timeline import RunTimeline
from raydiag.tsdb.discovery_types import Discovery, HostSeries
from raydiag.tsdb.series import Query, QueryResult, Series

START, END, STEP = 1_795_000_000.0, 1_795_003_600.0, 15.0
GRID = np.arange(START, END + 1, STEP)


def judged(codes: np.ndarray, measured_from: float = START) -> ReportWriter:
    """One GPU whose last number is this at each time; NaN where there was none."""
    window = Window(START, END, STEP)
    seen = ~np.isnan(codes)
    series = Series.of({"host": "n1", "gpu": "3"}, GRID[seen], codes[seen])
    other = Series.of({"host": "n2", "gpu": "0"}, GRID, np.full(GRID.size, 43.0))
    answer = QueryResult(Query("gpu-xid", "xid", window), Status.OK, series=(series, other))
    measured = np.arange(measured_from, END + 1, STEP)
    watts = Series.of({"host": "n1", "stat": "avg"}, measured, np.full(measured.size, 500.0))
    power = QueryResult(Query("gpu-power", "power", window), Status.OK, series=(watts,))
    host = HostSeries("n1", labels=("n1",))
    found = Discovery("test", (), (), (host,), (), Window(START, END))
    context = Context(TrainingJob(), Window(START, END), END, found, ("n1", "n2"))
    report = ReportWriter("node-failure", RunTimeline(context, Answers([answer, power], found)))
    judge_xids(report.timeline, report)
    return report


@pytest.mark.parametrize(
    ("code", "failure_class", "severity"),
    [
        (79, "nvidia-xid", Severity.CRITICAL),
        (48, "gpu-memory-error", Severity.CRITICAL),
        (74, "nvlink", Severity.CRITICAL),
        (43, "nvidia-xid", Severity.INFO),
        (9999, "nvidia-xid", Severity.WARNING),
    ],
)
def test_a_new_number_is_a_finding(code: int, failure_class: str, severity: Severity) -> None:
    codes = np.where(GRID >= START + 900, float(code), np.nan)
    (observation,) = judged(codes).observations
    finding = observation.finding
    assert (finding.failure_class, finding.severity) == (failure_class, severity)
    assert (finding.host, finding.gpu, finding.onset) == ("n1", 3, START + 900)


def test_an_older_number_says_nothing() -> None:
    report = judged(np.full(GRID.size, 79.0))
    assert report.observations == []
    assert report.rows[-1].interpretation == "0 new while the job ran"


def test_another_number_after_an_older_one_is_new() -> None:
    codes = np.where(GRID >= START + 900, 79.0, 43.0)
    (observation,) = judged(codes).observations
    assert observation.finding.onset == START + 900


def test_what_the_first_samples_of_a_host_show_may_be_old() -> None:
    codes = np.where(GRID >= START + 900, 79.0, np.nan)
    assert judged(codes, measured_from=START + 900).observations == []
