"""`raydiag.pyz`: one file, run by a Python that has nothing else installed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.exporter.running import Running, free_port
from tools import pyz

pytestmark = pytest.mark.slow

_BARE = ("-I", "-S")  # neither packages, nor variables, nor the current directory
_KERNEL_LOG = (
    "[  100.000000] Out of memory: Killed process 4242 (python3) total-vm:100kB, anon-rss:50kB\n"
)
_JOB_LOG = "step 1 loss 2.0\nRuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB\n"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("pyz") / "raydiag.pyz"
    pyz.build(target)
    return target


def ran(file: Path, *words: str, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
    command = [python, *_BARE, str(file), *words]
    return subprocess.run(
        command, cwd=file.parent, capture_output=True, text=True, check=False, timeout=100
    )


def python_3_9() -> str:
    """One that works, of the path or of pyenv; or a skip."""
    candidates = [shutil.which("python3.9"), *Path.home().glob(".pyenv/versions/3.9.*/bin/python")]
    for program in map(str, filter(None, candidates)):
        if subprocess.run([program, "-V"], capture_output=True).returncode == 0:
            return program
    pytest.skip("there is no Python 3.9")


def test_it_is_one_small_file_that_starts_itself(file: Path) -> None:
    assert file.stat().st_size < 3_000_000
    assert file.read_bytes().startswith(b"#!/usr/bin/env python3\n")
    done = subprocess.run([file, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("raydiag ")


@pytest.mark.parametrize("is_old", [False, True], ids=["this Python", "Python 3.9"])
def test_the_exporter_collects_and_serves(file: Path, is_old: bool) -> None:
    python = python_3_9() if is_old else sys.executable
    done = ran(file, "exporter", "once", python=python)
    assert done.returncode == 0, done.stderr
    assert "\nhw_context_switches_total{" in done.stdout
    port, log = free_port(), file.parent / "log"
    served = ("--listen", f"127.0.0.1:{port}", "--state-dir", str(file.parent / "state"))
    command = [python, *_BARE, str(file), "exporter", "run", "--supervise", *served]
    with log.open("wb") as stderr, subprocess.Popen(command, stderr=stderr) as process:
        try:
            Running(process, port, log).wait_for("raydiag_exporter_cycles_total", more_than=0)
        finally:
            process.terminate()


def test_logs_are_read_with_all_tables(file: Path) -> None:
    kernel_log, job_log = file.parent / "kern.log", file.parent / "job.log"
    kernel_log.write_text(_KERNEL_LOG)
    job_log.write_text(_JOB_LOG)
    done = ran(file, "kmsg", str(kernel_log))
    assert (done.returncode, done.stderr) == (1, "")
    assert "oom" in done.stdout
    done = ran(file, "kmsg", str(kernel_log), "--format", "html")
    assert (done.returncode, done.stderr) == (1, "")
    assert ".card" in done.stdout and "oom" in done.stdout
    done = ran(file, "triage", str(job_log))
    assert (done.returncode, done.stderr) == (1, "")
    assert "oom-gpu" in done.stdout


def test_plugins_are_checked_and_the_exporter_is_asked(file: Path) -> None:
    plugin = file.parent / "queue.py"
    plugin.write_text(
        "from raydiag.exporter.metrics import Sample\n"
        "def collect(host):\n    yield Sample('site_queue_depth', {}, 3)\n"
    )
    assert "PASSES" in ran(file, "exporter", "check", str(plugin)).stdout
    words = ("exporter", "status", "--port", str(free_port()), "--wait", "1")
    assert "WARNING exporter-down" in ran(file, *words).stdout


def test_what_the_tables_know_is_looked_up(file: Path) -> None:
    done = ran(file, "explain", "xid", "79")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("CRITICAL Xid 79  GPU has fallen off the PCIe bus\n")
    assert '"urn:raydiag:schema:kmsg:1"' in ran(file, "schema", "kmsg").stdout
    done = ran(file, "demo", "--list")
    assert (done.returncode, done.stdout) == (4, "")
    assert "there are no examples here" in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("probe",),
        ("diagnose", "job.log"),
        ("compare", "a", "b"),
        ("tsdb", "info", "a"),
        ("completion", "bash"),
    ],
    ids=lambda words: words[0],
)
def test_what_is_left_out_is_said(file: Path, words: tuple[str, ...]) -> None:
    done = ran(file, *words)
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr.startswith("raydiag: raydiag.pyz leaves out numpy, psutil, ray, requests, ")
    assert "pip install raydiag-*.whl" in done.stderr


def test_an_old_python_is_told_what_needs_a_newer_one(file: Path) -> None:
    done = ran(file, "triage", "job.log", python=python_3_9())
    assert (done.returncode, done.stdout) == (4, "")
    assert "all else needs 3.10 or newer" in done.stderr
