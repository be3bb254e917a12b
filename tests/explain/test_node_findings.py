from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from raydiag import catalog, rules
from raydiag.explain.diagnosis import judge_nodes
from raydiag.model import (
    Confidence,
    Evidence,
    Finding,
    KnownFinding,
    Severity,
    Snapshot,
    StuckReader,
)
from raydiag.probes.d_state import BlockedTask
from raydiag.probes.gpu_sensors import GpuSensors
from raydiag.probes.kernel_log import KernelLine
from raydiag.probes.ras import RasCount
from raydiag.probes.storage import MountUsage
from tests.rules.snapshots import NOW, dead, report, snapshot

ADDRESS = "0000:c5:00.0"

UNCORRECTABLE = RasCount(3, ADDRESS, "umc", "/sys/ras/umc_err_count", 2, 0, 0)
SENSORS = GpuSensors(3, ADDRESS, None, None, None, False, None, None, None, None, None, "")
HANGING = BlockedTask(
    pid=100,
    start_ticks=7,
    comm="bash",
    state="D",
    kernel_thread=False,
    wchan="amdgpu_cper_ring_write",
    stack=(),
    persistent=True,
    sample_gap_s=1.0,
    kill_pending=False,
    raydiag_reader=False,
)


@pytest.fixture
def kernel_says(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Puts findings in the place of those of the kernel log."""

    def say(*findings: Finding) -> None:
        def kernel_findings(_: Snapshot) -> list[Finding]:
            return list(findings)

        monkeypatch.setattr(rules, "RULES", (kernel_findings, *rules.RULES[1:]))

    return say


def event(failure_class: str, **scope: object) -> Finding:
    fields = {"host": "a", "onset": NOW - 50, "evidence": (Evidence("/dev/kmsg", "a line"),)}
    return Finding(failure_class, **{**fields, **scope})  # type: ignore[arg-type]


def test_event_and_counter_of_one_gpu_are_one_finding(kernel_says: Callable[..., None]) -> None:
    kernel_says(event("gpu-memory-error", device=ADDRESS, severity=Severity.CRITICAL))
    (finding,) = judge_nodes(snapshot(report("a", ras=[UNCORRECTABLE]), job_start=NOW - 100))
    assert (finding.gpu, finding.device) == (3, ADDRESS)
    assert finding.severity is Severity.CRITICAL
    assert finding.onset == NOW - 50
    assert [one.source for one in finding.evidence] == ["/dev/kmsg", "/sys/ras/umc_err_count"]
    assert "nothing shows that it grew" not in finding.explanation


def test_the_higher_confidence_and_the_earlier_onset_stand(
    kernel_says: Callable[..., None],
) -> None:
    kernel_says(
        event("oom-kill", pid=7, onset=NOW, confidence=Confidence.POSSIBLE),
        event("oom-kill", pid=7, onset=NOW - 9, confidence=Confidence.LIKELY),
        event("oom-kill", pid=8, onset=None),
    )
    found = judge_nodes(snapshot(report("a")))
    assert [(one.pid, one.onset, one.confidence) for one in found] == [
        (7, NOW - 9, Confidence.LIKELY),
        (8, None, Confidence.CONFIRMED),
    ]


def test_faults_of_different_gpus_and_hosts_stay_apart(kernel_says: Callable[..., None]) -> None:
    other = "0000:05:00.0"
    kernel_says(
        event("gpu-memory-error", device=other),
        event("gpu-memory-error", device=ADDRESS, host="b"),
    )
    found = judge_nodes(
        snapshot(report("a", ras=[UNCORRECTABLE]), report("b", gpu_sensors=[SENSORS]))
    )
    assert sorted((one.host, one.device, one.gpu) for one in found if one.host) == sorted(
        [("a", ADDRESS, 3), ("a", other, None), ("b", ADDRESS, 3)], key=str
    )


def test_a_gpu_index_gets_its_address(kernel_says: Callable[..., None]) -> None:
    kernel_says(event("gpu-memory-error", gpu=3), event("gpu-memory-error", device=ADDRESS))
    (finding,) = judge_nodes(snapshot(report("a", gpu_sensors=[SENSORS])))
    assert (finding.gpu, finding.device) == (3, ADDRESS)


def test_a_driver_fault_is_confirmed_by_log_and_task(kernel_says: Callable[..., None]) -> None:
    kernel_says(event("gpu-driver-fault", device=ADDRESS, pid=55))
    (finding,) = judge_nodes(snapshot(report("a", d_state=[HANGING], gpu_sensors=[SENSORS])))
    assert finding.confidence is Confidence.CONFIRMED
    assert finding.onset == NOW - 50
    assert (finding.device, finding.pid) == (ADDRESS, None)  # two processes show it
    assert len(finding.evidence) == 2


def test_one_sign_of_a_driver_fault_is_likely(kernel_says: Callable[..., None]) -> None:
    kernel_says()
    (stuck,) = judge_nodes(snapshot(report("a", d_state=[HANGING])))
    kernel_says(
        *(event("gpu-driver-fault", device=f"0000:0{bus}:00.0") for bus in (5, 6, 7)),
    )
    (logged,) = judge_nodes(snapshot(report("a")))
    assert stuck.confidence is logged.confidence is Confidence.LIKELY
    assert logged.device is None


def test_a_hint_of_a_driver_fault_confirms_nothing(kernel_says: Callable[..., None]) -> None:
    hint = event("gpu-driver-fault", confidence=Confidence.POSSIBLE)
    kernel_says(hint)
    (alone,) = judge_nodes(snapshot(report("a")))
    (beside_a_task,) = judge_nodes(snapshot(report("a", d_state=[HANGING])))
    assert alone.confidence is Confidence.POSSIBLE
    assert beside_a_task.confidence is Confidence.LIKELY


def test_a_real_kernel_line_and_its_counter_are_one_finding() -> None:
    text = f"amdgpu {ADDRESS}: amdgpu: 2 uncorrectable hardware errors detected in umc block"
    line = KernelLine(12, NOW - 50, 1.0, 6, 0, text, True, 0)
    (finding,) = judge_nodes(snapshot(report("a", kernel_log=[line], ras=[UNCORRECTABLE])))
    assert (finding.failure_class, finding.gpu) == ("gpu-memory-error", 3)
    assert finding.onset == NOW - 50
    assert text in finding.evidence[0].text
    assert finding.evidence[-1].source == UNCORRECTABLE.file


def test_two_ray_nodes_of_one_machine_do_not_double_findings() -> None:
    full = MountUsage("/", "/dev/sda", "ext4", 1 << 40, 0, 0, 0, 0)
    stuck = StuckReader("/data", "storage", 9, 3.0)
    seen = snapshot(
        *(
            report("a", node_id=id, ras=[UNCORRECTABLE], storage=[full], stuck=[stuck])
            for id in ("1", "2")
        )
    )
    assert sorted(one.failure_class for one in judge_nodes(seen)) == [
        "disk-full",
        "gpu-memory-error",
        "hung-read",
    ]


def test_machines_that_share_a_host_name_keep_their_own_faults() -> None:
    full = MountUsage("/", "/dev/sda", "ext4", 1 << 40, 0, 0, 0, 0)
    lost = "UNEXPECTED_TERMINATION: gone"
    seen = snapshot(
        report("a", node_id="1", address="10.0.0.1", ras=[UNCORRECTABLE], storage=[full]),
        report("a", node_id="2", address="10.0.0.2", ras=[UNCORRECTABLE], storage=[full]),
        dead("a", lost, node_id="3", address="10.0.0.3"),
        dead("a", lost, node_id="4", address="10.0.0.4"),
    )
    found = judge_nodes(seen)
    assert {one.host for one in found} == {"a"}
    assert sorted((one.failure_class, one.address) for one in found) == [
        ("disk-full", "10.0.0.1"),
        ("disk-full", "10.0.0.2"),
        ("gpu-memory-error", "10.0.0.1"),
        ("gpu-memory-error", "10.0.0.2"),
        ("ray-node-dead", "10.0.0.3"),
        ("ray-node-dead", "10.0.0.4"),
    ]
    assert all(one.address in one.evidence[0].text for one in found if one.address)
    gpus = [(one.gpu, one.device) for one in found if one.failure_class == "gpu-memory-error"]
    assert gpus == [(3, ADDRESS)] * 2


def test_the_second_of_two_namesakes_is_judged() -> None:
    sick = report("a", node_id="2", address="10.0.0.2", ras=[UNCORRECTABLE])
    well = report("a", node_id="1", address="10.0.0.1", ras=[replace(UNCORRECTABLE, ue=0)])
    (finding,) = judge_nodes(snapshot(well, sick))
    assert (finding.host, finding.address) == ("a", "10.0.0.2")


def test_a_well_cluster_has_no_findings() -> None:
    assert judge_nodes(snapshot(report("a", gpu_sensors=[SENSORS]), report("b"))) == []
    assert judge_nodes(snapshot()) == []


def test_rules_yield_known_classes_only() -> None:
    full = MountUsage("/", "/dev/sda", "ext4", 1 << 40, 0, 0, 9, 0)
    found = judge_nodes(
        snapshot(
            report("a", ras=[UNCORRECTABLE], storage=[full], d_state=[HANGING]),
            dead("b", "UNEXPECTED_TERMINATION: gone"),
        )
    )
    assert {one.failure_class for one in found} <= set(catalog.failures())
    assert len(found) == 5


def test_a_finding_says_whether_earlier_probes_knew_it(kernel_says: Callable[..., None]) -> None:
    kernel_says(event("gpu-driver-fault", host="a"), event("gpu-driver-fault", host="b"))
    nodes = snapshot(report("a"), report("b"))
    assert [finding.known for finding in judge_nodes(nodes)] == [None, None]
    known = KnownFinding("gpu-driver-fault", "a", "", "", "critical", NOW - 900, NOW - 60, 5)
    at_a, at_b = judge_nodes(replace(nodes, known=[known]))
    assert at_a.known == known
    assert at_b.known is not None
    assert (at_b.known.times, at_b.known.key) == (0, ("gpu-driver-fault", "b", "", ""))
