"""What a watcher makes of looks: alarms once, with the job's own pauses as measure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from raydiag.triage.verdict import JobStatus
from raydiag.watch.following import (
    ON_NODES,
    JobLook,
    Memory,
    Patience,
    SeenProblem,
    WatchEvent,
    considered,
)

T0 = 1_780_000_000.0
PATIENCE = Patience()
XID = SeenProblem("nvidia-xid", "n3 gpu 2", "GPU fault", ON_NODES)
NAN = SeenProblem("loss-divergence", "", "Training divergence")


def at(seconds: float, step: int | None = None, **changes: Any) -> JobLook:
    fields: dict[str, Any] = {"status": JobStatus.RUNNING, "last_step": step, "step_time_s": 10.0}
    return JobLook(T0 + seconds, **{**fields, **changes})


def followed(looks: Sequence[JobLook]) -> tuple[Memory, list[list[str]]]:
    """The memory after all of them, and the kinds of events of each."""
    memory, kinds = Memory("41", T0), []
    for look in looks:
        memory, events = considered(memory, look, PATIENCE)
        kinds.append([event.kind for event in events])
    return memory, kinds


def events_of(looks: Sequence[JobLook]) -> list[WatchEvent]:
    memory, told = Memory("41", T0), []
    for look in looks:
        memory, events = considered(memory, look, PATIENCE)
        told += events
    return told


def test_a_job_that_makes_steps_raises_no_alarm() -> None:
    memory, kinds = followed([at(90 * n, 9 * n) for n in range(1, 40)])
    assert kinds == [[]] * 39
    assert (memory.last_step, memory.looks, memory.alarms) == (351, 39, {})


def test_silence_is_one_alarm_that_asks_why_and_ends_with_the_next_step() -> None:
    looks = [at(90, 9), at(180, 18), at(270, 18), at(360, 18), at(450, 18), at(540, 19)]
    memory, kinds = followed(looks)
    assert kinds == [[], [], [], ["late"], [], ["resumed"]]
    assert memory.alarms == {}
    late = next(event for event in events_of(looks) if event.kind == "late")
    assert late.is_alarm and late.asks_why
    assert late.text == "no step for 3 min after step 18 (usual: 10 s a step)"


def test_three_steps_of_a_slow_job_are_longer_than_the_floor() -> None:
    slow = {"step_time_s": 200.0}
    _, kinds = followed(
        [at(0, 1, **slow), at(500, 1, **slow), at(590, 1, **slow), at(620, 1, **slow)]
    )
    assert kinds == [[], [], [], ["late"]]


def test_a_pause_that_the_job_has_made_before_is_no_alarm() -> None:
    saves = [at(90, 9), at(390, 10), at(480, 19), at(800, 19), at(900, 19), at(941, 19)]
    _, kinds = followed(saves)
    # A save of 300 s was late the first time; it is not measured then, since it was an alarm.
    assert kinds[1] == []  # looked at when it was over: a pause of 300 s
    assert kinds[3:] == [[], [], ["late"]]  # 450 s are half as much again


def test_what_triage_calls_hanging_is_late_at_once() -> None:
    _, kinds = followed([at(90, 9), at(100, 9, status=JobStatus.HANGING)])
    assert kinds == [[], ["late"]]


def test_the_log_dates_the_newest_step() -> None:
    _, kinds = followed([at(90, 9), at(280, 18, last_step_time=T0 + 100), at(290, 18)])
    assert kinds == [[], ["late"], []]


def test_a_start_that_takes_too_long() -> None:
    _, kinds = followed([at(900), at(1790), at(1900), at(2000), at(2100, 1)])
    assert kinds == [[], [], ["no-first-step"], [], ["resumed"]]


def test_training_that_went_back() -> None:
    _, kinds = followed([at(90, 200), at(180, 100), at(270, 109)])
    assert kinds == [[], ["went-back"], []]


def test_problems_come_once_and_go_when_all_nodes_were_asked() -> None:
    seen = {"problems": [XID]}
    looks = [
        at(90, 9, **seen, nodes=(4, 4)),
        at(180, 18, **seen, nodes=(4, 4)),
        at(270, 27),  # nodes were not asked
        at(360, 36, nodes=(3, 4)),  # one did not answer
        at(450, 45, nodes=(4, 4)),
    ]
    _, kinds = followed(looks)
    assert kinds == [["problem"], [], [], [], ["gone"]]
    assert events_of(looks)[0].text == "nvidia-xid n3 gpu 2: GPU fault"


def test_what_the_log_tells_goes_with_the_log() -> None:
    memory, kinds = followed([at(90, 9, problems=[NAN]), at(180, 18, problems=[NAN]), at(270, 27)])
    assert kinds == [["problem"], [], ["gone"]]
    assert memory.open_alarms == {}


def test_faults_of_nodes_are_told_when_the_log_cannot_be_read() -> None:
    lost = at(180, problems=[XID], nodes=(4, 4), failed="no route to host")
    _, kinds = followed([at(90, 9), lost])
    assert kinds == [[], ["problem"]]


def test_nodes_that_could_not_be_asked_are_told_once() -> None:
    blind = {"blind": "no Ray dashboard"}
    memory, kinds = followed([at(90, 9, **blind), at(180, 18, **blind), at(270, 27, nodes=(4, 4))])
    assert kinds == [["nodes-not-seen"], [], []]
    assert memory.open_alarms == {}


def test_time_in_which_nobody_looked_is_no_pause() -> None:
    memory, kinds = followed([at(90, 9), at(18_000, 1800), at(18_090, 1809), at(18_300, 1809)])
    assert memory.longest_pause_s < 1
    assert kinds == [[], [], [], ["late"]]


def test_steps_that_take_longer() -> None:
    _, kinds = followed(
        [at(90, 9), at(180, 15, is_slower=True), at(270, 21, is_slower=True), at(360, 30)]
    )
    assert kinds == [[], ["slower"], [], ["gone"]]


def test_looks_that_fail_are_no_dead_job() -> None:
    lost = [at(90 * n, failed="no route to host") for n in range(2, 7)]
    memory, kinds = followed([at(90, 9), *lost, at(630, 63)])
    assert kinds == [[], [], [], ["unreachable"], [], [], ["reachable"]]
    assert memory.lost_looks == 0


def test_the_end_of_the_job() -> None:
    (done,) = events_of([at(90, 9, status=JobStatus.COMPLETED)])
    assert (done.text, done.is_alarm, done.asks_why) == ("the job completed", False, False)
    (failed,) = events_of([at(90, 9, status=JobStatus.FAILED, primary="oom-host")])
    assert (failed.text, failed.is_alarm, failed.asks_why) == (
        "the job failed: oom-host",
        True,
        True,
    )
    memory, _ = followed([at(90, 9, status=JobStatus.CANCELLED)])
    assert memory.ended == "cancelled"
