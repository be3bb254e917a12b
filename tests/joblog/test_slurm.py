"""What Slurm's programs print, and what becomes of it."""

from __future__ import annotations

import stat
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from raydiag.joblog import slurm
from raydiag.joblog.slurm import SlurmJob, ask

CONTROL = """\
JobId=41 JobName=demo
   UserId=me(1001) GroupId=me(1001) MCS_label=N/A
   JobState=RUNNING Reason=None Dependency=(null)
   Requeue=1 Restarts=2 BatchFlag=1 Reboot=0 ExitCode=0:0
   RunTime=1-02:03:04 TimeLimit=2-00:00:00 TimeMin=N/A
"""


def answering(**answers: str) -> tuple[list[str], slurm.Run]:
    """Programs by name, and the order in which they were asked."""
    asked: list[str] = []

    def run(command: Sequence[str]) -> str:
        asked.append(command[0])
        return answers.get(command[0], "")

    return asked, run


def test_scontrol_knows_most_and_is_asked_first() -> None:
    asked, run = answering(scontrol=CONTROL)
    job = ask("41", run)
    assert job == SlurmJob("RUNNING", "", 0, None, 93784.0, 2, "scontrol")
    assert asked == ["scontrol"] and job.alive is True


def test_squeue_tells_of_a_held_requeue() -> None:
    _, run = answering(squeue="PENDING|job requeued in held state\n")
    job = ask("41", run)
    assert job is not None
    assert (job.state, job.alive, job.waiting, job.held) == ("PENDING", None, True, True)


def test_a_job_that_waits_for_nodes_is_not_held() -> None:
    _, run = answering(squeue="PENDING|Resources")
    job = ask("41", run)
    assert job is not None and job.waiting and not job.held


def test_sacct_tells_of_the_newest_run() -> None:
    text = "NODE_FAIL|0:0|60|None\nCANCELLED by 1001|0:15|3600|None\n"
    asked, run = answering(sacct=text)
    job = ask("41", run)
    assert job == SlurmJob("CANCELLED", "", 0, 15, 3600.0, 1, "sacct")
    assert asked == ["scontrol", "squeue", "sacct"] and job.alive is False


def test_a_reason_with_blanks_and_a_prolog() -> None:
    text = CONTROL.replace("RUNNING", "FAILED").replace(
        "Reason=None", "Reason=RaisedSignal:53(Real-time_signal_19)"
    )
    _, run = answering(scontrol=text)
    job = ask("41", run)
    assert job is not None and job.reason == "RaisedSignal:53(Real-time_signal_19)"


@pytest.mark.parametrize("job_id", [None, "", "k8s-20260310-080957-475e", "local_1", "41; rm x"])
def test_other_ids_are_not_asked_about(job_id: str | None) -> None:
    asked, run = answering(scontrol=CONTROL)
    assert ask(job_id, run) is None and asked == []


@pytest.mark.parametrize("text", ["", "slurm_load_jobs error: Invalid job id", "\x00\xff|", "|||"])
def test_nonsense_is_no_answer(text: str) -> None:
    _, run = answering(scontrol=text, squeue=text, sacct=text)
    assert ask("41", run) is None


def program(place: Path, name: str, script: str) -> None:
    (place / name).write_text(f"#!/bin/sh\n{script}\n")
    (place / name).chmod(stat.S_IRWXU)


def test_a_controller_that_does_not_answer_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path, "scontrol", "exec sleep 60")
    program(tmp_path, "squeue", "echo 'RUNNING|None'")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(slurm, "_TIMEOUT_S", 0.3)
    start = time.monotonic()
    assert ask("41") == SlurmJob("RUNNING", source="squeue")
    assert time.monotonic() - start < 5


def test_without_slurm_nobody_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert ask("41") is None


def test_programs_get_no_input_and_fail_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path, "scontrol", "cat; echo 'JobState=FAILED'; exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert ask("41") is None
