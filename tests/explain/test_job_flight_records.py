"""`raydiag diagnose` of a job that hung, with dumps of the flight recorder beside its log."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from raydiag.cli import main
from tests import schemas
from tests.flight_dumps import AT, document, entries, pickled

HUNG = Path(__file__).parents[2] / "examples" / "rccl-hang"
HOSTS = ("mi355-a017", "mi355-a018", "mi355-a019", "mi355-a020")
HUNG_AT = 1773196693.0


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A job that hung, without its metrics: the log alone says so."""
    path = tmp_path / "48213-llama"
    shutil.copytree(HUNG, path, ignore=shutil.ignore_patterns("prometheus", "expected.json"))
    return path


def leave(job: Path, late: int, place: str = "ray_logs/{host}", shift_s: float = 0.0) -> None:
    """A dump of each of eight ranks, two on a host."""
    for rank in range(8):
        calls = entries(56 if rank == late else 57, 56)
        for call in calls:
            call["time_created_ns"] += int((HUNG_AT - AT + shift_s) * 1e9)
        directory = job / place.format(host=HOSTS[rank // 2])
        directory.mkdir(parents=True, exist_ok=True)
        dump = directory / f"nccl_trace_rank_{rank}"
        dump.write_bytes(pickled(document(calls, 8)))


def diagnosed(job: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    main(["diagnose", str(job), "--job-state", "ended", "--format", "json"])
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    schemas.fits(result, "diagnose")
    return result


def test_without_a_dump_it_is_a_hang(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    verdict = diagnosed(job, capsys)["verdict"]
    assert (verdict["class"], verdict["hosts"]) == ("hang", [])


def test_the_rank_that_did_not_arrive_is_the_cause(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    leave(job, late=5)
    result = diagnosed(job, capsys)
    verdict, first = result["verdict"], result["findings"][0]
    assert (verdict["class"], verdict["hosts"]) == ("straggler", ["mi355-a019"])
    assert verdict["onset"] == pytest.approx(HUNG_AT + 1)
    assert verdict["confidence"] == "likely"
    assert (first["task"], first["host"]) == ("rank 5", "mi355-a019")
    assert "others that wait in collective 57" in first["evidence"][0]["text"]


def test_where_no_host_is_known_the_rank_still_is(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    leave(job, late=5, place="traces")
    result = diagnosed(job, capsys)
    assert (result["verdict"]["class"], result["verdict"]["hosts"]) == ("straggler", [])
    assert result["findings"][0]["task"] == "rank 5"


def test_dumps_of_an_earlier_job_say_nothing(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    leave(job, late=5, shift_s=-3 * 86400.0)
    assert diagnosed(job, capsys)["verdict"]["class"] == "hang"


def test_where_all_arrived_nobody_is_accused(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    leave(job, late=-1)
    assert diagnosed(job, capsys)["verdict"]["class"] == "hang"


def test_a_dump_with_code_is_not_run_and_is_told(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    leave(job, late=-1)
    made = job / "made"
    command = f"touch {made}".encode()
    code = b"\x80\x02cposix\nsystem\nX" + len(command).to_bytes(4, "little") + command + b"\x85R."
    (job / "ray_logs/mi355-a017/nccl_trace_rank_0").write_bytes(code)
    unread = diagnosed(job, capsys)["coverage"]["unread"]
    assert not made.exists()
    assert any("holds more than data" in item["reason"] for item in unread)
