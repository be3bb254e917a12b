"""Plugins that another user could change are not run; and what plugins see of our environment."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from raydiag import cli, sandbox
from raydiag.exporter.check import check
from raydiag.exporter.readers import ask_one
from raydiag.model import Status
from raydiag.tsdb import server
from tests.exporter.foreign_cycle import HOST, cycles, write

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user: needs root")
SCRIPT = "#!/bin/sh\necho site_queue_depth 3\n"


def make(directory: Path, unsafe: str) -> None:
    """One plugin, in one of the ways that let somebody else choose what runs."""
    directory.mkdir()
    path = write(directory / "queue", SCRIPT, 0o755)
    if unsafe == "directory":
        directory.chmod(0o777)
    elif unsafe == "sticky directory":
        directory.chmod(0o1777)
    elif unsafe == "owner":
        os.chown(path, 1234, 1234)
    elif unsafe == "mode":
        path.chmod(0o777)
    elif unsafe == "link":
        elsewhere = directory.parent / "elsewhere"
        path.rename(elsewhere)
        path.symlink_to(elsewhere)


WAYS = ["directory", "sticky directory", "owner", "mode", "link"]


@pytest.mark.parametrize("way", WAYS)
def test_an_unsafe_plugin_does_not_run(tmp_path: Path, way: str) -> None:
    make(tmp_path / "plugins", way)
    with cycles(tmp_path / "plugins") as running:
        assert running.run() == {}
        (reason,) = running.foreign.problems().values()
        assert "--allow-unsafe-plugins" in reason


@pytest.mark.parametrize("way", WAYS)
def test_it_runs_where_that_is_allowed(tmp_path: Path, way: str) -> None:
    make(tmp_path / "plugins", way)
    with cycles(tmp_path / "plugins") as running:
        running.foreign.allow_unsafe = True
        assert running.run()["queue"].status is Status.OK


def test_a_plugin_that_becomes_unsafe_goes_on_from_its_copy(tmp_path: Path) -> None:
    make(tmp_path / "plugins", "")
    with cycles(tmp_path / "plugins") as running:
        running.run()
        write(tmp_path / "plugins" / "queue", "#!/bin/sh\necho stolen 1\n", 0o777)
        outcome = running.run()["queue"]
        assert [sample.name for sample in outcome.samples or []] == ["site_queue_depth"]


def test_check_refuses_what_others_may_change(tmp_path: Path) -> None:
    path = write(tmp_path / "queue", f"{SCRIPT}touch {tmp_path}/ran\n", 0o777)
    (refused,) = check([str(path)], HOST)
    assert not refused.passes
    assert "others may write to" in refused.problems[0]
    assert not (tmp_path / "ran").exists()
    (allowed,) = check([str(path)], HOST, allow_unsafe=True)
    assert allowed.passes
    assert "others may write to" in allowed.warnings[0]


def test_the_command_refuses_an_unsafe_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path / "plugins", "directory")
    assert cli.main(["exporter", "once", "--plugins", str(tmp_path / "plugins")]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "others may write to" in line
    assert "--allow-unsafe-plugins" in line


@pytest.mark.parametrize("name", ["labels", "labels.py"])
def test_no_secret_in_a_label_is_served(tmp_path: Path, name: str) -> None:
    token = "ghp" + "_Zq8Lw3Xv7Tn2Rb5Yk9Pd4Mc6"
    text = f'#!/bin/sh\necho \'site_queue_depth{{url="{token}",api_key="hunter2",q="a"}} 1\'\n'
    if name == "labels.py":
        labels = {"url": token, "api_key": "hunter2", "q": "a"}
        text = "from raydiag.exporter.metrics import Sample\ndef collect(host):\n"
        text += f"    yield Sample('site_queue_depth', {labels!r}, 1)\n"
    (tmp_path / "plugins").mkdir()
    write(tmp_path / "plugins" / name, text, 0o755)
    with cycles(tmp_path / "plugins") as running:
        (outcome,) = running.run().values()
    (sample,) = outcome.samples or []
    assert sample.labels == {"url": "***", "api_key": "***", "q": "a"}


# ---- the environment


@pytest.fixture
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_TOKEN", "RAY_AUTH_TOKEN", "SLURM_JWT"):
        monkeypatch.setenv(name, "planted-secret")


def told(environ: bytes) -> None:
    assert b"planted-secret" not in environ
    assert b"PATH=" in environ


def reads_its_own(request: dict[str, str]):  # type: ignore[no-untyped-def]
    yield {"answer": {"environ": Path("/proc/self/environ").read_text()}}


@pytest.mark.parametrize("kind", ["files", "processes", "sockets", "commands", "plugins"])
def test_a_reader_shows_no_secret(secrets: None, kind: str) -> None:
    answer, _, reason = ask_one(reads_its_own, kind, {}, "environment", 60.0)
    assert answer, reason
    told(answer["environ"].encode())


def runs_a_command(request: dict[str, str]):  # type: ignore[no-untyped-def]
    _, out, _ = sandbox.run_command(["cat", "/proc/self/environ"], 60.0)
    yield {"answer": {"environ": out.decode()}}


def test_a_command_gets_no_secret(secrets: None) -> None:
    told(ask_one(runs_a_command, "commands", {}, "environment", 60.0)[0]["environ"].encode())


@pytest.mark.parametrize("name", ["env_metrics_plugin.sh", "env", "env.py"])
def test_a_plugin_gets_no_secret(secrets: None, tmp_path: Path, name: str) -> None:
    """Its own environment, and that of the process above it."""
    seen = tmp_path / "seen"
    text = f"#!/bin/bash\ncat /proc/$$/environ /proc/$PPID/environ > {seen}\necho a 1\n"
    if name == "env.py":
        text = "from raydiag.exporter.metrics import Sample\ndef collect(host):\n"
        text += "    with open('/proc/self/environ') as file:\n"
        text += "        if 'planted-secret' not in file.read(): yield Sample('a', {}, 1)\n"
    directory = tmp_path / "plugins"
    directory.mkdir()
    write(directory / name, text, 0o755)
    with cycles(directory) as running:
        (outcome,) = running.run().values()
        assert outcome.status is Status.OK, outcome.reason
        assert outcome.samples
    if name != "env.py":
        told(seen.read_bytes())


def test_a_named_variable_is_passed_on(
    secrets: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("raydiag.environment._also", {"HF_TOKEN"})
    answer, _, _ = ask_one(reads_its_own, "files", {}, "environment", 60.0)
    assert "HF_TOKEN=planted-secret" in answer["environ"]
    assert "RAY_AUTH_TOKEN" not in answer["environ"]


def test_the_temporary_prometheus_gets_no_secret(
    secrets: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = write(tmp_path / "prometheus", f"#!/bin/sh\ncat /proc/$$/environ > {tmp_path}/seen\n")
    program.chmod(0o755)
    monkeypatch.setenv("RAYDIAG_PROMETHEUS", str(program))
    started = server.PrometheusServer(tmp_path, tmp_path, 1)
    assert started._process.wait(60) == 0
    told((tmp_path / "seen").read_bytes())
