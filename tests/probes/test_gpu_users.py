from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydiag.errors import Denied, NoData
from raydiag.host import Host
from raydiag.model import Status, Unread
from raydiag.probes import gpu_users as module
from raydiag.probes.gpu_users import GpuUser, gpu_users, is_gpu_device
from tests.cluster import fake_node


def add_process(root: Path, pid: int, comm: str, *files: str) -> Path:
    directory = root / f"proc/{pid}"
    (directory / "fd").mkdir(parents=True)
    (directory / "comm").write_text(f"{comm}\n")
    for number, file in enumerate(files):
        (directory / f"fd/{number}").symlink_to(file)
    return directory


def add_devices(root: Path, *names: str) -> None:
    (root / "dev").mkdir(exist_ok=True)
    for name in names:
        (root / "dev" / name).touch()


class WatchedHost(Host):
    """Notes what is opened, and refuses what another user's process refuses."""

    def __init__(self, root: Path, refused: tuple[str, ...] = ()) -> None:
        super().__init__(str(root))
        self.refused = refused
        self.opened: list[str] = []

    def read_bytes(self, path: str, limit: int = 4096) -> bytes:
        self.opened.append(path)
        return super().read_bytes(path, limit)

    def listdir(self, path: str) -> list[str]:
        if path in self.refused:
            raise Denied(f"{path}: Permission denied")
        return super().listdir(path)


def test_ok_kfd_names_pids_of_the_machine_and_proc_those_of_the_container(tmp_path: Path) -> None:
    fake_node.write_amdgpu(tmp_path / "sys", gpus=1, kfd_users=[41873, 9120])
    add_devices(tmp_path, "kfd", "null")
    add_process(tmp_path, 20, "ray::Trainer", "/dev/null", "/dev/kfd", "socket:[7]", "/dev/kfd")
    add_process(tmp_path, 3, "raylet", "/dev/null", "/dev/kfdx", "/mnt/dev/kfd")
    host = WatchedHost(tmp_path)
    assert list(gpu_users(host)) == [
        GpuUser(9120, (), ""),
        GpuUser(41873, (), ""),
        GpuUser(20, ("/dev/kfd",), "ray::Trainer"),
    ]
    assert host.opened == ["/proc/20/comm"]  # names alone of KFD, and no cmdline of anybody


def test_ok_on_the_machine_itself_only_the_listed_are_looked_into(tmp_path: Path) -> None:
    fake_node.write_amdgpu(tmp_path / "sys", gpus=1, kfd_users=[20, 31])
    add_devices(tmp_path, "kfd")
    for pid in (20, 31):
        add_process(tmp_path, pid, "python3", "/dev/kfd")
    add_process(tmp_path, 5, "forked", "/dev/kfd")
    host = WatchedHost(tmp_path, refused=("/proc/6/fd",))
    add_process(tmp_path, 6, "other")
    users = list(gpu_users(host))
    assert [(x.pid, x.comm) for x in users if isinstance(x, GpuUser)] == [
        *((20, ""), (31, "")),
        *((20, "python3"), (31, "python3")),
    ]


def test_ok_kfd_without_users_needs_no_scan(tmp_path: Path) -> None:
    fake_node.write_amdgpu(tmp_path / "sys", gpus=1)
    add_devices(tmp_path, "kfd")
    add_process(tmp_path, 20, "python3", "/dev/kfd")
    assert list(gpu_users(Host(str(tmp_path)))) == []


def test_ok_users_elsewhere_are_listed_where_no_device_is(tmp_path: Path) -> None:
    fake_node.write_amdgpu(tmp_path / "sys", gpus=1, kfd_users=[77])
    add_process(tmp_path, 20, "python3", "/dev/kfd")
    assert list(gpu_users(Host(str(tmp_path)))) == [GpuUser(77, (), "")]


def test_ok_holders_of_nvidia_gpus(tmp_path: Path) -> None:
    add_devices(tmp_path, "nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm")
    files = ("/dev/nvidiactl", "/dev/nvidia1", "/dev/nvidia-uvm", "/dev/nvidia0", "/dev/nvidia1")
    add_process(tmp_path, 20, "python3", *files)
    add_process(tmp_path, 21, "nvidia-persiste", "/dev/nvidiactl")
    (user,) = gpu_users(Host(str(tmp_path)))
    assert user == GpuUser(20, ("/dev/nvidia0", "/dev/nvidia1"), "python3")


@pytest.mark.parametrize("devices", [(), ("kfd",), ("nvidiactl", "nvidia-uvm", "nvidia")])
def test_no_data_without_a_gpu_driver(tmp_path: Path, devices: tuple[str, ...]) -> None:
    add_devices(tmp_path, *devices)
    add_process(tmp_path, 20, "python3", "/dev/kfd")
    with pytest.raises(NoData):
        list(gpu_users(Host(str(tmp_path))))


def test_denied_process_matters_only_where_a_user_is_missing(tmp_path: Path) -> None:
    fake_node.write_amdgpu(tmp_path / "sys", gpus=1, kfd_users=[9120])
    add_devices(tmp_path, "kfd")
    add_process(tmp_path, 20, "python3", "/dev/kfd")
    host = WatchedHost(tmp_path, refused=("/proc/1/fd", "/proc/2/fd"))
    for pid in (1, 2):
        add_process(tmp_path, pid, "other")
    assert list(gpu_users(host)) == [GpuUser(9120, (), ""), GpuUser(20, ("/dev/kfd",), "python3")]
    fake_node.write_amdgpu(tmp_path / "sys2", gpus=1, kfd_users=[9120, 9121])
    (tmp_path / "sys").rename(tmp_path / "old")
    (tmp_path / "sys2").rename(tmp_path / "sys")
    (unread,) = [item for item in gpu_users(host) if isinstance(item, Unread)]
    assert (unread.source, unread.status) == ("/proc/<pid>/fd", Status.DENIED)
    assert unread.reason.startswith("2 processes")


def test_denied_list_is_not_an_empty_one(tmp_path: Path) -> None:
    with pytest.raises(Denied):
        list(gpu_users(WatchedHost(tmp_path, refused=(module.KFD_LIST,))))


def test_malformed_names_and_ended_processes_are_passed_over(tmp_path: Path) -> None:
    fake_node.write_amdgpu(tmp_path / "sys", gpus=1, kfd_users=[9120])
    (tmp_path / "sys/devices/virtual/kfd/kfd/proc/12a").mkdir()
    add_devices(tmp_path, "kfd")
    (add_process(tmp_path, 20, "gone", "/dev/kfd") / "comm").unlink()
    (tmp_path / "proc/21").mkdir()
    (tmp_path / "proc/self").mkdir()
    found = list(gpu_users(Host(str(tmp_path))))
    assert found == [GpuUser(9120, (), ""), GpuUser(20, ("/dev/kfd",), "")]


def test_scan_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_LINKS", 3)
    add_devices(tmp_path, "nvidia0")
    add_process(tmp_path, 20, "big", *["/dev/null"] * 3, "/dev/nvidia0")
    add_process(tmp_path, 21, "small", "/dev/nvidia0")
    user, unread = gpu_users(Host(str(tmp_path)))
    assert user == GpuUser(21, ("/dev/nvidia0",), "small")
    assert isinstance(unread, Unread)
    assert unread.reason.startswith("1 processes were not looked into")


@given(st.integers(0, 999), st.text(max_size=5))
def test_a_gpu_has_a_number(number: int, text: str) -> None:
    assert is_gpu_device(f"/dev/nvidia{number}")
    assert is_gpu_device(f"/dev/nvidia{text}") == (text.isascii() and text.isdigit())
