"""`--address local`: a real report of this machine, and nothing of Ray left behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.cluster.conftest import RAYDIAG, answer, environment

pytestmark = pytest.mark.cluster

LOCAL = [*RAYDIAG, "probe", "--all-nodes", "--address", "local", "--format", "json"]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[dict[str, str]]:
    """An environment with an empty HOME, and Ray variables that must not matter."""
    own = {"HOME": str(tmp_path), "RAY_ADDRESS": "192.0.2.77:6379", "RAY_AUTH_MODE": "disabled"}
    with tempfile.TemporaryDirectory(prefix="t-", dir="/tmp") as directory:
        yield {**os.environ, **environment(), **own, "TMPDIR": directory}


def ray_processes(home: dict[str, str]) -> set[int]:
    """Of this test only: they have its home."""
    return {p.pid for p in psutil.process_iter() if _environment(p).get("HOME") == home["HOME"]}


def _environment(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except psutil.Error:
        return {}


def test_reports_this_machine_and_leaves_nothing(home: dict[str, str], tmp_path: Path) -> None:
    done = subprocess.run(LOCAL, capture_output=True, text=True, env=home, timeout=120)
    found = answer(done)
    (node,) = found.document["nodes"]
    assert node["host"] == os.uname().nodename.split(".")[0]
    assert node["status"] == "ok"
    versions = node["probes"]["versions"]["records"]
    assert os.uname().release in [item["version"] for item in versions]
    assert done.returncode in (0, 1, 3)
    assert done.stderr == ""
    assert list(tmp_path.iterdir()) == []
    assert ray_processes(home) == set()
    assert os.listdir(home["TMPDIR"]) == []


def test_interrupted_it_leaves_nothing_either(home: dict[str, str], tmp_path: Path) -> None:
    process = subprocess.Popen(
        LOCAL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=home
    )
    end = time.monotonic() + 60
    while not any(child.name() == "raylet" for child in psutil.Process(process.pid).children()):
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []
    assert ray_processes(home) == set()
    assert os.listdir(home["TMPDIR"]) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_ended_while_ray_is_up_it_leaves_nothing(home: dict[str, str], number: int) -> None:
    process = subprocess.Popen(
        LOCAL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=home
    )
    end = time.monotonic() + 60
    names: set[str] = set()
    while not any("raydiag.cluster.coordinator" in name for name in names):
        for child in psutil.Process(process.pid).children():
            with contextlib.suppress(psutil.Error):  # it has just ended
                names.add(" ".join(child.cmdline()))
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.02)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "raydiag: interrupted\n")
    assert ray_processes(home) == set()
    assert os.listdir(home["TMPDIR"]) == []


def test_two_at_once_do_not_meet(home: dict[str, str]) -> None:
    both = [
        subprocess.Popen(LOCAL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=home)
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=120) for process in both]
    sessions = {json.loads(out)["cluster"]["session_name"] for out, _ in outputs}
    assert len(sessions) == 2
