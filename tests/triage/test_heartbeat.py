"""Whom a heartbeat timeout accuses, and what timeout a job needs."""

from __future__ import annotations

import pytest

from raydiag.triage.exits import meaning
from raydiag.triage.heartbeat import accused, advice, first_accused, recommended_timeout_s
from raydiag.triage.progress import project
from raydiag.triage.symptoms import symptoms
from tests.triage.jobs import header, heartbeats, job, match, save, steps


def test_the_timeout_that_a_run_needs() -> None:
    # Twice: warm-up 120, restore 180, 200 steps of 30 s, a save of 772 s.
    assert recommended_timeout_s(120, 180, 200, 30, 772) == 14144


def test_advice_goes_by_the_jobs_own_figures() -> None:
    # First step 60 s; saves 100 s; 50 steps of 10 s: 2 x (60 + 100 + 500 + 100) = 1520.
    facts = job(
        steps=steps(range(101), [60.0, *[10.0] * 100]),
        header=header(checkpoint_period=50),
        saves=(save(50, seconds=100.0),),
    )
    told = advice(facts, project(facts, None))
    assert told is not None and "1520 or more" in told
    assert advice(job(), project(job(), None)) is None


def test_an_accused_task_that_wrote_afterwards_was_alive() -> None:
    facts = job(heartbeats=heartbeats([1, 2], ["0", "2"]))
    who = accused(facts, [])
    assert (who.tasks, who.alive, who.guilty) == ((1, 2), (2,), None)


@pytest.mark.parametrize(
    ("task", "line", "role", "guilty"),
    [
        (2, 50, "root", True),
        (2, 70, "root", False),
        (3, 50, "root", False),
        (2, 50, "consequence", False),
    ],
)
def test_only_an_earlier_failure_of_the_accused_convicts(
    task: int, line: int, role: str, guilty: bool
) -> None:
    found = match("data-error", line, role, task=task)
    facts = job(heartbeats=heartbeats([2], ["0"], line=60), matches=(found,))
    assert (accused(facts, symptoms(facts)).guilty is not None) is guilty


def test_the_leader_is_the_one_when_the_service_is_gone() -> None:
    lost = match("heartbeat-timeout", 9, text="Either the leader task was preempted or died")
    assert first_accused(job(matches=(lost,))) == 0
    assert first_accused(job(matches=(match("heartbeat-timeout", 9),))) is None
    assert first_accused(job(matches=(lost,), heartbeats=heartbeats([3], []))) == 3


@pytest.mark.parametrize(
    ("code", "signal", "words"),
    [
        (1, None, "1 (an error of the program itself)"),
        (130, None, "SIGINT"),
        (134, None, "SIGABRT"),
        (137, None, "SIGKILL"),
        (139, None, "SIGSEGV"),
        (143, None, "SIGTERM"),
        (-9, None, "137 (SIGKILL"),
        (None, 11, "139 (SIGSEGV"),
        (0, 6, "134 (SIGABRT"),
        (140, None, "140 (signal 12)"),
        (77, None, "77"),
        (None, None, ""),
    ],
)
def test_what_exit_codes_mean(code: int | None, signal: int | None, words: str) -> None:
    told = meaning(code, signal)
    assert words in told if words else told == ""
