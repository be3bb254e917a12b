"""`raydiag recover` over real logs, with real diagnoses."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from raydiag import cli

pytestmark = pytest.mark.slow


def log(path: Path, began: float, *last_lines: str) -> None:
    """Of an attempt of ten steps, with a save, that ended so."""
    lines = []
    for step in range(10):
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(began + 10 * step))
        lines.append(f"{stamp} completed step: {step}, seconds: 10.0, loss: 2.5")
    lines.append("Saved a checkpoint at step 9.")
    path.write_text("\n".join([*lines, *last_lines, ""]))


def recover(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = cli.main(["recover", *words])
    return code, capsys.readouterr().out


def test_a_job_that_has_not_failed_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, journal = tmp_path / "7-llama.log", tmp_path / "journal"
    log(path, time.time() - 60)
    code, said = recover(capsys, str(path), "--journal", str(journal), "--ended")
    assert (code, "NOOP: the job's status is running" in said) == (0, True), said
    assert journal.read_bytes() == b""


def test_the_same_attempt_is_decided_once_and_the_same_fault_twice_is_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, journal = tmp_path / "7-llama.log", tmp_path / "journal"
    words = (str(path), "--journal", str(journal), "--ended", "--format", "jsonl")
    trace = (
        "Traceback (most recent call last):",
        '  File "/opt/train/data.py", line 8, in batches',
        "RuntimeError: the shard has no rows",
    )
    actions = []
    for began in (7200, 7200, 3600):
        log(path, time.time() // 3600 * 3600 - began, *trace)
        actions.append(json.loads(recover(capsys, *words)[1])["action"])
    # Asked again, it may be of a newer attempt that came to no step.
    assert actions == ["REATTEMPT", "DIAGNOSE", "STOP"]
    assert len(journal.read_text().splitlines()) == 2
    assert "given up before" in recover(capsys, *words[:3])[1]


def test_no_job_decides_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = (str(tmp_path / "7-llama.log"), "--journal", str(tmp_path / "journal"))
    assert cli.main(["recover", *words]) == 4
    assert "no diagnosis" in capsys.readouterr().err
    (tmp_path / "policy.yaml").write_text("mode: act\n")
    assert cli.main(["recover", *words, "--policy", str(tmp_path / "policy.yaml")]) == 2


def test_each_job_has_a_journal_of_its_own_where_none_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    path = tmp_path / "7-llama.log"
    log(path, time.time() - 7200, "RuntimeError: the shard has no rows")
    actions = []
    for asked in (str(path), os.path.relpath(path)):
        line = recover(capsys, asked, "--ended", "--format", "jsonl")[1]
        actions.append(json.loads(line)["action"])
    assert actions == ["REATTEMPT", "DIAGNOSE"]
    assert len(list((tmp_path / "home/.raydiag/recover").iterdir())) == 1
