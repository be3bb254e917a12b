"""When a series left its level: planted changes in noise, found at the right sample."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from raydiag.playbooks import onset
from raydiag.tsdb.series import Series

START, EVERY = 1_795_000_000.0, 10.0


def noisy(count: int = 240, level: float = 900.0, noise: float = 10.0, seed: int = 0) -> Series:
    rng = np.random.default_rng(seed)
    times = START + EVERY * np.arange(count, dtype=np.float64)
    return Series({}, times, level + noise * rng.standard_normal(count))


def everything(series: Series) -> np.ndarray:
    return np.ones(len(series), dtype=np.bool_)


@given(st.integers(100, 220), st.integers(0, 10_000), st.sampled_from([-1, 1]))
def test_a_step_is_found_at_its_first_sample(at: int, seed: int, sign: int) -> None:
    series = noisy(seed=seed)
    series.values[at:] += sign * 200
    found = onset.first_deviation(series, everything(series), least=50)
    assert found is not None
    assert found.time == series.times[at]
    assert found.uncertainty_s == EVERY
    assert not found.recovered
    assert (found.change > 0) == (sign > 0)


@given(st.integers(0, 10_000), st.floats(0, 40))
def test_noise_alone_deviates_never(seed: int, noise: float) -> None:
    series = noisy(noise=noise, seed=seed)
    assert onset.first_deviation(series, everything(series), least=50) is None


def test_a_quiet_series_does_not_accuse_itself() -> None:
    series = noisy(noise=0.0)
    series.values[150:] += 3
    assert onset.first_deviation(series, everything(series), least=50) is None
    assert onset.first_deviation(series, everything(series), least=2) is not None


def test_what_is_masked_is_neither_level_nor_anomaly() -> None:
    series = noisy()
    series.values[100:130] -= 600
    keep = everything(series)
    keep[95:135] = False
    assert onset.first_deviation(series, keep, least=50) is None
    series.values[20:60] += 600  # a save within the level
    keep[15:65] = False
    usual = onset.level(series.values, keep)
    assert usual is not None and abs(usual.median - 900) < 10


def test_a_deviation_goes_on_through_a_mask_and_ends_with_the_first_usual_sample() -> None:
    series = noisy()
    series.values[100:160] -= 300
    keep = everything(series)
    keep[120:140] = False
    usual = onset.level(series.values, keep)
    assert usual is not None
    (one,) = onset.deviations(series.times, series.values, keep, usual, 50, sign=-1)
    assert (one.time, one.ended) == (series.times[100], series.times[160])
    assert one.recovered
    assert onset.deviations(series.times, series.values, keep, usual, 50, sign=+1) == []


def test_two_samples_are_no_deviation_but_at_the_very_end() -> None:
    series = noisy()
    series.values[100:102] -= 300
    assert onset.first_deviation(series, everything(series), least=50) is None
    series.values[-2:] -= 300
    found = onset.first_deviation(series, everything(series), least=50)
    assert found is not None and found.time == series.times[-2]


def test_the_first_deviation_after_silence_may_have_begun_in_it() -> None:
    series = noisy()
    keep = everything(series)
    keep[100:130] = False
    series.values[130:] += 200
    found = onset.first_deviation(series.only(keep), np.ones(210, dtype=np.bool_), least=50)
    assert found is not None and found.uncertainty_s == 31 * EVERY
    coarse = onset.first_deviation(series, everything(series), least=50, refresh_s=300.0)
    assert coarse is not None and coarse.uncertainty_s == 300.0


def test_too_few_samples_have_no_level() -> None:
    series = noisy(7)
    assert onset.first_deviation(series, everything(series), least=1) is None


@given(st.integers(90, 200), st.floats(0.2, 20), st.integers(0, 1000))
def test_a_slow_rise_is_followed_back_to_where_it_left_its_level(
    at: int, slope: float, seed: int
) -> None:
    series = noisy(300, level=200.0, noise=1.0, seed=seed)
    series.values[at:] += slope * EVERY * np.arange(300 - at)
    found = onset.first_deviation(series, everything(series), least=10, sign=1)
    assert found is not None
    start = onset.ramp_start(series, found)
    assert start <= found.time
    assert abs(start - series.times[at]) <= max(2 * EVERY, 6 / slope)


def test_a_counter_says_when_it_grew_and_nothing_of_its_reset() -> None:
    times = START + EVERY * np.arange(6, dtype=np.float64)
    counter = Series({}, times, np.array([90e6, 90e6, 90e6 + 3, 0.0, 0.0, 7.0]))
    assert onset.increases(counter) == [(times[2], 3.0), (times[5], 7.0)]
    assert onset.increases(counter, least=5) == [(times[5], 7.0)]


def test_moments_within_their_uncertainty_are_one() -> None:
    moments = [(130.0, 10.0), (100.0, 10.0), (109.0, 10.0), (250.0, 300.0)]
    assert onset.first_of(moments) == [1, 2, 3]
    assert onset.first_of([]) == []
    assert onset.simultaneous((0.0, 5.0), (5.0, 0.0))
    assert not onset.simultaneous((0.0, 5.0), (5.1, 0.0))
