from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from raydiag.model import Finding
from raydiag.rules.loss import diverged_loss
from tests.rules.snapshots import NOW, snapshot
from tests.rules.test_progress import log, node

NAN = "completed step: 57, seconds: 0.500, loss: nan"
WELL = "completed step: 57, seconds: 0.500, loss: 2.871"


def found(line: str, later: str, running: tuple[str, ...] = (), **values: Any) -> list[Finding]:
    first, last = log(57, step_line=line, **values), log(58, step_line=later, **values)
    seen = snapshot(node("a", first, later=(last,)), job_start=NOW - 600)
    return list(diverged_loss(replace(seen, running=running)))


@pytest.mark.parametrize(
    "line",
    [
        NAN,
        " iteration 9/ 50 | lm loss: NAN |",
        "{'loss': nan, 'epoch': 1}",
        "step 3 loss=-inf lr=1",
    ],
)
def test_a_loss_that_is_no_number(line: str) -> None:
    (finding,) = found(line, line)
    assert (finding.failure_class, finding.host) == ("loss-divergence", None)
    assert finding.evidence[0].text == line


@pytest.mark.parametrize(
    ("line", "later"),
    [(WELL, WELL), (NAN, WELL), (WELL, NAN), (WELL + " nan_steps: 0 info: 1", WELL)],
)
def test_a_step_that_was_skipped_is_no_divergence(line: str, later: str) -> None:
    assert found(line, later) == []


def once(line: str, before: str) -> list[Finding]:
    """Both samples show the same line: steps are longer than the time between them."""
    seen = log(57, step_line=line, step_line_before=before)
    return list(diverged_loss(snapshot(node("a", seen, later=(seen,)), job_start=NOW - 600)))


def test_one_line_seen_twice_is_one_step() -> None:
    assert once(NAN, "") == []
    assert once(NAN, WELL) == []
    assert len(once(NAN, NAN.replace("57", "56"))) == 1


def test_a_finite_loss_in_between_counts() -> None:
    assert found(NAN, NAN, step_line_before=WELL) == []


@pytest.mark.parametrize(("skipped", "findings"), [(0, 1), (1, 0), (12, 0)])
def test_an_iteration_that_was_skipped_by_its_own_line(skipped: int, findings: int) -> None:
    line = f" iteration 9/ 50 | lm loss: nan | number of skipped iterations:   {skipped} |"
    assert len(found(line, line)) == findings
    assert len(once(line, line)) == findings


def test_what_a_driver_printed_counts_while_its_job_runs() -> None:
    of_driver: dict[str, Any] = {"component": "driver", "job_id": "toy-1"}
    assert len(found(NAN, NAN, ("toy-1",), **of_driver)) == 1
    assert found(NAN, NAN, **of_driver) == []


def test_without_a_job_nothing_is_said() -> None:
    assert list(diverged_loss(snapshot(node("a", log(57, step_line=NAN))))) == []
