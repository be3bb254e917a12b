"""Files of /proc that several readers understand in the same way.

Source: proc(5): /proc/stat, /proc/uptime, /proc/<pid>/stat, /proc/sys/kernel/random/boot_id
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional

from raydiag.errors import NoData, ParseError, ReadError
from raydiag.host import Host, is_digits

STAT = "/proc/stat"
STAT_LIMIT_BYTES = 4 << 20  # interrupt counts of many CPUs come before the single numbers
_PROCESS_STAT_LIMIT_BYTES = 4096


@dataclass(frozen=True)
class ProcessStat:
    """What a stat file says of one process or thread."""

    comm: str  # at most 15 characters for all but kernel threads
    state: str  # "R", "S", "D", "T", "Z", ...
    ppid: int
    flags: int  # PF_* of include/linux/sched.h
    cpu_ticks: int  # user and system time
    threads: int
    start_ticks: int  # since boot
    rss_pages: int

    @property
    def start_s(self) -> float:
        """Seconds from boot to its start."""
        return self.start_ticks / os.sysconf("SC_CLK_TCK")


def read_stat(host: Host, directory: str) -> ProcessStat:
    """The stat file in `/proc/<pid>` or `/proc/<pid>/task/<tid>`, which never blocks.

    Raises NoData when the process has ended, ParseError, ReadError.
    """
    path = f"{directory}/stat"
    comm, values = split_stat(host.read_text(path, _PROCESS_STAT_LIMIT_BYTES), path)
    return ProcessStat(
        comm=comm,
        state=values[0],
        ppid=int(values[1]),
        flags=int(values[6]),
        cpu_ticks=int(values[11]) + int(values[12]),
        threads=int(values[17]),
        start_ticks=int(values[19]),
        rss_pages=int(values[21]),
    )


def split_stat(text: str, path: str) -> tuple[str, list[str]]:
    """Name, and the fields after it (state first), of a stat file. Raises ParseError.

    `4242 (a) b) D 1 ...`: a name may hold anything, so only the last parenthesis ends it.
    """
    name, parenthesis, fields = text.partition("(")[2].rpartition(")")
    values = fields.split()
    if not parenthesis or len(values) < 22 or not all(map(_is_integer, values[1:22])):
        raise ParseError(f"{path}: not a stat file: {text[:80]!r}")
    return name, values


def process_ids(host: Host) -> list[int]:
    """Ids of all visible processes, in the order of /proc. Raises NoData, Denied."""
    return host.numbers("/proc")


def boot_time_s(host: Host) -> float:
    """When the node booted, Unix seconds. Raises ParseError when /proc/stat does not say."""
    try:
        return float(stat_numbers(host, ("btime",))["btime"])
    except (NoData, ParseError):
        raise ParseError(f"{STAT}: no btime, so kernel times have no date") from None


def stat_numbers(host: Host, names: Sequence[str]) -> dict[str, int]:
    """Single numbers of /proc/stat, such as "ctxt", without parsing its CPUs and interrupts.

    Raises ParseError when one is missing.
    """
    text = "\n" + host.read_text(STAT, STAT_LIMIT_BYTES)
    numbers = {}
    for name in names:
        value = text.rpartition(f"\n{name} ")[2].partition("\n")[0]
        if not is_digits(value):
            raise ParseError(f"{STAT}: no number {name}")
        numbers[name] = int(value)
    return numbers


def uptime_s(host: Host) -> float:
    """Seconds since the node booted. Raises NoData, Denied, ParseError."""
    text = host.read_text("/proc/uptime", 256)
    number = text.partition(" ")[0]
    if not is_digits(number.replace(".", "", 1)):
        raise ParseError(f"/proc/uptime: not seconds: {text[:80]!r}")
    return float(number)


def uptime_if_known(host: Host) -> Optional[float]:
    """Seconds since the node booted; None where /proc/uptime cannot be read."""
    try:
        return uptime_s(host)
    except ReadError:
        return None


def boot_id(host: Host) -> str:
    """Which boot this is; "" where the kernel does not tell."""
    return host.text_or_empty("/proc/sys/kernel/random/boot_id", 256)


def _is_integer(value: str) -> bool:
    return is_digits(value[value.startswith("-") :])
