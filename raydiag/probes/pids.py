"""How many process ids the node has and how many are taken, and when it booted.

Each task that hangs in the kernel keeps its process id until the node reboots.

Source: /proc/sys/kernel/pid_max, /proc/loadavg, btime in /proc/stat (proc(5)). Sample of loadavg:

    0.31 0.24 0.20 2/412 90211
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from raydiag.errors import ParseError
from raydiag.host import Host, is_digits
from raydiag.probes import probe
from raydiag.procfs import boot_time_s

_MAXIMUM, _LOAD = "/proc/sys/kernel/pid_max", "/proc/loadavg"


@dataclass(frozen=True)
class Pids:
    maximum: int  # pid_max: ids start again below it
    in_use: int  # tasks that exist, threads included, each with an id of its own
    boot_s: float  # Unix seconds, whole: btime
    ticks_per_s: int  # unit of start times in /proc/<pid>/stat


@probe(Pids)
def pids(host: Host) -> Iterator[Pids]:
    """One record. Raises NoData, Denied, ParseError."""
    maximum = host.read_text(_MAXIMUM, 64).strip()
    tasks = host.read_text(_LOAD, 256).partition("/")[2].split(" ")[0]
    if not is_digits(maximum) or not is_digits(tasks):
        raise ParseError(f"{_MAXIMUM}, {_LOAD}: not numbers: {maximum[:20]!r}, {tasks[:20]!r}")
    yield Pids(int(maximum), int(tasks), boot_time_s(host), os.sysconf("SC_CLK_TCK"))
