"""Host memory: the four ways to run out of it, and peaks that harm nobody."""

from __future__ import annotations

import numpy as np
import pytest

from raydiag.playbooks.host_oom.memory_course import _is_stair
from tests.playbooks.world import GB, HOSTS, T0, World, classes, holds

ONLY = "host-oom"
MEM = "ray_node_mem_used"
KILL = 4005.0


def row(world: World, host: str) -> np.ndarray:
    for labels, values in world.rows["memory"].items():
        if dict(labels)["instance"].startswith(f"{host}:"):
            return values
    raise AssertionError(host)


def rise(world: World, host: str, start: float, end: float, top: float = 1990.0) -> None:
    """In a line to `top` GB."""
    values = row(world, host)
    inside = (world.times >= T0 + start) & (world.times < T0 + end)
    values[inside] += np.linspace(0.0, top * GB - 200 * GB, int(inside.sum()))


def kill(world: World, host: str, time: float = KILL) -> None:
    row(world, host)[world.times >= T0 + time] = 60 * GB
    world.only("oom-kills", 1.0, time, time + 60, host=host)


@pytest.mark.parametrize(("seconds", "pattern"), [(1500.0, "leak"), (90.0, "spike")])
def test_one_host(seconds: float, pattern: str) -> None:
    world = World()
    rise(world, "n3", KILL - seconds, KILL)
    kill(world, "n3")
    (found,) = world.judge(ONLY).observations
    assert (found.finding.failure_class, found.finding.host) == ("oom-host", "n3")
    assert found.facts == {"pattern": pattern, "kill_time": T0 + KILL}
    assert abs((found.finding.onset or 0) - (T0 + KILL - seconds)) <= 30


def test_a_rise_in_stairs_began_with_the_first() -> None:
    """Memory that rests for a minute or two on its way up had left its level before."""
    world = World()
    values = row(world, "n3")
    for stair in range(6):
        values[world.times >= T0 + KILL - 630 + 105 * stair] += 290 * GB
    kill(world, "n3")
    (found,) = world.judge(ONLY).observations
    assert found.facts["pattern"] == "leak"
    assert abs((found.finding.onset or 0) - (T0 + KILL - 630)) <= 30


def test_a_save_shortly_before_is_not_the_rise() -> None:
    """Memory was back at its level for a minute only."""
    world = World()
    rise(world, "n3", KILL - 600, KILL - 450, 400.0)
    rise(world, "n3", KILL - 390, KILL)
    kill(world, "n3")
    (found,) = world.judge(ONLY).observations
    assert abs((found.finding.onset or 0) - (T0 + KILL - 390)) <= 30


def test_a_save_on_the_way_up_makes_no_level() -> None:
    """Memory falls back after it as far as it has grown: both halves of the stretch are equal."""
    world = World()
    rise(world, "n3", KILL - 2300, KILL)
    row(world, "n3")[(world.times >= T0 + KILL - 150) & (world.times < T0 + KILL - 45)] += 35 * GB
    kill(world, "n3")
    (found,) = world.judge(ONLY).observations
    assert found.facts["pattern"] == "leak"
    assert abs((found.finding.onset or 0) - (T0 + KILL - 2300)) <= 60


def test_a_save_that_needs_too_much() -> None:
    world = World()
    for start in (1500.0, 2700.0):
        rise(world, "n1", start, start + 60, 1400.0)
        world.save(start - 5, start + 100)
    world.save(KILL - 65, KILL + 300)
    rise(world, "n1", KILL - 60, KILL)
    kill(world, "n1")
    outcome = world.judge(ONLY)
    (found,) = outcome.observations
    assert found.facts["pattern"] == "checkpoint"
    assert holds(outcome, ONLY)["reproducible"] is True


def test_memory_that_stays_after_the_first_save_is_a_level() -> None:
    world = World()
    row(world, "n1")[world.times >= T0 + 1500] += 950 * GB
    world.save(KILL - 65, KILL + 300)
    row(world, "n1")[(world.times >= T0 + KILL - 45)] = 1995 * GB
    kill(world, "n1")
    (found,) = world.judge(ONLY).observations
    assert found.facts["pattern"] == "checkpoint"
    assert abs((found.finding.onset or 0) - (T0 + KILL - 45)) <= 30


def test_all_nodes_at_once() -> None:
    world = World()
    for host in HOSTS:
        rise(world, host, KILL - 300, KILL)
        kill(world, host)
    outcome = world.judge(ONLY)
    assert {one.facts["pattern"] for one in outcome.observations} == {"all-nodes"}
    assert len(outcome.observations) == len(HOSTS)


