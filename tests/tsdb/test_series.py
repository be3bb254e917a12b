from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydiag.errors import UsageError
from raydiag.model import Status, Window
from raydiag.tsdb.series import (
    MAX_POINTS,
    AskedQuery,
    Frame,
    Query,
    QueryResult,
    Series,
    fitting_step_s,
)


def test_nan_is_kept_apart_from_what_is_not_there() -> None:
    one = Series.of({"__name__": "loss"}, [30, 10, 20, 40], [3.0, 1.0, math.nan, math.inf])
    assert one.metric == "loss" and len(one) == 3
    assert one.times.tolist() == [10, 30, 40] and one.values.tolist() == [1, 3, math.inf]
    assert one.nan_times.tolist() == [20]
    assert one.sampled_at.tolist() == [10, 20, 30, 40]
    assert one.last == math.inf


def test_an_empty_series_has_no_last_value_and_no_spacing() -> None:
    one = Series.of({}, [], [])
    assert one.last is None and one.spacing_s is None


def test_between() -> None:
    one = Series.of({}, [0, 10, 20, 30], [0, 1, math.nan, 3])
    part = one.between(10, 20)
    assert part.times.tolist() == [10] and part.nan_times.tolist() == [20]


def test_a_frame_has_the_union_of_the_times() -> None:
    frame = Frame.of(
        [
            Series.of({"host": "a"}, [0, 20], [1, 2]),
            Series.of({"host": "b"}, [10, 20], [3, math.nan]),
        ]
    )
    assert frame.times.tolist() == [0, 10, 20] and len(frame.labels) == 2
    assert np.isnan(frame.values).tolist() == [[False, True, False], [True, False, True]]
    assert Frame.of([]).values.shape == (0, 0)


@pytest.mark.parametrize(
    ("length", "step"), [(600, 30), (7200, 30), (7201, 60), (86400, 60), (90000, 300)]
)
def test_the_step_fits_the_length(length: float, step: float) -> None:
    assert fitting_step_s(Window(0, length)) == step


@given(st.floats(0, 1e9))
def test_no_range_has_too_many_points(length: float) -> None:
    window = Query.over("q", "up", Window(0, length)).window
    assert (window.end - window.start) / window.step <= MAX_POINTS


@pytest.mark.parametrize(
    "window",
    [
        Window(10, 5),
        Window(0, 10, -1),
        Window(0, math.nan),
        Window(-math.inf, 0),
        Window(0, 20_000, 1),
    ],
)
def test_a_window_that_is_none(window: Window) -> None:
    with pytest.raises(UsageError):
        Query("q", "up", window)


def test_the_record_of_a_query() -> None:
    series = (Series.of({}, [1, 2], [1, math.nan]),)
    answer = QueryResult(Query.at("q", "x[5s]", 7), Status.OK, series=series, duration_s=0.5)
    assert AskedQuery.of(answer) == AskedQuery("q", "x[5s]", 7, 7, 0, Status.OK, "", 1, 2, 0.5)
