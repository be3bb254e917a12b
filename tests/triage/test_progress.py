"""The projection, each row with numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raydiag.joblog.facts import Restore, StageEvent, WorkerLogs
from raydiag.triage.progress import longest_save_s, project
from tests.triage.jobs import LOG, START, header, job, save, steps, summary


def test_steps_are_counted_from_zero() -> None:
    one = project(job(steps=steps(range(317)), header=header(steps=5000)), None)
    assert (one.first_step, one.last_step, one.steps_this_run, one.steps_done) == (0, 316, 317, 317)
    assert one.percent == pytest.approx(6.34)
    assert one.complete is False
    assert one.start == "fresh"


def test_the_last_step_of_t_is_t_minus_one() -> None:
    done = project(job(steps=steps(range(100)), header=header(steps=100)), None)
    assert done.complete and done.time_remaining_s == 0 and done.progress_lost_steps == 0
    assert not project(job(steps=steps(range(99)), header=header(steps=100)), None).complete


def test_steps_that_are_counted_from_one_end_at_t() -> None:
    numbers = range(1, 101)
    one = project(job(steps=steps(numbers, zero_based=False), header=header(steps=100)), None)
    assert one.complete and one.steps_done == 100 and one.start == "fresh"


def test_lines_for_every_tenth_step_still_mean_all_of_them() -> None:
    seen = steps(range(10, 101, 10), zero_based=False, total=500)
    one = project(job(steps=seen), None)
    assert (one.step_interval, one.steps_this_run, one.start) == (10, 100, "fresh")
    assert one.total_steps == 500
    assert one.percent == pytest.approx(20.0)


def test_a_first_step_above_zero_is_a_restart_from_the_one_before() -> None:
    one = project(job(steps=steps(range(401, 421)), header=header(steps=1000)), None)
    assert one.start == "restored from checkpoint step 400"
    assert one.steps_this_run == 20 and one.steps_done == 421


def test_a_restart_from_the_checkpoint_of_step_zero() -> None:
    assert project(job(steps=steps(range(1, 9))), None).start == "restored from checkpoint step 0"


def test_what_a_worker_says_about_the_restart_counts() -> None:
    said = WorkerLogs(restores=(Restore(390, 3),))
    one = project(job(steps=steps(range(401, 421)), worker_logs=said), None)
    assert one.start == "restored from checkpoint step 390"
    none = WorkerLogs(restores=(Restore(None, 3),))
    assert project(job(steps=steps(range(20)), worker_logs=none), None).start == "fresh"


def test_step_time_leaves_the_warm_up_out() -> None:
    # Steps 0 to 4 are warm-up; then 10, 12, 14: mean 12.
    seen = steps(range(8), [90.0, 30.0, 20.0, 15.0, 11.0, 10.0, 12.0, 14.0])
    assert project(job(steps=seen), None).step_time_s == 12.0


def test_warm_up_counts_from_the_first_step_of_the_run() -> None:
    seen = steps(range(200, 208), [90.0, 30.0, 20.0, 15.0, 11.0, 10.0, 12.0, 14.0])
    assert project(job(steps=seen), None).step_time_s == 12.0


@pytest.mark.parametrize("number", [1, 5])
def test_too_few_steps_have_no_step_time(number: int) -> None:
    one = project(job(steps=steps(range(number)), header=header(steps=100)), None)
    assert one.step_time_s is None
    assert one.time_remaining_s is None and one.progress_lost_s is None


def test_without_any_step_nothing_is_projected() -> None:
    one = project(job(header=header(steps=100)), START)
    assert one.last_step is None and one.percent is None and one.progress_lost_steps is None
    assert one.total_steps == 100


def test_step_time_by_the_clock_where_lines_print_no_seconds() -> None:
    # 7 steps of 20 s from START; steps 5 and 6 are past the warm-up, one interval apart.
    seen = steps(range(7), 20.0, start=START)
    bare = replace(seen.runs[0], seconds_sum=0.0, seconds_count=0, steady_sum=0.0, steady_count=0)
    assert project(job(steps=replace(seen, runs=(bare,))), None).step_time_s == 20.0


def test_expected_step_by_now() -> None:
    # Last step 316 at START + 3170; 16840 s later at 10 s a step: 1684 steps more, 2000.
    seen = steps(range(317), 10.0, start=START)
    facts = job(steps=seen, header=header(steps=5000))
    one = project(facts, START + 3170 + 16840)
    assert one.last_step_time == START + 3170
    assert one.expected_step == 2000


def test_expected_step_ends_at_the_last_one() -> None:
    seen = steps(range(317), 10.0, start=START)
    assert project(job(steps=seen, header=header(steps=400)), START + 1e7).expected_step == 399


def test_expected_step_needs_the_time_of_the_last_one() -> None:
    assert project(job(steps=steps(range(317))), START + 1e7).expected_step is None


def test_expected_step_when_the_clock_is_behind() -> None:
    seen = steps(range(317), 10.0, start=START)
    assert project(job(steps=seen), START).expected_step == 316


def test_progress_lost_since_the_last_multiple_of_the_period() -> None:
    facts = job(steps=steps(range(317)), header=header(checkpoint_period=100))
    one = project(facts, None)
    assert (one.last_checkpoint, one.progress_lost_steps, one.progress_lost_s) == (300, 16, 160.0)


def test_all_is_lost_before_the_first_period() -> None:
    # The checkpoint of step 0 is the starting state: it does not count.
    facts = job(steps=steps(range(80)), header=header(checkpoint_period=100))
    one = project(facts, None)
    assert (one.last_checkpoint, one.progress_lost_steps) == (None, 80)


def test_a_multiple_before_the_first_step_is_not_of_this_run() -> None:
    # Restored from 400; the next multiple of 200 would be 600.
    facts = job(steps=steps(range(401, 451)), header=header(checkpoint_period=200))
    one = project(facts, None)
    assert (one.last_checkpoint, one.progress_lost_steps) == (None, 50)


def test_the_default_period_holds_only_with_checkpointing_on() -> None:
    on = project(job(steps=steps(range(450)), header=header(enable_checkpointing=True)), None)
    assert (on.checkpoint_period, on.last_checkpoint, on.progress_lost_steps) == (200, 400, 49)
    for switch in (None, False):
        off = project(
            job(steps=steps(range(450)), header=header(enable_checkpointing=switch)), None
        )
        assert (off.checkpoint_period, off.last_checkpoint) == (None, None)
        assert off.progress_lost_steps == 450


def test_saves_that_the_log_tells_of_count_before_the_period() -> None:
    told = (save(100), save(200), save(300, "started"))
    facts = job(steps=steps(range(317)), header=header(checkpoint_period=100), saves=told)
    assert project(facts, None).last_checkpoint == 200


def test_a_save_that_failed_is_none() -> None:
    facts = job(
        steps=steps(range(317)), header=header(checkpoint_period=100), saves=(save(300, "failed"),)
    )
    one = project(facts, None)
    assert (one.last_checkpoint, one.progress_lost_steps) == (200, 116)


def test_time_remaining() -> None:
    # 1000 steps: 999 is the last, 316 done: 683 steps of 10 s.
    one = project(job(steps=steps(range(317)), header=header(steps=1000)), None)
    assert one.time_remaining_s == 6830.0


def test_wall_time_that_nothing_explains() -> None:
    # 100 steps of 10 s, one of 200 s: 1200 s. Preflight 60 s. Wall 5000 s: 3740 s are left.
    times = [200.0, *[10.0] * 100]
    stage = StageEvent("Preflight", "end", 5, 60.0, None, None, "", LOG)
    facts = job(
        steps=steps(range(101), times), summary=summary("FAILED", 143, 5000.0), stages=(stage,)
    )
    assert project(facts, None).unexplained_s == 3740.0


def test_wall_time_needs_the_time_of_the_steps() -> None:
    seen = steps(range(50))
    bare = replace(seen.runs[0], seconds_sum=0.0, seconds_count=0)
    facts = job(steps=replace(seen, runs=(bare,)), summary=summary("FAILED", 143, 5000.0))
    assert project(facts, None).unexplained_s is None


def test_wall_time_with_lines_for_every_tenth_step() -> None:
    # Ten lines, each of ten steps of 10 s: 1000 s of 1100 s.
    seen = steps(range(10, 101, 10), 10.0, zero_based=False)
    facts = job(steps=seen, summary=summary("FAILED", 1, 1100.0))
    assert project(facts, None).unexplained_s == 100.0


def test_the_log_that_got_further_counts() -> None:
    workers = WorkerLogs(steps=replace(steps(range(100)), file="w.out", last_time=START))
    facts = job(steps=steps(range(34)), worker_logs=workers, header=header(steps=100))
    one = project(facts, None)
    assert (one.last_step, one.complete, one.source, one.last_step_time) == (
        *(99, True),
        *("w.out", START),
    )
    ahead = job(steps=steps(range(100)), worker_logs=replace(workers, steps=steps(range(34))))
    assert project(ahead, None).source == ""


def test_a_bar_that_may_count_anything_is_no_training() -> None:
    assert project(job(steps=replace(steps(range(50)), regular=False)), None).last_step is None


def test_the_longest_save_is_the_longest_step_at_a_multiple() -> None:
    times = [10.0] * 250
    times[101] = 250.0
    facts = job(steps=steps(range(250), times))
    assert longest_save_s(facts, facts.steps, 100) == 250.0
    assert longest_save_s(facts, facts.steps, None) == 0.0
    assert longest_save_s(job(saves=(save(1, seconds=44.0),)), None, None) == 44.0
