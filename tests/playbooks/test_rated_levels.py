"""What a part keeps by design: memory clock, PCIe speed, port rate; memory's heat; inodes."""

from __future__ import annotations

import numpy as np
import pytest

from raydiag.model import Confidence, Severity
from tests.playbooks.world import HOSTS, T0, World, classes, holds

TGS = "tb_perf_per_device_tokens_per_sec"
BY_DESIGN = [
    ("hw_gpu_memory_clock_mhz", 1900.0, 600.0, "gpu-clock-drop", "gpu-health"),
    ("hw_gpu_pcie_speed", 32.0, 8.0, "pcie-degraded", "gpu-health"),
    ("hw_gpu_memory_temperature_celsius", 70.0, 104.0, "thermal-throttling", "gpu-health"),
    ("hw_rdma_port_rate_bytes", 5e10, 1.25e10, "rdma-degraded", "network-health"),
]


def world_with(metric: str, usual: float, now: float | None = None) -> World:
    """Host n3 leaves its level 3000 s after the start, where `now` is told."""
    world = World()
    for host in HOSTS:
        row = np.full(world.times.size, usual)
        if host == "n3" and now is not None:
            row[world.times >= T0 + 3000] = now
        world.put("parts", row, host=host, __name__=metric)
    return world


@pytest.mark.parametrize(("metric", "usual", "now", "failure", "playbook"), BY_DESIGN)
def test_a_part_that_lost_speed_as_training_got_slower(
    metric: str, usual: float, now: float, failure: str, playbook: str
) -> None:
    world = world_with(metric, usual, now)
    world.scalar(TGS, 0.7, 3000, factor=True)
    (found,) = [o.finding for o in world.judge(playbook).observations]
    assert (found.failure_class, found.host, found.severity) == (failure, "n3", None)
    assert found.onset is not None and abs(found.onset - T0 - 3000) <= 30
    certain = Confidence.LIKELY if "temperature" in metric else Confidence.CONFIRMED
    assert found.confidence is certain


@pytest.mark.parametrize(("metric", "usual", "now", "failure", "playbook"), BY_DESIGN)
def test_a_part_that_lost_speed_and_slows_nothing_is_a_remark(
    metric: str, usual: float, now: float, failure: str, playbook: str
) -> None:
    outcome = world_with(metric, usual, now).judge(playbook)
    assert classes(outcome) == {failure}
    assert outcome.observations[0].finding.severity is Severity.INFO
    assert classes(world_with(metric, usual).judge(playbook)) == set()


def test_the_part_is_named_where_each_was_asked_for() -> None:
    world = world_with("hw_gpu_pcie_speed", 32.0, 8.0)
    world.scalar(TGS, 0.7, 3000, factor=True)
    for gpu, speed in (("2", 32.0), ("5", 8.0)):
        row = np.full(world.times.size, speed)
        world.put("parts-fine", row, host="n3", gpu=gpu, __name__="hw_gpu_pcie_speed")
    (found,) = [o.finding for o in world.judge("gpu-health").observations]
    assert found.gpu == 5


def test_what_no_exporter_tells_is_undecided() -> None:
    rows = holds(World().judge("gpu-health"), "gpu-health")
    assert [rows[row] for row in ("memory-clock", "pcie-speed", "memory-heat")] == [None] * 3


@pytest.mark.parametrize(
    ("before", "used", "seen"),
    [(20.0, 100.0, True), (98.0, 100.0, True), (20.0, 99.0, False), (99.5, 100.0, False)],
)
def test_inodes_that_run_out(before: float, used: float, seen: bool) -> None:
    world = World()
    row = np.clip(before + (used - before) * (world.times - T0 - 2000) / 1500, before, used)
    world.put("parts", row, host="n2", __name__="hw_disk_inodes_used_pct")
    found = [o.finding for o in world.judge("training-stability").observations]
    assert [(one.failure_class, one.host) for one in found] == [("inode-exhausted", "n2")] * seen
