"""Small clusters to render: made of the real record types, with numbers that are easy to check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from raydiag.model import (
    Blind,
    Chain,
    Confidence,
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
    StuckReader,
    Unread,
    Window,
)
from raydiag.probes.gpu_sensors import GpuSensors
from raydiag.probes.kernel_log import KernelLine
from raydiag.probes.memory import MemoryState
from raydiag.probes.ras import RasCount
from raydiag.probes.storage import MountUsage
from raydiag.probes.versions import Version

NOW = 1_795_144_327.0  # 2026-11-20 03:12:07 UTC
GIB = 1 << 30
CLUSTER: Mapping[str, Any] = {
    "address": "http://127.0.0.1:8265",
    "session_name": "session_2026-11-20_01-00-00_000000_77",
    "ray_version": "2.40.0",
    "gcs_address": "10.1.0.1:6379",
    "deadline_s": 10.0,
    "duration_s": 3.25,
}
_CONFINED = {"no_new_privs": True, "seccomp": True, "landlock_abi": 4}


def healthy_node(number: int, kernel: str = "5.15.0-117-generic", gpus: int = 8) -> NodeReport:
    """One well node of a row of like ones; temperatures rise with the number."""
    results = [
        ProbeResult("gpu_sensors", Status.OK, 0.2, records=_sensors(number, gpus)),
        ProbeResult("kernel_log", Status.OK, 0.1, records=(_line(NOW - 86_400 + number),)),
        ProbeResult("memory", Status.OK, 0.01, records=(_memory(0.12 + number % 3 / 100),)),
        ProbeResult("ras", Status.OK, 0.3, records=_ras(gpus)),
        ProbeResult("storage", Status.OK, 0.02, records=_mounts(30 + number % 5)),
        ProbeResult("versions", Status.OK, 0.02, records=_versions(kernel)),
    ]
    return NodeReport(
        Node(f"{number:056x}", f"node{number:03d}.example.com", f"10.1.0.{number}"),
        NodeStatus.OK,
        duration_s=1.5,
        probes={result.probe: result for result in results},
        sandbox={"files": _CONFINED, "processes": {**_CONFINED, "landlock_abi": 0}},
        collected_at=NOW,
    )


def lost_node(number: int, status: NodeStatus, reason: str) -> NodeReport:
    return NodeReport(
        Node(f"{number:056x}", f"node{number:03d}", f"10.1.0.{number}"), status, reason=reason
    )


def snapshot(nodes: Sequence[NodeReport]) -> Snapshot:
    return Snapshot(nodes, NOW)


def all_well(size: int) -> tuple[Snapshot, Diagnosis]:
    nodes = [healthy_node(number) for number in range(1, size + 1)]
    return snapshot(nodes), Diagnosis([], [], Coverage(size, size))


def sick_cluster() -> tuple[Snapshot, Diagnosis]:
    """Eight nodes: four well, one with a stuck RAS read, one with bad memory, two not seen."""
    nodes = [healthy_node(number) for number in range(1, 5)]
    nodes += [_stuck_node(5), healthy_node(6, kernel="5.15.0-101-generic")]
    nodes += [
        lost_node(7, NodeStatus.UNREACHABLE, "no answer within 10 s"),
        lost_node(8, NodeStatus.DEAD, "raylet ended: missed heartbeats"),
    ]
    findings = _findings()
    unread = [
        HostUnread("node005", "/sys/kernel/ras0/umc_err_count", Status.TIMEOUT, "hangs in kernel"),
        HostUnread("node005", "/proc/41/stack", Status.DENIED, "/proc/41/stack: not permitted"),
        HostUnread("node006", "/proc/97/stack", Status.DENIED, "/proc/97/stack: not permitted"),
    ]
    coverage = Coverage(
        8,
        6,
        [Blind("node007", "no answer within 10 s"), Blind("node008", "dead")],
        unread,
        Window(NOW - 60.0, NOW),
    )
    chains = [Chain([findings[1], findings[2]], Confidence.LIKELY), Chain([findings[0]])]
    return snapshot(nodes), Diagnosis(findings, chains, coverage)


def rename(report: NodeReport, hostname: str) -> NodeReport:
    return replace(report, node=replace(report.node, hostname=hostname))


def _findings() -> list[Finding]:
    counts = [
        Evidence(f"/sys/bus/pci/drivers/amdgpu/0000:c5:00.0/ras/block{i}", "ue: 2", 2.0, NOW)
        for i in range(7)
    ]
    return [
        Finding(
            "gpu-memory-error",
            "node006",
            gpu=3,
            device="0000:c5:00.0",
            severity=Severity.CRITICAL,
            onset=NOW - 3600,
            evidence=counts,
            explanation="Memory lost 2 words that could not be corrected.",
            title="GPU memory had an uncorrectable error",
            next_steps=["Drain node006.", "Replace the GPU at 0000:c5:00.0."],
        ),
        Finding(
            "gpu-driver-fault",
            "node005",
            severity=Severity.WARNING,
            confidence=Confidence.LIKELY,
            evidence=[Evidence("/dev/kmsg", "BUG: bad \x1b[31mread\tat 0", None, NOW - 5000)],
            title="The GPU driver is broken",
            next_steps=["Reboot node005 after the job."],
        ),
        Finding(
            "hung-read",
            "node005",
            device="/sys/kernel/ras0/umc_err_count",
            pid=4242,
            severity=Severity.INFO,
            title="Reading a file hangs",
        ),
    ]


def _stuck_node(number: int) -> NodeReport:
    report = healthy_node(number)
    source = "/sys/kernel/ras0/umc_err_count"
    stuck = ProbeResult(
        "ras", Status.TIMEOUT, 2.0, "1 of 8 GPUs hang", (), [Unread(source, Status.TIMEOUT, "hang")]
    )
    denied = ProbeResult("d_state", Status.DENIED, 0.1, "/proc/41/stack: not permitted")
    return replace(
        report,
        status=NodeStatus.PARTIAL,
        reason="ras did not end",
        probes={**report.probes, "ras": stuck, "d_state": denied},
        stuck=[StuckReader(source, "ras", 4242, 2.0, "ras_read_wait")],
    )


def _sensors(number: int, gpus: int) -> list[GpuSensors]:
    return [
        GpuSensors(
            gpu=gpu,
            address=f"0000:{gpu:02x}:00.0",
            temperature_c=40.0 + gpu + number % 20,
            temperature_crit_c=100.0,
            power_w=None if gpu == 7 else 130.0 + 70 * gpu,
            power_averaged=False,
            power_cap_w=750.0,
            sclk_mhz=2100.0,
            mclk_mhz=1300.0,
            vram_used_bytes=170 * GIB,
            vram_total_bytes=192 * GIB,
            unique_id=f"{number:x}{gpu:x}",
        )
        for gpu in range(gpus)
    ]


def _line(time_s: float) -> KernelLine:
    return KernelLine(
        seq=1,
        time_s=time_s,
        uncertainty_s=0.5,
        level=6,
        facility=0,
        text="first record of the ring",
        matched=False,
        lost_before=0,
    )


def _memory(used: float) -> MemoryState:
    total = 2048 * GIB
    return MemoryState(
        total_bytes=total,
        available_bytes=int(total * (1 - used)),
        dirty_bytes=0,
        writeback_bytes=0,
        swap_total_bytes=0,
        swap_free_bytes=0,
        pressure={"memory_full_avg10": 0.0, "io_some_avg10": 0.5},
        oom_kills_since_boot=0,
        cgroup_version=2,
        cgroup_path="/sys/fs/cgroup",
        cgroup_current_bytes=GIB,
        cgroup_limit_bytes=None,
        cgroup_inactive_file_bytes=0,
        cgroup_active_file_bytes=0,
        cgroup_oom_kills=0,
    )


def _ras(gpus: int) -> list[RasCount]:
    return [
        RasCount(gpu, f"0000:{gpu:02x}:00.0", block, f"ras/{block}_err_count", 0, 0, None)
        for gpu in range(gpus)
        for block in ("umc", "gfx", "mmhub", "sdma", "xgmi_wafl")
    ]


def _mounts(percent: int) -> list[MountUsage]:
    def mount(point: str, fs_type: str, used_percent: int) -> MountUsage:
        free = (100 - used_percent) * GIB
        return MountUsage(point, "/dev/sda1", fs_type, 100 * GIB, free, free, 0, 0)

    return [
        mount("/", "ext4", 20),
        mount("/scratch", "xfs", percent),
        mount("/snap/core", "squashfs", 100),
    ]


def _versions(kernel: str) -> list[Version]:
    return [
        Version("kernel", kernel, "/proc/sys/kernel/osrelease"),
        Version("amdgpu", "6.8.5", "/sys/module/amdgpu/version"),
        Version("python", "3.10.12", "sys.version"),
    ]
