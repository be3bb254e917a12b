"""Ten thousand processes on a node: what is looked for is found, and answers stay small."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from raydiag.host import Host
from raydiag.probes.d_state import BlockedTask, d_state
from raydiag.probes.gpu_users import GpuUser, gpu_users
from raydiag.probes.processes import RayProcess, processes

RAYLET, WORKER, STUCK, MOST = 10, 11, 9_000, 10_000


def _stat(pid: int, comm: str, state: str, ppid: int) -> str:
    rest = " ".join(["0"] * 28)
    return f"{pid} ({comm}) {state} {ppid} 1 1 0 -1 4194304 100 {rest} 390 {rest}\n"


@pytest.fixture(scope="module")
def crowded() -> Iterator[Host]:
    """A raylet with one worker, which has started a program with thousands of children."""
    memory = Path("/dev/shm")  # tens of thousands of files are slow on a disk
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as directory:
        yield _crowded(Path(directory))


def _crowded(root: Path) -> Host:
    (root / "proc").mkdir()
    (root / "proc/stat").write_text("btime 1700000000\n")
    for pid in range(1, MOST + 1):
        comm, state, ppid = "data_loader", "S", WORKER + 1
        if pid <= WORKER + 1:
            comm, ppid = "systemd", max(0, pid - 1)
        if pid == RAYLET:
            comm = "raylet"
        if pid == WORKER:
            comm = "ray::Trainer"
        if pid == STUCK:
            state = "D"
        directory = root / "proc" / str(pid)
        (directory / "fd").mkdir(parents=True)
        (directory / "stat").write_text(_stat(pid, comm, state, ppid))
        (directory / "cmdline").write_text("ray::Trainer\0" if pid == WORKER else "loader\0")
    (root / "proc" / str(STUCK) / "wchan").write_text("rpc_wait_bit_killable")
    (root / "proc" / str(STUCK) / "status").write_text("SigPnd:\t0000000000000000\n")
    (root / "proc" / "20" / "fd" / "7").symlink_to("/dev/kfd")
    (root / "sys/class/kfd/kfd/proc/20").mkdir(parents=True)
    (root / "dev").mkdir()
    (root / "dev/kfd").touch()
    return Host(str(root))


def test_the_stuck_task_is_found(crowded: Host) -> None:
    blocked = [item for item in d_state(crowded) if isinstance(item, BlockedTask)]
    assert [(task.pid, task.wchan) for task in blocked] == [(STUCK, "rpc_wait_bit_killable")]


def test_the_worker_and_its_children_are_listed(crowded: Host) -> None:
    found = [item for item in processes(crowded) if isinstance(item, RayProcess)]
    roles = {process.pid: process.role for process in found}
    assert roles[RAYLET] == "raylet"
    assert roles[WORKER] == "worker"
    assert len(found) <= MOST
    assert {process.worker_pid for process in found if process.role == "child"} == {WORKER}


def test_the_holder_of_the_gpu_is_found(crowded: Host) -> None:
    records = [item for item in gpu_users(crowded) if isinstance(item, GpuUser)]
    assert (20, ("/dev/kfd",)) in {(record.pid, record.devices) for record in records}
