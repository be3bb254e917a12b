"""The directory of the exporter's files, and how to know it again on another node.

Source: /proc/self/mountinfo (proc(5))
"""

from __future__ import annotations

import os
import re
import stat

from raydiag import ownership
from raydiag.host import Host
from raydiag.hotfix.found_exporter import FoundExporter
from raydiag.hotfix.messages import RAYDIAG, Directory, NodeRequest, TargetFile
from raydiag.hotfix.process import SCRIPT
from raydiag.hotfix.replace import Current, ReplaceRefused, current, name_refusal
from raydiag.procfs import boot_id

_NETWORK = re.compile(
    r"(nfs\d?|lustre|ceph|gpfs|beegfs|wekafs|cifs|smb3|9p|glusterfs|afs|orangefs|virtiofs"
    r"|fuse\.(?!overlayfs|fuse-overlayfs).*|fuse)"
)


def chosen(request: NodeRequest, discovered: FoundExporter) -> str:
    """The directory of the files. Raises Refused when it is not known, or not the exporter's."""
    path = request.directory or discovered.directory
    if discovered.elsewhere:
        raise ReplaceRefused(discovered.elsewhere)
    if path is None:
        doubts = "; ".join(discovered.doubts)
        raise ReplaceRefused(doubts or "the directory of the plugins was not given")
    own_directory = discovered.directory
    if own_directory and os.path.realpath(own_directory) != os.path.realpath(path):
        raise ReplaceRefused(f"the exporter here runs from {own_directory}, not {path}")
    return path


def directory(path: str) -> Directory:
    """What the directory is. Raises Refused when it is none, or when its mount is not known.

    Device numbers of network mounts differ between nodes and inodes do not: so a directory on the
    network is known by the mount's source and its inode, another one by this machine's boot, the
    device and the inode.
    """
    real = os.path.realpath(path)
    try:
        status = os.stat(real)
    except OSError as error:
        raise ReplaceRefused(f"{path}: {error.strerror}") from None
    if not stat.S_ISDIR(status.st_mode):
        raise ReplaceRefused(f"{path} is not a directory")
    fs_type, source = _mount(real)
    network, device, inode = bool(_NETWORK.fullmatch(fs_type)), status.st_dev, status.st_ino
    identity = f"local:{boot_id(Host()) or os.uname().nodename}:{device}:{inode}"
    if network:
        identity = f"{fs_type.rstrip('0123456789')}:{source}:{inode}"
    return Directory(path, real, device, inode, fs_type, source, network, identity)


def _mount(path: str) -> tuple[str, str]:
    """File system type and source of the mount that the path is on; ("", "") when not known."""
    best, answer = -1, ("", "")
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            mount_fields, _, right = line.partition(" - ")
            fields, source_fields = mount_fields.split(" "), right.split()
            if len(fields) < 6 or len(source_fields) < 2:
                continue
            point = re.sub(r"\\([0-7]{3})", lambda escape: chr(int(escape[1], 8)), fields[4])
            below = path == point or path.startswith(point.rstrip("/") + "/")
            # Of several on one point the last one covers the others. Device numbers would not do:
            # btrfs shows others here than stat does.
            if below and len(point) >= best:
                best, answer = len(point), (source_fields[0], source_fields[1])
    return answer


def target(request: NodeRequest, path: str, name: str) -> TargetFile:
    """A target file as it is, and why it cannot be replaced."""
    restart = name == SCRIPT and request.exporter != RAYDIAG
    refused = name_refusal(request.exporter, name)
    if refused:
        return TargetFile(name, refused=refused, restart=restart)
    try:
        now = current(path, name)
    except ReplaceRefused as error:
        return TargetFile(name, refused=str(error), restart=restart)
    if now.status is None:
        refused = "there is no such file"
        if request.exporter == RAYDIAG:
            refused = _unsafe(now, os.stat(os.path.dirname(now.path)))
        return TargetFile(name, refused=refused, restart=restart)
    refused = "" if os.access(os.path.dirname(now.path), os.W_OK) else "the directory is read-only"
    if os.geteuid() not in (0, now.status.st_uid):
        refused = f"it belongs to user {now.status.st_uid}, and we are {os.geteuid()}"
    refused = refused or _unsafe(now, now.status)
    return TargetFile(name, now.sha256, refused, restart)


def _unsafe(now: Current, status: os.stat_result) -> str:
    """Why nobody replaces a file that others than its owner write, or that runs as its owner."""
    directory = os.path.dirname(now.path)
    path = directory
    if now.status is not None:
        path = now.path
        if now.status.st_mode & (stat.S_ISUID | stat.S_ISGID):
            return f"{now.path} has a set-id bit"
    return ownership.changeable(path, (status.st_uid, os.stat(directory).st_uid))
