"""Jobs as they lie on a disk: worker logs, attempts, several jobs at once, and what is missing."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from raydiag.cli import main
from tests import schemas
from tests.triage.logs import START, cancelled, header, steps, summary, traceback

Invoke = Callable[..., tuple[int, str, str]]


@pytest.fixture
def outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty `outputs` directory below the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    directory = tmp_path / "outputs"
    directory.mkdir()
    return directory


@pytest.fixture
def invoke(capsys: pytest.CaptureFixture[str]) -> Invoke:
    def run(*arguments: str) -> tuple[int, str, str]:
        try:
            code = main(["triage", *arguments])
        except SystemExit as ended:
            code = int(ended.code or 0)
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def told(invoke: Invoke) -> Callable[..., dict[str, Any]]:
    def run(*arguments: str) -> dict[str, Any]:
        _, out, _ = invoke("--format", "json", *arguments)
        document: dict[str, Any] = json.loads(out)
        schemas.fits(document, "triage")
        return document

    return run


def write(path: Path, lines: Sequence[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def job(outputs: Path, lines: Sequence[str], name: str = "41-demo") -> Path:
    """A log with its job directory."""
    write(outputs / f"{name}.log", lines)
    (outputs / name).mkdir()
    (outputs / name / "log").symlink_to(f"../{name}.log")
    return outputs / name


def worker(directory: Path, lines: Sequence[str], host: str = "n1") -> None:
    own = [line.partition(": ")[2] for line in lines]
    write(directory / "ray_logs" / host / f"worker-{'0' * 56}-01000000-41.out", own)


def test_a_truncated_driver_log_is_completed_by_its_workers(
    outputs: Path, told: Callable[..., dict[str, Any]]
) -> None:
    directory = job(outputs, header(100, ray=True) + steps(0, 33))
    assert told("41", "--job-state", "ended")["primary"] == "unknown-death"
    worker(directory, steps(0, 99))
    document = told("41", "--job-state", "ended")
    assert (document["status"], document["primary"]) == ("completed", None)
    assert document["progress"]["last_step"] == 99
    assert "worker" in document["progress"]["source"]
    assert any("33" in note and "99" in note for note in document["notes"])


def test_an_empty_directory_died_in_the_prolog(
    outputs: Path, told: Callable[..., dict[str, Any]]
) -> None:
    (outputs / "43-demo").mkdir()
    document = told("43")
    assert (document["status"], document["primary"]) == ("failed", "prolog-kill-no-log")


def test_several_jobs_make_one_document(
    outputs: Path, told: Callable[..., dict[str, Any]], invoke: Invoke
) -> None:
    job(outputs, header(50) + steps(0, 49) + summary("SUCCESS", 0))
    job(outputs, header() + traceback("ValueError: no") + summary("FAILED", 1), "42-demo")
    document = told("41", "42")
    assert [one["status"] for one in document["jobs"]] == ["completed", "failed"]
    assert {one["class"] for one in document["findings"]} == {"python-exception"}
    assert "jobs" not in told("41")
    assert invoke("41")[0] == 0 and invoke("41", "42")[0] == 1
    code, out, err = invoke("41", "99")
    assert code == 3 and "99" in err and "completed" in out


def test_a_job_that_is_named_twice_is_judged_once(
    outputs: Path, told: Callable[..., dict[str, Any]], invoke: Invoke
) -> None:
    directory = job(outputs, header(50, ray=True) + steps(0, 49) + summary("SUCCESS", 0))
    alone = told("41")
    around = told(*(f"outputs/{name}" for name in sorted(os.listdir(outputs))))
    assert (around["log"], around["job_dir"]) == (alone["log"], alone["job_dir"])
    assert "series" not in invoke("outputs")[1]
    (directory / "prometheus").mkdir()
    assert "its series are in outputs/41-demo/prometheus" in " ".join(invoke("outputs")[1].split())


def test_all_jobs_of_a_directory_as_a_table(outputs: Path, invoke: Invoke) -> None:
    job(outputs, header(50) + steps(0, 49) + summary("SUCCESS", 0))
    job(outputs, header() + steps(0, 9) + ["0: NCCL error: unhandled system error"], "42-big")
    (outputs / "shared-checkpoints" / "400").mkdir(parents=True)
    code, out, _ = invoke("--outputs", str(outputs))
    lines = out.splitlines()
    assert lines[0].split() == ["JOB", "STATUS", "PRIMARY", "STEP", "WHERE", "NAME"]
    assert lines[1].split() == ["41", "completed", "-", "49", "-", "demo"]
    assert lines[2].split() == ["42", "failed", "nccl-error", "9", "n1", "big"]
    assert "shared-checkpoints" not in out
    assert lines[-1] == "2 jobs: 1 completed, 1 failed."
    assert code == 1


def test_a_directory_of_several_jobs_or_logs_is_a_table(
    outputs: Path, told: Callable[..., dict[str, Any]], invoke: Invoke
) -> None:
    job(outputs, header(50) + steps(0, 49) + summary("SUCCESS", 0))
    job(outputs, header() + steps(0, 9) + ["0: NCCL error: unhandled system error"], "42-big")
    assert invoke("outputs")[1].splitlines()[-1] == "2 jobs: 1 completed, 1 failed."
    assert [each["status"] for each in told("outputs")["jobs"]] == ["completed", "failed"]
    logs = outputs.parent / "logs"
    logs.mkdir()
    for log in outputs.glob("*.log"):
        (logs / f"{log.name[:2]}.txt").write_bytes(log.read_bytes())
    assert invoke("logs")[1].splitlines()[-1] == "2 jobs: 1 completed, 1 failed."


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 2, "name a job directory"),
        (["--now", "yesterday", "x.log"], 2, "'yesterday' is not a time"),
        (["--now", "nan", "x.log"], 2, "'nan' is not a time"),
        (["--job-state", "dead", "x.log"], 2, "invalid choice"),
        (["77"], 4, "77"),
        (["--outputs", "nowhere"], 4, "nowhere"),
        (["--outputs", "outputs"], 4, "no job"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    arguments: list[str], code: int, words: str, outputs: Path, invoke: Invoke
) -> None:
    got, out, err = invoke(*arguments)
    assert (got, out) == (code, "")
    assert err.count("\n") == 1 and words in err


def test_now_may_be_a_date(outputs: Path, told: Callable[..., dict[str, Any]]) -> None:
    job(outputs, header() + steps(0, 60, clock=START))
    assert told("41", "--now", "2026-03-01T12:10:30Z")["status"] == "running"
    assert told("41", "--now", "2026-03-01T14:10:30")["status"] == "hanging"
    assert told("41", "--now", "2026-03-01T14:10:30+02:00")["status"] == "running"


def test_a_fresh_mtime_does_not_hide_a_hang(
    outputs: Path, told: Callable[..., dict[str, Any]]
) -> None:
    job(outputs, header() + steps(0, 60, clock=START) + ["0: still writing about something"])
    document = told("41", "--now", str(START + 9000), "--job-state", "running")
    assert (document["status"], document["primary"]) == ("hanging", "hang")
    progress = document["progress"]
    # Steps 0 to 60 of 10 s end at 610 s; 8390 s later 839 more could be done, but the last is 499.
    assert (progress["stalled_s"], progress["expected_step"]) == (8390, 499)


@pytest.mark.parametrize(
    ("age_s", "status"), [(20, "running"), (900, "running"), (5000, "hanging")]
)
def test_a_time_above_a_step_does_not_prove_that_nothing_came_since(
    age_s: int, status: str, outputs: Path, told: Callable[..., dict[str, Any]]
) -> None:
    save = "[2026-03-01 12:16:40,100] [INFO] [Torch] Checkpoint global_step100 is about to be saved"
    slow = steps(100, 100, seconds=1510.0)
    job(outputs, [*header(), "[2026-03-01 12:00:00] start", *steps(0, 99), save, *slow])
    os.utime(outputs / "41-demo.log", (START + 2505, START + 2505))
    document = told("41", "--now", str(START + 2505 + age_s), "--job-state", "running")
    assert (document["status"], document["progress"]["last_step_time"]) == (status, None)


def test_the_first_steps_of_a_bar_say_how_long_silence_is_normal(
    outputs: Path, told: Callable[..., dict[str, Any]]
) -> None:
    line = "Training Progress: {0}%|#| {0}/100 [{1}:{2:02d}:00<62:00:00, 2400.00s/it, loss=2.3]"
    job(outputs, [line.format(step, *divmod(40 * step, 60)) for step in range(1, 9)])
    os.utime(outputs / "41-demo.log", (START, START))
    for age_s, status in ((2100, "running"), (24_300, "hanging")):
        document = told("41", "--now", str(START + age_s), "--job-state", "running")
        assert document["status"] == status


def test_new_checkpoints_beside_a_frozen_log(
    outputs: Path, told: Callable[..., dict[str, Any]]
) -> None:
    directory = job(outputs, header() + steps(0, 60, clock=START))
    os.utime(outputs / "41-demo.log", (START + 610, START + 610))
    now = ("--now", str(START + 9000), "--job-state", "running")
    assert told("41", *now)["status"] == "hanging"
    checkpoint = directory / "checkpoints" / "300"
    checkpoint.mkdir(parents=True)
    for one in (checkpoint, checkpoint.parent):
        os.utime(one, (START + 8900, START + 8900))
    document = told("41", *now)
    assert document["status"] == "running" and "block-buffered" in document["rule"]


def test_of_a_log_that_nobody_has_touched_for_a_day_nothing_is_claimed(
    outputs: Path, told: Callable[..., dict[str, Any]]
) -> None:
    job(outputs, header() + steps(0, 60, clock=START))
    os.utime(outputs / "41-demo.log", (START + 610, START + 610))
    assert told("41", "--now", str(START + 610 + 86_000))["status"] == "hanging"
    document = told("41", "--now", str(START + 610 + 87_000))
    assert (document["status"], document["primary"]) == ("unknown", None)
    assert told("41", "--job-state", "running")["status"] == "hanging"


def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **programs: str) -> None:
    """Programs that print a text, in front of all others on the PATH."""
    place = tmp_path / "bin"
    place.mkdir(exist_ok=True)
    for name, text in programs.items():
        (place / name).write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\n")
        (place / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{place}:/usr/bin:/bin")


@pytest.mark.parametrize(
    ("state", "status", "primary"),
    [
        ("RUNNING", "hanging", "hang"),
        ("NODE_FAIL", "failed", "node-fail"),
        ("OUT_OF_MEMORY", "failed", "oom-host"),
        ("PREEMPTED", "unknown", "unknown-death"),
        ("COMPLETED", "completed", None),
        ("CANCELLED", "cancelled", "cancelled"),
        ("TIMEOUT", "failed", "train-timeout"),
        ("PENDING", "unknown", None),
    ],
)
def test_slurm_says_whether_a_silent_job_lives(
    state: str,
    status: str,
    primary: str | None,
    outputs: Path,
    told: Callable[..., dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job(outputs, header() + steps(0, 60, clock=START))
    control = f"JobId=41 JobName=demo\n   JobState={state} Reason=None Dependency=(null)"
    slurm(outputs.parent, monkeypatch, scontrol=control)
    document = told("41")
    assert (document["status"], document["primary"]) == (status, primary)
    # What the user says counts, and Slurm is not asked.
    assert told("41", "--job-state", "ended")["primary"] == "unknown-death"


def test_a_job_of_another_name_is_another_job(
    outputs: Path, told: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(outputs / "demo-4711.out", header() + steps(0, 60, clock=START))
    for name, status in (("demo", "completed"), ("other", "hanging")):
        control = f"JobId=4711 JobName={name}\n   JobState=COMPLETED Reason=None"
        slurm(outputs.parent, monkeypatch, scontrol=control)
        assert told("4711")["status"] == status


def test_an_exporter_that_is_ended_does_not_end_the_job(
    outputs: Path, told: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    exporter = ["srun: forcing job termination", "srun: error: n1: task 0: Killed"]
    job(outputs, header() + steps(0, 60, clock=START) + exporter)
    control = "JobId=41 JobName=demo\n   JobState=COMPLETED Reason=None"
    slurm(outputs.parent, monkeypatch, scontrol=control)
    assert told("41")["status"] == "completed"


def test_a_requeued_job_that_is_held(
    outputs: Path, told: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    job(outputs, header() + steps(0, 60, clock=START))
    slurm(outputs.parent, monkeypatch, squeue="PENDING|job requeued in held state")
    document = told("41")
    assert (document["status"], document["primary"]) == ("unknown", None)
    assert document["attempts"]["held"] is True


def test_attempts_of_a_requeued_job(outputs: Path, told: Callable[..., dict[str, Any]]) -> None:
    # First: 200 steps of 10 s, saved at 100, then a crash. Second: from 101 to 250, cancelled.
    crash = ["Rank0: (1) segmentation fault: artificial segfault"]
    saved = ["2026-03-01 12:17:00,000 INFO Saved checkpoint to /ckpt/100"]
    first = header() + steps(0, 100, clock=START) + saved + steps(101, 199, clock=START + 1010)
    write(outputs / "demo_77_date_26-03-01_time_12-00-00.log", first + crash)
    second = header() + steps(101, 150, clock=START + 4000) + cancelled()
    write(outputs / "demo_77_date_26-03-01_time_13-06-00.log", second)
    document = told("77")
    runs = document["attempts"]["attempts"]
    assert [one["index"] for one in runs] == [0, 1]
    assert [(one["status"], one["primary"]) for one in runs] == [
        ("failed", "signal-kill"),
        ("cancelled", "cancelled"),
    ]
    assert [one["reached_save"] for one in runs] == [True, False]
    # From the first step's line at 12:00:10 to the save at 12:17:00: 1010 s.
    assert runs[0]["productive_s"] == 1010 and runs[1]["productive_s"] == 0
    assert 0 < document["attempts"]["efficiency"] < 1
    assert document["attempts"]["downtime_s"] > 0


def test_start_up_that_takes_too_long(outputs: Path, told: Callable[..., dict[str, Any]]) -> None:
    lines = [
        "[2026-03-01 12:00:00] dataset.py:9 INFO Added 5000 samples to controller",
        "[2026-03-01 12:00:05] pg.py:9 INFO bundle    0, actual_bundle_index:    0, node: 10.0.0.1",
        "[2026-03-01 12:00:09] m.py:9 INFO Auto-resolved mooncake master_server_address 10.0.0.1:9",
        "[2026-03-01 12:01:00] e.py:9 INFO Multi-thread loading shards: 40%",
    ]
    job(outputs, lines)
    soon = told("41", "--now", "2026-03-01T12:06:00Z", "--job-state", "running")
    assert soon["status"] == "running"
    assert (soon["phase"]["number"], soon["phase"]["seconds"]) == (5, 300)
    assert soon["phase"]["late"] is False
    late = told("41", "--now", "2026-03-01T12:30:00Z", "--job-state", "running")
    assert (late["status"], late["primary"], late["phase"]["late"]) == ("hanging", "hang", True)
    full = [*lines, "[2026-03-01 12:09:00] e.py:9 INFO Multi-thread loading shards: 100%"]
    write(outputs / "41-demo.log", full)
    silent = told("41", "--now", "2026-03-01T12:18:00Z", "--job-state", "running")
    assert (silent["phase"]["late"], silent["status"]) == (False, "running")
    stuck = told("41", "--now", "2026-03-01T12:20:00Z", "--job-state", "running")
    assert stuck["phase"]["late"] and "CUDA graph" in stuck["phase"]["advice"]


def test_what_could_not_be_read_is_said(outputs: Path, invoke: Invoke) -> None:
    directory = job(outputs, header(50) + steps(0, 49) + summary("SUCCESS", 0))
    (directory / "ray_logs" / "n1").mkdir(parents=True)
    os.mkfifo(directory / "ray_logs" / "n1" / "worker-1.out")
    code, out, _ = invoke("41")
    assert code in (0, 3) and "completed" in out


def test_escapes_are_shown_and_not_obeyed(outputs: Path, invoke: Invoke) -> None:
    line = "0: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9 \x1b]0;title\x07 bytes"
    job(outputs, header() + steps(0, 9) + [line] + summary("FAILED", 1))
    for form in ("text", "markdown", "json"):
        _, out, _ = invoke("41", "--format", form)
        assert "\x1b" not in out and "\x07" not in out


def test_state_remembers_how_far_it_read(outputs: Path, invoke: Invoke, tmp_path: Path) -> None:
    job(outputs, header() + steps(0, 50, clock=START))
    state = str(tmp_path / "state")
    run = ("41", "--state", state, "--now", "log-end", "--format", "json")
    assert json.loads(invoke(*run)[1])["progress"]["last_step"] == 50
    with open(outputs / "41-demo.log", "a", encoding="utf-8") as log:
        log.writelines(f"{line}\n" for line in steps(51, 60, clock=START + 510))
    document = json.loads(invoke(*run)[1])
    assert document["progress"]["last_step"] == 60
    assert document["progress"]["first_step"] == 0
