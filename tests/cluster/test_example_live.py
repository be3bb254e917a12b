"""examples/live: one command plants a fault on its own Ray, diagnoses it, and leaves nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from tests import schemas

pytestmark = pytest.mark.cluster
_SCRIPT = Path(__file__).parents[2] / "examples" / "live" / "run.py"


def processes_with(mark: str) -> list[str]:
    """Whatever has the word in its environment, as every process of the example does."""
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in environ.read_bytes():
                found.append(environ.with_name("cmdline").read_text(errors="replace"))
        except OSError:
            continue  # gone meanwhile, or not ours
    return found


def test_the_rank_that_stopped_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    mark, before = uuid.uuid4().hex, set(Path("/tmp").glob("rdlive-*"))
    done = subprocess.run(
        [sys.executable, _SCRIPT, "--format", "json"],
        capture_output=True,
        text=True,
        env={**os.environ, "EXAMPLE_MARK": mark},
        cwd=tmp_path,
        timeout=400,
        check=False,
    )
    assert (done.returncode, done.stdout != "") == (1, True), done.stderr
    document = json.loads(done.stdout)
    schemas.fits(document, "diagnose")
    assert document["verdict"]["class"] == "worker-stopped"
    assert document["chains"][0][0]["task"] == "trainer-2"
    assert processes_with(mark) == []
    assert set(Path("/tmp").glob("rdlive-*")) <= before
    assert list(tmp_path.iterdir()) == []
