"""`raydiag diagnose` of a job whose bridge lost steps: the event file has them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raydiag.cli import main
from raydiag.explain.job import event_files
from raydiag.tsdb.tfevents import Events, ScalarSeries
from tests import schemas
from tests.explain.comparable import make
from tests.incidents.job import Job
from tests.incidents.kinds import World, slow

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (shutil.which("promtool") and shutil.which("prometheus")),
        reason="promtool and prometheus are not on PATH",
    ),
]
Plant = Callable[[World], None]


def diagnosed(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    plant: Plant,
    edit: Callable[[Job], None] = lambda job: None,
) -> tuple[int, dict[str, Any], str]:
    """Exit code, document, and the report for people."""

    def with_file(job: Job) -> None:
        job.event_file = True
        edit(job)

    made = make(tmp_path, 3, with_file, plant)
    arguments = ["diagnose", made.path, "--job-state", "ended"]
    code = main([*arguments, "--format", "json"])
    document = json.loads(capsys.readouterr().out)
    schemas.fits(document, "diagnose")
    assert main(arguments) == code
    return code, document, " ".join(capsys.readouterr().out.split())


def gaps(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for one in document["findings"] if one["class"] == "tb-bridge-gap"]


def test_steps_that_the_metrics_lack_are_named_and_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def lose(world: World) -> None:
        world.training.exported[:] = True
        world.training.exported[40:45] = False

    code, document, text = diagnosed(tmp_path, capsys, lose)
    assert (code, document["verdict"]["class"]) == (0, "healthy")
    (gap,) = gaps(document)
    assert gap["severity"] == "info"
    assert "40 to 44" in gap["evidence"][0]["text"]
    assert "events.out.tfevents" in gap["evidence"][0]["source"]
    assert "5 of" in document["metrics"]["training"]
    assert "training series: 5 of" in text


def test_a_metrics_directory_that_has_all_steps_needs_no_event_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def keep(world: World) -> None:
        world.training.exported[:] = True

    _, document, text = diagnosed(tmp_path, capsys, keep)
    assert gaps(document) == []
    assert document["metrics"]["training"] == "metrics"
    assert "training series" not in text


def test_without_the_bridge_training_is_judged_by_the_event_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def lose_all(world: World) -> None:
        world.training.exported[:] = False
        host, port = world.job.hosts[1], world.job.ports[1]
        for name, rate in (("retx_pkts", 400.0), ("ack_timeout", 5.0)):
            series = world.one(host, f"hw_rdma_tx_{name}_total", device=port)
            series.rate(world.job.plan.train_start + 600, 1e12, rate)

    def slower(job: Job) -> None:
        slow(job, job.plan.train_start + 600, 1e12, 1.3)

    code, document, text = diagnosed(tmp_path, capsys, lose_all, slower)
    assert (code, document["verdict"]["class"]) == (1, "rdma-degraded")
    chain = [one["class"] for one in document["chains"][0]]
    assert "tgs-degradation" in chain
    sources = [
        item["source"]
        for one in document["chains"][0]
        if one["class"] == "tgs-degradation"
        for item in one["evidence"]
    ]
    assert any(one.startswith("event file ") for one in sources)
    (gap,) = gaps(document)
    assert any("events.out.tfevents" in one["source"] for one in gap["evidence"])
    assert "were read from" in text


def test_an_event_file_of_another_host_is_not_the_jobs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = make(tmp_path, 4, lambda job: setattr(job, "event_file", True), _lose)
    (file,) = Path(made.path).glob("tensorboard/events*")
    file.rename(file.with_name(f"{file.name}9"))
    assert main(["diagnose", made.path, "--job-state", "ended", "--format", "json"]) in (0, 1)
    document = json.loads(capsys.readouterr().out)
    assert document["metrics"]["training"] == "metrics"


def _lose(world: World) -> None:
    world.training.exported[40:45] = False


def test_without_any_metrics_the_event_file_dates_the_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = make(tmp_path, 5, lambda job: setattr(job, "event_file", True))
    shutil.rmtree(Path(made.path) / "prometheus")
    last = made.world.timeline.last
    assert last is not None
    arguments = ["diagnose", made.path, "--now", str(last.end + 30), "--format", "json"]
    main(arguments)
    document = json.loads(capsys.readouterr().out)
    schemas.fits(document, "diagnose")
    assert any(f"step {last.number} was the last" in one for one in document["notes"])


def test_an_event_file_whose_losses_are_not_the_logs_dates_nothing() -> None:
    numbers, times = np.arange(10.0), np.arange(100.0, 110.0)
    events = Events({"learning/loss": ScalarSeries(numbers, times, 5.0 - numbers / 10)})
    same = {int(step): 5.0 - step / 10 for step in numbers}
    assert event_files.alone(events, same).last_at == 109.0
    assert not len(event_files.alone(events, dict.fromkeys(same, 9.0)))
    assert not len(event_files.alone(events, {700: 5.0}))
    assert event_files.alone(events, {}).last == 9


def test_only_the_last_run_of_an_event_file_counts() -> None:
    numbers = np.arange(8.0)
    times = np.array([0.0, 1, 2, 3, 4, 900, 901, 902])
    times[4] = 950.0  # written by the run before, which got further
    steps = event_files.alone(Events({"x": ScalarSeries(numbers, times, numbers)}), {})
    assert (steps.first, steps.last) == (5, 7)
