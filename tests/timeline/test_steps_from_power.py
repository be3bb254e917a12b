"""Steps that only the log knows, between the times at which GPUs began and ceased to compute."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from raydiag.model import Window
from raydiag.playbooks import run
from raydiag.timeline import masks
from raydiag.timeline.queries import FILL
from raydiag.timeline.steps import MetricSteps, place
from tests.playbooks.world import (
    EACH_S,
    IDLE_WATTS,
    LENGTH_S,
    T0,
    TB,
    TRAINED_FROM,
    World,
    classes,
)

SAVE_S, PERIOD = 300.0, 100
COUNT = int((LENGTH_S - TRAINED_FROM - 3 * SAVE_S) / EACH_S)


def logged() -> tuple[np.ndarray, np.ndarray]:
    """Numbers and durations: compilation first, and each hundredth step waits for a save."""
    numbers = np.arange(COUNT, dtype=np.float64)
    seconds = np.full(COUNT, EACH_S)
    seconds[0] = 200.0
    seconds[[PERIOD, 2 * PERIOD, 3 * PERIOD]] += SAVE_S
    return numbers, seconds


def saved_at(number: int) -> float:
    """Seconds after T0 at which the save of a step begins."""
    return TRAINED_FROM + number * EACH_S + (number // PERIOD - 1) * SAVE_S


def without_bridge(busy: tuple[float, ...]) -> World:
    """No series of steps; storage of one host is busy for a save's time at each of these times."""
    world = World()
    world.without(*TB, FILL)
    world.tell(checkpoint_period=PERIOD, last_step=COUNT - 1)
    for number in (PERIOD, 2 * PERIOD, 3 * PERIOD):
        start = saved_at(number)
        world.set("gpu-power", IDLE_WATTS, start, start + SAVE_S)
    for start in busy:
        for metric, value in (("hw_io_pressure_full_pct", 60.0), ("hw_io_pressure_some_pct", 70.0)):
            world.set("storage", value, start, start + SAVE_S, ["n1"], metric)
        world.set("tasks", 15.0, start, start + SAVE_S, ["n1"], "hw_procs_blocked")
    return world


SAVES = tuple(saved_at(number) for number in (PERIOD, 2 * PERIOD, 3 * PERIOD))


def test_steps_get_times() -> None:
    found = place(without_bridge(()).answers(), *logged())
    assert found.steps.last == COUNT - 1
    begun = masks._save_start(found.steps, 2 * PERIOD, EACH_S)
    assert begun == pytest.approx(T0 + saved_at(2 * PERIOD), abs=found.slack_s)
    assert found.slack_s < 60


def test_a_log_that_stopped_before_training_did_tells_no_times() -> None:
    numbers, seconds = logged()
    assert not len(place(without_bridge(()).answers(), numbers[:-60], seconds[:-60]).steps)


def test_power_that_never_changes_tells_no_times() -> None:
    world = without_bridge(())
    world.set("gpu-power", 500.0)
    assert not len(place(world.answers(), *logged()).steps)


def test_only_the_last_run_of_a_log_counts() -> None:
    numbers, seconds = logged()
    twice = np.concatenate([np.arange(30.0), numbers]), np.concatenate([np.ones(30), seconds])
    found = place(without_bridge(()).answers(), *twice)
    assert found.steps.first == 0 and len(found.steps) == COUNT


@pytest.mark.parametrize(
    ("busy", "seen"), [(SAVES, False), ((*SAVES, saved_at(PERIOD) + 700), True)]
)
def test_saves_are_no_stall_of_storage(busy: tuple[float, ...], seen: bool) -> None:
    """And what is beside them is one."""
    world = without_bridge(busy)
    answers, found = world.answers(), place(world.answers(), *logged())
    ends = found.steps.ended_at
    context = replace(world.context, trained=Window(float(ends[0]), float(ends[-1])))
    covered = masks.of_job(context, answers, found.steps, found.slack_s)
    outcome = run(replace(context, masks=covered), answers)
    assert ("storage-stall" in classes(outcome, severe=True)) is seen


def test_a_log_whose_durations_leave_saves_out_is_placed_by_the_saves_that_it_names() -> None:
    numbers, seconds = logged()
    seconds[1:] = EACH_S
    answers, saves = without_bridge(()).answers(), (PERIOD, 2 * PERIOD, 3 * PERIOD)
    assert not len(place(answers, numbers, seconds).steps)
    found = place(answers, numbers, seconds, saves)
    begun = masks._save_start(found.steps, 3 * PERIOD, EACH_S)
    assert begun == pytest.approx(T0 + saved_at(3 * PERIOD), abs=found.slack_s + EACH_S)


def test_a_last_step_that_paid_for_a_save_ended_after_it() -> None:
    """GPUs pause in a save, so computing ends before the step does."""
    world = World()
    world.without(*TB, FILL)
    seconds = np.full(300, EACH_S)
    seconds[0], seconds[-1] = 200.0, EACH_S + SAVE_S
    stopped = TRAINED_FROM + 299 * EACH_S
    world.set("gpu-power", IDLE_WATTS, stopped)
    found = place(world.answers(), np.arange(300.0), seconds)
    assert found.steps.last_at == pytest.approx(T0 + stopped + SAVE_S, abs=found.slack_s + EACH_S)


def test_a_stall_that_may_be_a_save_is_a_remark() -> None:
    """Saves are made, and nothing says when; two of them have no rhythm."""
    world = without_bridge(SAVES[:2])
    covered = masks.of_job(world.context, world.answers(), MetricSteps())
    outcome = run(replace(world.context, masks=covered), world.answers())
    assert "storage-stall" in classes(outcome)
    assert "storage-stall" not in classes(outcome, severe=True)


def test_of_two_hosts_both_have_to_compute() -> None:
    """One computes to the end, and the other waits: steps ended when the first one stopped."""
    world = World(("n1", "n2"))
    world.without(*TB, FILL)
    stopped = TRAINED_FROM + 200 * EACH_S
    world.set("gpu-power", IDLE_WATTS, stopped, hosts=["n1"])
    seconds = np.full(200, EACH_S)
    seconds[0] = 200.0
    found = place(world.answers(), np.arange(200.0), seconds)
    assert found.steps.last_at == pytest.approx(T0 + stopped, abs=found.slack_s + EACH_S)
