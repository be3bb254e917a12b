"""What is decided about a job: every rule, every combination of what a diagnosis can say."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from raydiag import catalog
from raydiag.errors import UsageError
from raydiag.recovery.decision import (
    EndedAttempt,
    RecoveryAction,
    RecoveryDecision,
    RecoveryHistory,
    decide,
)
from raydiag.recovery.policy import RecoveryPolicy, kinds, read_policy

_NOW = 1_000_000.0
_POLICY = RecoveryPolicy(most_bad=3, wait=10.0, longest_wait=60.0)
_ENDED = _NOW - 5
_FAILED = EndedAttempt("failed", saved=True, ended=_ENDED, diagnosed=_NOW, is_over=True)
_STATUSES = ("completed", "failed", "cancelled", "running", "hanging", "unknown", "idle")
_STARTS = (RecoveryAction.REATTEMPT, RecoveryAction.EVICT)


def failed(failure_class: str, *hosts: str, confidence: str = "confirmed") -> EndedAttempt:
    return replace(_FAILED, failure_class=failure_class, hosts=hosts, confidence=confidence)


def decided(
    attempt: EndedAttempt, *earlier: EndedAttempt, policy: RecoveryPolicy = _POLICY
) -> RecoveryDecision:
    return decide(attempt, policy, RecoveryHistory(earlier), _NOW)


@pytest.mark.parametrize("status", ["completed", "running", "idle"])
def test_nothing_is_done_where_nothing_is_wrong(status: str) -> None:
    assert decided(replace(_FAILED, status=status)).action is RecoveryAction.NOOP


@pytest.mark.parametrize("status", ["hanging", "unknown", "a new word"])
def test_nothing_is_started_beside_what_may_run(status: str) -> None:
    assert decided(replace(_FAILED, status=status)).action is RecoveryAction.DIAGNOSE


def test_an_error_in_a_log_does_not_prove_that_nothing_runs() -> None:
    decision = decided(replace(_FAILED, is_over=False))
    assert decision.action is RecoveryAction.DIAGNOSE
    assert "--ended" in decision.reason


def test_a_hang_that_a_person_ended_is_no_end_for_good() -> None:
    ended = replace(failed("rccl-hang"), status="cancelled")
    assert decided(ended).action is RecoveryAction.DIAGNOSE
    assert decided(replace(ended, failure_class="cancelled")).action is RecoveryAction.STOP


def test_a_person_ends_it_for_good() -> None:
    assert decided(replace(_FAILED, status="cancelled")).action is RecoveryAction.STOP
    past = RecoveryHistory(stopped="a person ended it")
    for status in _STATUSES:
        attempt = replace(_FAILED, status=status)
        assert decide(attempt, _POLICY, past, _NOW).action is RecoveryAction.STOP


def test_an_old_diagnosis_decides_nothing() -> None:
    assert decided(replace(_FAILED, diagnosed=_NOW - 6)).action is RecoveryAction.DIAGNOSE


def test_an_attempt_that_cannot_be_told_from_others_is_a_persons() -> None:
    assert decided(replace(_FAILED, ended=None)).action is RecoveryAction.DIAGNOSE


def test_the_budget_of_a_job() -> None:
    policy = replace(_POLICY, most_restarts=2)
    long_ago = RecoveryHistory(restarted=(1.0,))
    assert decide(_FAILED, policy, long_ago, _NOW).action is RecoveryAction.REATTEMPT
    used_up = RecoveryHistory(restarted=(1.0, 2.0))
    assert decide(_FAILED, policy, used_up, _NOW).action is RecoveryAction.STOP


def test_the_budget_of_a_window() -> None:
    policy = replace(_POLICY, most_in_window=2, window=100.0)
    within = RecoveryHistory(restarted=(_NOW - 99, _NOW - 1))
    assert decide(_FAILED, policy, within, _NOW).action is RecoveryAction.STOP
    before = RecoveryHistory(restarted=(_NOW - 100, _NOW - 1))
    assert decide(_FAILED, policy, before, _NOW).action is RecoveryAction.REATTEMPT


def test_attempts_without_a_save_end_it() -> None:
    bad = replace(_FAILED, saved=False)
    assert decided(bad, bad, bad).action is RecoveryAction.REATTEMPT
    assert decided(bad, bad, bad, bad).action is RecoveryAction.STOP
    assert decided(bad, bad, _FAILED, bad).action is RecoveryAction.REATTEMPT
    assert decided(_FAILED, bad, bad, bad).action is RecoveryAction.REATTEMPT


def test_the_wait_grows_with_attempts_without_a_save_and_has_an_end() -> None:
    bad = replace(_FAILED, saved=False)
    waits = []
    for earlier in ((), (bad,), (bad, bad)):
        waits.append(decided(bad, *earlier).not_before - _ENDED)
    assert waits == [20.0, 40.0, 60.0]
    assert decided(_FAILED, bad, bad).not_before - _ENDED == 10.0


def test_the_jobs_own_fault_is_tried_once_more() -> None:
    on_one, on_another = failed("data-error", "n1"), failed("data-error", "n2")
    assert decided(on_one).action is RecoveryAction.REATTEMPT
    assert decided(on_another, on_one).action is RecoveryAction.STOP
    assert decided(on_another, failed("python-exception")).action is RecoveryAction.REATTEMPT


def test_what_would_fail_again_is_not_tried() -> None:
    assert decided(failed("config-error")).action is RecoveryAction.STOP
    unsure = failed("config-error", confidence="possible")
    assert decided(unsure).action is RecoveryAction.REATTEMPT


def test_the_same_cause_on_the_same_host_twice_leaves_it_out() -> None:
    on_one, on_another = failed("nvidia-xid", "n1"), failed("nvidia-xid", "n2")
    assert decided(on_one).action is RecoveryAction.REATTEMPT
    assert decided(on_another, on_one).action is RecoveryAction.REATTEMPT
    assert decided(on_one, failed("mce", "n1")).action is RecoveryAction.REATTEMPT
    decision = decided(on_one, on_another, on_one)
    assert (decision.action, decision.hosts) == (RecoveryAction.EVICT, ("n1",))


def test_a_host_that_a_verdict_names_twice_is_one_host_once() -> None:
    assert decided(failed("nvidia-xid", "n1", "n1")).action is RecoveryAction.REATTEMPT


def test_what_is_broken_for_sure_leaves_at_once() -> None:
    decision = decided(failed("gpu-memory-error", "n1"))
    assert (decision.action, decision.hosts) == (RecoveryAction.EVICT, ("n1",))
    likely = failed("gpu-memory-error", "n1", confidence="likely")
    assert decided(likely).action is RecoveryAction.REATTEMPT
    patient = replace(_POLICY, evict_broken_at_once=False)
    assert decided(failed("mce", "n1"), policy=patient).action is RecoveryAction.REATTEMPT


def test_a_guess_counts_for_no_host() -> None:
    guess = failed("nvidia-xid", "n1", confidence="possible")
    assert decided(failed("nvidia-xid", "n1"), guess).action is RecoveryAction.REATTEMPT
    assert decided(guess, failed("nvidia-xid", "n1")).action is RecoveryAction.REATTEMPT


def test_the_blast_radius() -> None:
    three = failed("gpu-memory-error", "n1", "n2", "n3")
    assert decided(three).action is RecoveryAction.STOP
    policy = replace(_POLICY, most_evicted=2)
    past = RecoveryHistory(evicted=("n7",))
    one = failed("gpu-memory-error", "n1")
    assert decide(one, policy, past, _NOW).action is RecoveryAction.EVICT
    two = failed("gpu-memory-error", "n1", "n2")
    assert decide(two, policy, past, _NOW).action is RecoveryAction.STOP


def test_a_host_that_was_left_out_and_is_back_ends_it() -> None:
    past = RecoveryHistory(evicted=("n1",))
    decision = decide(failed("gpu-memory-error", "n1"), _POLICY, past, _NOW)
    assert decision.action is RecoveryAction.STOP and "n1" in decision.reason


def test_the_unknown_may_need_a_person() -> None:
    careful = replace(_POLICY, unknown="diagnose")
    assert decided(_FAILED, policy=careful).action is RecoveryAction.DIAGNOSE
    assert decided(_FAILED).action is RecoveryAction.REATTEMPT


def test_of_all_that_a_diagnosis_can_say_only_what_is_meant_starts_or_evicts() -> None:
    """Every status, class, confidence, and cause of the attempt before."""
    classes = ["unknown", "healthy", *catalog.failures()]
    confidences = ("possible", "likely", "confirmed")
    counted = 0
    for status, name, confidence, was in itertools.product(
        _STATUSES, classes, confidences, ("none", "same", "same guess", "on another host")
    ):
        attempt = replace(failed(name, "n1", confidence=confidence), status=status)
        same = failed(name, "n1")
        earlier = {
            "none": (),
            "same": (same,),
            "same guess": (replace(same, confidence="possible"),),
            "on another host": (replace(same, hosts=("n2",)),),
        }[was]
        decision = decided(attempt, *earlier)
        counted += 1
        kind = kinds().get(name)
        if decision.action in _STARTS:
            assert status == "failed"
        if decision.action is RecoveryAction.EVICT:
            is_at_once = kind == "broken" and confidence == "confirmed"
            assert decision.hosts == ("n1",) and confidence != "possible"
            assert is_at_once or (kind in ("broken", "host") and was == "same")
        else:
            assert decision.hosts == ()
        is_second = kind == "job" and was in ("same", "on another host")
        if status == "failed" and confidence != "possible" and (kind == "never" or is_second):
            assert decision.action is RecoveryAction.STOP
    assert counted > 10_000


def test_no_class_that_others_show_costs_a_host_its_place() -> None:
    """Who waits, who prints a line about others, and how a process ended: none says where."""
    failures = catalog.failures()
    assert set(kinds()) <= set(failures)
    for name, kind in kinds().items():
        entry = failures[name]
        if kind in ("broken", "host"):
            assert not (entry.felt_by_peers or entry.mechanism or entry.told_by_others), name
            assert not (entry.symptom or entry.late_notice or entry.spares_the_job), name
            assert not (entry.cluster_wide or entry.of_monitoring or entry.of_node), name


def test_a_policy_file(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("unknown: diagnose\nwait: 2\nmost_evicted: 3\n")
    policy = read_policy(str(path))
    assert (policy.unknown, policy.wait, policy.most_evicted) == ("diagnose", 2, 3)
    path.write_text("# nothing\n")
    assert read_policy(str(path)) == RecoveryPolicy()


@pytest.mark.parametrize(
    "text",
    [
        "mode: act",
        "most_evicted: -1",
        "most_evicted: 1.5",
        "most_evicted: true",
        "evict_after: 0",
        "wait: .nan",
        "wait: .inf",
        "evict_broken_at_once: 1",
        "unknown: [reattempt]",
        "mosts: 3",
        "- act",
        "wait: 1\nwait: 2",
        "wait: [",
    ],
)
def test_a_policy_that_is_not_understood_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match="--policy"):
        read_policy(str(path))
