"""Do steps advance: limits, bounds on the time of the last step, silence before an end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raydiag.joblog.artefacts import Artefact
from raydiag.joblog.facts import JobFacts, LogFile, WorkerLogs
from raydiag.triage.progress import project
from raydiag.triage.stall import StallJudgement, StepPace, ended_silence, pace
from raydiag.triage.verdict import Moment
from tests.triage.jobs import LOG, START, header, job, save, steps, summary

LAST = START + 1010.0  # of 101 steps of 10 s, the last one step 100


def at(facts: JobFacts, now: float | None, **more: object) -> StallJudgement:
    moment = Moment(now, **more)  # type: ignore[arg-type]
    return pace(facts, project(facts, now), moment)


def timed(number: int = 101, seconds: float = 10.0, **header_changes: object) -> JobFacts:
    seen = steps(range(number), seconds, start=START)
    return job(steps=seen, header=header(**header_changes))


def written(facts: JobFacts, mtime: float) -> JobFacts:
    return replace(facts, files=(LogFile(LOG, "main", 1, 1, 1, mtime, True),))


@pytest.mark.parametrize(
    ("age_s", "expected"),
    [
        (0, StepPace.ADVANCING),
        (300, StepPace.ADVANCING),
        (301, StepPace.STALLED),
        (-50, StepPace.ADVANCING),
    ],
)
def test_five_minutes_at_least(age_s: float, expected: StepPace) -> None:
    assert at(timed(), LAST + age_s).pace is expected


@pytest.mark.parametrize(
    ("age_s", "expected"), [(590, StepPace.ADVANCING), (610, StepPace.STALLED)]
)
def test_ten_step_times(age_s: float, expected: StepPace) -> None:
    facts = timed(11, 60.0)
    assert at(facts, START + 660 + age_s).pace is expected


@pytest.mark.parametrize(
    ("age_s", "expected"), [(1800, StepPace.ADVANCING), (1801, StepPace.STALLED)]
)
def test_a_save_that_is_next_may_take_half_an_hour(age_s: float, expected: StepPace) -> None:
    stall = at(timed(checkpoint_period=50), LAST + age_s)
    assert stall.pace is expected and stall.at_save


def test_three_times_the_longest_save() -> None:
    facts = replace(timed(checkpoint_period=50), saves=(save(50, seconds=900.0),))
    assert at(facts, LAST + 2700).pace is StepPace.ADVANCING
    assert at(facts, LAST + 2701).pace is StepPace.STALLED


def test_the_step_before_a_save_waits_for_it_too() -> None:
    assert at(timed(100, checkpoint_period=50), LAST + 1000).at_save
    assert not at(timed(99, checkpoint_period=50), LAST + 1000).at_save


def test_a_save_that_has_begun_and_not_finished() -> None:
    facts = replace(timed(), saves=(save(100, "started", line=500),))
    assert at(facts, LAST + 1000).at_save
    done = replace(facts, saves=(*facts.saves, save(100, line=501)))
    assert not at(done, LAST + 1000).at_save


def test_a_fresh_mtime_proves_nothing() -> None:
    assert at(written(timed(), LAST + 9999), LAST + 10000).pace is StepPace.STALLED


def test_an_old_mtime_shows_a_stall_where_steps_have_no_time() -> None:
    facts = job(steps=steps(range(101)))
    assert at(written(facts, LAST), LAST + 1000).pace is StepPace.STALLED
    assert at(written(facts, LAST), LAST + 100).pace is StepPace.UNKNOWN
    assert at(written(facts, LAST), LAST + 1000, log_end=True).pace is StepPace.UNKNOWN


def test_steps_of_a_worker_are_as_old_as_its_own_log() -> None:
    seen = steps(range(101))
    worker = LogFile("worker.out", "worker", 1, 1, 1, LAST + 900, True)
    workers = WorkerLogs((worker,), 1, steps=seen)
    facts = written(job(steps=None, worker_logs=workers), LAST)
    assert at(facts, LAST + 1000).pace is StepPace.UNKNOWN
    assert at(facts, LAST + 1900).pace is StepPace.STALLED


def test_without_any_time_nothing_is_known() -> None:
    assert at(job(steps=steps(range(101))), LAST).pace is StepPace.UNKNOWN
    assert at(timed(), None).pace is StepPace.UNKNOWN
    assert at(job(), LAST).pace is StepPace.UNKNOWN


def test_bounds_from_the_lines_around() -> None:
    bare = steps(range(101))
    between = replace(bare, last_near_time=LAST - 20, last_next_time=LAST)
    assert at(job(steps=between), LAST + 400).pace is StepPace.STALLED
    assert at(job(steps=between), LAST + 100).pace is StepPace.ADVANCING
    only_above = replace(bare, last_near_time=LAST)
    assert at(job(steps=only_above), LAST + 400).pace is StepPace.UNKNOWN


def test_a_frozen_log_with_new_checkpoints_is_buffered() -> None:
    facts = written(timed(), LAST)
    newer = Artefact("ckpt/300", LAST + 5000)
    assert at(facts, LAST + 5400, artefact=newer).pace is StepPace.BUFFERED
    # The log is still written to: then its steps would be, too.
    assert at(written(timed(), LAST + 4990), LAST + 5400, artefact=newer).pace is StepPace.STALLED
    # The newest checkpoint is old as well.
    assert at(facts, LAST + 9000, artefact=newer).pace is StepPace.STALLED


def test_slow_first_steps_are_no_stall() -> None:
    facts = timed(3, 400.0)
    assert at(facts, START + 1200 + 3600).pace is StepPace.ADVANCING
    assert at(facts, START + 1200 + 4100).pace is StepPace.STALLED


def ended(facts: JobFacts, end: float | None = None) -> StallJudgement | None:
    return ended_silence(facts, project(facts, None), end)


@pytest.mark.parametrize(("wall_s", "hangs"), [(2810.0, False), (2811.0, True)])
def test_half_an_hour_of_wall_time_without_explanation(wall_s: float, hangs: bool) -> None:
    # 101 steps of 10 s: 1010 s. So 2810 s leave exactly 1800 s.
    facts = job(steps=steps(range(101)), summary=summary("FAILED", 143, wall_s))
    assert (ended(facts) is not None) is hangs


def test_wall_time_at_a_save_needs_three_times_the_longest() -> None:
    facts = job(
        steps=steps(range(101)),
        summary=summary("FAILED", 143, 1010.0 + 2500.0),
        header=header(checkpoint_period=50),
        saves=(save(50, seconds=900.0),),
    )
    assert ended(facts) is None


def test_a_job_that_did_all_its_steps_did_not_hang() -> None:
    facts = job(
        steps=steps(range(101)), summary=summary("FAILED", 1, 9999.0), header=header(steps=101)
    )
    assert ended(facts) is None


def test_times_of_steps_up_to_the_end_beat_the_wall_time() -> None:
    facts = replace(timed(), summary=summary("FAILED", 143, 9999.0))
    assert ended(facts, LAST + 200) is None
    stall = ended(facts, LAST + 400)
    assert stall is not None and stall.since_s == 400


def test_without_steps_only_a_job_at_the_barrier_can_hang() -> None:
    facts = job(summary=summary("FAILED", 143, 9999.0))
    assert ended(facts) is None
    waits = replace(facts, barrier_writers=("0", "1", "2", "3"))
    assert ended(waits) is not None
