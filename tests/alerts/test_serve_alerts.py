"""`raydiag serve-alerts`: real HTTP on loopback, and whatever may come over it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raydiag.alerts.desk import MOST_ALERTS_WAITING, MOST_FILES, MOST_WAITING, AlertDesk
from raydiag.alerts.payload import MOST_ALERTS, MOST_BYTES, alerts_of
from raydiag.alerts.receiver import AlertServer
from raydiag.cli import main
from raydiag.own_command import CommandAnswer
from tests.tsdb import promtool

EXAMPLE = Path(__file__).parents[2] / "examples" / "gpu-memory-error"
JSON = {"Content-Type": "application/json"}
DOCUMENT = {
    "verdict": {"class": "rccl-hang", "confidence": "confirmed", "summary": "All\nwait."},
    "findings": [{"class": "rccl-hang", "next_steps": ["Look at the stacks."]}],
    "coverage": {"nodes": {"asked": 4, "answered": 3}},
}


def alert(name: str = "GpuVanished", fingerprint: str = "ab12", **changed: Any) -> dict[str, Any]:
    labels = {"alertname": name, "host": "node017", **changed.pop("labels", {})}
    given = {"status": "firing", "fingerprint": fingerprint, "startsAt": "2026-11-20T03:00:00Z"}
    return {**given, "labels": labels, "annotations": {}, "endsAt": "", **changed}


def notification(*alerts: Mapping[str, Any]) -> bytes:
    head = {"version": "4", "groupKey": "{}", "status": "firing", "receiver": "raydiag"}
    return json.dumps({**head, "alerts": alerts}).encode()


class Diagnoses:
    """Answers every question with one document, when it is allowed to."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.allowed = threading.Event()
        self.events: list[Mapping[str, Any]] = []

    def ask(self, job: str) -> CommandAnswer:
        self.asked.append(job)
        self.allowed.wait(60)
        return CommandAnswer(DOCUMENT)

    def told(self, number: int) -> list[Mapping[str, Any]]:
        """So many events, as soon as they are there."""
        end = time.monotonic() + 60
        while len(self.events) < number and time.monotonic() < end:
            time.sleep(0.01)
        assert len(self.events) == number
        return self.events


@pytest.fixture
def diagnoses() -> Diagnoses:
    return Diagnoses()


@contextlib.contextmanager
def serving(
    diagnoses: Diagnoses,
    directory: str = "",
    token: str = "",
    label: str = "",
    limit_s: float = 60,
) -> Iterator[int]:
    """The port of a server whose connections have `limit_s`."""
    desk = AlertDesk(diagnoses.ask, directory, label)
    with AlertServer(0, desk, token, limit_s) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        threading.Thread(target=desk.work, args=(diagnoses.events.append,), daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def ask(
    port: int, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] = JSON
) -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    with contextlib.closing(connection):
        connection.request(method, path, body, dict(headers))
        reply = connection.getresponse()
        return reply.status, json.loads(reply.read())


def test_a_firing_alert_is_diagnosed_once(diagnoses: Diagnoses, tmp_path: Path) -> None:
    diagnoses.allowed.set()
    with serving(diagnoses, str(tmp_path)) as port:
        assert ask(port, "POST", "/alerts", notification(alert())) == (202, {"accepted": 1})
        (event,) = diagnoses.told(1)
        assert ask(port, "POST", "/alerts", notification(alert())) == (202, {"accepted": 0})
        resolved = alert(fingerprint="cd", status="resolved")
        assert ask(port, "POST", "/alerts", notification(resolved)) == (202, {"accepted": 0})
        text = "GpuVanished: rccl-hang (confirmed): All wait. Not seen: 1 of 4 nodes. "
        text += "Next: Look at the stacks."
        assert event["text"] == text
        assert ask(port, "GET", "/answers/ab12") == (200, {"text": text})
        assert ask(port, "GET", "/answers/cd")[0] == 404
    assert diagnoses.asked == [""]
    (file,) = tmp_path.iterdir()
    written = json.loads(file.read_text())
    assert (file.name, written["text"], written["document"]) == ("ab12.json", text, DOCUMENT)
    assert written["alerts"][0]["host"] == "node017"


