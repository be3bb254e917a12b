"""Reads that hang, nodes that die, callers that go away: always an answer, and no trace."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.cluster import namespaces
from tests.cluster.conftest import (
    RAYDIAG,
    FourHosts,
    answer,
    environment,
    job_states,
    own_processes,
    probe,
    wanted_or_skip,
)
from tests.cluster.simulated_hosts import Cluster

pytestmark = pytest.mark.cluster

TERMINAL = {"SUCCEEDED", "FAILED", "STOPPED"}


@pytest.fixture
def hung(four_hosts: FourHosts) -> Iterator[FourHosts]:
    four_hosts.hanging.hang("aca_umc")
    yield four_hosts
    four_hosts.hanging.release()
    _eventually(lambda: four_hosts.hanging.stuck_pids() == [])


def _eventually(condition: Callable[[], bool], within_s: float = 20.0) -> None:
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, f"not so within {within_s} s"
        time.sleep(0.1)


def test_one_hung_file_costs_one_source(hung: FourHosts) -> None:
    found = probe(hung.cluster, "--all-nodes")
    states = {node["host"]: node["status"] for node in found.document["nodes"]}
    assert states == {"node001": "ok", "node002": "ok", "node003": "ok", "node004": "partial"}
    assert {(name, host) for name, host, _ in found.faults()} == {("hung-read", "node004")}
    probes = found.node("node004")["probes"]
    assert [name for name in probes if probes[name]["status"] not in ("ok", "no_data")] == [
        "bad_pages",
        "ras",
    ]
    # The GPUs before it were read, those after it were left alone in this run.
    assert {record["gpu"] for record in probes["ras"]["records"]} == {0, 1, 2, 3, 4}


def test_ten_runs_leave_one_stuck_process_and_release_heals(hung: FourHosts) -> None:
    for _ in range(10):
        found = probe(hung.cluster, "--all-nodes", "--only", "d_state,ras")
        assert {(name, host) for name, host, _ in found.faults()} == {("hung-read", "node004")}
    assert len(hung.hanging.stuck_pids("rd-")) == 1
    # The other GPUs of that host are seen from the second run on.
    records = found.node("node004")["probes"]["ras"]["records"]
    assert {record["gpu"] for record in records} == {0, 1, 2, 3, 4, 6, 7}
    hung.hanging.release()
    _eventually(lambda: hung.hanging.stuck_pids() == [])
    healed = probe(hung.cluster, "--all-nodes", "--only", "d_state,ras")
    assert healed.faults() == set()
    assert healed.node("node004")["status"] == "ok"
    assert own_processes(hung.cluster) == []


def test_two_runs_at_once_leave_one_stuck_process(hung: FourHosts) -> None:
    results = []
    both = [
        threading.Thread(
            target=lambda: results.append(probe(hung.cluster, "--all-nodes", "--only", "ras"))
        )
        for _ in range(2)
    ]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert len(results) == 2
    assert len(hung.hanging.stuck_pids("rd-")) == 1


def _start(cluster: Cluster, *arguments: str) -> subprocess.Popen[str]:
    return cluster.popen_on(
        cluster.head,
        [*RAYDIAG, "probe", "--all-nodes", "--format", "json", *arguments],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def _wait_for_runner(cluster: Cluster, host: str) -> None:
    """Until a guarded reader works (or hangs) on that host."""

    def there() -> bool:
        for pid in cluster.processes(host):
            with suppress(OSError):
                if Path(f"/proc/{pid}/comm").read_text().startswith("rd-"):
                    return True
        return False

    _eventually(there, 30)


def _finish(process: subprocess.Popen[str], timeout_s: float = 60) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=timeout_s)
    return process.returncode, out, err


def test_interrupt_leaves_nothing(hung: FourHosts) -> None:
    process = _start(hung.cluster)
    _wait_for_runner(hung.cluster, "node004")
    hung.cluster.signal(process, signal.SIGINT)
    code, out, err = _finish(process)
    assert (code, out) == (130, "")
    assert "Traceback" not in err
    assert set(job_states(hung.cluster).values()) <= TERMINAL
    _only_stuck_reader_is_left(hung)


def test_crashed_driver_leaves_nothing_and_loses_only_what_had_not_come(hung: FourHosts) -> None:
    process = _start(hung.cluster)
    _wait_for_runner(hung.cluster, "node004")
    for pid in hung.cluster.processes(hung.cluster.head):
        with suppress(OSError):
            if b"raydiag.cluster.coordinator" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)
    code, out, err = _finish(process)
    if out:
        found = answer(subprocess.CompletedProcess([], code, out, err))
        hanging = found.node("node004")
        lost = hanging["reason"].startswith("its answer was lost")
        assert lost or hanging["status"] == "partial"  # it may have answered just before
        assert "ok" in [node["status"] for node in found.document["nodes"]]
    else:  # it crashed before the first answer
        assert (code, json.loads(err)["error"]["exit_code"], err.count("\n")) == (4, 4, 1)
    _eventually(lambda: set(job_states(hung.cluster).values()) <= TERMINAL)
    _only_stuck_reader_is_left(hung)


def _only_stuck_reader_is_left(hung: FourHosts) -> None:
    _eventually(lambda: all(" rd-" in line for line in own_processes(hung.cluster)))


def test_frozen_node_is_named_on_time(four_hosts: FourHosts) -> None:
    cluster = four_hosts.cluster
    cluster.signal_raylet("node003", signal.SIGSTOP)
    try:
        found = probe(cluster, "--all-nodes", "--deadline", "15")
        ended = time.time()
    finally:
        cluster.signal_raylet("node003", signal.SIGCONT)
    assert ended - found.document["cluster"]["asked_at"] < 15 + 5  # a guard against hanging
    assert [node["host"] for node in found.document["nodes"] if node["status"] == "ok"] == [
        "node001",
        "node002",
        "node004",
    ]
    assert {(name, host) for name, host, _ in found.faults()} == {("node-unreachable", "node003")}
    blind = found.document["coverage"]["nodes"]["blind"]
    assert [item["host"] for item in blind] == ["node003"]
    cluster.wait_for_state("node003", "ALIVE")


TRAINING = """
import ray, sys, time
ray.init(address="auto", namespace="training", log_to_driver=False)

