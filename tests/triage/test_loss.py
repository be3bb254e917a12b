"""A loss that jumps and stays: found where training had learnt, and nowhere else."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from raydiag.triage.loss import jump
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


def test_without_steps_nothing_jumps() -> None:
    assert jump(None) is None
