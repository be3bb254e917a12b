"""What says nothing: saves, warm-up, repeated samples; by steps whose times are worked by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydiag.timeline import masks
from raydiag.timeline import steps as training_steps
from raydiag.timeline.context import (
    AFTER_HANG,
    BEFORE_JOB,
    GHOST,
    SAVE,
    WARM_UP,
    WRITE_BACK,
    Mask,
    SaveWindow,
)
from raydiag.timeline.masks import ghosts
from raydiag.timeline.rhythm import Rhythm
from raydiag.timeline.steps import MetricSteps
from raydiag.tsdb.series import Series
from tests.playbooks.world import World

START = 1_795_000_000.0
STEP_S = 10.0


def steps(
    count: int, period: int = 0, save_s: float = 0.0, first: int = 0, after: float = 0.0
) -> MetricSteps:
    """`count` steps of ten seconds; those at the period take `save_s` more, the next `after`."""
    numbers, ended, now = [], [], START
    for number in range(first, first + count):
        now += STEP_S
        if period and number > first:
            now += save_s if number % period == 0 else after if number % period == 1 else 0.0
        numbers.append(float(number))
        ended.append(now)
    return MetricSteps(np.array(numbers), np.array(ended))


def covered(found: list[Mask], time: float, kind: str = SAVE) -> bool:
    return any(one.kind == kind and one.start <= time <= one.end for one in found)


def series(times: list[float], values: list[float]) -> Series:
    return Series.of({"__name__": "tb_step", "host": "node1"}, times, values)


def test_fills_repeats_and_an_earlier_run_are_no_steps() -> None:
    step = series([0, 10, 20, 30, 40, 50, 60], [7, 8, 0, 1, 1, 2, 2])
    fill = series([0, 10, 20, 30, 40, 50, 60], [0, 0, 0, 0, 0, 0, 1])
    found = training_steps.completed(step, fill)
    assert list(found.numbers) == [0, 1, 2]
    assert list(found.ended_at) == [20, 30, 50]
    assert (found.first, found.last, found.last_at) == (0, 2, 50)


def test_no_step_at_all() -> None:
    found = training_steps.completed(series([], []))
    assert (found.first, found.last, found.last_at, found.step_time_s) == (None, None, None, None)
    assert masks.saves(found, Rhythm(100), False) == []
    assert list(masks.outside_training(found, None, None)) == []


def test_a_blocking_save_lasts_from_the_step_before_to_its_own_end() -> None:
    run = steps(60, period=20, save_s=200.0)
    found = masks.saves(run, Rhythm(20), False)
    before, saved = run.at(19), run.at(20)
    assert before is not None and saved is not None
    assert saved - before == STEP_S + 200
    assert covered(found, before + 1) and covered(found, saved)
    assert not covered(found, before - 1) and not covered(found, saved + 1)
    first, *later = found  # a fresh run saves in its start-up, wherever
    assert (first.start, first.end) == (-math.inf, run.at(0))
    assert [one.start for one in later] == [run.at(19), run.at(39), run.at(59)]  # 60 never came


def test_a_save_that_shows_in_the_next_step_covers_it() -> None:
    run = steps(60, period=20, after=200.0)
    found = masks.saves(run, Rhythm(20), False)
    assert covered(found, (run.at(21) or 0) - 1)
    assert not covered(found, (run.at(22) or 0) - 1)


def test_an_asynchronous_save_goes_on_writing() -> None:
    run = steps(200, period=100, first=50)
    saved = run.at(99) or 0
    written = saved + masks.WRITEBACK_S - 1
    for is_async in (True, None):  # None: who knows
        found = masks.saves(run, Rhythm(100), is_async)
        assert covered(found, saved + 2 * STEP_S) and not covered(found, written)
        assert covered(found, written, WRITE_BACK)
        assert not covered(found, written + 2, WRITE_BACK)
    found = masks.saves(run, Rhythm(100), False)
    assert not covered(found, saved + 2 * STEP_S + 1)
    assert not covered(found, saved + 2 * STEP_S + 1, WRITE_BACK)


def test_gpus_and_steps_do_not_feel_what_is_written_in_the_background() -> None:
    made = replace(World().context, masks=(Mask(WRITE_BACK, START, START + 480),))
    times = np.array([START + 240.0])
    for metric in ("hw_gpu_power_watts", "tb_perf_per_device_tokens_per_sec"):
        assert made.judged(times, "", metric).all()
    for metric in ("hw_tcp_retransmits_total", "hw_io_pressure_full_pct"):
        assert not made.judged(times, "", metric).any()


def test_a_step_that_the_bridge_left_out_makes_no_save_longer() -> None:
    whole = steps(60, period=20, save_s=200.0)
    keep = ~np.isin(whole.numbers, [16, 17, 18, 19, 21, 22])
    run = MetricSteps(whole.numbers[keep], whole.ended_at[keep])
    found = masks.saves(run, Rhythm(20), False)
    assert covered(found, (whole.at(19) or 0) + 1)
    assert not covered(found, (whole.at(17) or 0))
    assert not covered(found, (whole.at(22) or 0))


def test_a_save_that_never_ends_is_a_save_for_three_times_the_longest() -> None:
    run = steps(40, period=20, save_s=100.0)  # ends at step 39: the next one saves
    last = run.last_at or 0
    found = masks.saves(run, Rhythm(20), False)
    assert covered(found, last + 3 * 110 - 1)
    assert not covered(found, last + 3 * 110 + 1)


def test_what_the_log_dates_is_a_save_without_any_step() -> None:
    told = [SaveWindow(20, START, START + 60), SaveWindow(40, None, START)]
    assert masks.saves(MetricSteps(), Rhythm(20), False, told) == [Mask(SAVE, START, START + 60)]


@pytest.mark.parametrize("offset", [0, 24])
def test_slow_steps_that_come_regularly_are_saves(offset: int) -> None:
    run = steps(130, period=25, save_s=60.0)
    run = MetricSteps(run.numbers + offset, run.ended_at)
    assert training_steps.inferred_rhythm(run) == Rhythm(25, offset)
    assert training_steps.inferred_rhythm(steps(130)) is None
    irregular = steps(130)
    for late in (30, 44, 90):
        irregular.ended_at[late:] += 60
    assert training_steps.inferred_rhythm(irregular) is None


def test_saves_of_a_log_that_prints_each_tenth_step_come_right_after_one() -> None:
    whole = steps(400, period=50, after=40.0)
    tenth = whole.numbers % 10 == 0
    run = MetricSteps(whole.numbers[tenth], whole.ended_at[tenth])
    assert training_steps.inferred_rhythm(run) == Rhythm(50, 1)
    saved_from = whole.at(200) or 0
    found = masks.saves(run, None, False)
    assert covered(found, saved_from + 1) and covered(found, saved_from + 39)
    assert not covered(found, saved_from - 11) and not covered(found, saved_from + 120)


def test_a_run_that_gets_slower_for_good_has_no_rhythm() -> None:
    whole = steps(300)
    whole.ended_at[150:] += 8.0 * np.arange(150)
    tenth = whole.numbers % 10 == 0
    assert training_steps.inferred_rhythm(whole) is None
    run = MetricSteps(whole.numbers[tenth], whole.ended_at[tenth])
    assert training_steps.inferred_rhythm(run) is None


def test_saves_that_the_log_names_or_dates_by_half() -> None:
    run = steps(100)
    named = [SaveWindow(30), SaveWindow(70), SaveWindow(999)]
    found = masks.saves(run, None, False, named)
    assert [one.start for one in found] == [run.at(29), run.at(69)]
    ends, begins = START + 333.0, START + 611.0
    found = masks.saves(run, None, False, [SaveWindow(None, None, ends), SaveWindow(None, begins)])
    assert found == [Mask(SAVE, START + 330, ends), Mask(SAVE, begins, START + 620)]


def test_steps_that_only_the_log_has_follow_those_that_are_dated() -> None:
    whole = steps(60, period=20, save_s=200.0)
    seconds = np.diff(np.concatenate([[START], whole.ended_at]))
    cut = (whole.numbers >= 5) & ~((whole.numbers > 22) & (whole.numbers < 30))
    cut &= whole.numbers < 35
    found = training_steps.with_log(
        MetricSteps(whole.numbers[cut], whole.ended_at[cut]), whole.numbers, seconds
    )
    assert found.first == 5  # when the steps before were, nothing says
    assert list(found.numbers) == list(whole.numbers[5:])
    assert np.allclose(found.ended_at, whole.ended_at[5:])
    assert covered(
        masks.saves(found, Rhythm(20), False), (whole.at(40) or 0) - 1
    )  # after the bridge ended
    unknown = training_steps.with_log(
        MetricSteps(whole.numbers[cut], whole.ended_at[cut]), whole.numbers, np.full(60, np.nan)
    )
    assert list(unknown.numbers) == list(found.numbers)
    assert (np.diff(unknown.ended_at) >= 0).all()
    assert len(training_steps.with_log(MetricSteps(), whole.numbers, seconds)) == 0


def test_warm_up_the_time_before_and_the_time_after() -> None:
    run = steps(50)
    found = list(masks.outside_training(run, START, None))
    assert covered(found, START - 1, BEFORE_JOB) and not covered(found, START, BEFORE_JOB)
    assert covered(found, run.at(4) or 0, WARM_UP)
    assert not covered(found, (run.at(4) or 0) + 1, WARM_UP)
    last = run.last_at or 0
    assert covered(found, last + STEP_S + 1, AFTER_HANG)
    assert not covered(found, last + 1, AFTER_HANG)


def cycles(flat_from: float, flat_to: float, count: int = 200, every: float = 10.0) -> Series:
    """Durations of cycles that vary, but for a stretch."""
    rng = np.random.default_rng(3)
    times = START + every * np.arange(count, dtype=np.float64)
    values = 0.1 + 0.01 * rng.random(count)
    inside = (times >= START + flat_from) & (times <= START + flat_to)
    values[inside] = 0.107
    return Series({"host": "node1"}, times, values)


def test_repeated_samples_are_ghosts_until_the_exporter_comes_back() -> None:
    found = ghosts("node1", cycles(500, 1000))
    assert [one.kind for one in found] == [GHOST]
    assert (found[0].host, found[0].prefix) == ("node1", "hw_")
    assert found[0].start == START + 500
    assert START + 1000 <= found[0].end < START + 1010
    (open_end,) = ghosts("node1", cycles(500, 1e9))
    assert open_end.end == math.inf


def test_cycles_that_always_changed_are_repeats_within_minutes() -> None:
    (stale,) = ghosts("node1", cycles(500, 600))
    assert stale.start == START + 500
    every_cycle_twice = cycles(500, 600, every=5.0)
    every_cycle_twice.values[1::2] = every_cycle_twice.values[::2]
    (stale,) = ghosts("node1", every_cycle_twice)
    assert stale.start == START + 500


def test_cycles_that_often_stood_still_are_given_longer() -> None:
    often_flat = cycles(500, 600)
    often_flat.values[10:13] = often_flat.values[10]
    assert ghosts("node1", often_flat) == []
    assert ghosts("node1", cycles(50, 200)) == []  # how often it changes is not known yet


def test_a_short_pause_a_hole_and_power_that_moves_are_no_ghosts() -> None:
    assert ghosts("node1", cycles(500, 540)) == []
    silent = cycles(500, 1000)
    keep = np.ones(len(silent), dtype=np.bool_)
    keep[55:95] = False  # samples that were never taken repeat nothing
    assert ghosts("node1", Series({}, silent.times[keep], silent.values[keep])) == []
    times = START + 10.0 * np.arange(200, dtype=np.float64)
    power = Series({}, times, 800.0 + np.arange(200.0))
    assert ghosts("node1", cycles(500, 1000), [power]) == []
    still = Series({}, times, np.where((times > START + 490) & (times < START + 1010), 800, times))
    assert len(ghosts("node1", cycles(500, 1000), [still])) == 1


@given(st.integers(2, 60), st.integers(5, 300), st.floats(0, 500), st.booleans())
def test_saves_never_reach_back_before_the_step_before(
    period: int, count: int, save_s: float, is_async: bool
) -> None:
    run = steps(count, period, save_s)
    for one in masks.saves(run, Rhythm(period) if period else None, is_async):
        assert one.end >= one.start
        if one.kind == WRITE_BACK:
            continue
        if math.isinf(one.start):
            continue
        ended = int(np.searchsorted(run.ended_at, one.start + 1e-6))
        assert (int(run.numbers[ended - 1]) + 1) % period == 0


@pytest.mark.parametrize(("hosts", "saves"), [(["n1"], 6), (["n3"], 0), (["n1", "n2", "n3"], 6)])
def test_what_loads_one_host_that_is_not_the_first_is_no_save(hosts: list[str], saves: int) -> None:
    world = World()
    for start in range(600, 4000, 600):
        world.set("storage", 60.0, start, start + 60, hosts, "hw_io_pressure_full_pct")
    assert len(masks.saves_by_storage(world.answers(), "n1")) == saves
