"""Plugins of raydiag's own exporter, rolled out under a real one, verified, and taken back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from raydiag.hotfix import head
from raydiag.hotfix import node as hotfix
from tests.exporter.running import Running, exporter

pytestmark = pytest.mark.slow

SHELL = """\
#!/bin/bash
n=$(( ${_PLUGIN_STATE:-0} + 1 ))
echo "# TYPE site_runs gauge"
echo "site_runs{host=\\"$1\\"} $(( n + FACTOR ))"
echo "# STATE $n"
"""
PYTHON = """\
import time
from raydiag.exporter.metrics import Sample
def collect(host):
    yield Sample("site_time", {}, time.time() + FACTOR)
"""
PROGRAM = """\
#!/usr/bin/env python3
import time
print("# TYPE site_clock gauge")
print("site_clock", time.time() + FACTOR)
"""


@dataclass
class Node:
    """One node, this machine, whose exporter is a real one."""

    place: Mapping[str, Any]

    @property
    def rows(self) -> Sequence[Mapping[str, Any]]:
        fields = {"node_id": "id", "hostname": "alpha", "address": "10.0.0.1", "asked": True}
        return [{**fields, "alive": True, "death_reason": ""}]

    def ask(
        self, requests: Mapping[str, Mapping[str, Any]], limit_s: float
    ) -> dict[str, dict[str, Any]]:
        own = {"journal": self.place["journal"]}
        return {node: hotfix.answer({**request, **own}) for node, request in requests.items()}

    def faults(self, nodes: Sequence[str]) -> dict[str, str]:
        return {}


Run = Callable[..., dict[str, Any]]


@pytest.fixture
def plugins(tmp_path: Path) -> Path:
    place = tmp_path / "plugins"
    place.mkdir()
    return place


@pytest.fixture
def running(plugins: Path, tmp_path: Path) -> Iterator[Running]:
    words = ("--interval", "0.5", "--only", "oom", "--plugins", str(plugins))
    with exporter(tmp_path, *words, "--pid-file", str(tmp_path / "pid")) as one:
        one.wait_for("raydiag_exporter_cycle_timestamp_seconds")
        yield one


@pytest.fixture
def run(running: Running, tmp_path: Path) -> Run:
    place = {"exporter": "raydiag", "port": running.port, "pid_file": str(tmp_path / "pid")}
    node = Node({**place, "journal": str(tmp_path / "journal")})

    def command(word: str, files: Mapping[str, str] | None = None, **more: Any) -> dict[str, Any]:
        request = {
            "command": word,
            "rollout": "r1",
            "who": "me@here",
            "place": place,
            "verify_limit_s": 90.0,
            "ledger": str(tmp_path / "ledger"),
            "files": [{"name": n, "content": text} for n, text in (files or {}).items()],
            **more,
        }
        return head.run(request, node, lambda message: None)

    return command


# Name, text, and the metric that it makes.
PLUGINS = [
    ("site_metrics_plugin.sh", SHELL, "site_runs"),
    ("site_clock", PROGRAM, "site_clock"),
    ("site.py", PYTHON, "site_time"),
]


def deploy(plugins: Path, name: str, text: str) -> None:
    """By hand, before any rollout."""
    new = plugins / ".new"
    new.write_text(text)
    new.chmod(0o755 if not name.endswith(".py") else 0o644)
    new.rename(plugins / name)


@pytest.mark.parametrize(("name", "text", "metric"), PLUGINS)
def test_a_plugin_is_replaced_and_taken_back(
    name: str, text: str, metric: str, run: Run, running: Running, plugins: Path
) -> None:
    old, new = text.replace("FACTOR", "0"), text.replace("FACTOR", "10000000000")
    deploy(plugins, name, old)
    running.wait_for(metric)
    document = run("apply", {name: new})
    assert document["outcome"] == "verified", document["reason"]
    assert running.wait_for(metric, 9e9) > 9e9
    assert (plugins / name).read_text() == new
    (host,) = run("status")["rollouts"][0]["hosts"]
    assert (host["content"], host["ended"]) == ("new", "verified")
    back = run("rollback")
    assert back["outcome"] == "rolled back", back
    assert back["hosts"][0]["notes"][-1] == "after the rollback it serves as before"
    assert (plugins / name).read_text() == old
    assert [path.name for path in plugins.iterdir()] == [name]


@pytest.mark.parametrize(
    ("name", "text", "broken"),
    [
        # What no dry run can see: it breaks once the exporter hands it what it handed on.
        (*PLUGINS[0][:2], SHELL.replace("n=$", '[ "$_PLUGIN_STATE" ] && exit 3\nn=$')),
        (*PLUGINS[2][:2], PYTHON.replace("import time", "import time, nothing")),
    ],
)
def test_a_plugin_that_breaks_in_the_exporter(
    name: str, text: str, broken: str, run: Run, running: Running, plugins: Path
) -> None:
    metric = next(metric for other, _, metric in PLUGINS if other == name)
    deploy(plugins, name, text.replace("FACTOR", "0"))
    running.wait_for(metric)
    document = run("apply", {name: broken.replace("FACTOR", "0")})
    assert document["outcome"] == "rolled back", document
    assert "the exporter goes on with the one before" in document["reason"]
    assert (plugins / name).read_text() == text.replace("FACTOR", "0")
    at = running.wait_for(metric)
    assert running.wait_for(metric, at) > at


def test_a_plugin_that_was_not_there_before(run: Run, running: Running, plugins: Path) -> None:
    name, text, metric = PLUGINS[0]
    document = run("apply", {name: text.replace("FACTOR", "0")})
    assert document["outcome"] == "verified", document["reason"]
    running.wait_for(metric)
    assert run("rollback")["outcome"] == "rolled back"
    assert list(plugins.iterdir()) == []
