"""Nodes of a cluster in which some GPU drivers are at fault, as the probes report them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from raydiag.explain.diagnosis import explain
from raydiag.explain.driver_fault import Investigation, investigate
from raydiag.model import (
    Actor,
    Node,
    NodeReport,
    NodeStatus,
    ProbeResult,
    Snapshot,
    Status,
    StuckReader,
)
from raydiag.playbooks.node_failure.driver import DriverSigns
from raydiag.probes.bad_pages import BadPages
from raydiag.probes.d_state import BlockedTask
from raydiag.probes.kernel_log import KernelLine
from raydiag.probes.pids import Pids
from raydiag.probes.processes import RayProcess
from raydiag.probes.ras import RasCount
from raydiag.probes.ray_logs import RayLog
from raydiag.probes.versions import Version
from tests.cluster import fake_node
from tests.rules.gpu_records import amd_gpus, nvidia_gpus

NOW = 1_795_144_327.0  # 2026-11-20 03:12:07 UTC
BOOT = NOW - 9 * 86_400
HOUR = 3600.0
SERIES_START = NOW - 6 * HOUR


def lines(*texts: str, at: float = NOW - HOUR, first_seq: int = 1000) -> list[KernelLine]:
    """A log whose first record is far older."""
    records = [KernelLine(first_seq, BOOT + 5, 1.0, 6, 0, "Linux version 6.8.0-60", False, 0)]
    for number, text in enumerate(texts, 1):
        time_s = at + number * 2e-6
        records.append(KernelLine(first_seq + number, time_s, 1.4, 4, 0, text, True, 0))
    return records


def oops(at: float = NOW - 5 * HOUR, **options: Any) -> list[KernelLine]:
    """The kernel crashes while it writes records of errors, in a read of a RAS file."""
    texts = [record.text for record in fake_node.cper_oops_records(at)[1:]]
    return lines(*texts, at=at, **options)


def blocked(count: int, wchan: str = "amdgpu_cper_ring_write", apart_s: float = 600.0) -> Any:
    """Readers of RAS files, one each ten minutes."""
    first = (NOW - 5 * HOUR - BOOT) * 100
    return [
        BlockedTask(
            30_000 + n,
            int(first + n * apart_s * 100),
            "cat",
            "D",
            False,
            wchan,
            (),
            True,
            1.0,
            True,
            False,
        )
        for n in range(count)
    ]


def node(
    number: int,
    log: Sequence[KernelLine] = (),
    tasks: Sequence[BlockedTask] = (),
    gpus: Sequence[Any] = (),
    unread: Sequence[ProbeResult] = (),
    stuck: Sequence[StuckReader] = (),
    **records: Sequence[Any],
) -> NodeReport:
    """A node that answered; well unless it is told otherwise."""
    versions = [Version("kernel", "6.8.0-60-generic", "/proc/sys/kernel/osrelease")]
    versions.append(Version("amdgpu", "6.14.14", "/sys/module/amdgpu/version"))
    found: dict[str, Sequence[Any]] = {
        "kernel_log": log or lines(),
        "d_state": tasks,
        "versions": versions,
        "pids": [Pids(4_194_304, 2104, BOOT, 100)],
        "gpu_sensors": gpus or amd_gpus(),
        **records,
    }
    probes = {name: ProbeResult(name, Status.OK, records=kind) for name, kind in found.items()}
    probes.update({result.probe: result for result in unread})
    name = f"node{number:03}"
    return NodeReport(
        Node(f"id-{name}", name, f"10.1.0.{number}"),
        NodeStatus.OK,
        probes=probes,
        collected_at=NOW,
        stuck=stuck,
    )


def lost(number: int) -> NodeReport:
    """One that Ray lists as alive and that does not answer."""
    reported = Node(f"id-node{number:03}", f"node{number:03}", f"10.1.0.{number}")
    return NodeReport(reported, NodeStatus.TIMEOUT, reason="its probe actor did not start")


def denied(probe: str, reason: str) -> ProbeResult:
    return ProbeResult(probe, Status.DENIED, reason=reason)


NOT_READ = "not read: amdgpu_cper_ring_write in the kernel log or a stack shows the driver fault"


def faulty() -> NodeReport:
    """All signs at once, on a node that trains."""
    return node(
        2,
        oops(),
        blocked(30),
        unread=[denied("ras", NOT_READ), denied("bad_pages", NOT_READ)],
        processes=[trainer()],
        ray_logs=[step_log()],
    )


def trainer(pid: int = 4242) -> RayProcess:
    return RayProcess(
        pid, 1, NOW - 6 * HOUR, "ray::Trainer", "ray::Trainer", "worker", pid, "S", 9, 1, {}
    )


def step_log(pid: int = 4242, step: int = 118) -> RayLog:
    return RayLog(
        "worker", "/logs/worker.out", "s", "raylet", 9, 2.0, pid=pid, actor="Trainer",
        title="Trainer", step=step, step_format="MaxText", step_age_s=7.0,
    )  # fmt: skip


def memory_error(number: int = 6) -> NodeReport:
    """A GPU that has lost data and retired memory, with the rank on it."""
    address = "0000:95:00.0"
    log = lines(
        f"amdgpu {address}: amdgpu: {{3}} 2 uncorrectable hardware errors detected in umc block",
        f"amdgpu {address}: amdgpu: GPU reset begin!. Source:  3",
        f"amdgpu {address}: amdgpu: GPU reset(1) succeeded!",
        f"amdgpu {address}: amdgpu: Saved bad pages 130 reaches threshold value 128",
    )
    sensors = [replace(gpu, unique_id=f"3f1c9a0e5d7b224{gpu.gpu}") for gpu in amd_gpus()]
    counts = [
        RasCount(gpu.gpu, gpu.address, "umc", f"/sys/{gpu.address}", 2 * (gpu.gpu == 5), 14, 0)
        for gpu in sensors
    ]
    pages = [BadPages(5, address, "/sys/bad", 130, 4, 0)]
    return node(
        number,
        log,
        gpus=sensors,
        ras=counts,
        bad_pages=pages,
        processes=[trainer()],
        ray_logs=[step_log()],
    )


def nvidia(number: int = 7) -> NodeReport:
    """A GPU that fell off the bus, and a switch that complains."""
    log = lines(
        "NVRM: Xid (PCI:0000:95:00): 79, pid=4242, name=python3, GPU has fallen off the bus.",
        "NVRM: Xid (PCI:0000:65:00): 64, pid=4242, name=python3, Row remapping failed",
        "nvidia-nvswitch3: SXid (PCI:0000:c5:00.0): 12028, Non-fatal, Link 32 egress",
    )
    versions = [
        Version("kernel", "5.15.0-117-generic", "/proc"),
        Version("nvidia", "550.54.15", "/proc/driver/nvidia/version"),
    ]
    return node(number, log, gpus=(), gpu_sensors=[], nvidia=nvidia_gpus(), versions=versions)


def series(host: str = "node002", **values: Any) -> DriverSigns:
    """Of a host whose exporter swings and whose errors nobody else has."""
    known: dict[str, Any] = {
        "step_s": 15.0,
        "errors": 44.0,
        "most_errors": 44.0,
        "first_at": NOW - 5 * HOUR + 15,
        "grew_at": NOW - 5 * HOUR + 15,
        "few": True,
        "others_clean": 5,
        "others_still": 5,
        "few_rise": True,
        "exporter": {
            "hw_scrape_duration_seconds": "its exporter's cycles swing between timed out and normal"
        },
    }
    return DriverSigns(host, **{**known, **values})


def well_series(*numbers: int) -> list[DriverSigns]:
    return [DriverSigns(f"node{n:03}", 15.0, 0.0, others_still=1) for n in numbers]


def investigated(
    *reports: NodeReport, all_series: Sequence[DriverSigns] = (), no_series: str = "none asked"
) -> Investigation:
    """The nodes judged, as `driver-fault` does."""
    named = {"id-node002": "trainer_3", "id-node006": "trainer_11"}
    actors = [Actor(node_id, 4242, "Trainer", name, True) for node_id, name in named.items()]
    actors += [Actor("id-node001", 900 + rank, "Trainer", "", True) for rank in range(10)]
    snapshot = Snapshot(reports, NOW, None, actors)
    diagnosis = explain(snapshot)
    return investigate(
        snapshot,
        diagnosis.findings,
        diagnosis.coverage,
        all_series,
        "" if all_series else no_series,
    )


def whole_cluster() -> Investigation:
    """One of each kind."""
    found = investigated(
        node(1),
        faulty(),
        node(3, unread=[denied("kernel_log", "/dev/kmsg: permission denied")]),
        lost(4),
        node(5, oops(at=NOW - 2 * HOUR)),
        memory_error(),
        nvidia(),
        all_series=[series(), *well_series(1, 3, 5, 6, 7)],
    )
    job = "running: step 118 of 20000"
    return replace(found, metrics="http://127.0.0.1:9190", job=job)
