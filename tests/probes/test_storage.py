from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydiag.errors import Denied, NoData, ParseError, ReadError
from raydiag.host import Host, as_read_error
from raydiag.probes.storage import MountUsage, mount_points, parse_mountinfo, storage

EACCES_FILE = "/proc/sys/vm/compact_memory"  # write-only, also for root


class StatHost(Host):
    """A host whose mount points answer what the test says: numbers, or an error number."""

    def __init__(self, root: Path, answers: dict[str, tuple[int, ...] | int]) -> None:
        super().__init__(str(root))
        self.answers = answers
        self.asked: list[str] = []

    def statvfs(self, path: str) -> os.statvfs_result:
        self.asked.append(path)
        answer = self.answers[path]
        if isinstance(answer, int):
            raise as_read_error(OSError(answer, ""), path)
        return os.statvfs_result(answer)


def line(
    number: str, point: str, fs_type: str, device: str = "dev", options: str = "rw", root: str = "/"
) -> str:
    return f"36 35 {number} {root} {point} rw,relatime shared:9 - {fs_type} {device} {options}"


def mount(root: Path, *lines: str) -> Host:
    (root / "proc/self").mkdir(parents=True, exist_ok=True)
    (root / "proc/self/mountinfo").write_text("\n".join(lines) + "\n")
    return Host(str(root))


def test_ok_usage_of_one_mount(tmp_path: Path) -> None:
    mount(
        tmp_path,
        line("8:1", "/", "ext4", "/dev/sda1"),
        line("0:44", r"/data\040sets", "nfs4", "filer:/export"),
    )
    # f_bsize is the preferred transfer size, the counts are in units of f_frsize.
    host = StatHost(tmp_path, {"/data sets": (1 << 20, 4096, 100, 40, 30, 77, 66, 66, 0, 255)})
    assert list(storage(host, "/data sets")) == [
        MountUsage(
            mount_point="/data sets",
            device="filer:/export",
            fs_type="nfs4",
            total_bytes=100 * 4096,
            free_bytes=40 * 4096,
            available_bytes=30 * 4096,
            total_inodes=77,
            free_inodes=66,
        )
    ]
    # A stat of another mount could hang on it.
    assert host.asked == ["/data sets"]


def test_ok_sources_are_writable_file_systems_local_first(tmp_path: Path) -> None:
    host = mount(
        tmp_path,
        line("0:5", "/proc", "proc"),
        line("0:6", "/sys/fs/cgroup", "tmpfs"),
        line("0:7", "/dev", "tmpfs"),
        line("0:8", "/dev/shm", "tmpfs"),
        line("0:44", "/home", "nfs4", "filer:/home"),
        line("0:45", "/x", "fuse.sshfs", "a:/b"),
        line("0:46", "/scratch", "lustre", "mds:/s"),
        line("0:50", "/", "overlay", "overlay"),
        line("7:1", "/snap/core", "squashfs", options="ro"),
        line("8:3", "/boot", "ext4", options="ro,errors=continue"),
        line("8:2", "/processing", "xfs"),
    )
    assert mount_points(host) == ["/", "/dev/shm", "/processing", "/x", "/home", "/scratch"]


def test_ok_read_only_mount_of_a_writable_file_system_counts(tmp_path: Path) -> None:
    host = mount(tmp_path, "36 35 8:1 / /mnt ro,relatime - ext4 /dev/sda1 rw")
    assert mount_points(host) == ["/mnt"]


def test_ok_one_source_per_file_system_at_its_shortest_mount_point(tmp_path: Path) -> None:
    host = mount(
        tmp_path,
        line("8:1", "/var/lib/kubelet", "ext4", root="/kubelet"),
        line("8:1", "/etc/hosts", "ext4", root="/hosts"),
        line("8:2", "/data", "ext4"),
    )
    assert mount_points(host) == ["/data", "/etc/hosts"]


