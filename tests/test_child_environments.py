"""What each kind of child gets of our environment, read from its /proc/<pid>/environ.

Readers, plugins and the temporary Prometheus are in `exporter/test_unsafe_plugins.py`.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from raydiag import environment
from raydiag.cluster import ssh
from raydiag.hotfix import dry_run, found_exporter
from raydiag.hotfix.messages import SHELL, Check
from raydiag.joblog import slurm
from tests.exporter.foreign_cycle import write

PACKAGE = Path(environment.__file__).parent


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Secrets in our environment, and a directory for programs, first in PATH."""
    for name in ("HF_TOKEN", "RAY_AUTH_TOKEN", "WANDB_API_KEY", "SITE_THING"):
        monkeypatch.setenv(name, "planted-secret")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


def tells(place: Path, name: str) -> Path:
    """A program of that name that keeps the environment it was started with."""
    write(place / name, f"#!/bin/sh\ncat /proc/$$/environ > {place}/seen\n", 0o755)
    return place / "seen"


def names(seen: Path) -> set[str]:
    environ = seen.read_bytes()
    assert b"planted-secret" not in environ
    return {item.split(b"=")[0].decode() for item in environ.split(b"\0") if item}


@pytest.mark.parametrize("command", ["squeue", "scontrol", "sacct"])
def test_a_command_of_slurm(planted: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.setenv("SLURM_JWT", "of-slurm")
    seen = tells(planted, command)
    slurm._output([command])
    assert {"PATH", "SLURM_JWT"} <= names(seen)


def test_ssh(planted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", "/tmp/agent")
    seen = tells(planted, "ssh")
    started = ssh._Ssh(ssh.Way.parse("head", None, None), "127.0.0.1:1")
    assert started._process.wait(60) == 0
    assert {"PATH", "SHELL", "SSH_AUTH_SOCK"} <= names(seen)
    monkeypatch.setenv("RAYDIAG_SSH_ENV", "SITE_OTHER, HF_TOKEN")
    monkeypatch.setenv("SITE_OTHER", "x")
    assert {"SITE_OTHER", "HF_TOKEN"} <= ssh._environment().keys()


def test_a_dry_run_gets_what_the_exporter_has_but_for_secrets(planted: Path) -> None:
    secrets = {"HF_TOKEN": "planted-secret", "SLURM_JWT": "planted-secret"}
    exporter = subprocess.Popen(["/bin/sleep", "60"], env={"SITE_PLACE": "x", **secrets})
    try:
        while not (variables := found_exporter.environment_of(exporter.pid)):
            time.sleep(0.01)
        text = "#!/bin/bash\ntr '\\0' ' ' < /proc/$$/environ >&2\necho a 1\n"
        check = Check(exporter=SHELL, name="a_metrics_plugin.sh")
        staged = planted / "a_metrics_plugin.sh"
        write(staged, text, 0o755)
        ran = dry_run._run(check, str(staged), "", {**variables, "PATH": os.environ["PATH"]})
    finally:
        exporter.kill()
        exporter.wait()
    assert variables == {"SITE_PLACE": "x"}
    assert "SITE_PLACE=x" in ran.output.split() and "planted-secret" not in ran.output, ran


# A process of its own: Ray reads how it authenticates when it is imported, once.
_WITH_A_TEMPORARY_RAY = """
import os, sys, time
import psutil
from raydiag.cluster.local import throwaway_ray
seen = sys.argv[1]
with throwaway_ray() as ray:
    children = psutil.Process().children(recursive=True)
    assert any("raylet" in child.name() for child in children)
    for child in children:
        assert "planted-secret" not in str(child.environ())
    ray.submit(f"cat /proc/$$/environ > {seen}", "x", {})
    while ray.job("x")["status"] == "RUNNING":
        time.sleep(0.05)
assert os.environ["HF_TOKEN"] == "planted-secret"  # ours again
"""


@pytest.mark.cluster
def test_a_temporary_ray_and_the_job_on_it(planted: Path) -> None:
    pytest.importorskip("ray")
    command = [sys.executable, "-c", _WITH_A_TEMPORARY_RAY, str(planted / "seen")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr
    assert {"PATH", "RAY_ADDRESS", "RAY_AUTH_TOKEN"} <= names(planted / "seen")


def test_every_call_that_starts_a_program_names_its_environment() -> None:
    """A new kind of child needs its list, and its test here or beside."""
    inherits = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            of_subprocess = (
                isinstance(node.func.value, ast.Name) and node.func.value.id == "subprocess"
            )
            if of_subprocess and node.func.attr in ("Popen", "run", "check_output"):
                given = {word.arg: ast.unparse(word.value) for word in node.keywords}
                if "os.environ" in given.get("env", "os.environ"):
                    inherits.add(path.relative_to(PACKAGE).as_posix())
    # Where os.environ has nothing but the named ones: in readers, see `environment.forget`, and
    # while a temporary Ray runs, see `local.throwaway_ray`.
    inherited = {"sandbox.py", "exporter/program.py", "cluster/local.py"}
    inherited.add("own_command.py")  # raydiag itself
    assert inherits == inherited
