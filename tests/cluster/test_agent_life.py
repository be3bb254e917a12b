"""The resident agent from up to down, through what a cluster goes through meanwhile."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import fake_node, namespaces
from tests.cluster.conftest import (
    RAYDIAG,
    Answer,
    environment,
    job_states,
    own_processes,
    probe,
    wanted_or_skip,
)
from tests.cluster.simulated_hosts import Cluster, HostSpec
from tests.cluster.test_agent import asked_by_agent, driver_pids, raydiag, wait_until

pytestmark = pytest.mark.cluster

_HOSTS = ("node001", "node002", "node003")
_VICTIM = "node003"
_FALLEN_OFF = "NVRM: Xid (PCI:0000:5e:00): 79, pid=0, GPU has fallen off the bus."


@pytest.fixture
def kernel_logs(tmp_path: Path) -> dict[str, Path]:
    return {host: tmp_path / host for host in _HOSTS}


@pytest.fixture
def cluster(kernel_logs: dict[str, Path]) -> Iterator[Cluster]:
    """A head whose temporary files have 4 MiB, and two nodes; each with a kernel log of its own."""
    wanted_or_skip(namespaces.unavailable())
    specs = []
    for host, kmsg in kernel_logs.items():
        fake_node.write_kmsg(kmsg, fake_node.quiet_records())
        specs.append(HostSpec(host, kmsg=kmsg, tmpfs={"/mnt": 4 << 20}, ray_env={"TMPDIR": "/mnt"}))
    with Cluster(specs) as running:
        yield running


def finding(answer: Answer, failure_class: str, host: str = _VICTIM) -> dict[str, Any]:
    """The one of that class and host."""
    findings = answer.document["findings"]
    (only,) = [f for f in findings if (f["class"], f["host"]) == (failure_class, host)]
    return dict(only)


def problems(answer: Answer) -> set[tuple[str, str]]:
    """(class, host) of what is more than a note."""
    findings = answer.document["findings"]
    return {(f["class"], f["host"]) for f in findings if f["severity"] != "info"}


def warm_probe(cluster: Cluster) -> Answer:
    answer = probe(cluster)
    assert asked_by_agent(answer.document), answer.stderr
    return answer


def statuses(answer: Answer) -> dict[str, list[str]]:
    of_hosts: dict[str, list[str]] = {}
    for node in answer.document["nodes"]:
        of_hosts.setdefault(node["host"], []).append(node["status"])
    return of_hosts


def test_a_life(cluster: Cluster, kernel_logs: dict[str, Path]) -> None:
    code, _ = raydiag(cluster, "agent", "up")
    assert code == 0
    for _ in range(10):
        answer = warm_probe(cluster)
        assert (answer.exit_code, statuses(answer)) == (0, {host: ["ok"] for host in _HOSTS})

    # A fault is new once, and then known.
    records = [*fake_node.quiet_records(), fake_node.KernelRecord(_FALLEN_OFF, time.time(), 3)]
    fake_node.write_kmsg(kernel_logs[_VICTIM], records)
    first, second = warm_probe(cluster), warm_probe(cluster)
    for answer, times in ((first, 0), (second, 1)):
        (found,) = [f for f in answer.document["findings"] if f["host"] == _VICTIM]
        assert found["known"]["times"] == times
        assert (answer.exit_code, found["severity"]) == (1, "critical")
    code, history = raydiag(cluster, "history", _VICTIM)
    (row,) = history["found"]
    assert (code, row["class"], row["host"], row["times"]) == (0, found["class"], _VICTIM, 2)

    # A node is lost: its last words are there.
    cluster.kill_raylet(_VICTIM)
    cluster.wait_for_state(_VICTIM, "DEAD")
    lost = warm_probe(cluster)
    assert statuses(lost) == {"node001": ["ok"], "node002": ["ok"], _VICTIM: ["dead"]}
    texts = [evidence["text"] for evidence in finding(lost, "ray-node-dead")["evidence"]]
    assert any("before this probe" in text for text in texts)
    assert _FALLEN_OFF in texts

    # It is back, as another node.
    fake_node.write_kmsg(kernel_logs[_VICTIM], fake_node.quiet_records())
    cluster.revive(_VICTIM)
    cluster.wait_for_state(_VICTIM, "ALIVE")
    back = warm_probe(cluster)
    assert sorted(statuses(back)[_VICTIM]) == ["dead", "ok"]
    assert finding(back, "ray-node-dead")["severity"] == "info"
    assert back.exit_code == 0

    # The coordinator is killed: the probe goes the long way, and says nothing that is not so.
    (pid,) = driver_pids(cluster)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: "RUNNING" not in job_states(cluster).values())
    answer = probe(cluster)
    assert not asked_by_agent(answer.document)
    assert (answer.exit_code, statuses(answer)) == (0, statuses(back))

    # The head's disk is full: answers are as they were, and that nothing is kept is told.
    code, _ = raydiag(cluster, "agent", "up", "--every", "10s")
    assert code == 0
    cluster.run_on(cluster.head, ["sh", "-c", "cat /dev/zero > /mnt/filler"])
    full = warm_probe(cluster)
    assert (problems(full), statuses(full)) == ({("disk-full", cluster.head)}, statuses(back))
    wait_until(lambda: memory_trouble(cluster) != "", 60)
    assert "could not be written" in memory_trouble(cluster)
    assert problems(warm_probe(cluster)) == problems(full)

    code, document = raydiag(cluster, "agent", "down")
    assert (code, document["outcome"]) == (0, "stopped")
    assert own_processes(cluster) == []
    left = cluster.run_on(cluster.head, ["sh", "-c", "ls -d /mnt/raydiag*"])
    assert left.stdout == ""
    wait_until(lambda: not set(job_states(cluster).values()) & {"RUNNING", "STOPPED"})


def memory_trouble(cluster: Cluster) -> str:
    _, document = raydiag(cluster, "agent", "status")
    return str(document["status"]["memory_trouble"])


def test_no_agent_where_ray_writes_its_secret_to_a_file() -> None:
    """Who may read the session's files would have it."""
    wanted_or_skip(namespaces.unavailable())
    exporting = {"RAY_enable_export_api_write": "1"}
    with Cluster(["node001"], env=exporting) as cluster:
        argv = [*RAYDIAG, "agent", "up"]
        done = cluster.run_on(cluster.head, argv, env=environment(), timeout=90)
        assert (done.returncode, done.stdout) == (4, ""), done.stderr
        assert "no agent: Ray exports jobs' metadata" in done.stderr
        assert own_processes(cluster) == []
