from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from raydiag import cli
from tests import schemas
from tests.tsdb import samples
from tests.tsdb.conftest import Live
from tests.tsdb.evidence import digest

pytestmark = pytest.mark.slow


@pytest.fixture
def job(data: Path) -> Path:
    """A job directory with a log beside it, as the launcher leaves them."""
    lines = [
        "JOB_ID=55",
        "JOB_NAME=small",
        f"NNODES={len(samples.HOSTS)}",
        f"JOB_NODELIST={','.join(samples.HOSTS)}",
        "RAY_PORT=4000",
    ]
    lines += [
        f"0: completed step: {step}, seconds: 10.0, TFLOP/s/device: 300.0, "
        f"Tokens/s/device: 2000.0, total_weights: 196608, loss: {loss:.3f}"
        for step, loss in enumerate(samples.LOSSES)
    ]
    (data.parent.parent / "55-small.log").write_text("\n".join(lines) + "\n")
    (data.parent / "log").symlink_to("../55-small.log")
    return data.parent


def run(*words: object) -> int:
    return cli.main(["tsdb", *(str(word) for word in words)])


def documented(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, dict[str, Any]]:
    code = run(*words, "--format", "json")
    document = json.loads(capsys.readouterr().out)
    schemas.fits(document, "tsdb")
    return code, document


def test_info_of_a_job(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = digest(job)
    assert run("info", job) == 0
    out = capsys.readouterr().out
    assert "3 of the job's 3 hosts, 6 GPUs" in out
    assert "absent: hw_rdma_*" in out
    assert digest(job) == before
    code, document = documented(capsys, "info", job)
    assert code == 0 and document["action"] == "info" and not document["live"]
    assert document["window"] == {"start": samples.START, "end": samples.END}
    assert document["nnodes"] == 3 and document["coverage"]["nodes"]["answered"] == 3
    assert digest(job) == before


def test_info_with_a_host_missing_and_a_block_broken(
    job: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = job.parent / "55-small.log"
    log.write_text(log.read_text().replace("mi10,mi11,mi12", "mi10,mi11,mi12,mi13"))
    broken = data / "01ARZ3NDEKTSV4RRFFQ69G5FAV"
    broken.mkdir()
    assert run("info", job) == 3
    out = capsys.readouterr().out
    assert "without any series: mi13" in out
    assert f"NOT READ\n  {broken}: meta.json is missing\n" in out
    code, document = documented(capsys, "info", job)
    assert code == 3 and document["missing"] == ["mi13"]
    assert document["coverage"]["unread"][0]["status"] == "no_data"


def test_info_of_a_bare_data_directory_and_of_a_url(
    data: Path, live: Live, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("info", data) == 0
    assert "3 hosts, 6 GPUs" in capsys.readouterr().out
    code, document = documented(capsys, "info", live.url)
    assert code == 0 and document["live"] and document["origin"] == live.url


def test_a_query_once_at_the_end_of_the_data(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("query", job, "sum by (host) (hw_gpu_power_watts)") == 0
    assert "{host=mi10}" in capsys.readouterr().out
    code, document = documented(capsys, "query", job, "count(up)")
    assert code == 0 and document["series"][0]["samples"] == [[samples.END, 6.0]]
    assert document["query"]["promql"] == "count(up)" and document["query"]["step_s"] == 0


def test_a_query_over_a_range_and_its_special_values(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["query", job, "vector(1) / 0", "--start", samples.START, "--end", samples.START + 60]
    code, document = documented(capsys, *words, "--step", "60")
    assert code == 0
    assert document["series"][0]["samples"] == [
        [samples.START, "+Inf"],
        [samples.START + 60, "+Inf"],
    ]
    words[2] = "vector(0) / 0"
    _, document = documented(capsys, *words, "--step", "60")
    assert [value for _, value in document["series"][0]["samples"]] == ["NaN", "NaN"]
    assert run("query", job, "hw_gpu_power_watts", "--start", "2026-11-21T22:26:40Z") == 0
    assert "MEAN" in capsys.readouterr().out


def test_a_query_without_a_result_says_how_far_samples_reach(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("query", job, "up", "--time", "2000000000") == 0
    assert "No such series at 2033-05-18 03:33:20Z; samples reach to" in capsys.readouterr().out


def test_wrong_promql_is_a_usage_error_in_the_servers_words(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("query", job, "sum(") == 2
    said = capsys.readouterr().err
    assert said.startswith("raydiag: bad_data:") and "parse error" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        ["query", "JOB", "up", "--time", "1", "--step", "5"],
        ["query", "JOB", "up", "--start", "5", "--end", "1"],
        ["query", "JOB", "up", "--start", "1", "--step", "1"],
        ["view", "http://127.0.0.1:9"],
        ["info", "JOB", "-J", "x"],
        ["info", "JOB", "--address", "x"],
    ],
)
def test_usage_errors(job: Path, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*(str(job) if word == "JOB" else word for word in words)) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("words", [["--time", "soon"], ["--time", "-5"], ["--step", "0"]])
def test_times_that_are_none(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        run("query", "job", "up", *words)
    assert stopped.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_verify(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("verify", job) == 0
    assert "the job's own series: 40 of 40 steps" in capsys.readouterr().out
    code, document = documented(capsys, "verify", job)
    assert code == 0 and document["identity"]["belief"] == "verified" and not document["findings"]


def test_verify_another_jobs_data(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = job.parent / "55-small.log"
    log.write_text(log.read_text().replace(" loss: ", " loss: 1"))
    assert run("verify", job) == 1
    assert "THESE ARE NOT THE JOB'S SERIES" in capsys.readouterr().out
    code, document = documented(capsys, "verify", job)
    assert code == 1 and [one["class"] for one in document["findings"]] == ["tsdb-wrong-job"]


def test_verify_a_server_that_cannot_be_told(
    job: Path, live: Live, capsys: pytest.CaptureFixture[str]
) -> None:
    code, document = documented(capsys, "verify", job, "--prometheus", live.url)
    assert code == 3 and document["identity"]["belief"] == "unverified"


def test_there_is_no_such_thing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "7-none.log").write_text("JOB_ID=7\n")
    (tmp_path / "7-none").mkdir()
    for job in (tmp_path / "7-none", tmp_path / "nothing", "http://127.0.0.1:9"):
        assert run("info", job) == 4
        said = capsys.readouterr().err
        assert said.startswith("raydiag: ") and said.count("\n") == 1


def test_view_serves_two_jobs_until_ctrl_c(job: Path, data: Path) -> None:
    before = digest(job)
    viewer = subprocess.Popen(
        [sys.executable, "-m", "raydiag", "tsdb", "view", str(job), str(data)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert viewer.stdout is not None
    said = []
    for line in viewer.stdout:
        said.append(line)
        if "Ctrl-C" in line:
            break
    text = "".join(said)
    assert text.count("Open http://127.0.0.1:") == 2 and "ssh -L " in text
    viewer.send_signal(signal.SIGINT)
    assert viewer.wait(10) == 0
    assert digest(job) == before


def test_what_the_epilog_shows_is_understood(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        run("--help")
    assert stopped.value.code == 0
    out = capsys.readouterr().out
    for action in ("info", "query", "view", "verify"):
        assert f"raydiag tsdb {action}" in out