@ray.remote(num_cpus=1)
class Trainer:
    def __init__(self):
        self.steps = 0
    def step(self):
        self.steps += 1
        return self.steps

trainers = [Trainer.remote() for _ in range({workers})]
steps = [ray.get([t.step.remote() for t in trainers], timeout=60)]
print("ready", flush=True)
for line in sys.stdin:
    pass
done = ray.get([t.step.remote() for t in trainers], timeout=60)
print("alive", done, flush=True)
"""


def test_full_cluster_is_probed_and_training_loses_nothing(four_hosts: FourHosts) -> None:
    """Every CPU of the cluster is taken by actors of a job; they are the same ones afterwards."""
    cluster = four_hosts.cluster
    training = cluster.popen_on(
        cluster.head,
        [sys.executable, "-c", TRAINING.replace("{workers}", "4")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert training.stdout is not None
    assert training.stdout.readline() == "ready\n"
    found = probe(cluster, "--all-nodes")
    assert {node["status"] for node in found.document["nodes"]} == {"ok"}
    roles = [
        record["role"]
        for node in found.document["nodes"]
        for record in node["probes"]["processes"]["records"]
        if record["command"].startswith("ray::Trainer")
    ]
    assert roles == ["worker"] * 4
    out, _ = training.communicate(timeout=60)
    assert out == "alive [2, 2, 2, 2]\n"
    assert training.returncode == 0


@pytest.fixture
def small_cluster() -> Iterator[Cluster]:
    """Three hosts of its own for a test that loses one of them."""
    wanted_or_skip(namespaces.unavailable())
    with Cluster(["alpha", "beta", "gamma"]) as cluster:
        yield cluster


@pytest.mark.parametrize("loss", ["raylet", "link"])
def test_node_lost_in_the_middle_is_named_on_time(small_cluster: Cluster, loss: str) -> None:
    cluster = small_cluster
    process = _start(cluster, "--deadline", "8")
    _wait_for_job(cluster)
    if loss == "raylet":
        cluster.kill_raylet("gamma")
    else:
        cluster.cut_link("gamma")
    code, out, err = _finish(process)
    ended = time.time()
    found = answer(subprocess.CompletedProcess([], code, out, err))
    assert ended - found.document["cluster"]["asked_at"] < 8 + 5  # a guard against hanging
    lost = found.node("gamma")
    assert lost["status"] in ("timeout", "dead", "unreachable")
    assert lost["reason"]
    assert {host for _, host, _ in found.faults()} == {"gamma"}
    assert {found.node(host)["status"] for host in ("alpha", "beta")} == {"ok"}


def _wait_for_job(cluster: Cluster) -> None:
    """Until the coordinator runs: the loss then comes before the nodes have answered."""

    def there() -> bool:
        return any(
            b"raydiag.cluster.coordinator" in _cmdline(pid)
            for pid in cluster.processes(cluster.head)
        )

    _eventually(there, 30)


def _cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_token_cluster() -> None:
    wanted_or_skip(namespaces.unavailable())
    with Cluster(["alpha", "beta"], auth="token") as cluster:
        found = probe(cluster, "--all-nodes")
        assert [node["status"] for node in found.document["nodes"]] == ["ok", "ok"]
        without = {"RAY_AUTH_TOKEN_PATH": "", "RAY_AUTH_MODE": "", **environment()}
        wrong = {"RAY_AUTH_TOKEN_PATH": "", "RAY_AUTH_TOKEN": "0" * 64, **environment()}
        for env, words in ((without, "requires a token"), (wrong, "refuses the token")):
            argv = [*RAYDIAG, "probe", "--all-nodes"]
            done = cluster.run_on(cluster.head, argv, env=env, timeout=60)
            assert (done.returncode, done.stdout) == (4, "")
            assert words in done.stderr
            assert done.stderr.count("\n") == 1
        assert cluster.token_path.read_text() not in json.dumps(found.document)