def test_it_fires_anew_when_it_began_anew(diagnoses: Diagnoses) -> None:
    diagnoses.allowed.set()
    with serving(diagnoses) as port:
        for number, hour in enumerate(("03", "04"), start=1):
            body = notification(alert(startsAt=f"2026-11-20T{hour}:00:00Z"))
            assert ask(port, "POST", "/alerts", body)[1] == {"accepted": 1}
            diagnoses.told(number)


def test_alerts_of_one_job_share_a_diagnosis_and_one_runs_at_a_time(diagnoses: Diagnoses) -> None:
    with serving(diagnoses, label="job_id") as port:
        for number, job in enumerate(["7877", "7878", "7878", "7878"]):
            body = notification(alert(f"A{number}", f"{number}", labels={"job_id": job}))
            assert ask(port, "POST", "/alerts", body)[0] == 202
            if not number:
                while not diagnoses.asked:
                    time.sleep(0.01)
        assert diagnoses.asked == ["7877"]
        diagnoses.allowed.set()
        events = diagnoses.told(2)
    assert diagnoses.asked == ["7877", "7878"]
    assert events[1]["text"].startswith("A1, A2, A3: rccl-hang")


@pytest.mark.parametrize(
    "job", ["../../etc", "--prometheus=http://x", "a b", "/etc", "", "x" * 300]
)
def test_a_label_that_is_no_name_of_a_job_is_refused(diagnoses: Diagnoses, job: str) -> None:
    with serving(diagnoses, label="job_id") as port:
        body = notification(alert(labels={"job_id": job}))
        status, _ = ask(port, "POST", "/alerts", body)
        assert status == (400 if job else 202)
    assert [asked for asked in diagnoses.asked if asked] == []


def test_a_full_queue_makes_alertmanager_try_again(diagnoses: Diagnoses) -> None:
    many = [
        alert(fingerprint=f"{number:x}", labels={"job_id": f"{number}"})
        for number in range(MOST_WAITING + 1)
    ]
    with serving(diagnoses, label="job_id") as port:
        assert ask(port, "POST", "/alerts", notification(*many))[0] == 503
        assert ask(port, "POST", "/alerts", notification(*many[1:])) == (
            202,
            {"accepted": MOST_WAITING},
        )


def test_alerts_that_wait_for_one_job_are_bounded_too(diagnoses: Diagnoses) -> None:
    """That of the diagnosis that runs does not wait any more."""
    with serving(diagnoses) as port:
        ask(port, "POST", "/alerts", notification(alert()))
        while not diagnoses.asked:
            time.sleep(0.01)
        for first in range(0, MOST_ALERTS_WAITING, MOST_ALERTS):
            numbers = range(first, first + MOST_ALERTS)
            many = [alert(fingerprint=f"{number:x}", startsAt="now") for number in numbers]
            assert ask(port, "POST", "/alerts", notification(*many))[0] == 202
        status, refusal = ask(port, "POST", "/alerts", notification(alert(fingerprint="fff")))
        assert (status, "send it again later" in refusal["error"]) == (503, True)
        diagnoses.allowed.set()
        assert len(diagnoses.told(2)[1]["alerts"]) == MOST_ALERTS_WAITING


def test_a_file_has_its_own_alert_and_the_oldest_files_go(
    diagnoses: Diagnoses, tmp_path: Path
) -> None:
    (tmp_path / "notes.json").write_text("of somebody else")
    for number in range(MOST_FILES):
        (tmp_path / f"{number:016x}.json").write_text("{}")
        os.utime(tmp_path / f"{number:016x}.json", (number, number))
    diagnoses.allowed.set()
    with serving(diagnoses, str(tmp_path)) as port:
        two = [alert("A", "ab12"), alert("B", "cd34")]
        assert ask(port, "POST", "/alerts", notification(*two))[0] == 202
        assert len(diagnoses.told(1)[0]["alerts"]) == 2
    names = {path.name for path in tmp_path.iterdir()}
    assert len(names) == MOST_FILES + 1
    assert {"notes.json", "ab12.json", "cd34.json", f"{2:016x}.json"} <= names
    assert names.isdisjoint({f"{0:016x}.json", f"{1:016x}.json"})
    written = json.loads((tmp_path / "cd34.json").read_text())["alerts"]
    assert [labels["alertname"] for labels in written] == ["B"]


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"{", JSON, 400),
        (b"\xff\xfe", JSON, 400),
        (b"[" * 5000, JSON, 400),
        (b'{"version": "3", "alerts": []}', JSON, 400),
        (b'{"version": "4", "alerts": {}}', JSON, 400),
        (notification(alert(fingerprint="../x")), JSON, 400),
        (notification(alert(status="burning")), JSON, 400),
        (notification(alert(startsAt=3)), JSON, 400),
        (notification(alert(labels={"alertname": ""})), JSON, 400),
        (notification(alert(labels={"x": {"y": 1}})), JSON, 400),
        (notification(alert(labels={"x": "y" * 5000})), JSON, 400),
        (notification(alert(labels={f"x{i}": "y" * 4096 for i in range(9)})), JSON, 400),
        (notification(*[alert()] * (MOST_ALERTS + 1)), JSON, 413),
        (notification(), {"Content-Type": "text/plain"}, 415),
        (notification(), {**JSON, "Content-Length": str(MOST_BYTES + 1)}, 413),
        (notification(), {**JSON, "Content-Length": "-1"}, 411),
        (notification(), {**JSON, "Content-Length": "9" * 30}, 411),
    ],
)
def test_what_is_no_notification_is_refused(
    diagnoses: Diagnoses, body: bytes, headers: Mapping[str, str], status: int
) -> None:
    with serving(diagnoses) as port:
        assert ask(port, "POST", "/alerts", body, headers)[0] == status
        assert ask(port, "POST", "/alerts", notification())[0] == 202  # and it goes on
    assert diagnoses.asked == []


