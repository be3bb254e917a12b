from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydiag.host import Host
from raydiag.model import Status, Unread
from raydiag.probes.versions import Version, versions

EACCES_FILE = "/proc/sys/vm/compact_memory"  # write-only, also for root

OPEN_NVIDIA = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  565.57.01  Release Build  (a@b)\n"
    "GCC version:  gcc version 12.3.0\n"
)
CLOSED_NVIDIA = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.90.07  Fri May 31 09:35:42 UTC 2024\n"
)


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def read(root: Path) -> tuple[dict[str, Version], list[Unread]]:
    records = list(versions(Host(str(root))))
    return (
        {x.component: x for x in records if isinstance(x, Version)},
        [x for x in records if isinstance(x, Unread)],
    )


def test_ok_every_component(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "/proc/sys/kernel/osrelease": "6.8.0-45-generic\n",
            "/sys/module/amdgpu/version": "6.10.5\n",
            "/proc/driver/nvidia/version": OPEN_NVIDIA,
            "/opt/rocm/.info/version": "6.3.1-48\n",
            "/etc/os-release": 'NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 24.04.1 LTS"\n',
            "/sys/module/bnxt_re/version": "231.0.162.0\n",
            "/sys/module/mlx5_core/srcversion": "ABC\n",
        },
    )
    found, unread = read(tmp_path)
    assert unread == []
    assert {name: x.version for name, x in found.items() if name not in ("python", "glibc")} == {
        "kernel": "6.8.0-45-generic",
        "amdgpu": "6.10.5",
        "nvidia": "565.57.01",
        "rocm": "6.3.1-48",
        "os": "Ubuntu 24.04.1 LTS",
        "bnxt_re": "231.0.162.0",
    }
    assert found["rocm"].source == "/opt/rocm/.info/version"
    python = ".".join(map(str, sys.version_info[:3]))
    assert (found["python"].version, found["python"].source) == (python, sys.executable)


def test_ok_in_tree_amdgpu_has_the_version_of_the_kernel(tmp_path: Path) -> None:
    write(tmp_path, {"/proc/sys/kernel/osrelease": "6.8.0-45-generic\n"})
    (tmp_path / "sys/module/amdgpu").mkdir(parents=True)
    found, _ = read(tmp_path)
    assert found["amdgpu"].version == "in-tree (6.8.0-45-generic)"
    assert found["amdgpu"].source == "/sys/module/amdgpu"


def test_ok_nvidia_with_either_module_and_without_proc(tmp_path: Path) -> None:
    write(tmp_path, {"/sys/module/nvidia/version": "535.183.01\n"})
    assert read(tmp_path)[0]["nvidia"].version == "535.183.01"
    write(tmp_path, {"/proc/driver/nvidia/version": CLOSED_NVIDIA})
    assert read(tmp_path)[0]["nvidia"].version == "550.90.07"


def test_ok_newest_rocm_by_number(tmp_path: Path) -> None:
    for name in ("rocm-6.9.2", "rocm-6.10.0", "rocm-5.7.1"):
        write(tmp_path, {f"/opt/{name}/.info/version": f"{name[5:]}-1\n"})
    (tmp_path / "opt/rocm-7.0.0").mkdir()
    found, _ = read(tmp_path)
    assert (found["rocm"].version, found["rocm"].source) == (
        "6.10.0-1",
        "/opt/rocm-6.10.0/.info/version",
    )


def test_no_data_leaves_what_runs_us(tmp_path: Path) -> None:
    found, unread = read(tmp_path)
    assert "python" in found
    assert found.keys() <= {"python", "glibc"}
    assert unread == []


def test_denied_component_is_unread(tmp_path: Path) -> None:
    directory = tmp_path / "sys/module/ionic"
    directory.mkdir(parents=True)
    (directory / "version").symlink_to(EACCES_FILE)
    write(tmp_path, {"/proc/sys/kernel/osrelease": "6.8.0\n"})
    found, unread = read(tmp_path)
    assert [(x.source, x.status) for x in unread] == [("/sys/module/ionic/version", Status.DENIED)]
    assert "ionic" not in found
    assert found["kernel"].version == "6.8.0"


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module\n"),
        ("/etc/os-release", "NAME=Linux\nPRETTY_NAME=\n"),
        ("/sys/module/amdgpu/version", "\n"),
    ],
)
def test_malformed_component_is_unread(tmp_path: Path, path: str, text: str) -> None:
    write(tmp_path, {path: text})
    found, unread = read(tmp_path)
    assert [(x.source, x.status) for x in unread] == [(path, Status.ERROR)]
    assert found.keys() <= {"python", "glibc"}


@given(st.tuples(*[st.integers(0, 999)] * 3), st.sampled_from([OPEN_NVIDIA, CLOSED_NVIDIA]))
def test_nvidia_version_is_found_whatever_its_number(
    tmp_path_factory: pytest.TempPathFactory, numbers: tuple[int, int, int], line: str
) -> None:
    root = tmp_path_factory.mktemp("node")
    version = ".".join(map(str, numbers))
    text = line.replace("565.57.01", version).replace("550.90.07", version)
    write(root, {"/proc/driver/nvidia/version": text})
    assert read(root)[0]["nvidia"].version == version


def test_real_machine_names_its_kernel_and_library() -> None:
    found = {x.component: x.version for x in versions(Host()) if isinstance(x, Version)}
    assert found["kernel"] == Path("/proc/sys/kernel/osrelease").read_text().strip()
    if "glibc" in found:
        assert found["glibc"][0].isdigit()
