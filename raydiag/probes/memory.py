"""Memory of the node and of the cgroup that we run in.

Source: /proc/meminfo, /proc/vmstat, /proc/pressure/*, /proc/self/cgroup; cgroup v2 memory.{max,
current,stat,events}, v1 memory.{limit_in_bytes,usage_in_bytes,stat,oom_control} (kernel
documentation, cgroup-v2, cgroup-v1/memory)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Optional, Union

from raydiag.errors import NoData, ParseError, ReadError
from raydiag.host import Host
from raydiag.model import Status, Unread
from raydiag.probes import probe

_CGROUP_ROOT = "/sys/fs/cgroup"
_KIB = 1024  # the "kB" of /proc/meminfo
# Version 1 has no word for "no limit": it is the largest number of bytes in whole pages, which
# depends on the page size. No machine has an exbibyte.
_NO_LIMIT_BYTES = 1 << 60


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
    cgroup_version: int  # of the memory controller: 0 none, 1, 2
    cgroup_path: str  # directory on the node that the numbers below come from; "" none
    cgroup_current_bytes: Optional[int]  # usage of that group, page cache included
    cgroup_limit_bytes: Optional[int]  # tightest of our group and its visible ancestors; None: none
    cgroup_inactive_file_bytes: Optional[int]  # page cache of that group that is easily given back
    cgroup_active_file_bytes: Optional[int]  # the same, read more than once: given back after that
    cgroup_oom_kills: Optional[int]  # since that group exists, in it or (version 2) below it


@probe(MemoryState)
def memory(host: Host) -> Iterator[Union[MemoryState, Unread]]:
    """Exactly one record, then an Unread for each part of it that could not be read.

    Raises NoData or Denied without /proc/meminfo, ParseError when it lacks the two main values.
    """
    meminfo = parse_numbers(host.read_text("/proc/meminfo"))
    for key in ("MemTotal", "MemAvailable"):
        if key not in meminfo:
            raise ParseError(f"/proc/meminfo: no {key}")
    files = _Files(host)
    state = MemoryState(
        total_bytes=meminfo["MemTotal"] * _KIB,
        available_bytes=meminfo["MemAvailable"] * _KIB,
        dirty_bytes=meminfo["Dirty"] * _KIB if "Dirty" in meminfo else None,
        writeback_bytes=meminfo["Writeback"] * _KIB if "Writeback" in meminfo else None,
        swap_total_bytes=meminfo.get("SwapTotal", 0) * _KIB,
        swap_free_bytes=meminfo.get("SwapFree", 0) * _KIB,
        pressure=files.pressure(),
        oom_kills_since_boot=files.numbers("/proc/vmstat").get("oom_kill"),
        cgroup_version=0,
        cgroup_path="",
        cgroup_current_bytes=None,
        cgroup_limit_bytes=None,
        cgroup_inactive_file_bytes=None,
        cgroup_active_file_bytes=None,
        cgroup_oom_kills=None,
    )
    yield _with_cgroup(state, files)
    yield from files.unread


@dataclass(frozen=True)
class _Layout:
    """Names of one cgroup version."""

    version: int
    limit: str
    current: str
    inactive_file: str  # keys in memory.stat, descendants included
    active_file: str
    events: str


_V1 = _Layout(
    1,
    limit="memory.limit_in_bytes",
    current="memory.usage_in_bytes",
    inactive_file="total_inactive_file",
    active_file="total_active_file",
    events="memory.oom_control",
)
_V2 = _Layout(
    2,
    limit="memory.max",
    current="memory.current",
    inactive_file="inactive_file",
    active_file="active_file",
    events="memory.events",
)


def _with_cgroup(state: MemoryState, files: _Files) -> MemoryState:
    found = _controller(files)
    if not found:
        return state
    layout, mount = found
    levels = _levels(files.host, mount, _own_path(files, layout))
    # Not every group has the memory controller switched on; then the next one above counts us.
    levels = [x for x in levels if files.host.exists(f"{x}/{layout.current}")] or levels[:1]
    path, limit_bytes = levels[0], None
    for level in levels:
        value = files.limit(f"{level}/{layout.limit}")
        # Of equal limits the outer one is nearer to being reached: it counts the siblings too.
        if value is not None and (limit_bytes is None or value <= limit_bytes):
            path, limit_bytes = level, value
    # Version 1 counts a kill in the victim's own group only, so ask there as well.
    kills = [files.numbers(f"{x}/{layout.events}").get("oom_kill") for x in {levels[0], path}]
    pages = files.numbers(f"{path}/memory.stat")
    return replace(
        state,
        cgroup_version=layout.version,
        cgroup_path=path,
        cgroup_current_bytes=files.integer(f"{path}/{layout.current}"),
        cgroup_limit_bytes=limit_bytes,
        cgroup_inactive_file_bytes=pages.get(layout.inactive_file),
        cgroup_active_file_bytes=pages.get(layout.active_file),
        cgroup_oom_kills=max((x for x in kills if x is not None), default=None),
    )


def _controller(files: _Files) -> Optional[tuple[_Layout, str]]:
    """Where the memory controller really is: on hybrid hosts version 2 is mounted without it."""
    mount = f"{_CGROUP_ROOT}/memory"
    if files.host.exists(f"{mount}/{_V1.limit}"):
        return _V1, mount
    for mount in (_CGROUP_ROOT, f"{_CGROUP_ROOT}/unified"):
        if "memory" in files.text(f"{mount}/cgroup.controllers").split():
            return _V2, mount
    return None


def _own_path(files: _Files, layout: _Layout) -> str:
    """Our group as /proc/self/cgroup names it: `4:memory:/path` in version 1, `0::/path` in 2."""
    for line in files.text("/proc/self/cgroup").split("\n"):
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if layout is _V1 and "memory" in controllers.split(","):
            return path
        if layout is _V2 and hierarchy == "0":
            return path
    return "/"


def _levels(host: Host, mount: str, own_path: str) -> list[str]:
    """Directories of our group and of its visible ancestors, innermost first.

    In a container the mount root usually is our group, while the path is the host's (or starts
    with `..`, outside of our cgroup namespace): a path that does not exist means the mount root.
    """
    parts = [part for part in own_path.split("/") if part]
    if ".." in parts or not host.exists("/".join([mount, *parts])):
        parts = []
    return ["/".join([mount, *parts[:depth]]) for depth in range(len(parts), -1, -1)]


class _Files:
    """Reads values and keeps in `unread` what exists but gave none."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.unread: list[Unread] = []

    def text(self, path: str) -> str:
        try:
            return self.host.read_text(path)
        except NoData:
            return ""
        except ReadError as error:
            self.unread.append(Unread(path, error.status, str(error)))
            return ""

    def integer(self, path: str, unlimited: str = "") -> Optional[int]:
        text = self.text(path)
        if _is_number(text):
            return int(text)
        if text not in ("", unlimited):
            self.unread.append(Unread(path, Status.ERROR, f"{path}: not a number: {text[:80]!r}"))
        return None

    def limit(self, path: str) -> Optional[int]:
        value = self.integer(path, unlimited="max")
        return value if value is not None and value < _NO_LIMIT_BYTES else None

    def numbers(self, path: str) -> dict[str, int]:
        return parse_numbers(self.text(path))

    def pressure(self) -> dict[str, float]:
        """All averages there are; none where the kernel has PSI switched off."""
        averages: dict[str, float] = {}
        for resource in ("memory", "io", "cpu"):
            path = f"/proc/pressure/{resource}"
            try:
                averages.update(parse_pressure(resource, self.text(path)))
            except ParseError as error:
                self.unread.append(Unread(path, error.status, f"{path}: {error}"))
        return averages


def parse_numbers(text: str) -> dict[str, int]:
    """`key number` and `key: number unit` lines; other lines are left out."""
    numbers = {}
    for line in text.split("\n"):
        words = line.split()
        if len(words) > 1 and _is_number(words[1]):
            numbers[words[0].rstrip(":")] = int(words[1])
    return numbers


def parse_pressure(resource: str, text: str) -> dict[str, float]:
    """Percentages of `some avg10=0.89 avg60=...` lines, keyed "<resource>_some_avg10".

    Raises ParseError when an average is not a number.
    """
    averages = {}
    for line in text.split("\n"):
        words = line.split()
        for word in words[1:]:
            key, _, value = word.partition("=")
            if key.startswith("avg"):
                if not _is_number(value.replace(".", "", 1)):
                    raise ParseError(f"not a percentage: {line[:80]!r}")
                averages[f"{resource}_{words[0]}_{key}"] = float(value)
    return averages


def _is_number(text: str) -> bool:
    return len(text) <= 20 and text.isascii() and text.isdigit()