def test_half_a_body_and_a_slow_head_hold_nobody_up(diagnoses: Diagnoses) -> None:
    head = b"POST /alerts HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 500\r\n"
    with serving(diagnoses, limit_s=0.5) as port, contextlib.ExitStack() as stack:
        for sent in [head + b"\r\n{", head, b"P", b"", b"\0" * 70_000] * 2:
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", port), 10))
            connection.sendall(sent)
        assert ask(port, "POST", "/alerts", notification(alert()))[0] == 202
        # All of them are cut, though none of them was ended by its sender.
        connection = stack.enter_context(socket.create_connection(("127.0.0.1", port), 10))
        connection.sendall(head + b"\r\n{")
        reply = b""
        with contextlib.suppress(ConnectionError):
            while part := connection.recv(4096):
                reply += part
        assert b" 202 " not in reply
    assert diagnoses.asked == [""]


def test_a_quick_sender_is_served_while_all_connections_are_held(diagnoses: Diagnoses) -> None:
    """None of them would be cut for its age."""
    head = b"POST /alerts HTTP/1.1\r\n"
    with serving(diagnoses, limit_s=600) as port, contextlib.ExitStack() as stack:
        for sent in [b"", head] * 60:
            held = stack.enter_context(socket.create_connection(("127.0.0.1", port), 10))
            with contextlib.suppress(ConnectionError):  # it may have given way already
                held.sendall(sent)
        assert ask(port, "POST", "/alerts", notification(alert()))[0] == 202


def test_who_connects_anew_all_the_time_keeps_nobody_out(diagnoses: Diagnoses) -> None:
    """Each of his connections takes the place of his own oldest one."""
    is_over = threading.Event()
    held: list[socket.socket] = []

    def _connect_anew(port: int) -> None:
        while not is_over.wait(0.002):
            with contextlib.suppress(OSError):
                held.append(socket.create_connection(("127.0.0.1", port), 10))

    with serving(diagnoses, limit_s=600) as port:
        hostile = threading.Thread(target=_connect_anew, args=(port,))
        hostile.start()
        try:
            replies = [_status(port, number) for number in range(30)]
            while len(held) <= 30 and hostile.is_alive():
                time.sleep(0.01)  # on a busy machine he may be slow
        finally:
            is_over.set()
            hostile.join()
            for connection in held:
                connection.close()
    assert len(held) > 30
    assert replies.count(202) > 20, replies  # on a busy machine some may not be quick


def _status(port: int, number: int) -> int:
    """Of one notification that is sent once; 0 where the connection was cut."""
    try:
        return ask(port, "POST", "/alerts", notification(alert(fingerprint=f"{number:x}")))[0]
    except (OSError, http.client.HTTPException):
        return 0


def test_a_token_is_asked_for(diagnoses: Diagnoses) -> None:
    right = {**JSON, "Authorization": "Bearer sesame-open-sesame"}
    wrong = {**JSON, "Authorization": "Bearer sesame"}
    with serving(diagnoses, token="sesame-open-sesame") as port:
        assert ask(port, "POST", "/alerts", notification(), wrong)[0] == 401
        assert ask(port, "GET", "/answers/ab12")[0] == 401
        assert ask(port, "POST", "/alerts", notification(), right)[0] == 202


