"""Throughput early and late, and in which way it falls."""

from __future__ import annotations

from math import nan

import pytest

from raydiag.triage.throughput import throughput
from tests.triage.jobs import steps

STEADY = [2000.0 + (n * 37 % 21) for n in range(400)]


def told(tokens: list[float], period: int | None = None):  # type: ignore[no-untyped-def]
    return throughput(steps(range(len(tokens)), tokens=tokens), period)


def test_steady_throughput_is_no_finding() -> None:
    one = told(STEADY)
    assert one.degraded is False and one.pattern == "steady"
    assert abs(one.change_percent) < 2


def test_windows_and_magnitude() -> None:
    # Steps 5 to 14 at 1000, the last ten at 800: -20 %.
    one = told([1.0] * 5 + [1000.0] * 100 + [800.0] * 50)
    assert (one.early, one.early_steps) == (1000.0, (5, 14))
    assert (one.late, one.late_steps) == (800.0, (145, 154))
    assert one.change_percent == pytest.approx(-20.0)
    assert one.degraded and one.unit == "tokens/s/device"


@pytest.mark.parametrize(("late", "degraded"), [(905.0, False), (895.0, True)])
def test_ten_percent_is_the_limit(late: float, degraded: bool) -> None:
    assert told([1000.0] * 60 + [late] * 60).degraded is degraded


def test_a_constant_drop() -> None:
    one = told([1000.0] * 150 + [700.0] * 150)
    assert one.pattern == "constant"
    assert one.since_step == pytest.approx(150, abs=12)


def test_phased_drops() -> None:
    one = told([1000.0] * 120 + [850.0] * 120 + [700.0] * 120)
    assert one.pattern == "phased"


def test_a_gradual_fall() -> None:
    assert told([1000.0 - n for n in range(400)]).pattern == "gradual"


def test_a_dip_that_passed() -> None:
    one = told([1000.0] * 100 + [600.0] * 20 + [1000.0] * 100)
    assert (one.degraded, one.pattern, one.since_step) == (False, "dip", 100)


def test_periodic_saves_are_expected() -> None:
    tokens = [1000.0] * 301
    for step in range(20, 301, 20):
        tokens[step] = 40.0
    assert told(tokens, 20).degraded is False
    assert told(tokens, 20).pattern == "steady"


def test_one_slow_step_at_the_end_is_no_degradation() -> None:
    assert told([1000.0] * 100 + [1.0] + [1000.0] * 3).degraded is False
    assert told([1000.0] * 100 + [1.0, 1.0] + [1000.0] * 3).degraded is False


def test_noise_is_no_degradation() -> None:
    noisy = [1000.0 * (1.6 if n % 2 else 0.6) for n in range(80)]
    assert told([*noisy, *([900.0] * 10)]).degraded is False


def test_too_few_steps_tell_nothing() -> None:
    assert told([1000.0] * 24) is None
    assert told([1000.0] * 25) is not None


def of_few_lines(seconds: list[float], every: int = 11):  # type: ignore[no-untyped-def]
    """As Ray prints a job of many ranks: one line of many, the rest is said to be repeated."""
    return throughput(steps(range(0, every * len(seconds), every), seconds=seconds), None)


def test_a_clear_fall_is_seen_in_few_lines() -> None:
    one = of_few_lines([0.41, 0.457, 0.457, 0.46, 0.6, 0.62, 0.645, 0.61, 0.605, 0.56])
    assert (one.degraded, one.pattern, one.since_step) == (True, "constant", 44)
    longer = of_few_lines([0.41, 0.457, 0.457, 0.46] + 5 * [0.6, 0.62, 0.645, 0.61, 0.605, 0.56])
    assert (longer.degraded, longer.since_step) == (True, 44)


@pytest.mark.parametrize(
    "seconds",
    [
        [0.41, 0.457, 0.46, 0.6, 0.62, 0.645, 0.61, 0.605],  # two before it
        [0.41, 0.457, 0.457, 0.46, 0.6, 0.62, 0.61, 0.605],  # four after it
        [0.41, 0.457, 0.61, 0.46, 0.62, 0.6, 0.62, 0.45, 0.61, 0.605],  # it varies
    ],
)
def test_few_lines_that_do_not_fall_clearly_tell_nothing(seconds: list[float]) -> None:
    assert of_few_lines(seconds) is None


def test_few_steps_are_slow_for_too_short() -> None:
    one = of_few_lines([0.41, 0.457, 0.457, 0.46, 0.6, 0.62, 0.645, 0.61, 0.605], every=1)
    assert one is None or not one.degraded


def test_step_time_stands_in_where_no_throughput_is_printed() -> None:
    seconds = [10.0] * 60 + [20.0] * 60
    one = throughput(steps(range(120), seconds, tokens=[nan] * 120), None)
    assert one is not None and one.degraded and one.unit == "steps/s"
    assert one.change_percent == pytest.approx(-50.0)


@pytest.mark.parametrize(("slow_steps", "degraded"), [(15, False), (70, True)])
def test_fast_steps_that_are_slow_for_moments(slow_steps: int, degraded: bool) -> None:
    seconds = [0.4] * 200 + [0.5] * slow_steps  # of which 70 are 35 s
    one = throughput(steps(range(len(seconds)), seconds, tokens=[nan] * len(seconds)), None)
    assert one is not None and one.degraded is degraded
    assert one.pattern == ("constant" if degraded else "steady")
