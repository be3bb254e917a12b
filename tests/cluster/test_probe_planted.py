"""Faults planted on four simulated hosts are found, each where it is, and nothing else is."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.cluster import fake_node, namespaces
from tests.cluster.conftest import (
    RAYDIAG,
    FourHosts,
    environment,
    job_states,
    own_processes,
    probe,
    wanted_or_skip,
)
from tests.cluster.simulated_hosts import Cluster, HostSpec

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    wanted_or_skip(namespaces.unavailable())
    directory = tmp_path_factory.mktemp("planted")
    trees = [directory / f"sys-{number}" for number in range(1, 5)]
    fake_node.write_amdgpu(trees[0], ras={3: {"umc": (2, 0, 0)}}, temperatures_c={0: 71.0})
    fake_node.write_amdgpu(trees[1], ras_names="err_count", powers_w={2: 690.0})
    fake_node.write_amdgpu(trees[2], gpus=7)
    fake_node.write_amdgpu(trees[3], driver_version="6.10.5")
    logs = [fake_node.quiet_records() for _ in trees]
    logs[1] += fake_node.cper_oops_records(time.time() - 5)[1:]
    specs = []
    for number, (tree, records) in enumerate(zip(trees, logs, strict=True), start=1):
        kmsg = directory / f"kmsg-{number}"
        fake_node.write_kmsg(kmsg, records)
        specs.append(HostSpec(f"node{number:03}", sys=tree, kmsg=kmsg, tmpfs={"/mnt": 4 << 20}))
    with Cluster(specs) as cluster:
        cluster.run_on("node003", ["dd", "if=/dev/zero", "of=/mnt/full", "bs=64k"])
        yield cluster


def test_each_fault_is_found_where_it_is(planted: Cluster) -> None:
    answer = probe(planted, "--all-nodes")
    missing = fake_node.DEFAULT_ADDRESSES[7]
    assert answer.faults() == {
        ("gpu-memory-error", "node001", 3),
        ("gpu-driver-fault", "node002", None),
        ("disk-full", "node003", "/mnt"),
        ("gpu-missing", "node003", missing),
        ("version-skew", "node004", None),
    }
    assert answer.exit_code == 1
    states = {node["host"]: node["status"] for node in answer.document["nodes"]}
    assert states == dict.fromkeys(("node001", "node002", "node003", "node004"), "ok")


def test_driver_fault_keeps_the_ras_files_closed(planted: Cluster) -> None:
    answer = probe(planted, "--all-nodes")
    assert answer.node("node002")["probes"]["ras"]["status"] == "denied"
    unread = answer.document["coverage"]["unread"]
    assert [(item["host"], item["source"]) for item in unread] == [
        ("node002", "bad_pages"),
        ("node002", "ras"),
    ]
    assert answer.node("node001")["probes"]["ras"]["status"] == "ok"


def test_evidence_names_gpu_and_kernel_lines(planted: Cluster) -> None:
    findings = {f["class"]: f for f in probe(planted, "--all-nodes").document["findings"]}
    memory = findings["gpu-memory-error"]
    assert memory["device"] == fake_node.DEFAULT_ADDRESSES[3]
    assert "aca_umc" in memory["evidence"][0]["source"]
    fault = findings["gpu-driver-fault"]
    assert any("amdgpu_cper_ring_get_ent_sz" in item["text"] for item in fault["evidence"])
    assert abs(fault["onset"] - time.time()) < 600
    assert all(finding["next_steps"] for finding in findings.values())


def test_chosen_nodes_and_probes(planted: Cluster) -> None:
    answer = probe(planted, "--node", "node[003-004]", "--only", "storage,versions")
    assert [node["host"] for node in answer.document["nodes"]] == ["node003", "node004"]
    assert set(answer.node("node003")["probes"]) == {"storage", "versions"}
    assert ("disk-full", "node003", "/mnt") in answer.faults()


def test_unknown_node_is_a_usage_error(planted: Cluster) -> None:
    done = planted.run_on(
        planted.head, [*RAYDIAG, "probe", "--node", "node9"], env=environment(), timeout=60
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert "node9" in done.stderr
    assert "node001, node002, node003, node004" in done.stderr
    assert done.stderr.count("\n") == 1


def test_nothing_is_left_on_the_cluster(planted: Cluster) -> None:
    probe(planted, "--all-nodes")
    assert own_processes(planted) == []
    # Our entry is deleted some seconds after the command, and once more if Ray brings it back.
    end = time.monotonic() + 30
    while job_states(planted) and time.monotonic() < end:
        time.sleep(0.2)
    time.sleep(5)
    assert job_states(planted) == {}


def test_quiet_cluster_is_clean(four_hosts: FourHosts) -> None:
    answer = probe(four_hosts.cluster, "--all-nodes")
    assert answer.faults() == set()
    assert answer.document["coverage"]["unread"] == []
    assert answer.exit_code == 0
    assert {node["status"] for node in answer.document["nodes"]} == {"ok"}
