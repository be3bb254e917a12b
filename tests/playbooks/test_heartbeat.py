"""A heartbeat that timed out: a false alarm is proven, never assumed."""

from __future__ import annotations

from typing import Any

import pytest

from raydiag.model import Confidence
from raydiag.timeline.context import SaveWindow
from tests.playbooks.world import LENGTH_S, T0, World, classes, holds

ONLY = "heartbeat"
CRASH, TIMEOUT = LENGTH_S, 900.0
STOP = CRASH - TIMEOUT


def killed(**facts: Any) -> World:
    world = World()
    world.tell(
        status="failed",
        primary="heartbeat-timeout",
        crash_time=T0 + CRASH,
        heartbeat_timeout_s=TIMEOUT,
        accused=("n3",),
        **facts,
    )
    return world


def test_a_false_alarm() -> None:
    outcome = killed().judge(ONLY)
    (found,) = outcome.observations
    assert found.finding.failure_class == "heartbeat-false-positive"
    assert (found.finding.host, found.finding.onset) == ("n3", T0 + STOP)
    assert found.finding.confidence is Confidence.CONFIRMED
    rows = holds(outcome, ONLY)
    assert rows["hang-test"] is False
    assert rows["accused"] is True
    assert rows["control"] is True


@pytest.mark.parametrize(("stopped_s", "certain"), [(50, True), (290, False)])
def test_a_false_alarm_is_certain_only_where_steps_went_on(stopped_s: float, certain: bool) -> None:
    """Whom the others wait for may have failed in a way that nothing measures."""
    world = killed()
    world.stop(CRASH - stopped_s)
    (found,) = world.judge(ONLY).observations
    expected = Confidence.CONFIRMED if certain else Confidence.LIKELY
    assert found.finding.confidence is expected


@pytest.mark.parametrize(
    ("question", "value", "metric", "row"),
    [
        ("tcp-retransmits", 500.0, None, "false-alarm-network"),
        ("storage", 70.0, "hw_io_pressure_full_pct", "false-alarm-storage"),
    ],
)
def test_a_false_alarm_that_something_set_off(
    question: str, value: float, metric: str | None, row: str
) -> None:
    world = killed()
    world.set(question, value, STOP - 60, STOP + 60, ["n3"], metric)
    outcome = world.judge(ONLY)
    assert outcome.observations[0].finding.confidence is Confidence.LIKELY
    assert holds(outcome, ONLY)[row] is True


@pytest.mark.parametrize(("watts", "seen"), [(900.0, True), (300.0, False)])
def test_without_utilisation_power_tells(watts: float, seen: bool) -> None:
    """Steps go on and the accused draws the power of training, or does not."""
    world = killed()
    world.without("ray_node_gpus_utilization")
    world.set("gpu-power", watts, STOP - 130, hosts=["n3"])
    outcome = world.judge(ONLY)
    assert ("heartbeat-false-positive" in classes(outcome)) is seen
    if seen:
        assert outcome.observations[0].finding.confidence is Confidence.LIKELY
    else:
        assert holds(outcome, ONLY)["undecided"] is None


def test_a_hang_that_the_heartbeat_ended() -> None:
    world = killed()
    world.hang(3000)
    outcome = world.judge(ONLY, "rccl-hang")
    assert classes(outcome) == {"rccl-hang"}
    assert holds(outcome, ONLY)["hang-test"] is True
    assert "heartbeat-false-positive" in {one.failure_class for one in outcome.ruled_out}


def test_a_node_that_really_died() -> None:
    world = killed()
    world.die("n3", STOP)
    world.stop(STOP)
    world.set("gpu-power", 300.0, STOP + 10)
    outcome = world.judge()
    assert "heartbeat-false-positive" not in classes(outcome)
    assert "node-death" in classes(outcome)


def test_a_process_that_was_killed_for_memory() -> None:
    world = killed()
    world.only("oom-kills", 1.0, STOP - 60, STOP, host="n3")
    outcome = world.judge(ONLY)
    assert classes(outcome) == set()
    assert holds(outcome, ONLY)["true-alarm"] is True


def test_a_gpu_error_from_before_the_job_is_no_reason() -> None:
    world = killed()
    labels = {"host": "n3", "gpu": "1", "__name__": "hw_gpu_ras_umc_ue_total"}
    world.only("gpu-errors", 1.0, 0, LENGTH_S, **labels)
    assert classes(world.judge(ONLY)) == {"heartbeat-false-positive"}
    world.only("gpu-errors", 1.0, STOP - 60, LENGTH_S, **labels)
    assert classes(world.judge(ONLY)) == set()


@pytest.mark.parametrize("percent", [0.0, 50.0])
def test_accused_that_did_not_train(percent: float) -> None:
    world = killed()
    world.set("gpu-utilisation", percent, STOP - 300, LENGTH_S, ["n3"])
    outcome = world.judge(ONLY)
    assert classes(outcome) == set()
    assert holds(outcome, ONLY)["low-utilisation"] is True


def test_accused_that_rested_as_all_hosts_did() -> None:
    world = killed()
    world.set("gpu-utilisation", 32.0, STOP - 300, LENGTH_S)
    world.set("gpu-utilisation", 31.0, STOP - 300, LENGTH_S, ["n3"])
    outcome = world.judge(ONLY)
    assert classes(outcome) == {"heartbeat-false-positive"}
    assert outcome.observations[0].finding.confidence is Confidence.LIKELY


def test_without_utilisation_and_power_it_is_undecided() -> None:
    world = killed()
    world.without("ray_node_gpus_utilization", "hw_gpu_power_watts")
    outcome = world.judge(ONLY)
    assert classes(outcome) == set()
    assert holds(outcome, ONLY)["undecided"] is None


def test_without_network_and_storage_it_is_likely_at_most() -> None:
    world = killed()
    world.without("hw_tcp_retransmits_total")
    assert world.judge(ONLY).observations[0].finding.confidence is Confidence.LIKELY


def test_the_coordinators_queue_and_a_save_that_came_later() -> None:
    world = killed(saves=(SaveWindow(100, T0 + STOP + 300),))
    labels = {"host": "n1", "metric": "hw_tcp_listen_drops_total"}
    world.only("tcp-errors", 40.0, STOP - 60, STOP, **labels)
    rows = holds(world.judge(ONLY), ONLY)
    assert rows["coordinator"] is True
    assert rows["save-after"] is True


def test_a_job_without_heartbeat_timeout_is_not_judged() -> None:
    world = World()
    assert holds(world.judge(ONLY), ONLY) == {"heartbeat": False}
