"""A control group (version 2) of the node's containers in a tree that stands in for /sys."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.fake_node import rewrite

_CACHE_BYTES = 1 << 30


def write_memory(root: Path, limit_bytes: int, used_bytes: int) -> None:
    """Memory of the group at the root of the mount, as in a container; may be written again.

    `used_bytes` is what cannot be dropped; a GiB of page cache comes on top.
    """
    files = {
        "cgroup.controllers": "cpuset cpu io memory pids",
        "memory.max": str(limit_bytes),
        "memory.current": str(used_bytes + _CACHE_BYTES),
        "memory.stat": f"anon {used_bytes}\nactive_file 0\ninactive_file {_CACHE_BYTES}",
        "memory.events": "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\noom_group_kill 0",
    }
    directory = root / "fs/cgroup"
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        rewrite(directory / name, f"{text}\n")