def test_all_nodes_at_once_while_one_of_them_saves() -> None:
    """Its memory had left its level for the save, minutes before that of all the others."""
    world = World()
    for host in HOSTS:
        rise(world, host, KILL - 100, KILL)
        kill(world, host)
    world.save(KILL - 220, KILL)
    before = (world.times >= T0 + KILL - 220) & (world.times < T0 + KILL - 100)
    row(world, "n1")[before] += 320 * GB
    outcome = world.judge(ONLY)
    assert {one.facts["pattern"] for one in outcome.observations} == {"all-nodes"}
    onsets = [one.finding.onset or 0 for one in outcome.observations]
    assert max(abs(onset - (T0 + KILL - 100)) for onset in onsets) <= 30


@pytest.mark.parametrize(("seconds", "pattern"), [(900.0, "leak"), (60.0, "checkpoint")])
def test_a_leak_may_begin_in_a_save(seconds: float, pattern: str) -> None:
    world = World()
    world.save(KILL - seconds - 60, KILL - seconds + 90)
    rise(world, "n3", KILL - seconds, KILL)
    kill(world, "n3")
    (found,) = world.judge(ONLY).observations
    assert found.facts["pattern"] == pattern


def test_a_peak_at_a_save_kills_nobody() -> None:
    world = World()
    rise(world, "n1", 1500, 1560, 1500.0)
    world.save(1495, 1600)
    outcome = world.judge(ONLY)
    assert classes(outcome) == set()
    assert holds(outcome, ONLY)["limit"] is False


def test_a_peak_at_the_limit_is_told_and_no_more() -> None:
    world = World()
    rise(world, "n1", 1500, 1560, 1995.0)
    outcome = world.judge(ONLY)
    assert classes(outcome) == set()
    assert holds(outcome, ONLY)["limit"] is True


def test_old_kills_are_none() -> None:
    world = World()
    assert "oom-host" in {one.failure_class for one in world.judge(ONLY).ruled_out}


def test_the_logs_word_and_a_host_at_its_limit() -> None:
    world = World()
    rise(world, "n3", KILL - 900, KILL)
    world.tell(primary="oom-host", crash_time=T0 + KILL)
    (found,) = world.judge(ONLY).observations
    assert (found.finding.host, found.facts["pattern"]) == ("n3", "leak")


def test_a_kill_without_memory_series_is_still_a_kill() -> None:
    world = World()
    world.only("oom-kills", 1.0, KILL, KILL + 60, host="n3")
    world.without(MEM, "ray_node_mem_used_host")
    outcome = world.judge(ONLY)
    (found,) = outcome.observations
    assert found.facts == {"kill_time": T0 + KILL}
    assert holds(outcome, ONLY)["memory"] is None


def test_without_the_counter_no_kill_is_ruled_out() -> None:
    world = World()
    world.without("hw_oom_kills_total")
    outcome = world.judge(ONLY)
    assert holds(outcome, ONLY)["oom-kills"] is None
    assert not outcome.ruled_out


def test_the_hosts_own_memory_counts_before_the_containers() -> None:
    world = World()
    for host in HOSTS:
        world.put(
            "memory", row(world, host), ray=True, host=host, __name__="ray_node_mem_used_host"
        )
    (report,) = world.judge(ONLY).reports
    assert (
        "ray_node_mem_used_host" in next(r for r in report.rows if r.row == "memory").interpretation
    )


@pytest.mark.parametrize(("per_s", "seen"), [(0.55, True), (0.05, False), (0.0, False)])
def test_memory_that_grows_towards_the_limit_is_seen_before_anything_is_killed(
    per_s: float, seen: bool
) -> None:
    world = World()
    grown = np.clip(world.times - T0 - 2500.0, 0.0, None) * per_s * GB
    key = next(key for key in world.rows["memory"] if "n2:55080" in dict(key)["instance"])
    world.rows["memory"][key] = world.rows["memory"][key] + grown
    found = [o.finding for o in world.judge("host-oom").observations]
    assert [(one.failure_class, one.host) for one in found] == (
        [("cgroup-memory-pressure", "n2")] if seen else []
    )
    assert all(abs((one.onset or 0) - T0 - 2500) <= 120 for one in found)


def test_a_rest_that_no_sample_is_near_is_no_level() -> None:
    """Of a very short job: a median of an even number lies between two samples."""
    values = np.array([10.0, 90.0] * 4) * GB
    assert not _is_stair(np.arange(8.0), values, 50 * GB, 1 * GB, 1 * GB)
