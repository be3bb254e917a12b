"""`raydiag watch` over a log that grows, with its commands, its state and its lock for real."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from raydiag.cli import main
from raydiag.watch.following import Memory
from raydiag.watch.sinks import Sinks
from raydiag.watch.watch_state import WatchState, read_state, write_state
from tests import schemas
from tests.triage.logs import header, steps, summary, traceback

pytestmark = pytest.mark.slow

FAST = ("--every", "0.2s", "--job-state", "running", "--state", "watch.json")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def log(place: Path, lines: Sequence[str]) -> None:
    (place / "41-demo.log").write_text("".join(f"{line}\n" for line in lines))


def begun(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "raydiag", "watch", "41-demo.log", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def lines_of(watcher: subprocess.Popen[str]) -> list[dict[str, Any]]:
    """All that it prints until it ends, as JSON."""
    output, errors = watcher.communicate(timeout=300)
    assert "Traceback" not in errors
    documents = [json.loads(line) for line in output.splitlines()]
    for document in documents:
        schemas.fits(document, "watch")
    return documents


def recent_steps(count: int) -> list[str]:
    """The last one has just been made."""
    return steps(0, count - 1, clock=time.time() - 10 * count)


def test_a_job_that_trains_then_fails(place: Path) -> None:
    log(place, header() + recent_steps(20))
    paged = place / "paged.jsonl"
    pager = place / "page"
    pager.write_text(f"#!/bin/sh\ncat >> {paged}\necho >> {paged}\n")
    pager.chmod(0o755)
    watcher = begun(*FAST, "--format", "jsonl", "--run", str(pager))
    _until(lambda: (place / "watch.json").exists())
    failed = [
        *traceback("ValueError: odd batch"),
        *summary("FAILED", 1, "Training FAILED (exit=1)"),
    ]
    log(place, header() + recent_steps(25) + failed)
    documents = lines_of(watcher)
    assert watcher.returncode == 1
    looks = [document["look"] for document in documents if document["kind"] == "look"]
    assert (looks[0]["last_step"], looks[-1]["last_step"]) == (19, 24)
    ended, why = documents[-2:]
    assert (ended["kind"], ended["text"]) == ("ended", "the job failed: python-exception")
    assert (why["kind"], why["alarm"]) == ("why", True)
    assert why["text"].startswith("python-exception (")
    told = [json.loads(line)["text"] for line in paged.read_text().splitlines()]
    assert told == [ended["text"], why["text"]]


def test_a_job_that_completes(place: Path) -> None:
    log(place, header(20) + recent_steps(20) + summary("SUCCESS", 0))
    documents = lines_of(begun(*FAST, "--format", "jsonl"))
    assert [document["kind"] for document in documents] == ["look", "ended"]


def test_looks_and_slices_have_an_end(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log(place, header() + recent_steps(20))
    assert main(["watch", "41-demo.log", *FAST, "--ticks", "2"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "look 1 of 2  running  step 19 of 500  10 s/step" in lines[0]
    assert lines[-1].endswith("NOTE given-up: gave up at look 2: no end of the job was seen")
    # The slice is over after each look, and the next call goes on.
    sliced = ["watch", "41-demo.log", *FAST, "--restart", "--slice", "0.1s", "--ticks", "3"]
    assert main(sliced) == 3
    sliced.remove("--restart")
    assert [main(sliced), main(sliced)] == [3, 1]
    assert "look 3 of 3" in capsys.readouterr().out


def test_one_watcher_for_each_job(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log(place, header() + recent_steps(20))
    watcher = begun(*FAST)
    try:
        _until(lambda: (place / "watch.json").exists())
        assert main(["watch", "41-demo.log", *FAST]) == 4
        assert f"process {watcher.pid} watches this job already" in capsys.readouterr().err
    finally:
        watcher.send_signal(signal.SIGKILL)
        watcher.communicate()
    # The dead one holds nothing, and its memory is taken over.
    state = read_state(place / "watch.json")
    assert state is not None and state.memory.last_step == 19
    assert main(["watch", "41-demo.log", *FAST, "--ticks", str(state.memory.looks + 1)]) == 1


def test_a_look_that_fails_does_not_end_the_watch(place: Path) -> None:
    log(place, header() + recent_steps(20))
    watcher = begun(*FAST, "--ticks", "5", "--format", "jsonl")
    _until(lambda: (place / "watch.json").exists())
    (place / "41-demo.log").unlink()
    kinds = [document["kind"] for document in lines_of(watcher)]
    assert kinds.count("look") == 5
    assert kinds[-2:] == ["unreachable", "given-up"] or "unreachable" in kinds


def test_a_job_that_is_not_there_is_not_watched(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["watch", "/no/such/job", *FAST]) == 4
    assert "no such file" in capsys.readouterr().err


def test_who_gave_up_begins_anew(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log(place, header() + recent_steps(20))
    for _ in range(2):
        assert main(["watch", "41-demo.log", *FAST, "--ticks", "2"]) == 1
        assert "gave up at look 2" in capsys.readouterr().out


def test_a_span_ends_by_the_clock(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log(place, header() + recent_steps(20))
    assert main(["watch", "41-demo.log", *FAST, "--for", "0.1s"]) == 1
    assert "gave up at look 1" in capsys.readouterr().out


@pytest.mark.parametrize("option", [(), ("--restart",)])
def test_files_of_others_are_left_alone(
    place: Path, capsys: pytest.CaptureFixture[str], option: Sequence[str]
) -> None:
    log(place, header() + recent_steps(20))
    (place / "watch.json").write_text("dear diary")
    assert main(["watch", "41-demo.log", *FAST, *option]) == 4
    assert (place / "watch.json").read_text() == "dear diary"
    (place / "watch.json").unlink()
    (place / "watch.json.lock").write_text("[[package]]\n")
    assert main(["watch", "41-demo.log", *FAST, *option]) == 4
    assert (place / "watch.json.lock").read_text() == "[[package]]\n"
    assert "is no lock of raydiag" in capsys.readouterr().err


@pytest.mark.parametrize("program", ["", "pager 'x", "no-such-program --now"])
def test_a_program_that_cannot_be_run_is_refused_at_once(
    place: Path, capsys: pytest.CaptureFixture[str], program: str
) -> None:
    assert main(["watch", "41-demo.log", *FAST, "--run", program]) == 2
    assert "--run" in capsys.readouterr().err


def test_ctrl_c_ends_it_and_leaves_nothing(place: Path) -> None:
    log(place, header() + recent_steps(20))
    watcher = begun(*FAST)
    _until(lambda: (place / "watch.json").exists())
    watcher.send_signal(signal.SIGINT)
    _, errors = watcher.communicate(timeout=60)
    assert watcher.returncode == 130
    assert errors.strip().splitlines()[-1] == "raydiag: interrupted"


ODD = {"version": 1, "words": [], "directory": "/", "written": 1, "events": []}


@pytest.mark.parametrize(
    "content",
    [
        "", "{", "[]", '{"version": 1}', "\x00", "[" * 9999, json.dumps({**ODD, "memory": []}),
        json.dumps({**ODD, "written": "q"}),
        json.dumps({**ODD, "memory": {"job": "41", "began": 1, "alarms": [1]}}),
    ],
)  # fmt: skip
def test_a_state_that_is_none_is_left_alone(
    place: Path, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    (place / "watch.json").write_text(content)
    assert main(["watch", "41-demo.log", *FAST, "--ticks", "1"]) == 4
    assert "watch.json is no state of `raydiag watch`" in capsys.readouterr().err
    assert (place / "watch.json").read_text() == content


# ---- the note for whoever comes next


def test_the_note(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log(place, header() + recent_steps(20))
    main(["watch", "41-demo.log", *FAST, "--ticks", "1"])
    capsys.readouterr()
    assert main(["handover", "--state", "watch.json", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    schemas.fits(document, "handover")
    assert (document["job"], document["last_step"], document["done"]) == ("41-demo.log", 19, False)
    assert main(["handover", "--state", "watch.json"]) == 0
    assert "Last step:     19, " in capsys.readouterr().out


def test_the_note_of_a_job_with_alarms(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    memory = Memory("41", 1_780_000_000.0, status="running", alarms={"late": 1_780_000_100.0})
    write_state(place / "watch.json", WatchState(memory, ["watch", "41", "--for", "8h"]))
    assert main(["handover", "--state", "watch.json"]) == 1
    out = capsys.readouterr().out
    assert "Z: late\n" in out and "Run: cd . && raydiag watch 41 --for 8h" in out


def test_nothing_was_watched(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["handover"]) == 4
    assert "no job was watched" in capsys.readouterr().err


# ---- sinks


EVENT = {"job": "41", "kind": "late", "text": "no step for 3 min", "alarm": True}


def test_a_sink_that_hangs_holds_nothing_up(place: Path) -> None:
    complaints: list[str] = []
    sinks = Sinks(programs=[["sleep", "3600"]], complain=complaints.append)
    began = time.monotonic()
    sinks.send(EVENT)
    sinks.finish(0.5)
    assert time.monotonic() - began < 15
    assert complaints == ["1 notifications had not arrived when watching ended"]
    _until(lambda: not sinks._running)  # the program was ended


def test_the_same_event_is_sent_once_in_a_while(place: Path) -> None:
    out = place / "out"
    sinks = Sinks(programs=[["sh", "-c", f"cat >> {out}; echo >> {out}"]])
    for _ in range(3):
        sinks.send(EVENT)
    sinks.finish(30)
    assert [json.loads(line) for line in out.read_text().splitlines()] == [EVENT]


def test_a_webhook_by_apprise() -> None:
    pytest.importorskip("apprise", reason="the extra `notify` is not installed")
    received: list[dict[str, Any]] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Quiet."""

    server = HTTPServer(("127.0.0.1", 0), Receiver)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        sinks = Sinks(addresses=[f"json://127.0.0.1:{server.server_port}/hook"])
        sinks.send(EVENT)
        sinks.finish(60)
    finally:
        server.shutdown()
        server.server_close()
    assert [(row["title"], row["message"]) for row in received] == [("raydiag: 41", EVENT["text"])]


def test_addresses_that_others_can_read_are_refused(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "addresses").write_text("json://127.0.0.1/secret-part\n")
    os.chmod(place / "addresses", 0o644)
    assert main(["watch", "41-demo.log", *FAST, "--notify-file", "addresses"]) == 2
    errors = capsys.readouterr().err
    assert "others can read it: chmod 600 addresses" in errors and "secret-part" not in errors


def _until(holds: Callable[[], object], patience_s: float = 120) -> None:
    end = time.monotonic() + patience_s
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)
