"""`raydiag diagnose` from a job's directory to its report: a real Prometheus over real blocks."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from raydiag.cli import main
from raydiag.playbooks.registry import playbooks
from raydiag.tsdb.connection import open_directory
from tests import schemas
from tests.incidents.generate import generate
from tests.incidents.job import Options
from tests.incidents.truth import Incident

SMALL = Options(nodes=3, gpus=2, ports=1, minutes=25, interval_s=15)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (shutil.which("promtool") and shutil.which("prometheus")),
        reason="promtool and prometheus are not on PATH",
    ),
]
Made = Callable[[str], Incident]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Incidents by kind, each generated once; not to be changed."""
    known: dict[str, Incident] = {}

    def make(kind: str) -> Incident:
        if kind not in known:
            known[kind] = generate(kind, 11, tmp_path_factory.mktemp(kind) / "out", SMALL)
        return known[kind]

    return make


@pytest.fixture
def copy(made: Made, tmp_path: Path) -> Made:
    """The same in a place that may be changed."""

    def make(kind: str) -> Incident:
        source = Path(made(kind).job_dir)
        target = tmp_path / source.parent.name
        shutil.copytree(source.parent, target)
        return Incident(**{**vars(made(kind)), "job_dir": str(target / source.name)})

    return make


def diagnose(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = main(["diagnose", *arguments, "--format", "json"])
    document = json.loads(capsys.readouterr().out)
    schemas.fits(document, "diagnose")
    return code, document


def digest(directory: Path) -> str:
    """Names, modes, times and content of a whole tree."""
    total = hashlib.sha256()
    for path in sorted([directory, *directory.rglob("*")]):
        found = path.lstat()
        total.update(f"{path} {found.st_mode} {found.st_mtime_ns} {found.st_size}\n".encode())
        if path.is_file():
            total.update(path.read_bytes())
    return total.hexdigest()


def test_a_well_job_is_healthy_and_its_directory_untouched(
    made: Made, capsys: pytest.CaptureFixture[str]
) -> None:
    incident = made("healthy")
    before = digest(Path(incident.job_dir))
    code, document = diagnose(capsys, *incident.arguments)
    assert (code, document["verdict"]["class"]) == (0, "healthy")
    assert document["coverage"]["unread"] == document["coverage"]["nodes"]["blind"] == []
    assert document["metrics"]["identity"]["belief"] == "verified"
    assert digest(Path(incident.job_dir)) == before


def test_a_hang_is_dated_told_and_shown_in_every_format(
    made: Made, capsys: pytest.CaptureFixture[str]
) -> None:
    incident = made("rccl-hang")
    code, document = diagnose(capsys, *incident.arguments)
    verdict = document["verdict"]
    assert (code, verdict["class"], verdict["hosts"]) == (1, "rccl-hang", [])
    assert verdict["onset"] == pytest.approx(incident.truth.onset, abs=2)
    assert document["chains"][0][0]["class"] == "rccl-hang"
    (playbook,) = [one for one in document["playbooks"] if one["id"] == "rccl-hang"]
    assert {query["status"] for query in playbook["queries"]} == {"ok"}
    assert len({query["id"] for query in playbook["queries"]}) == len(playbook["queries"]) > 3

    assert main(["diagnose", *incident.arguments]) == 1
    text = capsys.readouterr().out
    assert text.startswith("VERDICT  rccl-hang  since ")
    assert max(map(len, text.splitlines())) <= 80

    assert main(["diagnose", *incident.arguments, "--format", "markdown"]) == 1
    report = capsys.readouterr().out
    assert report.startswith("## TSDB Diagnosis: ")
    known = ["Findings", "Metric evidence", "Anomalies detected", "Log evidence"]
    known += ["Source code trace", "Correlation with triage", "Recommended next steps"]
    known += ["Queries", "Coverage"]
    headings = re.findall(r"^### (.*)$", report, re.MULTILINE)
    assert [heading for heading in headings if heading in known] == known
    assert headings[0] == "Verdict"
    assert "**Analysis type:** hang" in report
    assert "| Host | GPU | Value | Interpretation |" in report


def test_with_all_every_playbook_is_shown(made: Made, capsys: pytest.CaptureFixture[str]) -> None:
    _, fitting = diagnose(capsys, *made("rccl-hang").arguments)
    _, every = diagnose(capsys, *made("rccl-hang").arguments, "--all")
    assert len(every["playbooks"]) == len(playbooks()) + 1  # and what watches the job
    assert {one["id"] for one in fitting["playbooks"]} < {one["id"] for one in every["playbooks"]}


def test_a_job_without_ray_is_judged_by_its_log(
    made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (source,) = Path(made("rccl-hang").job_dir).parent.glob("*.log")
    drop = re.compile(r"RAY_PORT|\[Prometheus\]|ssh -J")
    lines = [line for line in source.read_text().splitlines() if not drop.search(line)]
    log = tmp_path / source.name
    log.write_text("\n".join(lines) + "\n")
    code, document = diagnose(capsys, str(log), *made("rccl-hang").arguments[1:])
    assert code in (1, 3)
    assert "RAY=0" in document["log_only"]
    assert document["metrics"] is None and document["playbooks"] == []
    assert document["verdict"]["class"] in ("hang", "unknown")


def test_an_empty_directory_says_why(copy: Made, capsys: pytest.CaptureFixture[str]) -> None:
    incident = copy("healthy")
    data = Path(incident.job_dir) / "prometheus"
    for block in data.iterdir():
        if block.is_dir():
            shutil.rmtree(block)
    code, document = diagnose(capsys, *incident.arguments)
    assert (code, document["verdict"]["class"]) == (1, "tsdb-empty")
    shutil.rmtree(data)
    code, document = diagnose(capsys, *incident.arguments)
    assert (code, document["verdict"]["class"]) == (1, "tsdb-empty")


def test_another_jobs_metrics_are_not_believed(
    copy: Made, made: Made, capsys: pytest.CaptureFixture[str]
) -> None:
    incident = copy("healthy")
    other = generate("healthy", 12, Path(incident.job_dir).parent / "other", SMALL)
    data = Path(incident.job_dir) / "prometheus"
    shutil.rmtree(data)
    shutil.copytree(Path(other.job_dir) / "prometheus", data)
    code, document = diagnose(capsys, *incident.arguments)
    assert (code, document["verdict"]["class"]) == (1, "tsdb-wrong-job")
    assert document["metrics"] is None


def test_without_the_program_the_log_alone_is_judged(
    made: Made, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYDIAG_PROMETHEUS", "/nowhere/prometheus")
    code, document = diagnose(capsys, *made("healthy").arguments)
    assert (code, document["verdict"]["class"]) == (3, "unknown")
    assert "RAYDIAG_PROMETHEUS" in document["coverage"]["unread"][0]["reason"]


class _Sick(http.server.BaseHTTPRequestHandler):
    """Answers what it is asked about itself, and fails each query."""

    def do_GET(self) -> None:
        if self.path.startswith("/api/v1/status/flags"):
            self._send(200, b'{"status":"success","data":{}}')
        elif "__name__" in self.path:
            self._send(200, b'{"status":"success","data":["up","tb_step","hw_procs_running"]}')
        else:
            self._send(503, b"<html>overloaded</html>")

    do_POST = do_GET

    def _send(self, code: int, body: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def sick() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Sick)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()


def test_a_server_that_fails_is_told_and_nothing_is_called_healthy(
    made: Made, capsys: pytest.CaptureFixture[str]
) -> None:
    with sick() as url:
        code, document = diagnose(capsys, *made("healthy").arguments, "--prometheus", url)
    assert code in (1, 3)
    assert document["verdict"]["class"] != "healthy"
    assert any("503" in one["reason"] for one in document["coverage"]["unread"])


def test_a_server_that_does_not_answer_leaves_the_directory(
    made: Made, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [*made("healthy").arguments, "--prometheus", "http://127.0.0.1:1"]
    code, document = diagnose(capsys, *arguments)
    assert (code, document["verdict"]["class"]) == (0, "healthy")
    assert any("read instead" in note for note in document["notes"])


def test_a_server_that_answers_with_nonsense_leaves_the_directory(
    made: Made, capsys: pytest.CaptureFixture[str]
) -> None:
    class Nonsense(_Sick):
        def do_GET(self) -> None:
            self._send(200, b'{"status":"success","data":null}')

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Nonsense)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    try:
        code, document = diagnose(capsys, *made("healthy").arguments, "--prometheus", url)
        assert (code, document["verdict"]["class"]) == (0, "healthy")
        assert any(url in note and "read instead" in note for note in document["notes"])
        assert main(["diagnose", "--prometheus", url]) == 4
        assert len(capsys.readouterr().err.splitlines()) == 1
    finally:
        server.shutdown()
        server.server_close()


def test_series_alone_are_judged_and_no_log_is_invented(
    made: Made, capsys: pytest.CaptureFixture[str]
) -> None:
    incident = made("gpu-memory-error")
    with open_directory(incident.job_dir) as served:
        asked = ("--prometheus", served.client.url, *incident.arguments[1:])
        code, document = diagnose(capsys, *asked)
    assert document["triage"] is None and document["no_log"] == "no job was named"
    assert (code, document["verdict"]["class"]) == (1, "gpu-memory-error")
    assert tuple(document["verdict"]["hosts"]) == incident.truth.hosts
    assert document["metrics"]["identity"]["belief"] == "unverified"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--address", "http://127.0.0.1:1"], 4),
        (["/nowhere/at/all"], 4),
        (["-J", "x"], 2),
        (["--deadline", "0", "x"], 2),
        (["--now", "soon", "x"], 2),
    ],
)
def test_what_cannot_be_asked_is_one_line(
    arguments: list[str], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        found = main(["diagnose", *arguments])
    except SystemExit as error:
        found = int(error.code or 0)
    assert found == code
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_several_names_of_one_job_are_one_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in (41, 42):
        (tmp_path / f"{number}-demo").mkdir()
        log = tmp_path / f"{number}-demo.log"
        log.write_text("0: completed step: 7, seconds: 1.0, loss: 2.0\n0: ValueError: no\n")
    names = sorted(map(str, tmp_path.glob("41*")))
    _, around = diagnose(capsys, *names, "--job-state", "ended")
    _, alone = diagnose(capsys, names[0], "--job-state", "ended")
    assert len(names) == 2
    assert around["verdict"] == alone["verdict"]
    assert around["triage"]["log"] == alone["triage"]["log"]
    assert main(["diagnose", *map(str, tmp_path.glob("*"))]) == 2
    assert "2 jobs are named (demo, demo)" in capsys.readouterr().err


def test_a_directory_that_may_not_be_written_is_read(
    copy: Made, capsys: pytest.CaptureFixture[str]
) -> None:
    incident = copy("rccl-hang")
    for path in [Path(incident.job_dir), *Path(incident.job_dir).rglob("*")]:
        os.chmod(path, 0o555 if path.is_dir() else 0o444)
    try:
        _, document = diagnose(capsys, *incident.arguments)
    finally:
        for path in [Path(incident.job_dir), *Path(incident.job_dir).rglob("*")]:
            os.chmod(path, 0o755 if path.is_dir() else 0o644)
    assert document["verdict"]["class"] == "rccl-hang"


def test_a_log_that_ends_with_the_metrics_long_ago_is_no_sign_of_life(
    made: Made, capsys: pytest.CaptureFixture[str]
) -> None:
    incident = made("healthy-young")
    assert incident.job_state == "running"
    code, document = diagnose(capsys, *incident.arguments)
    assert (code, document["verdict"]["class"]) == (0, "healthy")
    later = f"{incident.now + 86400:.0f}"
    code, document = diagnose(capsys, incident.job_dir, "--now", later)
    assert (code, document["verdict"]["class"]) == (3, "unknown")
    code, document = diagnose(capsys, incident.job_dir, "--now", later, "--job-state", "running")
    assert code == 1 and document["verdict"]["class"] != "healthy"


@pytest.mark.parametrize("options", [(), ("--job-state", "ended"), ("--now", "log-end")])
@pytest.mark.parametrize(("cancelled_after_s", "expected"), [(8, "healthy"), (290, "unknown")])
def test_a_cancelled_job_is_judged_by_its_own_end(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    cancelled_after_s: int,
    expected: str,
) -> None:
    """Not by how long ago that was."""
    log = tmp_path / "train.log"
    start = datetime(2026, 3, 1, 10, tzinfo=timezone.utc)
    lines = [
        f"[{start + timedelta(seconds=20 * step):%Y-%m-%d %H:%M:%S}] iteration {step:8}/ 5000 |"
        f" elapsed time per iteration (ms): 20000.0 | lm loss: {5 - step / 100:.4E} |"
        for step in range(1, 41)
    ]
    end = start + timedelta(seconds=20 * 40 + cancelled_after_s)
    lines.append(f"slurmstepd: error: *** JOB 7 ON node1 CANCELLED AT {end:%Y-%m-%dT%H:%M:%S} ***")
    log.write_text("\n".join(lines) + "\n")
    code, document = diagnose(capsys, str(log), *options)
    assert document["triage"]["status"] == "cancelled"
    assert document["verdict"]["class"] == expected
    assert code == (0 if expected == "healthy" else 3)
