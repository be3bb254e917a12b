"""Names and addresses leave a report, alike in every format, and nothing else changes."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from raydiag.model import (
    Blind,
    Chain,
    Coverage,
    Diagnosis,
    Evidence,
    Finding,
    HostUnread,
    Node,
    NodeReport,
    NodeStatus,
    ProbeResult,
    Severity,
    Snapshot,
    Status,
)
from raydiag.probes.processes import RayProcess
from raydiag.render.document import lines, probe_document
from raydiag.render.markdown import markdown_text
from raydiag.render.probe import probe_report
from raydiag.render.redact import redacted
from raydiag.render.text import text as written
from tests.render import cluster_samples as samples

NODE_ID = "ab" * 28
CLUSTER = {
    **samples.CLUSTER,
    "address": "http://head.corp.example.com:8265",
    "ssh": "alice@login.corp.example.com",
    "gcs_address": "10.1.0.1:6379",
}


def process(command: str) -> RayProcess:
    return RayProcess(
        pid=41,
        ppid=1,
        start_time_s=1.0,
        comm="python3",
        command=command,
        role="child",
        worker_pid=41,
        state="S",
        threads=1,
        rss_bytes=1,
        environment={"NCCL_SOCKET_IFNAME": "eth0"},
    )


def shown(text: str, *hostnames: str) -> str:
    """One piece of evidence, as it is redacted in a cluster of these hosts."""
    nodes = [
        replace(samples.lost_node(i, NodeStatus.DEAD, ""), node=Node("", name, ""))
        for i, name in enumerate(hostnames)
    ]
    finding = Finding("hung-read", evidence=[Evidence("log", text)])
    _, told, _ = redacted(Snapshot(nodes, 1.0), Diagnosis([finding], [], Coverage(1, 1)), {})
    return told.findings[0].evidence[0].text


def every_format(snapshot: Snapshot, diagnosis: Diagnosis, cluster: Any) -> tuple[str, str, str]:
    return (
        written(probe_report(snapshot, diagnosis, cluster, True), 200),
        markdown_text(probe_report(snapshot, diagnosis, cluster, True)),
        "".join(lines(probe_document(snapshot, diagnosis, cluster, 0.0))),
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("node001: at node001.corp.example.com", "host-1: at host-1"),
        ("NODE001-ib0 and Node002", "host-1-ib0 and host-2"),
        ("storage7.corp.example.com, node002", "host-3, host-2"),
        ("node0011 xnode001 node001x", "node0011 xnode001 node001x"),
        ("peer 10.1.2.3:6379 and 10.1.2.4, 10.1.2.3", "peer addr-1:6379 and addr-2, addr-1"),
        ("127.0.0.1:8265 0.0.0.0 ::1 localhost", "127.0.0.1:8265 0.0.0.0 ::1 localhost"),
        ("[fd00::1]:6379 fe80::1%eth0: x", "[addr-1]:6379 addr-2%eth0: x"),
        ("::ffff:10.1.2.3", "::ffff:addr-1"),
        ("link aa:bb:cc:00:11:22 down", "link addr-1 down"),
        ("guid 0011:2233:4455:6677", "guid addr-1"),
        ("amdgpu 0000:c5:00.0: ring at 03:12:07", "amdgpu 0000:c5:00.0: ring at 03:12:07"),
        (
            "kernel 5.15.0-117, driver 6.8.5, 6.8.0.4-x",
            "kernel 5.15.0-117, driver 6.8.5, 6.8.0.4-x",
        ),
        ("ray::Trainer.run std::vector::at", "ray::Trainer.run std::vector::at"),
        ("/home/bob/x of bob@node001, /mnt/bob", "/home/user-1/x of user-1@host-1, /mnt/user-1"),
        ("/home/root /root root@node001", "/home/root /root root@host-1"),
        ("/sys/node001/x node001 /proc/41/fd", "/sys/node001/x host-1 /proc/41/fd"),
        ("session_2026-01-02_03-04-05_000006_7/logs", "session-1/logs"),
        ("raysubmit_AbC123xyz raydiag-probe-0123456789ab", "job-1 job-2"),
        ("kworker/u8:0-events flush", "kworker/u8:0-events flush"),
        (f"worker {NODE_ID} {'0' * 56} {NODE_ID}", "worker id-1 id-2 id-1"),
        ("umc: 2 uncorrectable errors, 0x1f, 63%", "umc: 2 uncorrectable errors, 0x1f, 63%"),
        ("", ""),
    ],
)
def test_text(text: str, expected: str) -> None:
    assert shown(text, "node001.corp.example.com", "node002.corp.example.com") == expected


def test_a_host_that_is_a_number_keeps_numbers() -> None:
    assert shown("37 of 64 GPUs on 37", "37", "node1") == "37 of 64 GPUs on 37"
    nodes = [replace(samples.healthy_node(1), node=Node(NODE_ID, "37", "10.1.0.1"))]
    told, _, _ = redacted(Snapshot(nodes, 1.0), Diagnosis([], [], Coverage(1, 1)), {})
    assert told.nodes[0].node.host == "host-1"


def cluster_with_names() -> tuple[Snapshot, Diagnosis]:
    """The sick cluster, with names and addresses wherever a node can put them."""
    snapshot, diagnosis = samples.sick_cluster()
    nodes = list(snapshot.nodes)
    told = "alice on node007 (10.1.0.7) in /home/alice/run, see login.example.com"
    mount = replace(nodes[0].records("storage")[0], device="filer:/export/alice")
    nodes[0] = replace(
        nodes[0],
        probes={
            **nodes[0].probes,
            "processes": ProbeResult(
                "processes", Status.OK, records=(process("python3 train.py --name secret-run"),)
            ),
            "storage": ProbeResult("storage", Status.OK, records=(mount,)),
        },
    )
    nodes[6] = replace(nodes[6], reason=told)
    finding = Finding(
        "node-unreachable",
        "node007",
        device="/home/alice/data",
        severity=Severity.CRITICAL,
        evidence=[
            Evidence(f"node {NODE_ID} at 10.1.0.7", told),
            Evidence("/proc/<pid>/environ", "X of python3 train.py --name secret-run differs"),
        ],
        explanation="filer:/export does not answer node007.",
        title="Gone",
        next_steps=["Look at node007."],
    )
    findings = [*diagnosis.findings, finding]
    chains = [*diagnosis.chains, Chain([finding])]
    coverage = replace(
        diagnosis.coverage,
        blind=[Blind("node007", told)],
        unread=[HostUnread("node005", "/home/alice", Status.DENIED, told)],
    )
    return replace(snapshot, nodes=nodes), Diagnosis(findings, chains, coverage)


def test_no_name_is_left_in_any_format() -> None:
    for text in every_format(*redacted(*cluster_with_names(), CLUSTER)):
        for name in ("node0", "alice", "example", "10.1.0", "filer", "secret", "session_2", "abab"):
            assert name not in text
        for stay in ("gpu-memory-error", "0000:c5:00.0", "/sys/kernel/ras0/umc_err_count"):
            assert stay in text


def test_stand_ins_are_the_same_in_every_format() -> None:
    told = redacted(*cluster_with_names(), CLUSTER)
    text, markdown, document = every_format(*told)
    for name in ("host-7", "host-6", "addr-", "user-1"):
        assert name in text
        assert name in markdown
        assert name in document
    blind = json.loads(document)["coverage"]["nodes"]["blind"][0]
    assert blind["host"] == "host-7"
    assert re.fullmatch(
        r"user-1 on host-7 \(addr-\d+\) in /home/user-1/run, see host-\d+", blind["reason"]
    )


def test_equal_runs_give_equal_reports() -> None:
    first, second = (
        redacted(*cluster_with_names(), CLUSTER),
        redacted(*cluster_with_names(), CLUSTER),
    )
    assert every_format(*first) == every_format(*second)


def test_nothing_but_names_changes() -> None:
    snapshot, diagnosis = samples.sick_cluster()
    before = json.loads(every_format(snapshot, diagnosis, CLUSTER)[2])
    after = json.loads(every_format(*redacted(snapshot, diagnosis, CLUSTER))[2])

    def shape(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: shape(item) for key, item in value.items()}
        if isinstance(value, list):
            return [shape(item) for item in value]
        return type(value) if isinstance(value, str) else value

    assert shape(after) == shape(before)
    assert [f["class"] for f in after["findings"]] == [f["class"] for f in before["findings"]]
    assert after["chains"] == before["chains"] == [[1, 2], [0]]
    ras = [document["nodes"][0]["probes"]["ras"] for document in (before, after)]
    assert ras[0] == ras[1]


def test_arguments_of_commands_are_left_out() -> None:
    snapshot, _, _ = redacted(*cluster_with_names(), CLUSTER)
    record = snapshot.nodes[0].records("processes")[0]
    assert record.command == "python3 (arguments left out)"
    assert record.environment == {"NCCL_SOCKET_IFNAME": "eth0"}


def test_names_that_are_words_or_patterns_do_no_harm() -> None:
    assert shown("a.b|c (x", "a.b|c", "(x", "...", "") != ""
    assert shown("the head is up", "head") == "the host-1 is up"


def test_hosts_of_a_node_list_have_no_names_either() -> None:
    process = RayProcess(
        pid=7,
        ppid=1,
        start_time_s=1.0,
        comm="python3",
        command="ray::Trainer",
        role="worker",
        worker_pid=7,
        state="S",
        threads=1,
        rss_bytes=1,
        environment={},
        job={"SLURM_JOB_NODELIST": "gpu[001-003]", "NNODES": "3"},
    )
    result = ProbeResult("processes", Status.OK, records=[process])
    node = Node("f" * 56, "gpu001", "10.9.8.7")
    report = NodeReport(node, NodeStatus.OK, probes={"processes": result})
    seen = Snapshot([report], 1.0, whole_cluster=True)
    missing = Finding("host-missing", host="gpu003", evidence=(Evidence("list", "gpu002 too"),))
    diagnosis = Diagnosis([missing], [], Coverage(1, 1))
    told, explained, _ = redacted(seen, diagnosis, {})
    text = repr((told, explained))
    assert "gpu0" not in text
    assert "gpu[" not in text
    assert told.nodes[0].records("processes")[0].job["SLURM_JOB_NODELIST"] == "3 hosts"
    assert str(explained.findings[0].host).startswith("host-")
