"""One incident with many faults, as three dialects show it: every row of every playbook agrees.

Training has no series of its own in any of them, as others' exporters have none of it.
Where a dialect lacks what a row rests on, the row is undecided and says which series are absent.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from raydiag.playbooks.tables import ROWS
from raydiag.timeline.queries import templates
from tests.incidents import exporters
from tests.incidents.generate import play_out
from tests.incidents.job import Job, Options, draw
from tests.incidents.kinds import Run, load
from tests.incidents.signals import Signals
from tests.incidents.truth import Truth
from tests.tsdb import promtool

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("needs_prometheus")]

OURS = ""
SLOW = (
    "thermal-throttling",
    "gpu-memory-degrading",
    "gpu-power-outlier",
    "pcie-degraded",
    "vram-pressure",
    "rdma-degraded",
    "rdma-completion-errors",
    "network-congestion",
    "nic-errors",
    "tcp-aborts",
    "coordinator-overload",
    "cpu-contention",
    "storage-stall",
)
HUNG = ("gpu-memory-error", "hang-after-port-down")
# Where training has no series, what its log tells stands in for them.
FROM_THE_LOG = "training"
METRICS = {template.id: frozenset(template.metrics) for template in templates()}


class Told(NamedTuple):
    """What one row says, of which place."""

    holds: bool | None
    hosts: tuple[str, ...]
    gpu: int | None


class Asked(NamedTuple):
    """The answers of one dialect: by playbook and row, what it says and in which words."""

    rows: Mapping[tuple[str, str], frozenset[Told]]
    words: Mapping[tuple[str, str], str]


def together(job: Job, names: tuple[str, ...]) -> Run:
    """Several kinds in one job."""
    plays = [load()[name](job) for name in names]
    for play in plays:
        next(play)
    world = yield
    world.afterwards.append(_without_training)
    for play in plays:
        with pytest.raises(StopIteration):
            play.send(world)
    return Truth("unknown")


def _without_training(signals: Signals) -> None:
    for key in [key for key, of in signals.series.items() if of.metric.startswith("tb_")]:
        del signals.series[key]


@pytest.fixture(scope="module", params=[SLOW, HUNG], ids=["slow", "hung"])
def asked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Answers by dialect; each incident is made and asked about once."""
    names = request.param

    @cache
    def answers(dialect: str) -> Asked:
        options = Options(nodes=4, gpus=4, ports=2, minutes=35, dialect=dialect)
        job = draw(11, options)
        out = tmp_path_factory.mktemp(dialect or "ours") / "out"
        with pytest.MonkeyPatch.context() as patch:
            directory = str(Path(promtool.program("promtool")).parent)
            patch.setenv("PATH", directory, prepend=os.pathsep)
            incident = play_out("several", together(job, names), job, 11, out)
            return _diagnosed(incident.arguments)

    return answers


def _diagnosed(arguments: list[str]) -> Asked:
    command = [sys.executable, "-m", "raydiag", "diagnose", *arguments, "--format", "json"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert answer.stdout, answer.stderr
    rows: dict[tuple[str, str], set[Told]] = {}
    words: dict[tuple[str, str], str] = {}
    for report in json.loads(answer.stdout)["playbooks"]:
        for row in report["rows"]:
            key = report["id"], row["row"]
            told = Told(row["holds"], tuple(sorted(row["hosts"])), row["gpu"])
            rows.setdefault(key, set()).add(told)
            words[key] = words.get(key, "") + row["interpretation"] + "\n"
    return Asked({key: frozenset(told) for key, told in rows.items()}, words)


def is_offered(metric: str, dialect: str) -> bool:
    return metric.startswith("ray_") or metric in exporters.offered(dialect)


def differences(ours: Asked, theirs: Asked, dialect: str) -> list[str]:
    """Rows that say something else, though they could not, or could, say the same."""
    found = []
    for key, told in ours.rows.items():
        query = ROWS[key[1]].query if key[1] in ROWS else ""
        metrics = METRICS.get(query, frozenset())
        other = theirs.rows.get(key, frozenset())
        have = {metric for metric in metrics if is_offered(metric, dialect)}
        if not metrics or query == FROM_THE_LOG:
            continue
        if have == metrics and other != told:
            found.append(f"{key}: {sorted(map(str, told))}, there {sorted(map(str, other))}")
        if not have and {row.holds for row in other} - {None}:
            found.append(f"{key}: nothing measures it there, and it says {sorted(map(str, other))}")
        if not have and not any(metric in theirs.words.get(key, "") for metric in metrics):
            found.append(f"{key}: it does not say what is absent: {theirs.words.get(key)}")
        if have and have != metrics and _holding(other) - _holding(told):
            found.append(f"{key}: invented {sorted(map(str, _holding(other) - _holding(told)))}")
    return found


def _holding(told: frozenset[Told]) -> set[Told]:
    return {row for row in told if row.holds}


@pytest.mark.parametrize("dialect", ["dcgm", "amd"])
def test_every_row_says_the_same_or_what_is_absent(asked: Any, dialect: str) -> None:
    ours = asked(OURS)
    assert sum(bool(_holding(told)) for told in ours.rows.values()) > 5
    found = differences(ours, asked(dialect), dialect)
    assert not found, "\n".join(found)
