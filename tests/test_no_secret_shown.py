"""No command shows a secret: every kind, command and format, both streams, a terminal too."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import pty
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raydiag import cli
from raydiag.cli import options
from raydiag.render import probe
from raydiag.render.document import lines, probe_document
from raydiag.render.markdown import markdown_text
from raydiag.render.text import text
from raydiag.render.watch import event_document
from raydiag.watch.following import Memory
from raydiag.watch.watch_state import WatchState, write_state
from tests.render import cluster_samples
from tests.render.test_secrets import _BODY, SECRETS

OTHER = _BODY[::-1]  # of the second job
HIDDEN = (_BODY, _BODY[:16].upper(), OTHER)
IN_A_URL = f"http://trainer:{_BODY}@127.0.0.1:1/?access_token={_BODY}"


def formats(command: str) -> list[str]:
    """Those that the command has, also ones that come to be."""
    parser, _ = cli._parser()
    found: list[str] = []
    for action in _actions(parser, command):
        if "--format" in action.option_strings:
            found = list(map(str, action.choices or ()))
    return found


def _actions(parser: argparse.ArgumentParser, command: str = "") -> Iterator[argparse.Action]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                if command in ("", name):
                    yield from _actions(below)
        else:
            yield action


def no_secret(*printed: str) -> None:
    for stream in printed:
        for body in HIDDEN:
            assert body not in stream, stream[max(0, stream.index(body) - 200) :][:300]


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A directory of a job whose log, settings, workers' files and file names hold secrets."""
    directory = tmp_path / "7-job"
    (directory / "metrics_exporter").mkdir(parents=True)
    (directory / "ray_logs").mkdir()
    texts = [f"0: RuntimeError: refused for {secret}" for secret in SECRETS]
    settings = [f"Config param {name}: {_BODY}" for name in ("hf_access_token", "wandb_api_key")]
    environment = [f"export HF_TOKEN={_BODY}", f"NCCL_DEBUG=INFO WANDB_API_KEY={_BODY}"]
    steps = [f"0: completed step: {n}, seconds: 10.0, loss: 2.5" for n in range(5)]
    coloured = [f"0: Error: hf_\x1b[1;36m{_BODY[:4]}\x1b[0m{_BODY[4:]}"]
    log = [*environment, *settings, *steps, "0: Traceback (most recent call last):", *texts]
    exporter = [f"[2026-02-12T16:59:01Z] plugin failed: {secret}" for secret in SECRETS]
    (tmp_path / "7-job.log").write_text("\n".join([*log, *coloured, ""]))
    (directory / "metrics_exporter" / "n1.log").write_text("\n".join(exporter))
    (directory / "ray_logs" / "worker-1.err").write_text("\n".join(texts))
    return tmp_path / "7-job.log"


def kernel_log(path: Path) -> Path:
    lines = [f"<3>Feb 12 16:59:01 n1 kernel: NVRM: failed for {secret}" for secret in SECRETS]
    path.write_text("\n".join(lines))
    return path


def plugin(path: Path) -> Path:
    words = "; ".join(f"echo '{secret}' >&2" for secret in SECRETS if "'" not in secret)
    path.write_text(f"#!/bin/bash\n{words}\necho 'x{{a=\"{SECRETS[3]}\"}} 1'\nexit 1\n")
    path.chmod(0o755)
    return path


def left_by_a_watcher(path: Path) -> Path:
    now = 1_780_000_000.0
    events = [event_document("7", "problem", secret, True, now) for secret in SECRETS]
    alarms = {f"io-error {secret}": now for secret in SECRETS}
    memory = Memory(f"job {SECRETS[0]}", now, alarms=alarms)
    write_state(path, WatchState(memory, ["watch", SECRETS[3]], "/", events))
    return path


COMMANDS = {
    "triage": ["JOB", "--job-state", "ended", "-v"],
    "triage --redact": ["JOB", "--redact"],
    "diagnose": ["JOB", "--all", "-v"],
    "diagnose --prometheus": ["JOB", "--prometheus", IN_A_URL],
    "diagnose --address": ["--address", IN_A_URL],
    "compare": ["JOB", "JOB2", "-v"],
    "kpi": ["JOB"],
    "doctor": ["--address", IN_A_URL],
    "driver-fault": ["JOB", "--kmsg", "KERNEL"],
    "watch": ["JOB", "--ticks", "1", "--every", "0.1s", "--state", "WATCHED", "--restart"],
    "recover": ["JOB", "--journal", "JOURNAL"],
    "handover": ["--state", "LEFT"],
    "kmsg": ["KERNEL", "-v"],
    "probe": ["--all-nodes", "--address", IN_A_URL],
    "probe --ssh": ["--all-nodes", "--ssh", f"me:{_BODY}@host"],
    "agent up": ["--address", IN_A_URL],
    "agent status": ["--address", IN_A_URL],
    "history": [f"token={_BODY}", "--address", IN_A_URL],
    "tsdb info": [IN_A_URL],
    "tsdb query": [IN_A_URL, f'up{{token="{_BODY}"}}'],
    "tsdb verify": ["JOB", "--prometheus", IN_A_URL],
    "tsdb view": [IN_A_URL],
    "exporter status": ["--port", "1", "--wait", "0.1", "--log", "KERNEL"],
    "exporter check": ["PLUGIN"],
    "hotfix plan": ["--all-nodes", "--address", IN_A_URL, "PLUGIN"],
    "hotfix status": ["--address", IN_A_URL],
    "hotfix rollback": ["--address", IN_A_URL, f"token={_BODY}"],
}


