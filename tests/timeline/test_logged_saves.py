"""Saves and steps as logs of several frameworks tell of them, with and without times."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

import pytest

from raydiag.explain.job.logged import job_of, placed, with_logged_training
from raydiag.timeline import masks
from raydiag.timeline.context import SAVE, TrainingJob
from raydiag.timeline.queries import FILL
from raydiag.timeline.rhythm import Rhythm
from raydiag.timeline.steps import steps_of
from raydiag.timeline.training_series import LOSS, TrainingSeries
from raydiag.triage import judge
from raydiag.triage.verdict import Moment
from tests.joblog.joblogs import facts_of
from tests.playbooks.world import T0, TB, TRAINED_FROM, World

EVERY, SAVE_S, STEP_S = 40, 60.0, 10.0
STEPS = 200


def _clock(second: float) -> str:
    moment = datetime.fromtimestamp(T0 + second, tz=timezone.utc)
    return f"[titan] {moment:%Y-%m-%d %H:%M:%S},000 - root - INFO - "


def titan(timed: bool) -> str:
    """Every tenth step is printed; each 40th one is followed by a save, the last is not done."""
    lines, now = [], TRAINED_FROM
    for step in range(1, STEPS + 1):
        now += STEP_S
        prefix = _clock(now) if timed else ""
        if step % 10 == 0:
            lines.append(f"{prefix}step: {step:2}  loss:  2.5  memory: 40.1GiB(50%)  tps: 3,101")
        if step % EVERY == 0:
            lines.append(f"{prefix}Saving the checkpoint (or staging if async is enabled).")
        if step % EVERY == 0 and step < STEPS:
            now += SAVE_S
            prefix = _clock(now) if timed else ""
            done = f"Finished saving the checkpoint in {SAVE_S:.2f} seconds."
            lines.append(prefix + done)
    return "\n".join(lines) + "\n"


def job(text: str, tmp_path: Path) -> TrainingJob:
    facts = facts_of(text, tmp_path)
    return job_of(facts, judge(facts, Moment(None)))


@pytest.mark.parametrize("timed", [True, False])
def test_saves_follow_the_step_line_before_them(timed: bool, tmp_path: Path) -> None:
    known = job(titan(timed), tmp_path)
    assert known.save_rhythm == Rhythm(EVERY, 1)
    assert [save.step for save in known.saves] == [41, 81, 121, 161, 201]
    first, last = known.saves[0], known.saves[-1]
    begun = T0 + TRAINED_FROM + EVERY * STEP_S
    assert (first.start, first.end) == ((begun, begun + SAVE_S) if timed else (None, None))
    assert last.end is None


def test_a_log_with_times_places_its_own_steps(tmp_path: Path) -> None:
    world = World()
    world.without(*TB, FILL)
    found = placed(world.answers(), facts_of(titan(True), tmp_path), world.job)
    assert found.steps.last == STEPS
    assert found.steps.first_at == T0 + TRAINED_FROM + 10 * STEP_S
    context = world.context
    of_saves = masks.saves(found.steps, None, None, job(titan(True), tmp_path).saves)
    middle = T0 + TRAINED_FROM + EVERY * STEP_S + SAVE_S / 2
    assert any(mask.kind == SAVE and mask.start < middle < mask.end for mask in of_saves)
    assert context.window.start < (found.steps.first_at or 0)


def test_times_of_another_zone_place_nothing(tmp_path: Path) -> None:
    world = World()
    world.without(*TB, FILL)
    text = titan(True).replace("2023-11-14", "2023-11-12").replace("2023-11-15", "2023-11-13")
    assert not len(placed(world.answers(), facts_of(text, tmp_path), world.job).steps)


@pytest.mark.parametrize("interval", [1, 5])
def test_a_log_that_prints_each_fifth_step_says_how_fast_the_gpus_work(
    interval: int, tmp_path: Path
) -> None:
    """A batch that grows makes steps longer, and no GPU slower."""
    world = World()
    world.without("tb_perf_per_device_tokens_per_sec", "tb_perf_per_device_tflops_per_sec")
    lines, last = [], 510
    for step in range(interval, last + 1, interval):
        lines.append(
            f" iteration {step:8}/{last:8} | elapsed time per iteration (ms): {9000 + 30 * step}.0"
            f" | throughput per GPU (TFLOP/s/GPU): 455.1 | global batch size: {300 + step} |"
            f" lm loss: {6 - step / 100:.6E} |"
        )
    answers = world.answers()
    steps = steps_of(answers)
    facts = facts_of("\n".join(lines) + "\n", tmp_path)
    training = TrainingSeries.of(with_logged_training(answers, facts, steps))
    assert training.throughput_unit == "TFLOP/s/device"
    assert training.series(LOSS) is not None
    assert training.throughput is not None and set(training.throughput.values) == {455.1}
