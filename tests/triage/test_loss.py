"""A loss that jumps and stays: found where training had learnt, and nowhere else."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from raydiag.joblog import find, read
from raydiag.triage import judge
from raydiag.triage.loss import jump
from raydiag.triage.signatures import Classifier, make_selector
from raydiag.triage.verdict import Moment
from tests.joblog.joblogs import facts_of

FALLS = [8.0 * 0.97**step + 2.0 for step in range(200)]
SHORT = [*[11.0 - 0.14 * step for step in range(40)], *[5.5 + 0.22 * step for step in range(24)]]


def log(losses: Sequence[float]) -> str:
    return "".join(f"step {step} loss {loss:.4f}\n" for step, loss in enumerate(losses, 1))


@pytest.mark.parametrize(
    ("losses", "first_step"),
    [
        ([*FALLS, *[9.5] * 40], 201),
        ([*FALLS, *[9.5] * 10, *[2.0] * 40], None),
        ([*FALLS, *[2.6] * 40], None),
        ([*FALLS, *[9.5, 2.0] * 20], None),
        ([*FALLS, *[3.6] * 40], 201),
        (SHORT, 52),
        (FALLS, None),
        ([0.01 * step for step in range(200)], None),
        ([5.0] * 200, None),
        ([0.0] * 200, None),
        ([5.0, 4.0], None),
    ],
    ids=[
        "jumps",
        "recovers",
        "other-data",
        "noisy",
        "far",
        "short",
        "falls",
        "climbs",
        "flat",
        "zero",
        "few",
    ],
)
def test_a_jump_that_stays(losses: Sequence[float], first_step: int | None, tmp_path: Path) -> None:
    found = jump(facts_of(log(losses), tmp_path).steps)
    assert (found.step if found is not None else None) == first_step
    if found is not None:
        assert found.lasting
        assert re.fullmatch(r"loss: (9\.5|3\.6|9\.79), (2\.0\d?|6\.03) at its lowest,", found.text)


def noisy(losses: Sequence[float], share: float, seed: int = 5) -> list[float]:
    """With noise of that share, as batches differ."""
    numbers = random.Random(seed)
    return [loss * (1 + share * numbers.gauss(0, 1)) for loss in losses]


def ramp(start: float, end: float, count: int) -> list[float]:
    return [start + (end - start) * number / count for number in range(count)]


LEARNT = [4.3 * 0.95**step + 6.7 for step in range(120)]
PARTLY = [*LEARNT, *ramp(6.7, 9.2, 20), *[9.2] * 30, *ramp(9.2, 7.9, 30), *[7.9] * 40]
BACK = [*LEARNT, *ramp(6.7, 9.2, 20), *[9.2] * 30, *ramp(9.2, 6.7, 60), *[6.7] * 40]


@pytest.mark.parametrize("share", [0.0, 0.01, 0.03])
@pytest.mark.parametrize("stride", [1, 4])
@pytest.mark.parametrize("until", [len(PARTLY), 200, 220])
def test_a_loss_that_rose_far_and_came_back_only_in_part(
    share: float, stride: int, until: int, tmp_path: Path
) -> None:
    losses = noisy(PARTLY[:until], share)[::stride]
    found = jump(facts_of(log(losses), tmp_path).steps)
    assert found is not None
    assert not found.lasting or until == 200
    assert 115 // stride <= found.step <= 160 // stride
    if until == len(PARTLY) and not share:
        text = r"loss: 7\.9, 6\.7\d? at its lowest, 9\.2 at its highest since,"
        assert re.fullmatch(text, found.text)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("losses", "share"),
    [
        (LEARNT, 0.03),
        (BACK, 0.03),
        ([*ramp(11.0, 7.0, 30), *ramp(7.0, 9.5, 25), *ramp(9.5, 5.0, 200)], 0.02),
        ([*LEARNT, *ramp(6.7, 7.5, 400)], 0.03),
        ([*FALLS, *[2.7] * 60, *ramp(2.7, 2.3, 100)], 0.03),
        ([*FALLS, *[3.2] * 3, *[2.0] * 60], 0.03),
        ([2.0 * 0.97**step + 0.4 for step in range(300)], 0.25),
        ([1.0 - 0.05 * step for step in range(40)] + [-0.3, 0.4, -0.6, 0.5] * 20, 0.1),
        ([3.0 * 0.97**step + 1.8 for step in range(60)], 0.10),
    ],
    ids=[
        "noise",
        "back",
        "warm-up",
        "drift",
        "new data",
        "spike",
        "fine-tuning",
        "below zero",
        "experts",
    ],
)
def test_what_every_training_does_is_no_jump(
    losses: Sequence[float], share: float, seed: int, tmp_path: Path
) -> None:
    assert jump(facts_of(log(noisy(losses, share, seed)), tmp_path).steps) is None


def test_without_steps_nothing_jumps() -> None:
    assert jump(None) is None


@pytest.mark.parametrize("diverged", ["nan", "9.5000"])
def test_a_loss_that_diverges_is_dated_by_its_step(diverged: str, tmp_path: Path) -> None:
    lines = ["JOB_ID: 41"]
    for step in range(240):
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(1_700_000_000 + 10 * step))
        loss = f"{FALLS[step]:.4f}" if step < len(FALLS) else diverged
        lines.append(f"[titan] {at},000 - root - INFO - step: {step}  loss: {loss}  tps: 900")
    path = tmp_path / "41-demo.log"
    path.write_text("".join(f"{line}\n" for line in lines))
    facts = read.read(find.resolve(str(path)), make_selector, Classifier())
    told = judge(facts, Moment(None, alive=False, source="--job-state")).diagnosis.findings
    (found,) = [finding for finding in told if finding.failure_class == "loss-divergence"]
    assert found.onset == 1_700_000_000 + 10 * len(FALLS)
