"""Ends without a word, exits that name whom they are about, and where tasks stopped."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raydiag import catalog
from raydiag.joblog.slurm import SlurmJob
from raydiag.model import Finding
from raydiag.triage import judge
from raydiag.triage.deaths import died_in_prolog, scheduler_class, sentences
from raydiag.triage.exits import exit_codes
from raydiag.triage.hang import front, straggler
from raydiag.triage.tables import TABLES
from raydiag.triage.verdict import JobStatus, Moment
from raydiag.triage.wording import span
from tests.triage.jobs import exited, job, match, steps, summary

PROLOG = "RaisedSignal:53(Real-time_signal_19)"


@pytest.mark.parametrize(("run_time_s", "died"), [(1.0, True), (None, True), (7200.0, False)])
def test_the_prolog_kills_at_once_or_not_at_all(run_time_s: float | None, died: bool) -> None:
    seen = SlurmJob("FAILED", PROLOG, 0, 53, run_time_s)
    assert died_in_prolog(job(), seen) is died


def test_only_an_end_has_a_class() -> None:
    assert scheduler_class(SlurmJob("TIMEOUT")) == "train-timeout"
    assert scheduler_class(SlurmJob("RUNNING")) is None
    assert scheduler_class(SlurmJob("FAILED")) is None
    assert scheduler_class(None) is None


def test_an_abrupt_cut_is_told() -> None:
    cut = job(last_line_complete=False)
    assert "cut in the middle" in " ".join(sentences(cut, Moment(None)))
    assert "cut in the middle" not in " ".join(sentences(job(), Moment(None)))


def test_preemption_is_told() -> None:
    told = " ".join(sentences(job(), Moment(None, scheduler=SlurmJob("PREEMPTED"))))
    assert "preempted" in told and "out-of-memory" not in told


def test_the_first_bad_code_of_a_task_counts() -> None:
    exits = (exited("n1", 0), exited("n1", 137), exited("n1", 143), exited("n2", 0))
    assert exit_codes(job(exits=exits)) == {0: 137, 1: 0}


def primary(**changes: object) -> Finding:
    verdict = judge(job(summary=summary("FAILED", 1), **changes), Moment(None, log_end=True))
    assert verdict.status is JobStatus.FAILED
    return verdict.diagnosis.findings[0]


def test_a_launcher_names_whom_the_error_does_not() -> None:
    raised = match("python-exception", 10, where="", task=None, host=None)
    bare = replace(raised, where="", host=None)
    failed = exited("n4", 1, kind="srun")
    assert (primary(matches=(bare,), exits=(failed,)).task, failed.task) == ("3", 3)
    assert primary(matches=(bare,), exits=(failed,)).host == "n4"
    assert primary(matches=(bare,)).task is None


def test_the_line_that_names_a_task_beats_who_wrote_it() -> None:
    told = match("data-error", 10, groups={"rank": "7", "host": "n9.example.com"})
    assert (primary(matches=(told,)).task, primary(matches=(told,)).host) == ("7", "n9")


def test_where_tasks_stopped() -> None:
    together = job(steps=steps(range(100), writers={"0": 99, "1": 99, "2": 98, "3": 99}))
    where = front(together)
    assert where is not None and not where.behind and straggler(together) is None
    apart = job(steps=steps(range(100), writers={"0": 99, "1": 99, "2": 90, "3": 99}))
    last = straggler(apart)
    assert last is not None and (last.where, last.last_step) == ("2", 90)
    assert front(job()) is None


def test_most_tasks_behind_are_no_stragglers() -> None:
    quiet = job(steps=steps(range(100), writers={"0": 99, "1": 9, "2": 9, "3": 9}))
    assert straggler(quiet) is None


@pytest.mark.parametrize(
    ("seconds", "words"), [(90, "90 s"), (2940, "49 min"), (11520, "3.2 h"), (None, "unknown")]
)
def test_spans(seconds: float | None, words: str) -> None:
    assert words in span(seconds)


def test_the_tables_name_failure_classes_that_exist() -> None:
    named = {*TABLES["class_of_state"].values(), *TABLES["stage_timeouts"].values()}
    assert named <= catalog.failures().keys()
