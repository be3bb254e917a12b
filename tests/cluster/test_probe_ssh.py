"""From a laptop through sshd to a real Ray whose dashboard listens on the head's loopback only."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator

import pytest

from tests import loopback_sshd
from tests.cluster import namespaces
from tests.cluster.conftest import (
    RAYDIAG,
    Answer,
    answer,
    environment,
    own_processes,
    wanted_or_skip,
)
from tests.cluster.simulated_hosts import Cluster, HostSpec
from tests.loopback_sshd import LoopbackSshd

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two nodes and a machine that is none; the token is known everywhere."""
    wanted_or_skip(namespaces.unavailable(), loopback_sshd.unavailable())
    with Cluster(["head", "worker", HostSpec("laptop", ray=False)], auth="token") as running:
        yield running


@pytest.fixture(scope="module")
def sshd(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopbackSshd]:
    head = cluster.hosts["head"]
    enter = ["nsenter", "-t", str(head.pid), "-n", "-m", "-u", "-i", "-p"]
    directory = tmp_path_factory.mktemp("sshd")
    # Everything, because a jump leads back to the head as well.
    with LoopbackSshd(directory, launch=enter, address="0.0.0.0") as running:
        yield running


def through(cluster: Cluster, sshd: LoopbackSshd, host: str, *arguments: str) -> Answer:
    """`raydiag` on a host, with the ssh configuration; ssh itself has to find its way."""
    argv = [*RAYDIAG, "--ssh-config", str(sshd.config), *arguments]
    done = cluster.run_on(host, argv, env=environment(), timeout=90)
    return answer(done)


def hosts(found: Answer) -> list[tuple[str, str]]:
    return [(node["host"], node["status"]) for node in found.document["nodes"]]


BOTH = [("head", "ok"), ("worker", "ok")]
# These hosts have the machine's own /sys and mounts, with whatever else is tested on it just now.
JSON = ("probe", "--all-nodes", "--only", "versions,processes", "--format", "json")


def test_localhost_on_the_head(cluster: Cluster, sshd: LoopbackSshd) -> None:
    found = through(cluster, sshd, "head", "--ssh", "localhost", *JSON)
    assert hosts(found) == BOTH
    assert sshd.clients(0.0) == []
    assert own_processes(cluster) == []


def test_laptop_through_a_jump_host(cluster: Cluster, sshd: LoopbackSshd) -> None:
    sshd.write_config(f"HostName {cluster.hosts['head'].address}")
    url = f"http://{cluster.hosts['head'].address}:8265"
    shut = cluster.run_on(
        "laptop", [*RAYDIAG, "probe", "--all-nodes", "--address", url], env=environment()
    )
    assert shut.returncode == 4  # nobody but ssh gets in
    found = through(cluster, sshd, "laptop", *JSON, "--ssh", "head", "-J", "jump")
    assert hosts(found) == BOTH
    assert found.document["cluster"]["address"] == "http://127.0.0.1:8265"
    assert sshd.clients(0.0) == []


def test_killed_on_the_laptop(cluster: Cluster, sshd: LoopbackSshd) -> None:
    sshd.write_config(f"HostName {cluster.hosts['head'].address}")
    way = ["--ssh-config", str(sshd.config), "--ssh", "head", "-J", "jump"]
    process = cluster.popen_on(
        "laptop", [*RAYDIAG, *way, "probe", "--all-nodes"], env=environment()
    )
    end = time.monotonic() + 30
    while len(sshd.clients(0.0)) < 2 and time.monotonic() < end:
        time.sleep(0.05)
    cluster.signal(process, 9)
    process.wait(20)
    assert sshd.clients() == []
    while own_processes(cluster) and time.monotonic() < end + 60:
        time.sleep(0.2)
    assert own_processes(cluster) == []


def test_laptop_that_is_cut_off(cluster: Cluster, sshd: LoopbackSshd) -> None:
    """Nobody answers at all: no refusal, no route, silence."""
    sshd.write_config(f"HostName {cluster.hosts['head'].address}", "ConnectTimeout 2")
    cluster.cut_link("laptop")
    try:
        done: subprocess.CompletedProcess[str] = cluster.run_on(
            "laptop",
            [*RAYDIAG, *JSON, "--ssh", "head", "--ssh-config", str(sshd.config)],
            env=environment(),
        )
    finally:
        cluster.restore_link("laptop")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (4, "", 1)
    assert "is it up, and is a jump host (-J) needed?" in done.stderr
    assert sshd.clients(0.0) == []


def test_through_the_resident_agent(cluster: Cluster, sshd: LoopbackSshd) -> None:
    """From a laptop, over the same way; the agent's port is on the head's loopback."""
    sshd.write_config(f"HostName {cluster.hosts['head'].address}")
    way = ("--ssh", "head", "-J", "jump")

    def agent(action: str) -> int:
        argv = [*RAYDIAG, "--ssh-config", str(sshd.config), "agent", action, *way]
        return cluster.run_on("laptop", argv, env=environment(), timeout=90).returncode

    assert agent("up") == 0
    try:
        found = through(cluster, sshd, "laptop", *JSON, *way)
        assert "agent" in found.document["cluster"], found.stderr
        assert hosts(found) == BOTH
        assert agent("status") == 0
    finally:
        assert agent("down") == 0
    assert sshd.clients(0.0) == []
    assert own_processes(cluster) == []
