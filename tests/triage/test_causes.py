"""Which of several errors came first."""

from __future__ import annotations

import time
from typing import Any

import pytest

from raydiag.joblog.facts import JobFacts, Match
from raydiag.triage.first_cause import first_cause
from raydiag.triage.symptoms import live, symptoms
from tests.triage.jobs import exited, job, match, steps


def first(*matches: Match, **changes: Any) -> tuple[str, str]:
    """Class of the first cause, and the rule that decided."""
    decided = first_cause(live(symptoms(job(matches=matches, **changes))))
    assert decided is not None
    return decided.symptom.failure_class, decided.rule


def test_nothing_has_no_cause() -> None:
    assert first_cause([]) is None


def test_the_earliest_hard_error() -> None:
    assert first(match("data-error", 10), match("config-error", 20))[0] == "data-error"
    assert first(match("config-error", 10), match("data-error", 20))[0] == "config-error"


def test_errors_of_one_line_by_the_order_of_classes() -> None:
    pair = (match("data-error", 10), match("config-error", 10))
    assert first(*pair)[0] == first(*reversed(pair))[0] == "config-error"


def test_a_consequence_is_no_root_beside_a_root() -> None:
    found = (match("nccl-error", 10, "consequence", task=1), match("data-error", 90, task=2))
    assert first(*found)[0] == "data-error"


def test_a_consequence_alone_is_told_as_one() -> None:
    found = (match("nccl-error", 10, "consequence"), match("heartbeat-timeout", 20, "consequence"))
    failure_class, rule = first(*found)
    assert failure_class == "nccl-error" and "does not show" in rule


def test_an_ambiguous_error_gives_way_to_a_root_nearby() -> None:
    early = match("rendezvous-fail", 10, "either", task=1)
    assert first(early, match("data-error", 300, task=2))[0] == "data-error"
    assert first(early, match("data-error", 3000, task=2))[0] == "rendezvous-fail"


def test_nearness_goes_by_the_clock_where_there_is_one() -> None:
    early = match("rendezvous-fail", 10, "either", near_time=1000.0)
    soon = match("data-error", 9000, near_time=1060.0)
    late = match("data-error", 20, near_time=5000.0)
    assert first(early, soon)[0] == "data-error"
    assert first(early, late)[0] == "rendezvous-fail"


@pytest.mark.parametrize("effect", ["nccl-timeout", "nccl-error", "heartbeat-timeout", "node-fail"])
@pytest.mark.parametrize("root", ["oom-host", "oom-gpu", "gpu-hardware-error"])
def test_out_of_memory_comes_first_even_if_printed_last(root: str, effect: str) -> None:
    found = (match(effect, 10, "either", task=1), match(root, 2000, task=2))
    failure_class, rule = first(*found)
    assert failure_class == root and rule.startswith("cascade")


def test_an_oom_that_may_be_a_consequence_does_not() -> None:
    found = (match("signal-kill", 10, "either", task=1), match("oom-host", 2000, "either", task=2))
    assert first(*found)[0] == "signal-kill"


def test_another_root_before_the_cascade_stays_first() -> None:
    found = (match("config-error", 5), match("oom-host", 20), match("nccl-error", 30, "either"))
    assert first(*found)[0] == "config-error"


@pytest.mark.parametrize(
    ("root", "effect"),
    [
        ("nccl-error", "train-timeout"),
        ("nccl-error", "heartbeat-timeout"),
        ("xla-compile-fail", "python-exception"),
        ("disk-full", "checkpoint-fs-error"),
    ],
)
def test_a_cascade_has_its_name(root: str, effect: str) -> None:
    failure_class, rule = first(match(root, 10), match(effect, 20, "either"))
    assert failure_class == root and rule.startswith("cascade")


def test_an_exception_that_another_symptom_explains() -> None:
    raised = match("python-exception", 10, exception="OSError: no such shard")
    why = match("data-error", 2000, task=3, text="OSError: no such shard")
    assert first(raised, why)[0] == "data-error"
    other = match("data-error", 2000, task=3, text="OSError: no such file")
    assert first(raised, other)[0] == "python-exception"


