"""Jobs of Ray by their submission id, where no file has that name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from raydiag import cli
from tests.fake_dashboard import FakeDashboard, Reply

_LOG = "completed step: 0, seconds: 1.000, loss: 4.0\nNCCL error: unhandled system error\n"


@pytest.fixture
def dashboard(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeDashboard]:
    """A cluster with one job that has failed, named as Ray's own clients find it."""
    fake = FakeDashboard()
    row = {"submission_id": "raysubmit_abc", "job_id": "02000000", "status": "FAILED"}
    row |= {"driver_node_id": "f" * 56}
    fake.jobs = [{**row, "start_time": 1_767_323_045_000, "end_time": 1_767_323_095_000}]
    fake.overrides["GET JOB/"] = Reply(body=json.dumps(row))
    fake.overrides["GET /api/v0/logs/file"] = Reply(body=_LOG, content_type="text/plain")
    monkeypatch.setenv("RAY_ADDRESS", fake.url)
    monkeypatch.delenv("RAY_API_SERVER_ADDRESS", raising=False)
    monkeypatch.chdir(tmp_path)
    yield fake
    fake.close()


@pytest.mark.parametrize("name", ["raysubmit_abc", "02000000"])
@pytest.mark.parametrize("named_by", ["RAY_ADDRESS", "--address"])
def test_triage_of_a_job_of_ray(
    dashboard: FakeDashboard,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    named_by: str,
) -> None:
    address = []
    if named_by == "--address":
        monkeypatch.delenv("RAY_ADDRESS")
        address = ["--address", dashboard.url]
    assert cli.main(["triage", name, *address, "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert (document["status"], document["primary"]) == ("failed", "nccl-error")
    assert document["log"] == "raysubmit_abc.log"
    assert dashboard.submitted is None  # nothing was started for that


@pytest.mark.usefixtures("dashboard")
def test_files_come_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "raysubmit_abc").write_text("completed step: 0, seconds: 1.0, loss: 4.0\n")
    assert cli.main(["triage", "raysubmit_abc", "--now", "log-end"]) == 0
    assert "running" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["triage", "diagnose"])
def test_what_neither_knows(
    dashboard: FakeDashboard, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert cli.main([command, "nix"]) == 4
    said = f"nix: no such file, no job id here, and no job of the Ray cluster at {dashboard.url}"
    assert capsys.readouterr().err == f"raydiag: {said}\n"


def test_diagnose_asks_the_cluster_of_the_environment_for_such_a_job(
    dashboard: FakeDashboard, capsys: pytest.CaptureFixture[str]
) -> None:
    dashboard.overrides["POST /api/jobs/"] = Reply(500, "no agent", "text/plain")  # no probe
    assert cli.main(["diagnose", "raysubmit_abc", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["verdict"]["class"] == "nccl-error"


def test_without_a_cluster_only_files_are_meant(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["triage", "nix"]) == 4
    assert capsys.readouterr().err == "raydiag: nix: no such file, and not a job id\n"
