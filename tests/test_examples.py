"""What stands in deploy/ and examples/ does what it says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture
def stand_in(tmp_path: Path) -> Path:
    """A `raydiag` on PATH that ends as it is told and notes its arguments."""
    directory = tmp_path / "bin"
    directory.mkdir()
    program = directory / "raydiag"
    program.write_text('#!/bin/sh\necho "$@" > "$NOTE"\nexit "$STATUS"\n')
    program.chmod(0o755)
    return directory


@pytest.mark.parametrize(
    ("status", "accept", "expected"),
    [(0, "0", 0), (1, "0", 1), (1, "1", 1), (3, "0", 3), (3, "1", 0), (4, "1", 4)],
)
def test_preflight_goes_on_only_when_it_may(
    stand_in: Path, tmp_path: Path, status: int, accept: str, expected: int
) -> None:
    env = {
        **os.environ,
        "PATH": f"{stand_in}:{os.environ['PATH']}",
        "NOTE": str(tmp_path / "note"),
        "STATUS": str(status),
        "RAYDIAG_ACCEPT_BLIND": accept,
    }
    command = [str(ROOT / "deploy/preflight.sh"), str(tmp_path), "--deadline", "20"]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == expected
    arguments = (tmp_path / "note").read_text()
    assert arguments.startswith(f"probe --all-nodes --format json -o {tmp_path}/raydiag-")
    assert arguments.endswith(".json --deadline 20\n")


def test_preflight_wants_a_directory(tmp_path: Path) -> None:
    command = [str(ROOT / "deploy/preflight.sh"), str(tmp_path / "none")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "REPORT_DIR must exist" in done.stderr


def test_hosts_to_exclude(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    findings = [
        {"severity": "critical", "host": "node7"},
        {"severity": "warning", "host": "node8"},
        {"severity": "critical", "host": None},
    ]
    blind = [{"host": "node3", "reason": "timeout"}]
    report.write_text(json.dumps({"findings": findings, "coverage": {"nodes": {"blind": blind}}}))
    command = [sys.executable, str(ROOT / "examples/hosts_to_exclude.py"), str(report)]
    assert subprocess.check_output(command, text=True) == "node3,node7\n"
