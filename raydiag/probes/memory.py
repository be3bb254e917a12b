"""Memory of the node and of the cgroup that we run in.

Source: /proc/meminfo, /proc/vmstat, /proc/pressure/*, /proc/self/cgroup; cgroup v2 memory.{max,
current,stat,events}, v1 memory.{limit_in_bytes,usage_in_bytes,stat,oom_control} (kernel
documentation, cgroup-v2, cgroup-v1/memory)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Optional, Union

from raydiag.cgroup import ROOT, ControlFiles, parse_numbers
from raydiag.errors import ParseError
from raydiag.host import Host
from raydiag.model import Unread
from raydiag.probes import probe

_KIB = 1024  # the "kB" of /proc/meminfo
# Version 1 has no word for "no limit": it is the largest number of bytes in whole pages, which
# depends on the page size. No machine has an exbibyte.
_NO_LIMIT_BYTES = 1 << 60
_PRESSURE = {resource: f"/proc/pressure/{resource}" for resource in ("memory", "io", "cpu")}


@dataclass(frozen=True)
class MemoryState:
    total_bytes: int  # MemTotal
    available_bytes: int  # MemAvailable
    dirty_bytes: Optional[int]  # Dirty: waits to be written to disk
    writeback_bytes: Optional[int]  # Writeback: being written (without WritebackTmp)
    swap_total_bytes: int  # SwapTotal
    swap_free_bytes: int  # SwapFree
    pressure: dict[str, float]  # percent by "memory_full_avg10", "io_some_avg60", ...; PSI
    oom_kills_since_boot: Optional[int]  # oom_kill of /proc/vmstat, whole node
    cgroup_version: int = 0  # of the memory controller: 0 none, 1, 2
    cgroup_path: str = ""  # directory on the node that the numbers below come from; "" none
    cgroup_current_bytes: Optional[int] = None  # usage of that group, page cache included
    cgroup_limit_bytes: Optional[int] = None  # tightest of our group and those above it
    cgroup_inactive_file_bytes: Optional[int] = None  # page cache that is easily given back
    cgroup_active_file_bytes: Optional[int] = None  # read more than once: given back then
    cgroup_oom_kills: Optional[int] = None  # since that group exists, in it or (version 2) below it


@probe(MemoryState, identity=("cgroup_path", "cgroup_limit_bytes"))
def memory(host: Host) -> Iterator[Union[MemoryState, Unread]]:
    """Exactly one record, then an Unread for each part of it that could not be read.

    Raises NoData or Denied without /proc/meminfo, ParseError when it lacks the two main values.
    """
    meminfo = parse_numbers(host.read_text("/proc/meminfo"))
    for key in ("MemTotal", "MemAvailable"):
        if key not in meminfo:
            raise ParseError(f"/proc/meminfo: no {key}")
    node_bytes = {key: count * _KIB for key, count in meminfo.items()}
    files = ControlFiles(host)
    yield MemoryState(
        total_bytes=node_bytes["MemTotal"],
        available_bytes=node_bytes["MemAvailable"],
        dirty_bytes=node_bytes.get("Dirty"),
        writeback_bytes=node_bytes.get("Writeback"),
        swap_total_bytes=node_bytes.get("SwapTotal", 0),
        swap_free_bytes=node_bytes.get("SwapFree", 0),
        pressure=files.pressure(_PRESSURE),
        oom_kills_since_boot=files.numbers("/proc/vmstat").get("oom_kill"),
        **_of_cgroup(files),
    )
    yield from files.unread


class _Layout(NamedTuple):
    """Names of one cgroup version."""

    version: int
    limit: str
    current: str
    events: str
    prefix: str  # of keys in memory.stat, for those that include descendants


_V1 = _Layout(1, "memory.limit_in_bytes", "memory.usage_in_bytes", "memory.oom_control", "total_")
_V2 = _Layout(2, "memory.max", "memory.current", "memory.events", "")


def _of_cgroup(files: ControlFiles) -> dict[str, Any]:
    """The fields of the record that are about our control group."""
    layout, mount = _controller(files)
    if not mount:
        return {}
    levels = files.levels(mount, "memory" if layout is _V1 else "")
    # Not every group has the memory controller switched on; then the next one above counts us.
    counting = [level for level in levels if files.host.exists(f"{level}/{layout.current}")]
    levels = counting or levels[:1]
    path, limit_bytes = _tightest(files, layout, levels)
    pages = files.numbers(f"{path}/memory.stat")
    # Version 1 counts a kill in the victim's own group only, so ask there as well.
    kills = (files.numbers(f"{group}/{layout.events}") for group in {levels[0], path})
    counted_kills = [numbers["oom_kill"] for numbers in kills if "oom_kill" in numbers]
    return {
        "cgroup_version": layout.version,
        "cgroup_path": path,
        "cgroup_current_bytes": files.integer(f"{path}/{layout.current}"),
        "cgroup_limit_bytes": limit_bytes,
        "cgroup_inactive_file_bytes": pages.get(f"{layout.prefix}inactive_file"),
        "cgroup_active_file_bytes": pages.get(f"{layout.prefix}active_file"),
        "cgroup_oom_kills": max(counted_kills, default=None),
    }


def _tightest(
    files: ControlFiles, layout: _Layout, levels: Sequence[str]
) -> tuple[str, Optional[int]]:
    """The level with the lowest limit, else our own group; and the limit."""
    path, limit_bytes = levels[0], None
    for level in levels:
        value = files.integer(f"{level}/{layout.limit}", unlimited="max")
        if value is None or value >= _NO_LIMIT_BYTES:
            continue
        # Of equal limits the outer one is nearer to being reached: it counts the siblings too.
        if limit_bytes is None or value <= limit_bytes:
            path, limit_bytes = level, value
    return path, limit_bytes


def _controller(files: ControlFiles) -> tuple[_Layout, str]:
    """Where the memory controller really is: on hybrid hosts version 2 is mounted without it."""
    mount = f"{ROOT}/memory"
    if files.host.exists(f"{mount}/{_V1.limit}"):
        return _V1, mount
    return _V2, files.unified("memory")
