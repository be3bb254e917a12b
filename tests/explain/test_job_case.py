"""What is put together of a job before its verdict: hosts by name, times, how late a step is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from raydiag.explain.job.case import case_of
from raydiag.explain.job.query import SeenMetrics
from raydiag.explain.job.request import DiagnosisRequest, TriagedJob
from raydiag.explain.job_case import JobCase
from raydiag.explain.names import by_name
from raydiag.explain.verdict import explain
from raydiag.model import Confidence, Coverage, Finding, Observation, Window
from raydiag.timeline.steps import MetricSteps
from raydiag.triage import judge
from raydiag.triage.verdict import Moment
from raydiag.tsdb.discovery_types import HostSeries
from tests.triage.jobs import START, job, match, steps, summary

SEEN = Coverage(4, 4)


def case(series_end: float, ended_at: list[float], log_end: float, **changes: object) -> JobCase:
    """Of a log with ten steps of ten seconds, judged as of its end, beside series."""
    logged = steps(range(10), start=START)
    facts = job(**{"steps": logged, "first_time": START, "last_time": START + log_end, **changes})
    moment = Moment(START + log_end, log_end=True)
    metrics = SeenMetrics(
        coverage=SEEN,
        window=Window(START, START + series_end),
        steps=MetricSteps(np.arange(float(len(ended_at))), START + np.array(ended_at)),
    )
    judged = TriagedJob(facts, judge(facts, moment), moment)
    return case_of(judged, metrics, DiagnosisRequest(), None)


@pytest.mark.parametrize(("series_end", "told"), [(150, "healthy"), (280, "unknown")])
def test_nodes_that_go_on_long_after_the_last_step_are_not_healthy(
    series_end: float, told: str
) -> None:
    late = case(series_end, [], 101)
    assert late.status == "running"
    assert explain(late).verdict.failure_class == told


@pytest.mark.parametrize(("end", "told"), [(6.7, "healthy"), (7.9, "loss-divergence")])
def test_a_loss_that_came_back_only_in_part_is_not_healthy(end: float, told: str) -> None:
    losses = [*np.linspace(11.0, 6.7, 80), *np.linspace(6.7, 9.2, 20), *[9.2] * 40, *[end] * 40]
    logged = steps(range(len(losses)), start=START, loss=losses)
    last = 10.0 * len(losses)
    seen = case(last, [], last + 1, steps=logged, last_time=START + last + 1)
    assert seen.status == "running"
    verdict = explain(seen).verdict
    assert (verdict.failure_class, verdict.confidence is Confidence.CONFIRMED) == (
        told,
        told == "healthy",
    )


def test_steps_that_only_series_have_are_steps() -> None:
    assert explain(case(280, [100, 180, 270], 101)).verdict.failure_class == "healthy"


@pytest.mark.parametrize(("series_end", "onset"), [(130, START + 110), (900, None)])
def test_an_end_without_a_time_comes_after_the_last_step(
    series_end: float, onset: float | None
) -> None:
    failed = case(
        series_end,
        [80, 90, 100],
        101,
        steps=steps(range(10)),
        first_time=None,
        last_time=None,
        matches=(match("python-exception", 200),),
        summary=summary("FAILED", 1),
    )
    assert (failed.status, failed.primary) == ("failed", "python-exception")
    (told,) = [o.finding for o in failed.observations if o.finding.failure_class == failed.primary]
    assert told.onset == onset


@pytest.mark.parametrize("written", ["10.0.0.4", "n4.cluster.local", "n4"])
def test_a_host_has_one_name_whatever_the_log_calls_it(written: str) -> None:
    hosts = (HostSeries("n4", ("n4",), ("n4:9400", "10.0.0.4:55080"), ("10.0.0.4",)),)
    seen = Observation(Finding("actor-fail", written), "triage", "row")
    nowhere = replace(seen, finding=Finding("actor-fail"))
    named, unplaced = by_name([seen, nowhere], hosts)
    assert (named.finding.host, unplaced.finding.host) == ("n4", None)
    (unmeasured,) = by_name([replace(seen, finding=Finding("actor-fail", "n4.cluster.local"))], ())
    assert unmeasured.finding.host == "n4"
