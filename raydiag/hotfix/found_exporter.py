"""The exporter of a node as it was found, and what every kind of exporter is asked about itself.

Source: proc(5): /proc/<pid>/{environ,root}, /proc/<pid>/ns/mnt
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Optional

from raydiag import masking
from raydiag.hotfix.messages import ProcessInfo, Watchdog
from raydiag.hotfix.process import SeenProcess

NO_WATCHDOG = "no watchdog stands above the exporter: nothing would start it again"
_ENVIRONMENT_BYTES = 1 << 20


@dataclass(frozen=True)
class FoundExporter:
    """The exporter of this node, as far as it is beyond doubt."""

    exporter: Optional[ProcessInfo] = None
    server: Optional[ProcessInfo] = None  # that the exporter started
    orphans: tuple[ProcessInfo, ...] = ()  # servers of the same file and port, without exporter
    watchdog: Optional[Watchdog] = None
    directory: Optional[str] = None
    elsewhere: str = ""  # why the files that we see may be none of the exporter's
    doubts: tuple[str, ...] = ()  # why nothing here may be ended
    environment: Mapping[str, str] = field(default_factory=dict)  # of the exporter

    def processes(self) -> list[ProcessInfo]:
        """The exporter, its server, and orphans: what a restart ends, in this order."""
        candidates = [self.exporter, self.server, *self.orphans]
        return [process for process in candidates if process is not None]


def process_info(process: SeenProcess, argv: tuple[str, ...], role: str) -> ProcessInfo:
    """A process with its arguments; `role` as in `ProcessInfo`."""
    identity = (process.pid, process.start_ticks)
    return ProcessInfo(*identity, argv, role, process.state, started_at(process))


def started_at(process: SeenProcess) -> float:
    """Unix seconds."""
    booted_at = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return round(booted_at + process.start_ticks / os.sysconf("SC_CLK_TCK"), 2)


def files_doubt(pid: int) -> str:
    """Why that process sees other files than we do, or may; "" when it sees the same."""
    try:
        same_mounts = os.readlink(f"/proc/{pid}/ns/mnt") == os.readlink("/proc/self/ns/mnt")
        same_root = os.path.samestat(os.stat(f"/proc/{pid}/root"), os.stat("/"))
    except OSError as error:
        return f"pid {pid}: which files it sees is not known: {error.strerror}"
    return "" if same_mounts and same_root else f"pid {pid}: sees other files than we do"


def environment_of(pid: int) -> dict[str, str]:
    """Variables that it was started with, but for secrets; empty when they may not be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            text = file.read(_ENVIRONMENT_BYTES).decode("utf-8", "surrogateescape")
    except OSError:
        return {}
    assignments = [assignment.split("=", 1) for assignment in text.split("\0")]
    return {
        name: value[0]
        for name, *value in assignments
        if name and value and not masking.names_secret(name)
    }