def test_an_exception_is_explained_by_what_its_own_task_says_below() -> None:
    raised = match("python-exception", 10, task=1)
    assert first(raised, match("checkpoint-fs-error", 50, task=1))[0] == "checkpoint-fs-error"
    assert first(raised, match("checkpoint-fs-error", 50, task=2))[0] == "python-exception"
    assert first(raised, match("checkpoint-fs-error", 500, task=1))[0] == "python-exception"


def test_errors_that_training_got_over_are_history() -> None:
    old = match("data-error", 5, last_step=40)
    new = match("config-error", 500, last_step=100)
    assert first(old, new, steps=steps(range(101)))[0] == "config-error"
    in_flight = match("data-error", 5, last_step=99)
    assert first(in_flight, new, steps=steps(range(101)))[0] == "data-error"


def test_harmless_rows_are_nothing() -> None:
    assert (
        symptoms(job(matches=(match("", 5, "harmless"), match("data-error", 6, "harmless")))) == []
    )


def test_one_line_one_cause() -> None:
    found = symptoms(job(matches=(match("oom-host", 5), match("oom-gpu", 5, "either"))))
    assert [one.failure_class for one in found] == ["oom-host"]


def codes(facts: JobFacts) -> list[tuple[str, int | None]]:
    return [(one.failure_class, one.code) for one in symptoms(facts)]


def test_node_exits_fail_unless_all_were_told_to_end() -> None:
    some = (exited("n1", 143), exited("n2", 1, 91), exited("n3", 0, 92))
    assert codes(job(exits=some)) == [("node-fail", 143), ("node-fail", 1)]
    all_told = tuple(exited(f"n{n}", 143, 90 + n) for n in range(1, 5))
    assert codes(job(exits=all_told)) == []
    assert codes(job(exits=(*all_told, exited("n4", 0, 99)))) == []


def test_ten_thousand_tasks_take_no_time() -> None:
    found = [
        match(name, 10 * task + place, "either", task=task, exception=f"E{task}")
        for task in range(5000)
        for place, name in enumerate(("python-exception", "nccl-error", "signal-kill"))
    ]
    start = time.process_time()
    assert first(*found)[0] == "nccl-error"
    assert time.process_time() - start < 3


def test_what_was_noticed_says_more_than_the_traceback_that_ends_in_it() -> None:
    words = "torch.distributed.DistBackendError: remote process exited or there was a network error"
    found = (
        match("python-exception", 10, "consequence", row="traceback", exception=words),
        match("nccl-error", 14, "consequence", text=words),
    )
    assert first(*found)[0] == "nccl-error"


def test_what_opens_a_traceback_does_not_explain_it() -> None:
    same = {"text": "Scheduler hit an exception: Traceback (most recent call last):"}
    found = (
        match("python-exception", 10, "consequence", row="traceback", **same),
        match("actor-fail", 10, "consequence", row="engine-died", **same),
    )
    assert first(*found)[0] == "python-exception"


def test_a_timeout_is_told_a_timeout_after_the_exception() -> None:
    raised = match(
        "python-exception", 10, "either", row="python-error-line", near_time=1000.0, task=1
    )
    soon = match("rendezvous-fail", 60, "either", near_time=1600.0, task=0)
    far = match("rendezvous-fail", 6000, "either", near_time=1600.0, task=0)
    next_day = match("rendezvous-fail", 60, "either", near_time=90000.0, task=0)
    assert first(raised, soon)[0] == "python-exception"
    assert first(raised, far)[0] == "rendezvous-fail"
    assert first(raised, next_day)[0] == "rendezvous-fail"


def test_a_shell_that_says_killed_gives_way_to_an_exception_right_above() -> None:
    raised = match("python-exception", 10, "either", row="python-error-line")
    killed = match("oom-host", 30, "either", row="oom-bare-killed")
    assert first(raised, killed)[0] == "python-exception"
    assert first(raised, match("oom-host", 300, "either", row="oom-bare-killed"))[0] == "oom-host"
    stepped = match("oom-host", 30, "either", row="oom-bare-killed", last_step=7)
    assert first(raised, stepped)[0] == "oom-host"
    assert first(raised, match("oom-host", 30, "root", row="oom-slurm"))[0] == "oom-host"
