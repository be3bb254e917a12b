"""The same incidents as dcgm-exporter, AMD's and node_exporter show them, without steps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.incidents.generate import generate
from tests.incidents.job import Options
from tests.incidents.truth import Incident
from tests.tsdb import promtool

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("needs_prometheus")]
BOTH = ("dcgm", "amd")
KINDS = (
    *(("healthy", dialect) for dialect in BOTH),
    *(("node-death", dialect) for dialect in BOTH),
    *(("gpu-clock-drop", dialect) for dialect in BOTH),
    ("gpu-memory-error", "dcgm"),
    ("oom-host-leak", "amd"),
    ("tcp-aborts", "dcgm"),
    ("storage-stall", "amd"),
    ("rccl-hang", "dcgm"),
    ("thermal-throttling", "amd"),
    ("straggler-node", "dcgm"),
    ("exporter-down", "dcgm"),
    ("clock-skew", "dcgm"),
    ("clock-skew", "amd"),
)


def made(kind: str, dialect: str, out: Path, monkeypatch: pytest.MonkeyPatch) -> Incident:
    monkeypatch.setenv("PATH", str(Path(promtool.program("promtool")).parent), prepend=os.pathsep)
    options = Options(nodes=4, gpus=4, ports=2, minutes=35, dialect=dialect)
    return generate(kind, 5, out, options)


def raydiag(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "raydiag", *arguments, "--format", "json"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert answer.stdout, answer.stderr
    document = json.loads(answer.stdout)
    assert isinstance(document, dict)
    return document


@pytest.mark.parametrize(("kind", "dialect"), KINDS)
def test_the_verdict_does_not_depend_on_the_exporter(
    kind: str, dialect: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    incident = made(kind, dialect, tmp_path / "out", monkeypatch)
    verdict = raydiag("diagnose", *incident.arguments)["verdict"]
    truth = incident.truth
    assert verdict["class"] in (truth.verdict, *truth.also)
    assert verdict["hosts"] == list(truth.hosts or ())
    gpus = {(found["host"], found["gpu"]) for found in verdict["gpus"]}
    assert gpus >= {tuple(gpu) for gpu in truth.gpus}