@pytest.mark.parametrize(
    "host",
    ["evil.example:{port}", "", "127.0.0.1.evil:{port}", "localhost:1@evil", "[::2]:{port}", ":1"],
)
def test_another_name_of_this_machine_is_refused(diagnoses: Diagnoses, host: str) -> None:
    """A page in a browser may have made its own name lead here."""
    diagnoses.allowed.set()
    with serving(diagnoses) as port:
        ask(port, "POST", "/alerts", notification(alert()))
        diagnoses.told(1)
        headers = {**JSON, "Host": host.format(port=port)}
        assert ask(port, "GET", "/answers/ab12", headers=headers)[0] == 403
        new = notification(alert(fingerprint="cd34"))
        assert ask(port, "POST", "/alerts", new, headers)[0] == 403
    assert diagnoses.asked == [""]


@pytest.mark.parametrize("host", ["127.0.0.1:{port}", "LocalHost:19099", "[::1]:80", "localhost"])
def test_a_tunnel_may_have_another_port(diagnoses: Diagnoses, host: str) -> None:
    """`ssh -L 19099:127.0.0.1:9099 head` leads here as localhost:19099."""
    with serving(diagnoses) as port:
        headers = {**JSON, "Host": host.format(port=port)}
        assert ask(port, "POST", "/alerts", notification(alert()), headers)[0] == 202


def test_a_directory_that_goes_away_ends_nothing(diagnoses: Diagnoses, tmp_path: Path) -> None:
    diagnoses.allowed.set()
    with serving(diagnoses, str(tmp_path / "gone")) as port:
        ask(port, "POST", "/alerts", notification(alert()))
        (event,) = diagnoses.told(1)
        assert event["text"].endswith("gone: No such file or directory)")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["version", "alerts", "labels", "status", "fingerprint", "startsAt"]
                ),
                inner,
                max_size=6,
            )
        ),
        max_leaves=12,
    )
)
@settings(max_examples=200, deadline=None)
def test_odd_bodies_are_refused_with_a_reason(document: object) -> None:
    with contextlib.suppress(ValueError):
        for each in alerts_of(json.dumps(document).encode()):
            assert each.name and each.fingerprint


def test_a_taken_port_and_a_missing_directory_are_told(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert main(["serve-alerts", "--port", port]) == 4
        assert f"--port {port}: Address already in use" in capsys.readouterr().err
    assert main(["serve-alerts", "--directory", str(tmp_path / "gone")]) == 4
    assert "cannot write there" in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_diagnoses_a_real_job(tmp_path: Path) -> None:
    """An alert names the job; a line, a file and a program get the verdict."""
    outputs, answers = tmp_path / "outputs", tmp_path / "answers"
    shutil.copytree(EXAMPLE, outputs / "50144-deepseek")
    answers.mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    sink = tmp_path / "sink.sh"
    sink.write_text(f"#!/bin/sh\ncat > {tmp_path}/event\n")
    sink.chmod(0o755)
    command = [sys.executable, "-m", "raydiag", "serve-alerts", "--port", str(port)]
    command += ["--job-label", "job_id", "--outputs", str(outputs), "--directory", str(answers)]
    process = subprocess.Popen(
        [*command, "--run", str(sink)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "RAYDIAG_PROMETHEUS": promtool.program("prometheus")},
    )
    try:
        body = notification(alert(labels={"job_id": "50144"}))
        end = time.monotonic() + 20
        while True:
            with contextlib.suppress(ConnectionError):
                assert ask(port, "POST", "/alerts", body) == (202, {"accepted": 1})
                break
            assert time.monotonic() < end and process.poll() is None
            time.sleep(0.1)
        assert process.stdout
        line = process.stdout.readline()
    finally:
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert "GpuVanished: gpu-memory-error (confirmed)" in line
    assert "Next: Let a job that still runs reach its next checkpoint" in line
    assert (process.returncode, errors) == (130, "raydiag: interrupted\n")
    written = json.loads((answers / "ab12.json").read_text())
    assert written["document"]["verdict"]["class"] == "gpu-memory-error"
    assert json.loads((tmp_path / "event").read_text())["verdict"] == "gpu-memory-error"
