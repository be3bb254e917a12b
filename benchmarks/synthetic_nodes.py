"""Synthetic answers of many nodes: decoded, judged and rendered. Prints one JSON line.

    python benchmarks/synthetic_nodes.py text|json [NODES]

Each node has 8 GPUs, 97 kernel lines and 40 processes; every hundredth is sick. The answers are
made first, in the form in which they come out of a job's log; only what follows is timed.
"""

from __future__ import annotations

import base64
import gc
import json
import resource
import sys
import time
import zlib
from typing import Any

from raydiag import probes
from raydiag.cli import COLLECTIONS_APART
from raydiag.cluster import collect
from raydiag.explain import diagnosis
from raydiag.model import Snapshot
from raydiag.render import document
from raydiag.render.probe import probe_report
from raydiag.render.text import text

_NOW = 1_790_000_000.0
HOLDS = {"no_new_privs": True, "seccomp": True, "landlock_abi": 4}


def _record(**values: Any) -> dict[str, Any]:
    return values


def _kernel_lines(sick: bool) -> list[dict[str, Any]]:
    # Of what a node prints while it boots, some hundred lines name a driver and are carried home.
    lines = [
        f"amdgpu 0000:{5 + 16 * gpu:02x}:00.0: amdgpu: start-up message {number} of this driver"
        for gpu in range(8)
        for number in range(12)
    ]
    wrong = "amdgpu 0000:05:00.0: amdgpu: {3}2 uncorrectable hardware errors detected in umc block"
    lines.append(wrong if sick else "amdgpu: one more")
    return [
        _record(
            seq=n,
            time_s=_NOW - 100 + n,
            uncertainty_s=1.0,
            level=6,
            facility=0,
            text=line,
            matched=True,
            lost_before=0,
        )
        for n, line in enumerate(lines)
    ]


def _probes(number: int) -> dict[str, list[dict[str, Any]]]:
    sick = number % 100 == 7
    gpus = [(gpu, f"0000:{5 + 16 * gpu:02x}:00.0") for gpu in range(8)]
    return {
        "kernel_log": _kernel_lines(sick),
        "d_state": [],
        "gpu_sensors": [
            _record(
                gpu=gpu,
                address=address,
                temperature_c=61.0,
                temperature_crit_c=100.0,
                power_w=700.0,
                power_averaged=False,
                power_cap_w=750.0,
                sclk_mhz=2100.0,
                mclk_mhz=1300.0,
                vram_used_bytes=1 << 37,
                vram_total_bytes=1 << 38,
                unique_id=f"{gpu:016x}",
            )
            for gpu, address in gpus
        ],
        "ras": [
            _record(
                gpu=gpu,
                address=address,
                block=block,
                file=f"/sys/bus/pci/drivers/amdgpu/{address}/ras/aca_{block}",
                ue=int(sick and gpu == 0 and block == "umc"),
                ce=0,
                deferred=0,
            )
            for gpu, address in gpus
            for block in ("umc", "xgmi", "gfx", "mmhub", "sdma")
        ],
        "versions": [
            _record(component=name, version="6.8.0", source="/proc")
            for name in ("kernel", "amdgpu", "rocm", "os", "python")
        ],
        "processes": [
            _record(
                pid=1000 + n,
                ppid=1,
                start_time_s=_NOW - 5000,
                comm="ray::Trainer",
                command="ray::Trainer.run",
                role="worker",
                worker_pid=1000 + n,
                state="S",
                threads=80,
                rss_bytes=1 << 33,
                environment={"NCCL_SOCKET_IFNAME": "eth0"},
            )
            for n in range(40)
        ],
        "memory": [
            _record(
                total_bytes=1 << 41,
                available_bytes=1 << 40,
                dirty_bytes=0,
                writeback_bytes=0,
                swap_total_bytes=0,
                swap_free_bytes=0,
                pressure={"memory_full_avg10": 0.0},
                oom_kills_since_boot=0,
                cgroup_version=2,
                cgroup_path="/",
                cgroup_current_bytes=1 << 40,
                cgroup_limit_bytes=None,
                cgroup_inactive_file_bytes=0,
                cgroup_active_file_bytes=0,
                cgroup_oom_kills=0,
            )
        ],
        "storage": [
            _record(
                mount_point=mount,
                device="/dev/nvme0n1",
                fs_type="ext4",
                total_bytes=1 << 42,
                free_bytes=1 << 41,
                available_bytes=1 << 41,
                total_inodes=1 << 20,
                free_inodes=1 << 19,
            )
            for mount in ("/", "/data", "/dev/shm")
        ],
    }


def _message(number: int) -> dict[str, Any]:
    answer = {
        "time": _NOW,
        "cpu_s": 0.08,
        "pid": 4242,
        "sandbox": dict.fromkeys(("files", "processes"), HOLDS),
        "stuck": [],
        "probes": {
            name: {"status": "ok", "duration_s": 0.01, "reason": "", "records": r, "unread": []}
            for name, r in _probes(number).items()
        },
    }
    packed = base64.b64encode(zlib.compress(json.dumps(answer).encode())).decode()
    return {"status": "answered", "answer": packed, "duration_s": 0.3}


def main(shape: str, nodes: int) -> None:
    gc.set_threshold(COLLECTIONS_APART)  # as the command does
    listed = [
        {
            "node_id": f"{number:056x}",
            "alive": True,
            "hostname": f"node{number:04}.cluster",
            "address": f"10.1.{number // 250}.{number % 250}",
            "death_reason": "",
        }
        for number in range(1, nodes + 1)
    ]
    messages = {number: _message(number) for number in range(1, nodes + 1)}
    for name in probes.names():
        probes.load(name)
    started, cpu_started = time.monotonic(), time.process_time()
    reports = collect.reports(listed, messages, sorted(_probes(1)), ends={})
    snapshot = Snapshot(reports, _NOW)
    explained = diagnosis.explain(snapshot)
    if shape == "json":
        size = sum(map(len, document.lines(document.probe_document(snapshot, explained, {}, _NOW))))
    else:
        size = len(text(probe_report(snapshot, explained, {}, False), 100))
    seconds, cpu_s = time.monotonic() - started, time.process_time() - cpu_started
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    found = len(explained.findings)
    assert all(report.status.value == "ok" for report in reports), reports[0].reason
    print(
        json.dumps(
            {"seconds": seconds, "cpu_s": cpu_s, "peak_mib": peak_mib, "found": found, "size": size}
        )
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1000)