def words_of(name: str, job: Path, tmp_path: Path) -> list[str]:
    other = tmp_path / "8-job.log"
    other.write_text(job.read_text().replace("8 10", "9 11").replace(_BODY, OTHER))
    places = {"JOB": job, "JOB2": other, "KERNEL": kernel_log(tmp_path / "kernel.log")}
    places["PLUGIN"] = plugin(tmp_path / "gpu_metrics_plugin.sh")
    places["JOURNAL"] = tmp_path / "journal"
    places["WATCHED"] = tmp_path / "watched.json"
    places["LEFT"] = left_by_a_watcher(tmp_path / "left.json")
    return [str(places.get(word, word)) for word in COMMANDS[name]]


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_shows_one(
    name: str, job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = name.split(" --")[0].split()
    words = words_of(name, job, tmp_path)
    for output_format in formats(command[0]):
        with contextlib.suppress(SystemExit):
            cli.main([*command, *words, "--format", output_format])
        printed = capsys.readouterr()
        assert printed.out + printed.err, "it said nothing at all"
        no_secret(printed.out, printed.err)


def test_every_command_is_tried() -> None:
    tried = {name.split()[0].replace("-", "_") for name in COMMANDS}
    tried.add("mcp")  # a server on stdin: it answers with the documents of the others
    tried.add("serve_alerts")  # a server: it answers with what `diagnose` prints
    tried |= {"explain", "schema", "completion", "demo"}  # what the package itself carries
    assert tried == {module.__name__.rpartition(".")[2] for module in cli._COMMANDS}


@pytest.mark.parametrize("command", ["triage", "kmsg", "diagnose", "compare", "probe", "tsdb"])
@pytest.mark.parametrize("as_json", [[], ["--json"]])
def test_no_usage_error_shows_one(
    command: str, as_json: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = tmp_path / "settings.yaml"
    settings.write_text(f"{command}:\n  hf_token: {_BODY}\n  now: ghp_{_BODY}\n")
    for words in (
        [f"--{SECRETS[8]}"],
        ["--format", SECRETS[0]],
        ["--now", f"password={_BODY}"],
        ["--config", f"/nowhere/{SECRETS[3]}"],
        ["--config", str(settings)],
        [f"https://me:{_BODY}@host/x", "--ssh", f"ssh://me:{_BODY}@h", "-J", f"me:{_BODY}@j"],
        ["-o", f"/nowhere/{SECRETS[0]}/x"],
    ):
        with contextlib.suppress(SystemExit):
            cli.main([command, *words, *as_json])
        printed = capsys.readouterr()
        no_secret(printed.out, printed.err)


# ---- what nodes say


def poisoned(value: Any, secret: str) -> Any:
    """The value, and a secret in every text of it, names of fields and classes apart."""
    if isinstance(value, str):
        return f"{value} {secret}" if " " in value else value
    if isinstance(value, (list, tuple)):
        return type(value)(poisoned(item, secret) for item in value)
    if isinstance(value, dict):
        return {key: poisoned(item, secret) for key, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value) if field.init]
        shown = {name: poisoned(getattr(value, name), secret) for name in names}
        return dataclasses.replace(value, **shown)
    return value


@pytest.mark.parametrize("secret", SECRETS)
def test_no_answer_of_a_node_shows_one(secret: str) -> None:
    snapshot, diagnosis = cluster_samples.sick_cluster()
    snapshot, diagnosis = poisoned(snapshot, secret), poisoned(diagnosis, secret)
    cluster = {**cluster_samples.CLUSTER, "address": IN_A_URL, "ssh": f"me {secret}"}
    document = probe_document(snapshot, diagnosis, cluster, 0.0)
    report = probe.probe_report(snapshot, diagnosis, cluster, verbose=True)
    written = ["".join(lines(document)), markdown_text(report)]
    written += [text(report, columns, False) for columns in (30, 100, 300)]
    no_secret(*written)
    assert all("***" in one for one in written)
    json.loads(written[0])


# ---- a terminal


def test_no_progress_line_shows_one(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    monkeypatch.setattr("sys.stderr", os.fdopen(theirs, "w"))
    progress = options.ProgressLine(quiet=False)
    for secret in SECRETS:
        progress.say(f"reading what {secret} has printed")
        progress.warn(f"{secret} may still run")
    progress.clear()
    printed = b""
    while b"\r" not in printed[-2:] or len(printed) < 500:
        printed += os.read(ours, 65536)
    no_secret(printed.decode())
    assert "reading what" in printed.decode()
