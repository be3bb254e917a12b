"""Versions of what must agree between the nodes of one job: kernel, drivers, ROCm, OS, Python.

Source: /proc/sys/kernel/osrelease, /sys/module/<module>/version, /proc/driver/nvidia/version,
/opt/rocm*/.info/version, /etc/os-release; interpreter and C library of this process
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Union

from raydiag.errors import NoData, ParseError
from raydiag.host import Host, attempted
from raydiag.model import Unread
from raydiag.probes import probe
from raydiag.probes.nvidia import driver_version

_KERNEL = "/proc/sys/kernel/osrelease"
_ROCM_ROOT = "/opt"
# Only out-of-tree builds of these have a version of their own; the in-tree ones go with the kernel.
_NIC_MODULES = ("mlx5_core", "bnxt_re", "ionic", "ionic_rdma")


@dataclass(frozen=True)
class Version:
    component: str  # "kernel", "amdgpu", "nvidia", "rocm", "os", "python", "glibc" or a NIC module
    version: str  # as the source spells it; "in-tree (<kernel>)" for the kernel's own amdgpu
    source: str  # path on the node that it was read from


@probe(Version, identity=("component", "version"))
def versions(host: Host) -> Iterator[Union[Version, Unread]]:
    """One record per component that is there, an Unread for each that does not say its version.

    Never empty: Python is always there.
    """
    readers = [
        (_KERNEL, _module),
        ("/sys/module/amdgpu/version", _amdgpu),
        ("/proc/driver/nvidia/version", _nvidia),
        (f"{_ROCM_ROOT}/rocm/.info/version", _rocm),
        ("/etc/os-release", _os),
        *((f"/sys/module/{module}/version", _module) for module in _NIC_MODULES),
    ]
    for path, reader in readers:
        yield from attempted(path, reader, host, path)
    yield Version("python", sys.version.split()[0], sys.executable)
    yield from _glibc()


def _module(host: Host, path: str) -> Version:
    """By its name in /sys/module/<name>; "kernel" for /proc/sys/kernel."""
    return Version(path.split("/")[3], _line(host, path), path)


def _amdgpu(host: Host, path: str) -> Version:
    try:
        return _module(host, path)
    except NoData:
        module = path.rpartition("/")[0]
        if not host.exists(module):
            raise
        return Version("amdgpu", f"in-tree ({_line(host, _KERNEL)})", module)


def _nvidia(host: Host, path: str) -> Version:
    try:
        line = _line(host, path)
    except NoData:
        return _module(host, "/sys/module/nvidia/version")
    version = driver_version(line)
    if not version:
        raise ParseError(f"{path}: no version number: {line[:80]!r}")
    return Version("nvidia", version, path)


def _rocm(host: Host, path: str) -> Version:
    try:
        return Version("rocm", _line(host, path), path)
    except NoData:
        names = [name for name in host.listdir(_ROCM_ROOT) if name.startswith("rocm-")]
    for name in sorted(names, key=_numbers, reverse=True):
        path = f"{_ROCM_ROOT}/{name}/.info/version"
        if host.exists(path):
            return Version("rocm", _line(host, path), path)
    raise NoData(f"{_ROCM_ROOT}: no ROCm")


def _os(host: Host, path: str) -> Version:
    for line in host.read_text(path).split("\n"):
        key, _, value = line.partition("=")
        value = value.strip().strip("\"'")
        if key.strip() == "PRETTY_NAME" and value:
            return Version("os", value, path)
    raise ParseError(f"{path}: no PRETTY_NAME")


def _glibc() -> Iterator[Version]:
    try:
        # None or "glibc 2.36"; other C libraries do not know the name.
        name = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (AttributeError, ValueError, OSError):
        return
    library, _, version = name.partition(" ")
    if version:
        yield Version(library, version, "confstr(CS_GNU_LIBC_VERSION)")


def _line(host: Host, path: str) -> str:
    """First line of a file; an empty file is a ParseError, it must not pass as equal elsewhere."""
    line = host.read_text(path, 4096).split("\n")[0].strip()
    if not line:
        raise ParseError(f"{path}: empty")
    return line


def _numbers(name: str) -> list[int]:
    """The numbers in a name, for sorting: rocm-6.10.0 is newer than rocm-6.9.2."""
    return list(map(int, re.findall("[0-9]+", name)))
