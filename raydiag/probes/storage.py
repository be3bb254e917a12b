"""Space and inodes of the mounted file systems.

Source: /proc/self/mountinfo (proc(5)) for what is mounted, statvfs(3) for the numbers. Sample:

    36 35 98:0 /exports /mnt/a\\040b rw,noatime master:1 - ext4 /dev/sda1 rw,errors=continue
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from raydiag.errors import NoData, ParseError
from raydiag.host import Host
from raydiag.probes import probe

_MOUNTINFO = "/proc/self/mountinfo"
# A container host has an overlay per container, each with a line of up to a page.
_MOUNTINFO_LIMIT_BYTES = 8 << 20
_MAX_SOURCES = 2000
# fmt: off
_SKIPPED_TYPES = frozenset((
    # Interfaces of the kernel: without a size, or never full.
    "autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts",
    "devtmpfs", "efivarfs", "fusectl", "hugetlbfs", "mqueue", "nsfs", "proc", "pstore", "ramfs",
    "resctrl", "rpc_pipefs", "securityfs", "selinuxfs", "sysfs", "tracefs",
    # Views of other things, closed to root.
    "fuse.gvfsd-fuse", "fuse.lxcfs", "fuse.portal",
    # Images: always full.
    "cramfs", "erofs", "iso9660", "squashfs",
))
# File systems behind a network or a daemon, which can hang.
_REMOTE_TYPES = frozenset((
    "9p", "afs", "beegfs", "ceph", "cifs", "fuse", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs",
    "nfs4", "orangefs", "panfs", "pvfs2", "smb3", "smbfs", "virtiofs", "wekafs",
))
# fmt: on


@dataclass(frozen=True)
class MountUsage:
    mount_point: str  # path on the node
    device: str  # as mounted: "/dev/nvme0n1p2", "server:/export", "tmpfs"
    fs_type: str  # as in mountinfo: "ext4", "nfs4", "overlay"
    total_bytes: int  # f_blocks
    free_bytes: int  # f_bfree
    available_bytes: int  # f_bavail: what unprivileged users can still write
    total_inodes: int  # f_files; 0 = the file system does not count them
    free_inodes: int  # f_ffree


class Mount(NamedTuple):
    """One line of mountinfo."""

    device_number: str  # "major:minor"; the same for every mount of one file system
    point: str
    fs_type: str
    device: str
    read_only: bool  # the file system itself, not only this mount of it

    @property
    def remote(self) -> bool:
        """Whether it lies behind a network or a daemon, which can hang."""
        return self.fs_type in _REMOTE_TYPES or self.fs_type.startswith("fuse.")


def mount_points(host: Host) -> Sequence[str]:
    """One mount point per writable file system, local ones first, remote ones (may hang) last.

    A file system mounted several times counts once, at its shortest mount point. At most 2,000: the
    ones with the longest mount points are left out (thousands of container and volume mounts).
    Raises NoData without mountinfo or without such a file system.
    """
    file_systems: dict[str, Mount] = {}
    for mount in sorted(_visible(host).values(), key=lambda mount: (len(mount.point), mount.point)):
        if _has_usage(mount):
            file_systems.setdefault(mount.device_number, mount)
    if not file_systems:
        raise NoData(f"{_MOUNTINFO}: no writable file system")
    chosen = list(file_systems.values())[:_MAX_SOURCES]
    return [mount.point for mount in sorted(chosen, key=lambda mount: mount.remote)]


@probe(MountUsage, identity=("mount_point",), timeout_s=2, sources=mount_points)
def storage(host: Host, source: str) -> Iterator[MountUsage]:
    """Usage of the file system mounted at `source`; nothing when it reports no size.

    Raises NoData when it is not mounted any more, Denied, or ReadError (a stale NFS handle).
    """
    mount = _visible(host, _FRESH_S).get(source)
    if not mount:
        raise NoData(f"{source}: not mounted")
    numbers = host.statvfs(source)
    if not numbers.f_blocks:
        return
    yield MountUsage(
        mount_point=source,
        device=mount.device,
        fs_type=mount.fs_type,
        total_bytes=numbers.f_blocks * numbers.f_frsize,
        free_bytes=numbers.f_bfree * numbers.f_frsize,
        available_bytes=numbers.f_bavail * numbers.f_frsize,
        total_inodes=numbers.f_files,
        free_inodes=numbers.f_ffree,
    )


# A reader asks for one mount after another: with thousands of them, each look at the table takes
# the kernel milliseconds.
_FRESH_S = 0.5
_last: tuple[float, str, dict[str, Mount]] = (-_FRESH_S, "", {})


def _has_usage(mount: Mount) -> bool:
    if mount.read_only or mount.fs_type in _SKIPPED_TYPES:
        return False
    path = mount.point + "/"
    return path.startswith("/dev/shm/") or not path.startswith(("/proc/", "/sys/", "/dev/"))


def _visible(host: Host, fresh_s: float = 0.0) -> dict[str, Mount]:
    """Mounts by mount point; of several on one point the last lies on top.

    The table may have been read `fresh_s` ago.
    """
    global _last
    read_at, root, visible = _last
    if root == host.root and time.monotonic() - read_at < fresh_s:
        return visible
    text = host.read_bytes(_MOUNTINFO, _MOUNTINFO_LIMIT_BYTES).decode("utf-8", "replace")
    mounts = parse_mountinfo(text)
    if not mounts:
        raise ParseError(f"{_MOUNTINFO}: no mount in {text[:80]!r}")
    visible = {mount.point: mount for mount in mounts}
    _last = time.monotonic(), host.root, visible
    return visible


def parse_mountinfo(text: str) -> list[Mount]:
    """The mounts in the order of the file; lines of another form are left out."""
    mounts = []
    # The kernel escapes blank, tab, newline and backslash only, so no splitlines() and no split().
    for line in text.split("\n"):
        before, separator, after = line.partition(" - ")
        fields, tail = before.split(" "), after.split(" ")
        if not separator or len(fields) < 6 or len(tail) < 3:
            continue
        point, fs_type, device = map(_unescape, (fields[4], tail[0], tail[1]))
        mounts.append(Mount(fields[2], point, fs_type, device, "ro" in tail[2].split(",")))
    return mounts


def _unescape(text: str) -> str:
    r"""The text with `\040` and the like replaced; every backslash starts such an escape."""
    return re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), text)
