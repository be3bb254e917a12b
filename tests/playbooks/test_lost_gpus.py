"""A host whose GPU driver answers no more: none of its GPUs can be read, and it lives."""

from __future__ import annotations

import numpy as np
import pytest

from raydiag.model import Confidence, Finding, Severity
from tests.playbooks.world import T0, World

AT = 2010.0
DMESG, BLOCKED = "hw_dmesg_gpu_errors_total", "hw_procs_blocked"


def world_without_gpus_of(*hosts: str) -> World:
    """Nobody reads the GPUs of these hosts any more; `alive` has their other series."""
    world = World()
    for host in hosts:
        world.set("gpu-count", np.nan, AT, hosts=[host])
    return world


def driver_faults(world: World) -> list[Finding]:
    observations = world.judge("node-failure").observations
    return [seen.finding for seen in observations if seen.row == "driver"]


@pytest.mark.parametrize(
    ("blocked", "errors", "expected"),
    [
        (18.0, 0.0, Confidence.LIKELY),
        (0.0, 5.0, Confidence.LIKELY),
        (18.0, 5.0, Confidence.CONFIRMED),
        (0.0, 0.0, None),  # the exporter may have lost them
    ],
)
def test_two_signs_make_a_driver_fault(
    blocked: float, errors: float, expected: Confidence | None
) -> None:
    world = world_without_gpus_of("n2")
    world.stop(AT)
    world.set("tasks", blocked, AT, hosts=["n2"], metric=BLOCKED)
    world.set("driver", errors, AT, hosts=["n2"], metric=DMESG)
    found = driver_faults(world)
    assert [finding.confidence for finding in found] == ([expected] if expected else [])
    for finding in found:
        assert (finding.failure_class, finding.host) == ("gpu-driver-fault", "n2")
        assert finding.onset is not None and abs(finding.onset - T0 - AT) < 90


def test_a_job_that_goes_on_for_minutes_did_not_lose_its_gpus() -> None:
    world = world_without_gpus_of("n2")
    world.set("tasks", 18.0, AT, hosts=["n2"], metric=BLOCKED)
    world.set("driver", 5.0, AT, hosts=["n2"], metric=DMESG)
    for finding in driver_faults(world):
        assert finding.severity is Severity.WARNING
        assert finding.confidence is not Confidence.CONFIRMED


def test_errors_long_before_are_another_matter() -> None:
    world = world_without_gpus_of("n2")
    world.stop(AT)
    world.set("driver", 5.0, 300.0, hosts=["n2"], metric=DMESG)
    assert [f.severity for f in driver_faults(world)] == [Severity.WARNING]


def test_tasks_that_wait_for_storage_are_no_sign() -> None:
    world = world_without_gpus_of("n2")
    world.set("tasks", 18.0, AT, hosts=["n2"], metric=BLOCKED)
    world.set("storage", 80.0, AT, hosts=["n2"], metric="hw_io_pressure_full_pct")
    assert driver_faults(world) == []


def test_where_no_gpu_is_read_anywhere_the_monitoring_ended() -> None:
    world = world_without_gpus_of("n1", "n2", "n3", "n4")
    world.set("tasks", 18.0, AT, hosts=["n2"], metric=BLOCKED)
    assert driver_faults(world) == []
