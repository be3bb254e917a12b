"""Every probe on a node where each file that it reads hangs: an answer in time, and few stuck."""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raydiag import memory_import, probes
from raydiag.cluster import bundle
from raydiag.cluster.actor import RaydiagNodeActor
from tests.cluster import fake_cgroup, fake_node, fake_rdma, fuse_hang
from tests.cluster.conftest import wanted_or_skip
from tests.cluster.fuse_hang import HangingFile

pytestmark = pytest.mark.cluster

BUDGET_S = 12.0
# These ask programs, or names and links alone.
WITHOUT_FILES = {"nvidia", "stacks", "gpu_users"}


@pytest.fixture(scope="module")
def sick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HangingFile]:
    """A whole tree of a node behind a file system that answers no read."""
    wanted_or_skip(fuse_hang.unavailable())
    root = tmp_path_factory.mktemp("sick")
    fake_node.write_amdgpu(root / "sys", kfd_users=[77])
    fake_rdma.write_rdma(root / "sys", driver="ionic", devices=2)
    fake_cgroup.write_memory(root / "sys", limit_bytes=1 << 36, used_bytes=1 << 30)
    files = {
        "proc/stat": "btime 1700000000\n",
        "proc/meminfo": "MemTotal: 1 kB\n",
        "proc/loadavg": "0 0 0 1/1 1\n",
        "proc/uptime": "900000 1\n",
        "proc/version": "Linux version 6.8.0\n",
        "proc/self/mountinfo": "36 35 8:1 / / rw - ext4 /dev/sda1 rw\n",
        "proc/net/dev": "eth0: 1\n",
        "proc/net/tcp": "sl\n",
        "proc/net/fib_trie": "Local:\n",
        "proc/net/snmp": "Tcp: A\nTcp: 1\n",
        "proc/77/stat": "77 (raylet) S 1 1 1 0\n",
        "proc/77/comm": "raylet\n",
        "dev/kmsg": "6,1,1,-;Linux version 6.8.0\n",
        "dev/kfd": "",
        "sys/fs/pstore/dmesg-efi-1": "Panic#1 Part1\n",
        "tmp/node_hw_metrics.prom": "hw_procs_running 1\n",
    }
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    paths = [path.relative_to(root) for path in root.rglob("*") if path.is_file()]
    with HangingFile(root) as mount:
        for path in paths:
            mount.hang(path)
        mount.hang(".", "statfs")
        yield mount
        mount.release()


def run(name: str, root: Path) -> dict[str, Any]:
    sources = {n: t for n, t in bundle.modules([name]).items() if ".cluster" not in n}
    options = {"kernel_log": {"words": ["linux"]}}
    request = {"probes": [name], "root": str(root), "options": options}
    packed = memory_import.packed(sources, request)
    entrypoint = bundle.entrypoint("node_runner")
    answer = RaydiagNodeActor.probe(None, entrypoint, packed, BUDGET_S)  # type: ignore[arg-type]
    decoded: dict[str, Any] = json.loads(zlib.decompress(answer.partition(b"\n")[2]))
    return decoded


@pytest.mark.parametrize("name", sorted(set(probes.names()) - WITHOUT_FILES))
def test_a_probe_whose_files_hang(sick: HangingFile, name: str) -> None:
    began = time.monotonic()
    answer = run(name, sick.directory)
    assert time.monotonic() - began < BUDGET_S + 1
    result = answer["probes"][name]
    assert result["records"] == []
    assert result["status"] == "timeout", result
    assert len(answer["stuck"]) <= 8
    assert all(item["probe"] == name for item in answer["stuck"])
    # The next run goes round what is stuck: no file ever holds two readers.
    stuck = {item["source"] for item in answer["stuck"]}
    again = run(name, sick.directory)
    assert {item["source"] for item in again["stuck"] if item["new"]} & stuck == set()
