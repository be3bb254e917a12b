"""Saves that follow each other closely: how long they are written back is measured, not guessed."""

from __future__ import annotations

import numpy as np
import pytest

from raydiag.timeline import masks
from raydiag.timeline.context import SAVE, WRITE_BACK, Mask
from raydiag.timeline.steps import MetricSteps
from tests.playbooks.world import LENGTH_S, T0, TRAINED_FROM, World, classes, holds

EVERY_S, GUESS_S = 450.0, 480.0
PRESSURE = "hw_io_pressure_full_pct"


def saving(written_s: float, writers: tuple[str, ...] = ("n1",), every_s: float = EVERY_S) -> World:
    """Saves that block for 20 s and load the storage of some hosts for `written_s` more."""
    world = World()
    world.tell(checkpoint_period=int(every_s / 10), async_saves=True)
    for start in np.arange(TRAINED_FROM + every_s, LENGTH_S, every_s):
        world.save(start, start + 20)
        back = Mask(WRITE_BACK, T0 + start + 20, T0 + start + GUESS_S)
        world.masks.append(back)
        if written_s:
            world.set("storage", 60.0, start + 20, start + 20 + written_s, list(writers), PRESSURE)
    return world


def bound(world: World) -> World:
    start, end = T0 + TRAINED_FROM, T0 + LENGTH_S
    world.masks = masks.bounded(world.masks, world.answers(), start, end)
    return world


def lengths(world: World) -> set[float]:
    return {round(one.end - one.start) for one in world.masks if one.kind == WRITE_BACK}


@pytest.mark.parametrize("written_s", [0.0, 60.0, 240.0])
def test_it_lasts_as_long_as_storage_is_loaded_after_most_saves(written_s: float) -> None:
    (length,) = lengths(bound(saving(written_s)))
    assert written_s <= length <= 1.25 * (written_s + 15) + 30


def test_saves_that_load_storage_are_no_stall() -> None:
    assert "storage-stall" not in classes(bound(saving(240.0)).judge())


def test_a_stall_over_several_saves_is_seen_beside_them() -> None:
    world = saving(120.0)
    world.set("storage", 80.0, 3000, 4200, ["n3"], PRESSURE)
    outcome = bound(world).judge()
    (found,) = [o for o in outcome.observations if o.finding.failure_class == "storage-stall"]
    assert found.finding.host == "n3"


@pytest.mark.parametrize(("every_s", "seen"), [((600, 600, 600, 600), False), ((350, 900), True)])
def test_load_that_recurs_regularly_is_of_saves(every_s: tuple[int, ...], seen: bool) -> None:
    """No step and no line of a log tells of them; what lasts longer beside them is none."""
    world, start = World(), 800.0
    for distance in every_s:
        world.set("storage", 70.0, start, start + 180, ["n1", "n3"], PRESSURE)
        start += distance
    world.masks += masks.of_job(world.context, world.answers(), MetricSteps())
    stalled = {o.finding.host for o in world.judge().observations}
    assert stalled == ({"n1", "n3"} if seen else set())
    world.set("storage", 70.0, 4000, 5000, ["n2"], PRESSURE)
    assert "n2" in {o.finding.host for o in world.judge().observations}


def test_saves_that_are_far_apart_keep_the_guess() -> None:
    assert lengths(bound(saving(60.0, every_s=1800.0))) == {GUESS_S - 20}


def test_without_storage_series_the_guess_stays() -> None:
    world = saving(60.0)
    world.without(PRESSURE, "hw_io_pressure_some_pct", "hw_mem_dirty_bytes")
    world.without("hw_mem_writeback_bytes")
    assert lengths(bound(world)) == {GUESS_S - 20}


def test_a_run_that_is_all_save_says_what_was_not_judged() -> None:
    world = saving(430.0)
    outcome = bound(world).judge()
    told = holds(outcome, "training-stability")
    assert told["saves-everywhere"] is None
    assert told["storage-stall"] is None and told["cpu-contention"] is None
    assert classes(outcome) == {"checkpoint-effect"} and classes(outcome, severe=True) == set()
    assert "storage-stall" not in {one.failure_class for one in outcome.ruled_out}


def test_the_share_counts_overlapping_masks_once() -> None:
    saved = [Mask(SAVE, 0, 40), Mask(WRITE_BACK, 20, 50), Mask("ghost", 0, 100)]
    assert masks.share(saved, 0, 100) == pytest.approx(0.5, abs=0.01)
    assert masks.share(saved, 100, 100) == 0.0


@pytest.mark.parametrize(("usually", "onset"), [(0.5, 3180.0), (60.0, 3250.0)])
def test_a_stall_that_begins_in_a_save_dates_from_there_on_hosts_that_write_nothing(
    usually: float, onset: float
) -> None:
    world = World()
    for start in (1000.0, 2000.0, 3100.0):
        world.save(start, start + 140)
        world.set("storage", usually, start, start + 140, ["n3"], PRESSURE)
    world.set("storage", 80.0, 3180, 4200, ["n3"], PRESSURE)
    (found,) = [
        one for one in world.judge().observations if one.finding.failure_class == "storage-stall"
    ]
    assert found.finding.onset is not None
    assert found.finding.onset - T0 == pytest.approx(onset, abs=15)
