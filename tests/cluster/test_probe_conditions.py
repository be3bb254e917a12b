"""Sick conditions, planted on one of four hosts, each alone and all at once, and found exactly.

All of them can be switched on and off while the cluster runs, so one cluster serves every test.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import fake_cgroup, fake_node, fake_rdma, fuse_hang, namespaces
from tests.cluster.conftest import probe, wanted_or_skip
from tests.cluster.fuse_hang import HangingFile
from tests.cluster.shell_exporter import metrics, shell_exporter
from tests.cluster.simulated_hosts import Cluster, HostSpec
from tests.cluster.training import STEP_S, Plan, training

pytestmark = pytest.mark.cluster

HOSTS = ("node001", "node002", "node003", "node004")
FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")
SERVED_FILE = Path("/tmp/node_hw_metrics.prom")  # where the shell exporter has it
GIB = 1 << 30

Fault = tuple[str, str | None, Any]


@dataclass
class Lab:
    """Four hosts and the means to make them sick."""

    cluster: Cluster
    trees: Mapping[str, Path]  # /sys by host
    gpus: Mapping[str, list[Path]]  # directories of the GPUs by host
    clock: Path  # holds the offset of node004's clock, in seconds
    mount: HangingFile  # mounted on node001 only


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    wanted_or_skip(
        namespaces.unavailable(),
        fuse_hang.unavailable(),
        "" if FAKETIME.exists() else f"a clock that is off needs {FAKETIME} (package faketime)",
    )
    directory = tmp_path_factory.mktemp("conditions")
    trees = {host: directory / f"sys-{host}" for host in HOSTS}
    gpus = {host: fake_node.write_amdgpu(tree) for host, tree in trees.items()}
    drivers = {"node001": "ionic", "node002": "mlx5", "node003": "bnxt_re", "node004": "ionic"}
    for host, tree in trees.items():
        fake_rdma.write_rdma(tree, driver=drivers[host])
        fake_cgroup.write_memory(tree, limit_bytes=64 * GIB, used_bytes=20 * GIB)
    clock, data = directory / "clock", directory / "data"
    clock.write_text("+0\n")
    data.mkdir()
    other_clock = {
        "LD_PRELOAD": str(FAKETIME),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_NO_CACHE": "1",
    }
    specs = []
    for host in HOSTS:
        kmsg = directory / f"kmsg-{host}"
        fake_node.write_kmsg(kmsg, fake_node.quiet_records())
        env = other_clock if host == "node004" else {}
        specs.append(HostSpec(host, sys=trees[host], kmsg=kmsg, ray_env=env))
    with HangingFile(data) as mount, Cluster(specs) as cluster:
        for host in HOSTS[1:]:
            cluster.unmount(host, data)
        yield Lab(cluster, trees, gpus, clock, mount)
        mount.release()


@contextmanager
def _written(path: Path, text: str) -> Iterator[None]:
    before = path.read_text()
    fake_node.rewrite(path, text)
    yield
    fake_node.rewrite(path, before)


@contextmanager
def _counting(step: Callable[[int], None]) -> Iterator[None]:
    """`step` is called with 1, 2, 3 ... some twenty times a second."""
    done = threading.Event()

    def count() -> None:
        number = 1
        while not done.wait(0.05):
            step(number)
            number += 1

    thread = threading.Thread(target=count)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def narrowed_link(lab: Lab) -> AbstractContextManager[None]:
    return _written(lab.gpus["node001"][2] / "current_link_width", "8\n")


def growing_aer(lab: Lab) -> AbstractContextManager[None]:
    path = lab.gpus["node002"][5] / "aer_dev_correctable"

    def step(number: int) -> None:
        fake_node.rewrite(path, f"RxErr {number}\nBadTLP 0\nTOTAL_ERR_COR {number}\n")

    return _counting(step)


@contextmanager
def port_down(lab: Lab) -> Iterator[None]:
    fake_rdma.set_state(lab.trees["node003"], "bnxt_re1", "DOWN", phys_state="Disabled")
    yield
    fake_rdma.set_state(lab.trees["node003"], "bnxt_re1", "ACTIVE", phys_state="LinkUp")


def growing_retransmits(lab: Lab) -> AbstractContextManager[None]:
    tree = lab.trees["node001"]
    return _counting(lambda n: fake_rdma.set_counter(tree, "ionic_3", "tx_rdma_retx_pkts", 40 * n))


@contextmanager
def clock_off(lab: Lab) -> Iterator[None]:
    lab.clock.write_text("+90\n")
    yield
    lab.clock.write_text("+0\n")


@contextmanager
def frozen_exporter(lab: Lab) -> Iterator[None]:
    """The one on node003 serves a file of ten minutes ago, those on the other hosts are well.

    All hosts share the machine's /tmp, and so the file; the well ones write another one.
    """
    wanted_or_skip(f"{SERVED_FILE} is somebody's" if SERVED_FILE.exists() else "")
    SERVED_FILE.write_text(metrics(cycle=1))
    then = time.time() - 600
    os.utime(SERVED_FILE, (then, then))
    try:
        with ExitStack() as stack:
            for host in HOSTS:
                command = lab.cluster.command_on(host, [sys.executable])
                mode, file = "healthy", lab.clock.with_name(f"{host}.prom")
                if host == "node003":
                    mode, file = "frozen", SERVED_FILE
                stack.enter_context(shell_exporter(mode, 9400, file, command))
            yield
    finally:
        SERVED_FILE.unlink()


@contextmanager
def full_cgroup(lab: Lab) -> Iterator[None]:
    tree = lab.trees["node004"]
    fake_cgroup.write_memory(tree, limit_bytes=64 * GIB, used_bytes=61 * GIB)
    yield
    fake_cgroup.write_memory(tree, limit_bytes=64 * GIB, used_bytes=20 * GIB)


@contextmanager
def hung_mount(lab: Lab) -> Iterator[None]:
    lab.mount.hang(".", "statfs")
    yield
    lab.mount.release()
    end = time.monotonic() + 20
    while lab.mount.reader_pids() and time.monotonic() < end:
        time.sleep(0.1)


OTHER_NETWORK = Plan(env={"NCCL_SOCKET_IFNAME": "eth1"})
STOPPED = Plan(first_step=100, stops_at=103)

Condition = Callable[[Lab], AbstractContextManager[None]]
# How it is planted; what is found, where "data" stands for the hung mount.
CONDITIONS: dict[str, tuple[Condition, Fault]] = {
    "narrowed PCIe link": (narrowed_link, ("pcie-degraded", "node001", 2)),
    "growing AER": (growing_aer, ("pcie-degraded", "node002", 5)),
    "RDMA port down": (port_down, ("rdma-port-down", "node003", "bnxt_re1")),
    "growing retransmits": (growing_retransmits, ("rdma-degraded", "node001", "ionic_3")),
    "clock 90 s off": (clock_off, ("clock-skew", "node004", None)),
    "frozen exporter": (frozen_exporter, ("ghost-data", "node003", None)),
    "cgroup near its limit": (full_cgroup, ("cgroup-memory-pressure", "node004", None)),
    "hung mount": (hung_mount, ("hung-read", "node001", "data")),
}


def faults(lab: Lab) -> set[Fault]:
    """What one probe finds; the ports of RDMA devices by the device, the mount by its name."""
    found = set()
    for name, host, place in probe(lab.cluster, "--all-nodes").faults():
        if isinstance(place, str):
            place = "data" if place == str(lab.mount.directory) else place.partition("/")[0]
        found.add((name, host, place))
    return found


def test_without_a_condition_nothing_is_found(lab: Lab) -> None:
    answer = probe(lab.cluster, "--all-nodes")
    assert answer.faults() == set()
    assert answer.document["coverage"]["unread"] == []
    assert answer.exit_code == 0


@pytest.mark.parametrize("name", CONDITIONS)
def test_one_condition_alone(lab: Lab, name: str) -> None:
    plant, fault = CONDITIONS[name]
    with plant(lab):
        assert faults(lab) == {fault}


def test_training_that_goes_well_is_well(lab: Lab) -> None:
    with training(lab.cluster, {host: Plan(env={"NCCL_SOCKET_IFNAME": "eth0"}) for host in HOSTS}):
        assert faults(lab) == set()


def test_another_environment_on_one_host(lab: Lab) -> None:
    plans = {host: Plan(env={"NCCL_SOCKET_IFNAME": "eth0"}) for host in HOSTS}
    with training(lab.cluster, plans | {"node002": OTHER_NETWORK}):
        assert faults(lab) == {("env-mismatch", "node002", None)}


def test_a_worker_that_stopped_stepping(lab: Lab) -> None:
    with training(lab.cluster, {"node003": STOPPED}):
        time.sleep(20 * STEP_S)
        found = probe(lab.cluster, "--all-nodes")
        assert {(name, host) for name, host, _ in found.faults()} == {("straggler", "node003")}
        (finding,) = found.document["findings"]
        assert "103" in " ".join(item["text"] for item in finding["evidence"])


def test_all_conditions_at_once(lab: Lab) -> None:
    plans = {host: Plan(env={"NCCL_SOCKET_IFNAME": "eth0"}) for host in HOSTS}
    plans["node002"] = OTHER_NETWORK
    plans["node003"] = Plan(first_step=100, stops_at=103, env={"NCCL_SOCKET_IFNAME": "eth0"})
    with ExitStack() as stack:
        for plant, _ in CONDITIONS.values():
            stack.enter_context(plant(lab))
        stack.enter_context(training(lab.cluster, plans))
        time.sleep(20 * STEP_S)
        found = faults(lab)
    expected = {fault for _, fault in CONDITIONS.values()}
    expected |= {("env-mismatch", "node002", None), ("straggler", "node003", None)}
    assert found == expected


def test_all_is_well_again_afterwards(lab: Lab) -> None:
    assert faults(lab) == set()
