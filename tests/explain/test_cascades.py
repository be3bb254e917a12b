"""Cascades over real Prometheus data: the first cause is named, never the loudest.

Each is made once more from the same seed without what shows its root on the sick hosts: then the
answer is `unknown` or less certain, and nothing is confirmed.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from raydiag.cli import main
from tests.incidents.generate import play_out
from tests.incidents.job import Options, draw
from tests.incidents.kinds import Run, World, load
from tests.incidents.signals import Signals
from tests.incidents.truth import Incident, Truth

SMALL = Options(nodes=3, gpus=2, ports=1, minutes=20, interval_s=15)
_SEED = 11
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (shutil.which("promtool") and shutil.which("prometheus")),
        reason="promtool and prometheus are not on PATH",
    ),
]
_RAS, _PCIE = "hw_gpu_ras_|hw_dmesg_", "hw_gpu_pcie_|hw_dmesg_"
_SPEED = "hw_gpu_clock|hw_gpu_power|.*utili"
_MEMORY = "hw_oom|ray_node_mem"
_STORAGE = "hw_io_|hw_procs_blocked|hw_mem_dirty|hw_mem_writeback"
_TRAFFIC = "hw_gpu_power|hw_rdma_|.*utili"

# A kind of tests/incidents, and the pattern of the metrics that show its root.
CASCADES = {
    "gpu-memory-error": _RAS,
    "gpu-ras-error": _RAS,
    "pcie-fatal": _PCIE,
    "pcie-precursor": _PCIE,
    "thermal-throttling": f"hw_gpu_temp|{_SPEED}",
    "gpu-clock-drop": _SPEED,
    "straggler-node": _SPEED,
    "red-herring-retransmits": _SPEED,
    "straggler-stall": _TRAFFIC,
    "host-side-stall": _TRAFFIC,
    "hang-after-rdma": "hw_rdma_",
    "hang-after-port-down": "hw_rdma_",
    "rdma-degraded": "hw_rdma_",
    "rdma-port-down": "hw_rdma_",
    "rdma-retry-exhausted": "hw_rdma_",
    "network-congestion": "hw_rdma_",
    "worst-port-first": "hw_rdma_",
    "ghost-beside-rdma": "hw_rdma_",
    "gpu-fell-off": ".*",
    "node-death": ".*",
    "heartbeat-was-node-death": ".*",
    "heartbeat-was-oom": _MEMORY,
    "storage-stall": _STORAGE,
    "cpu-contention": "hw_procs_|hw_load|hw_cpu|ray_node_cpu",
    "moe-imbalance": "tb_learning_moe",
}


def made(kind: str, out: Path, unseen: str = "") -> Incident:
    """The incident; `unseen`: the metrics that its sick hosts never had."""
    job = draw(_SEED, SMALL)
    play = load()[kind](job)
    return play_out(kind, blinded(play, unseen) if unseen else play, job, _SEED, out)


def blinded(play: Run, pattern: str) -> Run:
    """The same play; series of those names were never scraped on the hosts of its truth."""
    next(play)
    world: World = yield
    truth = _end_of(play, world)
    hosts = truth.hosts or tuple(world.job.hosts)

    def forget(signals: Signals) -> None:
        for key, series in list(signals.series.items()):
            if series.host in hosts and re.match(pattern, series.metric):
                del signals.series[key]

    world.afterwards.append(forget)
    return truth


def _end_of(play: Run, world: World) -> Truth:
    try:
        play.send(world)
    except StopIteration as done:
        assert isinstance(done.value, Truth)
        return done.value
    raise AssertionError("a kind yields once")


def verdict_of(incident: Incident, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    main(["diagnose", *incident.arguments, "--format", "json"])
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


@pytest.mark.parametrize(("kind", "unseen"), CASCADES.items(), ids=CASCADES)
def test_the_first_cause_is_named_and_only_where_it_is_seen(
    kind: str, unseen: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    incident = made(kind, tmp_path / "whole")
    document, truth = verdict_of(incident, capsys), incident.truth
    named = document["verdict"]
    assert named["class"] in (truth.verdict, *truth.also)
    assert tuple(named["hosts"]) in (truth.hosts, *truth.also_hosts)
    assert len(document["chains"][0]) > 1, "nothing followed: it is no cascade"
    assert document["chains"][0][0]["class"] == named["class"]

    blind = verdict_of(made(kind, tmp_path / "blind", unseen), capsys)["verdict"]
    assert blind["class"] not in ("healthy", truth.verdict)
    assert blind["class"] == "unknown" or blind["confidence"] != "confirmed"


def test_there_are_twenty_cascades() -> None:
    assert len(CASCADES) >= 20