def test_ok_last_mount_on_a_point_wins(tmp_path: Path) -> None:
    lines = [line("8:2", "/data", "ext4", "/dev/sdb"), line("0:60", "/data", "nfs", "filer:/d")]
    mount(tmp_path, line("0:59", "/data", "autofs"), *lines)
    host = StatHost(tmp_path, {"/data": (4096, 4096, 10, 5, 5, 0, 0, 0, 0, 255)})
    assert mount_points(host) == ["/data"]
    (usage,) = storage(host, "/data")
    assert (usage.device, usage.fs_type, usage.total_inodes) == ("filer:/d", "nfs", 0)


def test_ok_too_many_mounts_lose_the_longest(tmp_path: Path) -> None:
    lines = [line(f"0:{100 + i}", f"/containers/{i:04}/merged", "overlay") for i in range(2100)]
    host = mount(tmp_path, *lines, line("0:44", "/home", "nfs"), line("8:1", "/", "ext4"))
    points = mount_points(host)
    assert len(points) == 2000
    assert (points[0], points[-1]) == ("/", "/home")


def test_no_data_without_mounts(tmp_path: Path) -> None:
    with pytest.raises(NoData):
        mount_points(Host(str(tmp_path)))
    host = mount(tmp_path, line("0:5", "/proc", "proc"))
    with pytest.raises(NoData):
        mount_points(host)
    with pytest.raises(NoData):
        list(storage(host, "/gone"))


def test_no_data_of_a_file_system_without_size_is_no_record(tmp_path: Path) -> None:
    mount(tmp_path, line("0:70", "/run/user/gvfs", "fuse.gvfsd-fuse"))
    host = StatHost(tmp_path, {"/run/user/gvfs": (4096, 4096, 0, 0, 0, 0, 0, 0, 0, 255)})
    assert list(storage(host, "/run/user/gvfs")) == []


def test_denied_mountinfo_or_mount_point(tmp_path: Path) -> None:
    mount(tmp_path, line("0:70", "/private", "fuse.sshfs"))
    with pytest.raises(Denied):
        list(storage(StatHost(tmp_path, {"/private": errno.EACCES}), "/private"))
    (tmp_path / "proc/self/mountinfo").unlink()
    (tmp_path / "proc/self/mountinfo").symlink_to(EACCES_FILE)
    with pytest.raises(Denied):
        mount_points(Host(str(tmp_path)))


def test_stale_handle_is_an_error(tmp_path: Path) -> None:
    mount(tmp_path, line("0:44", "/home", "nfs"))
    with pytest.raises(ReadError) as caught:
        list(storage(StatHost(tmp_path, {"/home": errno.ESTALE}), "/home"))
    assert type(caught.value) is ReadError


@pytest.mark.parametrize("text", ["", "not a mount table\n", "36 35 8:1 / /mnt rw - ext4\n"])
def test_malformed_mountinfo(tmp_path: Path, text: str) -> None:
    with pytest.raises(ParseError):
        mount_points(mount(tmp_path, text))


# What the kernel escapes; it leaves every other character, other line ends included, as it is.
ESCAPES = {" ": r"\040", "\t": r"\011", "\n": r"\012", "\\": r"\134"}
NAMES = st.text(min_size=1)
POINTS = st.text().map(lambda text: f"/{text}")  # a mount point is an absolute path


@given(st.lists(st.tuples(POINTS, NAMES, st.booleans())))
def test_mounts_survive_whatever_their_names(rows: list[tuple[str, str, bool]]) -> None:
    table = str.maketrans(ESCAPES)
    lines = [
        line("0:9", point.translate(table), "xfs", device.translate(table), "ro" if ro else "rw")
        for point, device, ro in rows
    ]
    mounts = parse_mountinfo("\n".join(lines))
    assert [(x.point, x.device, x.read_only) for x in mounts] == rows


@given(st.text(st.sampled_from(" -\\\n0189a/")))
def test_arbitrary_text_never_breaks_the_parser(text: str) -> None:
    assert len(parse_mountinfo(text)) <= text.count("\n") + 1


def test_real_machine_has_a_mount_with_space() -> None:
    host = Host()
    usages = [usage for point in mount_points(host)[:3] for usage in storage(host, point)]
    assert usages
    for usage in usages:
        assert usage.total_bytes >= usage.free_bytes >= usage.available_bytes >= 0
