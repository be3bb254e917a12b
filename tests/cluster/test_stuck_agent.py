"""The agent of the head that starts jobs is stuck: nothing of ours starts when it goes on."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator

import pytest

from tests.cluster import namespaces
from tests.cluster.conftest import environment, job_states, own_processes, probe, wanted_or_skip
from tests.cluster.simulated_hosts import Cluster

pytestmark = pytest.mark.cluster

_ENDED = ("SUCCEEDED", "FAILED", "STOPPED")
_START_LIMIT_S = 5
# The command as it is, but for how long its job may take to start.
_IMPATIENT = f"""
from raydiag.cluster import submission
submission.START_LIMIT_S = {_START_LIMIT_S}
from raydiag.__main__ import main
raise SystemExit(main())
"""
_PROBE = ("probe", "--address", "http://127.0.0.1:8265", "--format", "json")


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    wanted_or_skip(namespaces.unavailable())
    with Cluster(["node001"], env={"RAY_health_check_failure_threshold": "100"}) as cluster:
        yield cluster


def signal_agent(cluster: Cluster, number: int) -> None:
    pids = [
        pid
        for pid in cluster.processes(cluster.head)
        if namespaces.comm(pid) == "ray::DashboardAgent"[:15]
    ]
    assert pids
    for pid in pids:
        os.kill(pid, number)


def ours(cluster: Cluster) -> dict[str, str]:
    return {name: state for name, state in job_states(cluster).items() if "raydiag-" in name}


def test_a_job_that_a_stuck_agent_was_sent_never_runs(cluster: Cluster) -> None:
    assert probe(cluster).exit_code in (0, 1, 3)  # the agent starts jobs
    before = set(ours(cluster))
    signal_agent(cluster, signal.SIGSTOP)
    began = time.monotonic()
    done = cluster.run_on(
        cluster.head, [sys.executable, "-c", _IMPATIENT, *_PROBE], env=environment(), timeout=120
    )
    took_s = time.monotonic() - began
    assert done.returncode == 4, done.stdout
    assert "dashboard agent on the head node" in done.stderr
    time.sleep(max(0.0, _START_LIMIT_S + 2 - took_s))
    signal_agent(cluster, signal.SIGCONT)
    late = _arrived(cluster, before)
    assert probe(cluster).exit_code in (0, 1, 3)
    states = ours(cluster)
    assert {states.get(name, "SUCCEEDED") for name in late} <= set(_ENDED)
    for name in late:
        (log,) = (cluster.directory / cluster.head / "ray").glob(f"session_2*/logs/*{name}.log")
        assert "@raydiag" not in log.read_text().rpartition("nobody waits")[2]  # it said nothing
    assert own_processes(cluster) == []
    if not late:
        pytest.skip("this Ray's agent forgot what it was sent while it was stuck")


def _arrived(cluster: Cluster, before: set[str]) -> set[str]:
    """Jobs that came with the agent's return, once they have ended; none may come."""
    end = time.monotonic() + 40
    late: set[str] = set()
    while time.monotonic() < end:
        states = ours(cluster)
        late = set(states) - before
        if late and all(states[name] in _ENDED for name in late):
            return late
        time.sleep(1)
    return late
