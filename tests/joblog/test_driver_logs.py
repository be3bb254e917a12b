"""Without a dashboard: what a job has printed is found in the files of Ray's session."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from raydiag.cli import main
from raydiag.joblog import driver_logs
from tests.fake_dashboard import FakeDashboard

FAILED = "Traceback (most recent call last):\nValueError: shape (3,) is not (4,)\n"


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of the newest session."""
    logs = tmp_path / "ray" / "session_latest" / "logs"
    logs.mkdir(parents=True)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    return logs


def printed(logs: Path, name: str, age_s: float, text: str = FAILED) -> Path:
    path = logs / f"job-driver-{name}.log"
    path.write_text(text)
    os.utime(path, (time.time() - age_s, time.time() - age_s))
    return path


def test_the_newest_job_of_a_day_that_is_not_ours(logs: Path) -> None:
    assert driver_logs.newest(time.time()) is None
    printed(logs, "raysubmit_old", 90_000)
    assert driver_logs.newest(time.time()) is None
    wanted = printed(logs, "raysubmit_a", 60)
    printed(logs, "raysubmit_b", 600)
    printed(logs, "raydiag-probe-1", 1)
    assert driver_logs.newest(time.time()) == wanted


@pytest.fixture
def raylet(tmp_path: Path) -> Iterator[None]:
    """A process of that name."""
    program = tmp_path / "raylet"
    shutil.copy("/bin/sleep", program)
    process = subprocess.Popen([str(program), "60"])
    yield
    process.kill()
    process.wait()


@pytest.mark.usefixtures("raylet")
def test_a_dashboard_that_died_leaves_the_job_to_be_judged(
    logs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    printed(logs, "raysubmit_a", 60)
    dashboard = FakeDashboard()
    dashboard.close()  # nobody listens there any more
    assert main(["diagnose", "--address", dashboard.url, "--format", "json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["verdict"]["class"] == "python-exception"
    assert "raysubmit_a" in document["notes"][0]
    sources = {unread["source"]: unread["reason"] for unread in document["coverage"]["unread"]}
    assert "no Ray dashboard" in sources[dashboard.url]


def test_a_cluster_that_is_gone_is_not_judged_by_what_it_left(
    logs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    printed(logs, "raysubmit_a", 60)
    if driver_logs.is_ray_here():
        pytest.skip("a Ray runs on this machine")
    dashboard = FakeDashboard()
    dashboard.close()
    assert main(["diagnose", "--address", dashboard.url]) == 4
    assert "no Ray dashboard" in capsys.readouterr().err


@pytest.mark.usefixtures("raylet")
def test_without_any_log_there_is_nothing_to_judge(
    logs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dashboard = FakeDashboard()
    dashboard.close()
    assert main(["diagnose", "--address", dashboard.url]) == 4
    assert "no Ray dashboard" in capsys.readouterr().err
