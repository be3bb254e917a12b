"""`raydiag kpi`: figures that can be worked out by hand, from logs and from event files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Optional

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from raydiag.cli import main
from raydiag.joblog.job_events import KINDS, JobEvent, JobEvents
from raydiag.watch.event_time import by_events
from tests import schemas
from tests.triage.logs import START, cancelled, header, steps, summary, traceback

Ask = Callable[..., dict[str, Any]]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "outputs").mkdir()
    return tmp_path


@pytest.fixture
def ask(place: Path, capsys: pytest.CaptureFixture[str]) -> Ask:
    """The document of a call; its exit code under `exit_code`."""

    def run(*arguments: str) -> dict[str, Any]:
        code = main(["kpi", "--json", *arguments])
        document: dict[str, Any] = json.loads(capsys.readouterr().out)
        schemas.fits(document, "kpi")
        for job in document["jobs"]:
            assert_parts_add_up(job)
        return {**document, "exit_code": code}

    return run


def assert_parts_add_up(job: Mapping[str, Any]) -> None:
    if job["seconds"] is not None:
        assert sum(job["seconds"].values()) == pytest.approx(job["wall_s"])
        walls = [attempt["wall_s"] for attempt in job["attempts"]]
        assert sum(walls) == pytest.approx(job["wall_s"])


def parts(spent: Mapping[str, float]) -> dict[str, float]:
    """Those that are not zero, in whole seconds."""
    return {name: round(seconds) for name, seconds in spent.items() if round(seconds)}


def log(place: Path, name: str, lines: Sequence[str]) -> None:
    (place / "outputs" / name).write_text("".join(f"{line}\n" for line in lines))


def stamp(seconds: float) -> str:
    moment = datetime.fromtimestamp(START + seconds, timezone.utc)
    return f"{moment:%Y-%m-%d %H:%M:%S},000 INFO"


def two_attempts(place: Path) -> None:
    """The first crashes 990 s after what is kept of it, the second is cancelled before a save."""
    saved = [f"{stamp(1015)} Saved checkpoint to /ckpt/100"]
    first = header() + steps(0, 100, clock=START) + saved + steps(101, 199, clock=START + 1010)
    crash = ["Rank0: (1) segmentation fault: artificial segfault"]
    log(place, "demo_77_date_26-03-01_time_12-00-00.log", first + crash)
    second = header() + steps(101, 150, clock=START + 4000) + cancelled()
    log(place, "demo_77_date_26-03-01_time_13-06-00.log", second)


def test_two_attempts_of_a_requeued_job(place: Path, ask: Ask) -> None:
    two_attempts(place)
    [job] = ask("77")["jobs"]
    first, second = job["attempts"]
    assert (first["kept_step"], first["reached_save"]) == (100, True)
    assert parts(first["seconds"]) == {"productive": 1010, "lost": 990}
    assert (second["kept_step"], second["reached_save"]) == (None, False)
    # Its summary says 20 min: 500 s of steps, then nothing.
    assert parts(second["seconds"]) == {"lost": 500, "stall": 700, "down": 2000}
    assert job["efficiency"] == pytest.approx(1010 / 5200)
    assert (job["restarts"], job["step_time_s"], job["step_time_source"]) == (1, 10, "log")


def test_what_slurm_says_of_the_attempts(
    place: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_attempts(place)
    first = f"{START - 600:.0f}|{START - 60:.0f}|{START + 2100:.0f}"
    second = f"{START + 2100:.0f}|{START + 3900:.0f}|{START + 4600:.0f}"
    commands = place / "bin"
    commands.mkdir()
    sacct = commands / "sacct"
    sacct.write_text(
        "#!/bin/sh\n"
        'test "$SLURM_TIME_FORMAT" = %s || exit 0\n'
        f'printf "%s\\n" "{first}" "{second}"\n'
    )
    sacct.chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}{os.pathsep}{os.environ['PATH']}")
    [job] = ask("77")["jobs"]
    earlier, later = job["attempts"]
    assert parts(earlier["seconds"]) == {
        "productive": 1010, "lost": 990, "startup": 60, "other": 100,
    }  # fmt: skip
    # Requeued the moment it ended, it waited 1800 s in the queue.
    assert (later["seconds"]["queue"], later["seconds"]["down"]) == (1800, 0)
    assert job["downtime_s"] == 1800


def test_a_job_that_completed_has_kept_all(place: Path, ask: Ask) -> None:
    before = [
        f"{stamp(0)} begin",
        "== Docker pull BEGIN (timeout=900s) ==",
        "== Docker pull END (100s) ==",
        "0: Finished restoring checkpoint in 30.5 seconds from /ckpt/0/items.",
        "1: Finished restoring checkpoint in 31.00 seconds from /ckpt/0/items.",
    ]
    slow = steps(50, 59, seconds=15, clock=START + 700)
    trained = steps(0, 49, clock=START + 200) + slow + steps(60, 99, clock=START + 850)
    log(place, "41-demo.log", header(100, None) + before + trained + summary("SUCCESS", 0))
    [job] = ask("41")["jobs"]
    # The summary's 20 min end where nothing happens any more: 1250 s by the log.
    assert parts(job["seconds"]) == {
        "productive": 1000, "slow": 50, "image": 100, "restore": 31, "startup": 69,
    }  # fmt: skip
    assert job["efficiency"] == pytest.approx(0.8)


def test_a_hang_is_a_stall_and_what_was_not_saved_is_lost(place: Path, ask: Ask) -> None:
    saved = [f"{stamp(505)} Saved checkpoint to /ckpt/50"]
    lines = header() + steps(0, 50, clock=START) + saved + steps(51, 60, clock=START + 510)
    log(place, "41-demo.log", [*lines, f"{stamp(4000)} waiting", *cancelled("1h 10m 0s")])
    [job] = ask("41")["jobs"]
    assert parts(job["seconds"]) == {"productive": 510, "lost": 100, "stall": 3590}


def test_a_training_that_starts_again_in_the_same_log(place: Path, ask: Ask) -> None:
    again = steps(20, 99, clock=START + 1000)
    lines = (
        header(100, None) + steps(0, 39, clock=START) + again + summary("SUCCESS", 0, wall="30m")
    )
    log(place, "41-demo.log", lines)
    [job] = ask("41")["jobs"]
    assert [attempt["kept_step"] for attempt in job["attempts"]] == [19, 99]
    assert parts(job["attempts"][0]["seconds"]) == {"productive": 200, "lost": 200}
    assert parts(job["attempts"][1]["seconds"])["productive"] == 800
    assert parts(job["attempts"][1]["seconds"])["startup"] == 600


def test_a_log_without_steps_or_times(place: Path, ask: Ask) -> None:
    log(place, "41-demo.log", ["JOB_ID=41", "nothing"])
    document = ask("41", "--job-state", "ended")
    [job] = document["jobs"]
    assert (document["exit_code"], job["efficiency"], job["seconds"]) == (3, None, None)
    assert "no times" in job["notes"][0]


def test_a_job_that_failed_before_its_first_step(place: Path, ask: Ask) -> None:
    lines = [f"{stamp(0)} begin", f"{stamp(90)} loading", *traceback("ValueError: odd batch")]
    log(place, "41-demo.log", header() + lines)
    [job] = ask("41", "--job-state", "ended")["jobs"]
    assert (job["efficiency"], parts(job["seconds"])) == (0, {"startup": 90})


def test_a_log_that_tells_saves_only(place: Path, ask: Ask) -> None:
    lines = [f"{stamp(0)} begin", f"{stamp(600)} Saved checkpoint to /ckpt/7", f"{stamp(800)} on"]
    crash = ["Rank0: (1) segmentation fault: artificial segfault"]
    log(place, "41-demo.log", [*lines, *crash])
    [job] = ask("41", "--job-state", "ended")["jobs"]
    assert parts(job["seconds"]) == {"productive": 600, "lost": 200}
    assert "only saves" in job["notes"][0]


def test_several_jobs_and_their_sum(place: Path, ask: Ask) -> None:
    two_attempts(place)
    log(place, "41-demo.log", header(100, None) + steps(0, 99, clock=START))
    document = ask("--outputs", "outputs", "--now", "log-end")
    assert document["total"]["jobs"] == 2
    assert document["total"]["productive_s"] == pytest.approx(1010 + 1000)


# ---- event files


def events_file(place: Path, rows: Sequence[tuple[float, str, Optional[int]]]) -> str:
    path = place / "events.jsonl"
    lines = []
    for seconds, kind, step in rows:
        when = datetime.fromtimestamp(START + seconds, timezone.utc).replace(tzinfo=None)
        fields: dict[str, Any] = {"event_type": kind, "timestamp": when.isoformat()}
        fields |= {"job_name": "run-7"} if step is None else {"job_name": "run-7", "step": step}
        lines.append(json.dumps(fields))
    path.write_text("\n".join(lines) + "\n")
    return str(path)


RUN = (
    (0, "job_started", None),
    (1, "job_started", None),
    (100, "checkpoint_loaded", 40),
    (350, "checkpoint_saved", 60),  # 20 steps of 10 s and 50 s of warm-up
    (550, "checkpoint_saved", 80),
    (650, "job_terminated", None),
    (700, "job_started", None),
    (760, "checkpoint_loaded", 80),
    (800, "job_started", None),  # fails before it has saved
    (900, "checkpoint_loaded", 60),  # the newest save was broken
    (1100, "checkpoint_saved", 80),
    (1200, "job_terminated", None),
)


def test_events_of_a_job(place: Path, ask: Ask) -> None:
    [job] = ask("--events", events_file(place, RUN), "--step-seconds", "10")["jobs"]
    first, second, third = job["attempts"]
    assert (job["name"], job["restarts"]) == ("run-7", 2)
    assert parts(first["seconds"]) == {"startup": 150, "productive": 400, "lost": 100, "down": 50}
    assert parts(second["seconds"]) == {"startup": 60, "lost": 40}
    assert parts(third["seconds"]) == {"startup": 100, "productive": 200, "lost": 100}
    assert job["efficiency"] == pytest.approx(600 / 1200)


def test_steps_that_are_faster_than_the_pace(place: Path, ask: Ask) -> None:
    [job] = ask("--events", events_file(place, RUN), "--step-seconds", "20")["jobs"]
    assert job["efficiency"] <= 1 and min(job["seconds"].values()) >= 0


def test_steps_that_are_done_again_count_once(place: Path, ask: Ask) -> None:
    again = [
        (0, "checkpoint_loaded", 0),
        (100, "checkpoint_saved", 10),
        (300, "checkpoint_saved", 30),
    ]
    again += [(400, "checkpoint_loaded", 10), (600, "checkpoint_saved", 30)]
    [job] = ask("--events", events_file(place, again), "--step-seconds", "10")["jobs"]
    assert job["productive_s"] == 300
    assert parts(job["attempts"][0]["seconds"]) == {"productive": 100, "lost": 300}


def test_the_pace_is_that_between_saves(place: Path, ask: Ask) -> None:
    [job] = ask("--events", events_file(place, RUN))["jobs"]
    assert (job["step_time_s"], job["step_time_source"]) == (10, "saves")


def test_without_two_saves_no_pace_is_known(place: Path, ask: Ask) -> None:
    document = ask("--events", events_file(place, RUN[:4]))
    assert (document["exit_code"], document["jobs"][0]["efficiency"]) == (3, None)
    assert "--step-seconds" in document["jobs"][0]["notes"][0]


def test_lines_that_are_no_events_are_counted(place: Path, ask: Ask) -> None:
    path = Path(events_file(place, RUN))
    odd = ["[]", "{", '{"event_type": "job_started"}', "\x00\x01", "9" * 5000]
    odd += ['{"event_type": "checkpoint_saved", "timestamp": 1e9, "step": 1.5}', "[" * 5000]
    path.write_text("\n".join(odd) + "\n" + path.read_text())
    [job] = ask("--events", str(path), "--step-seconds", "10")["jobs"]
    assert job["notes"] == [f"{path}: 7 lines are no events"]


@pytest.mark.parametrize("content", [b"", b"\x00" * 100, b"hello\n", b"{}\n"])
def test_a_file_without_events(
    place: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    (place / "odd").write_bytes(content)
    assert main(["kpi", "--events", "odd"]) == 4
    assert "odd: no line is a JSON object" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 2, "name a job"),
        (["nope"], 4, "nope: no such file"),
        (["--events", "nope"], 4, "nope: No such file"),
        (["--events", "."], 4, "not a regular file"),
    ],
)
def test_what_cannot_be_read(
    place: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: Sequence[str],
    code: int,
    words: str,
) -> None:
    assert main(["kpi", *arguments]) == code
    assert words in capsys.readouterr().err


def test_the_report(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = events_file(place, RUN)
    assert main(["kpi", "--events", path, "--step-seconds", "10"]) == 0
    text = capsys.readouterr().out
    assert "Training-time efficiency of run-7: 50.0 %" in text
    assert "Productive (steps that were kept)  10 min 0 s  50.0 %  ####################\n" in text


@example([(0.0, "job_terminated", 0), (1.0, "job_started", 0)], 1.0)
@example([(0.0, "checkpoint_saved", 1), (1.0, "checkpoint_loaded", 0)], 1.0)
@given(
    st.lists(
        st.tuples(st.floats(0, 1e5), st.sampled_from(KINDS), st.integers(0, 1000)), min_size=1
    ),
    st.floats(0.1, 100),
)
def test_parts_of_any_events_add_up(
    rows: Sequence[tuple[float, str, int]], step_seconds: float
) -> None:
    events = []
    for time, kind, step in sorted(rows):
        events.append(JobEvent(kind, time, step if kind.startswith("checkpoint") else None))
    job = by_events(JobEvents("e", None, tuple(events), 0), step_seconds)
    assert job.spent is not None
    assert job.spent.total == pytest.approx(events[-1].time - events[0].time, abs=1e-6)
    assert min(vars(job.spent).values()) >= -1e-6
