"""What is cut out of the answers to be drawn."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from raydiag import catalog
from raydiag.model import Window
from raydiag.timeline.answers import ResultTable, Subject
from raydiag.timeline.courses import CourseRow, course_rows, of_hosts, of_job
from raydiag.timeline.queries import template
from raydiag.tsdb.series import Floats

HOSTS = [f"mi{number}" for number in range(12)]
ROW = CourseRow("power", "gpu-power", "Power", ("straggler",), unit="kW", metric="avg", per=1000)
WHOLE = Window(0.0, 100.0)


def table(values: Floats, hosts: list[str], metric: str = "avg") -> ResultTable:
    subjects = tuple(Subject(host, metric=metric) for host in hosts)
    times = np.arange(0.0, 10.0 * values.shape[1], 10.0)
    return ResultTable(
        subjects, times, values, "gpu-power", 10.0, asked_from=0.0, asked_until=float(times[-1])
    )


@pytest.mark.parametrize("row", course_rows(), ids=lambda row: row.id)
def test_every_row_is_of_a_query_and_shows_what_there_is(row: CourseRow) -> None:
    query = template(row.query)
    assert query is not None
    assert row.zero == (query.faults_only and row.query != "training")
    for failure_class in row.shows:
        assert catalog.failure(failure_class)


def test_a_host_apart_from_the_others() -> None:
    values = np.tile(np.arange(3.0)[:, None] * 1000, (1, 11))
    course = of_hosts(ROW, table(values, HOSTS[:3]), HOSTS[:3], ["mi2"], WHOLE)
    (curve,) = course.curves
    assert (curve.name, set(curve.values)) == ("mi2", {2.0})
    assert course.others is not None
    assert course.others.name == "2 others"
    assert (course.others.low[0], course.others.median[0], course.others.high[0]) == (0, 0.5, 1)


def test_of_many_hosts_a_few_odd_ones_do_not_widen_the_range() -> None:
    values = np.full((40, 11), 1000.0)
    values[7] = 9e6
    course = of_hosts(ROW, table(values, [f"h{n}" for n in range(40)]), [], [], WHOLE)
    assert course.others is not None
    assert (course.others.name, course.others.most) == ("40 hosts", True)
    assert course.others.high.max() == 1.0


def test_many_hosts_apart_are_neither_all_drawn_nor_among_the_others() -> None:
    values = np.arange(12.0)[:, None] * np.ones((1, 11))
    course = of_hosts(ROW, table(values, HOSTS), HOSTS, HOSTS[:6], WHOLE)
    assert [curve.name for curve in course.curves] == HOSTS[:3]
    assert course.others is not None and course.others.low.min() == 0.006


def test_silence_leaves_a_gap() -> None:
    values = np.ones((2, 11))
    whole = table(values, HOSTS[:2])
    gone = replace(whole, times=np.delete(whole.times, [4, 5]), values=values[:, :9])
    course = of_hosts(ROW, gone, HOSTS[:2], ["mi0"], WHOLE)
    assert np.flatnonzero(np.isnan(course.curves[0].values)).tolist() == [4, 5]
    assert np.diff(course.at).tolist() == [10.0] * 10


def test_where_only_faults_are_kept_nothing_is_zero() -> None:
    values = np.full((1, 11), np.nan)
    values[0, 6:] = 2.0
    row = replace(ROW, zero=True, per=1)
    course = of_hosts(row, table(values, ["mi1"]), HOSTS[:3], ["mi1"], WHOLE)
    assert course.curves[0].values.tolist() == [0.0] * 6 + [2.0] * 5
    assert course.others is not None and course.others.high.max() == 0.0


def test_several_devices_of_a_host_count_as_the_worst() -> None:
    values = np.vstack([np.ones(11), np.full(11, 5.0)])
    course = of_hosts(replace(ROW, per=1), table(values, ["mi1", "mi1"]), ["mi1"], ["mi1"], WHOLE)
    assert course.curves[0].values.max() == course.curves[0].values.min() == 5.0
    assert course.others is None


def test_only_the_window_is_cut_out_and_nothing_measured_is_blank() -> None:
    values = np.ones((2, 11))
    course = of_hosts(ROW, table(values, HOSTS[:2]), HOSTS[:2], [], Window(25.0, 71.0))
    assert (course.at[0], course.at[-1]) == (30.0, 70.0)
    for blank in (
        of_hosts(ROW, table(values, HOSTS[:2], "max"), HOSTS[:2], [], WHOLE),
        of_hosts(ROW, table(values, HOSTS[:2]), HOSTS[:2], [], Window(500.0, 600.0)),
        of_hosts(ROW, table(values * np.nan, HOSTS[:2]), HOSTS[:2], [], WHOLE),
        of_job("Loss", "", np.empty(0), np.empty(0), WHOLE),
    ):
        assert blank.is_blank


def test_a_long_run_is_thinned() -> None:
    at = np.arange(100_000.0)
    course = of_job("Step", "s", at, at, Window(0.0, 1e6))
    assert 1000 < course.at.size < 2000
    grid = replace(table(np.ones((1, 11)), ["a"]), asked_until=1e6)
    assert of_hosts(ROW, grid, ["a"], [], Window(0.0, 1e6)).at.size < 2000


def test_what_never_changes_tells_nothing() -> None:
    flat = of_hosts(ROW, table(np.ones((2, 11)), HOSTS[:2]), [], [], WHOLE)
    assert flat.is_flat and not flat.is_blank
    assert not of_hosts(ROW, table(np.eye(11)[:2], HOSTS[:2]), [], [], WHOLE).is_flat
