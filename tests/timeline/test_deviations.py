"""When a series left its level: planted changes in noise, found at the right sample."""

from __future__ import annotations

from typing import Optional

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydiag.timeline import deviations
from raydiag.timeline.deviations import Deviation, Flags
from raydiag.timeline.known_values import robust_noise
from raydiag.tsdb.series import Series

START, EVERY = 1_795_000_000.0, 10.0


def noisy(count: int = 240, level: float = 900.0, noise: float = 10.0, seed: int = 0) -> Series:
    rng = np.random.default_rng(seed)
    times = START + EVERY * np.arange(count, dtype=np.float64)
    return Series({}, times, level + noise * rng.standard_normal(count))


def everything(series: Series) -> np.ndarray:
    return np.ones(len(series), dtype=np.bool_)


def first_deviation(
    series: Series, keep: Flags, least: float, sign: int = 0
) -> Optional[Deviation]:
    """From the series' own early level; `sign` 0: in any direction."""
    usual = deviations.level(series.values, keep)
    if usual is None:
        return None
    found = []
    for direction in (sign,) if sign else (-1, 1):
        found += deviations.deviations(series.times, series.values, keep, usual, least, direction)
    return min(found, key=lambda deviation: deviation.time, default=None)


@given(st.integers(100, 220), st.integers(0, 10_000), st.sampled_from([-1, 1]))
def test_a_step_is_found_at_its_first_sample(at: int, seed: int, sign: int) -> None:
    series = noisy(seed=seed)
    series.values[at:] += sign * 200
    assert first_deviation(series, everything(series), 50, -sign) is None
    found = first_deviation(series, everything(series), 50, sign)
    assert found is not None
    assert found.time == series.times[at]
    assert found.ended is None


@given(st.integers(0, 10_000), st.floats(0, 40))
def test_noise_alone_deviates_never(seed: int, noise: float) -> None:
    series = noisy(noise=noise, seed=seed)
    assert first_deviation(series, everything(series), least=50) is None


def test_a_quiet_series_does_not_accuse_itself() -> None:
    series = noisy(noise=0.0)
    series.values[150:] += 3
    assert first_deviation(series, everything(series), least=50) is None
    assert first_deviation(series, everything(series), least=2) is not None


def test_what_is_masked_is_neither_level_nor_anomaly() -> None:
    series = noisy()
    series.values[100:130] -= 600
    keep = everything(series)
    keep[95:135] = False
    assert first_deviation(series, keep, least=50) is None
    series.values[20:60] += 600  # a save within the level
    keep[15:65] = False
    usual = deviations.level(series.values, keep)
    assert usual is not None and abs(usual.median - 900) < 10


def test_a_deviation_goes_on_through_a_mask_and_ends_with_the_first_usual_sample() -> None:
    series = noisy()
    series.values[100:160] -= 300
    keep = everything(series)
    keep[120:140] = False
    usual = deviations.level(series.values, keep)
    assert usual is not None
    (one,) = deviations.deviations(series.times, series.values, keep, usual, 50, sign=-1)
    assert (one.time, one.ended) == (series.times[100], series.times[160])
    assert deviations.deviations(series.times, series.values, keep, usual, 50, sign=+1) == []


def test_two_samples_are_no_deviation_but_at_the_very_end() -> None:
    series = noisy()
    series.values[100:102] -= 300
    assert first_deviation(series, everything(series), least=50) is None
    series.values[-2:] -= 300
    found = first_deviation(series, everything(series), least=50)
    assert found is not None and found.time == series.times[-2]


def test_too_few_samples_have_no_level() -> None:
    series = noisy(7)
    assert first_deviation(series, everything(series), least=1) is None


@given(st.integers(90, 200), st.floats(0.2, 20), st.integers(0, 1000))
def test_a_slow_rise_is_followed_back_to_where_it_left_its_level(
    at: int, slope: float, seed: int
) -> None:
    series = noisy(300, level=200.0, noise=1.0, seed=seed)
    series.values[at:] += slope * EVERY * np.arange(300 - at)
    found = first_deviation(series, everything(series), least=10, sign=1)
    assert found is not None
    start = deviations.ramp_start(series, found)
    assert start <= found.time
    assert abs(start - series.times[at]) <= max(2 * EVERY, 6 / slope)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.5, 0.7])
def test_noise_is_the_same_where_a_share_of_the_series_climbs(share: float) -> None:
    """Memory that leaks for half of a job has steps of two sizes."""
    rng = np.random.default_rng(7)
    climbing = int(share * 400)
    values = rng.normal(280.0, 3.0, 400)
    values[400 - climbing :] += 40.0 * np.arange(climbing)
    assert robust_noise(values) == pytest.approx(3.0, rel=0.25)
