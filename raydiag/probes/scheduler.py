"""CPUs of the node: how busy they are, who waits for them, and what our control group may use.

Source: /proc/stat, /proc/loadavg, /proc/uptime, /proc/pressure/{cpu,io}, Cpus_allowed_list of
/proc/self/status; cgroup v2 cpu.{max,stat,pressure}, cpuset.cpus.effective, v1
cpu.{cfs_quota_us,cfs_period_us,stat}, cpuacct.usage, cpuset.effective_cpus (proc(5); kernel
documentation, cgroup-v2, sched-bwc, accounting/psi)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Optional, Union

from raydiag.cgroup import ROOT, ControlFiles, is_number
from raydiag.errors import ParseError
from raydiag.host import Host
from raydiag.model import Unread
from raydiag.probes import probe
from raydiag.procfs import STAT, STAT_LIMIT_BYTES, stat_numbers, uptime_s

# The columns after these, of guests, are counted in user and nice as well.
_STATES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
_TASK_NUMBERS = ("ctxt", "procs_running", "procs_blocked")
_MAX_CPUS = 1 << 14


@dataclass(frozen=True)
class SchedulerState:
    uptime_s: float  # /proc/uptime
    cpus_online: int  # cpu<N> lines of /proc/stat
    cpus_allowed: int  # those of them that we may run on: cpuset and affinity
    load1: float  # tasks that run, want to, or are in uninterruptible sleep; node, mean of 1 min
    load5: float  # the same over 5 min
    load15: float  # the same over 15 min
    tasks: int  # threads of the node, kernel threads included: loadavg, after the "/"
    running: int  # procs_running: threads of the node that run or want to
    blocked: int  # procs_blocked: threads that wait for I/O (not all in uninterruptible sleep)
    context_switches: int  # since boot
    ticks: dict[str, int]  # clock ticks since boot of all CPUs by state: "user", "idle", "steal"
    allowed_ticks: dict[str, int]  # the same of the CPUs that we may run on
    pressure: dict[str, float]  # percent by "cpu_some_avg60", "io_full_avg300", ...; PSI, node
    cgroup_version: int = 0  # of the CPU controller: 0 none, 1, 2
    cgroup_path: str = ""  # the level that limits us most, else our own group; "" none
    cgroup_is_root: bool = False  # that is the whole node
    cgroup_quota_cpus: Optional[float] = None  # CPU time it may use, in CPUs; None: no limit
    cgroup_cpus: Optional[int] = None  # CPUs of its cpuset; None: unknown
    cgroup_usage_s: Optional[float] = None  # CPU seconds used since that group exists
    cgroup_periods: Optional[int] = None  # nr_periods: periods of the quota in which it ran
    cgroup_throttled: Optional[int] = None  # nr_throttled: those in which the quota stopped it
    cgroup_throttled_s: Optional[float] = None  # for how long, summed over CPUs
    cgroup_pressure: dict[str, float] = field(default_factory=dict)  # of that group; version 2


@probe(SchedulerState, identity=("cgroup_path", "cpus_allowed"), samples=2)
def scheduler(host: Host) -> Iterator[Union[SchedulerState, Unread]]:
    """Exactly one record, then an Unread for each part of it that could not be read.

    Raises NoData or Denied without /proc/stat, /proc/loadavg or /proc/uptime, ParseError when one
    of them does not hold its numbers.
    """
    stat = parse_stat(host.read_text(STAT, STAT_LIMIT_BYTES))
    loads, tasks = parse_loadavg(host.read_text("/proc/loadavg"))
    files = ControlFiles(host)
    allowed = _allowed(files, stat.cpus)
    yield SchedulerState(
        uptime_s=uptime_s(host),
        cpus_online=len(stat.cpus),
        cpus_allowed=len(allowed),
        load1=loads[0],
        load5=loads[1],
        load15=loads[2],
        tasks=tasks,
        running=stat.numbers["procs_running"],
        blocked=stat.numbers["procs_blocked"],
        context_switches=stat.numbers["ctxt"],
        ticks=_summed(stat.cpus.values()),
        allowed_ticks=_summed(stat.cpus[cpu] for cpu in allowed),
        pressure=files.pressure({"cpu": "/proc/pressure/cpu", "io": "/proc/pressure/io"}),
        **_of_group(files, len(stat.cpus)),
    )
    yield from files.unread


class CpuStat(NamedTuple):
    """What /proc/stat says of tasks and of each CPU."""

    cpus: Mapping[int, tuple[int, ...]]  # ticks in the order of _STATES, by number of the CPU
    numbers: Mapping[str, int]  # "ctxt", "procs_running", "procs_blocked"


def parse_stat(text: str) -> CpuStat:
    """Raises ParseError when a number of tasks or all CPUs are missing, or a CPU's line is cut."""
    cpus: dict[int, tuple[int, ...]] = {}
    numbers: dict[str, int] = {}
    for line in text.split("\n"):
        name, _, value = line.partition(" ")
        if name.startswith("cpu") and is_number(name[3:]):
            words = value.split()[: len(_STATES)]
            if len(words) < len(_STATES) or not all(map(is_number, words)):
                raise ParseError(f"/proc/stat: not the times of a CPU: {line[:80]!r}")
            cpus[int(name[3:])] = tuple(map(int, words))
        elif name in _TASK_NUMBERS and is_number(value):
            numbers[name] = int(value)
    if not cpus or len(numbers) < 3:
        raise ParseError(f"/proc/stat: {len(cpus)} CPUs, and of tasks only {sorted(numbers)}")
    return CpuStat(cpus, numbers)


def task_numbers(host: Host) -> dict[str, int]:
    """The numbers of tasks in /proc/stat: "ctxt", "procs_running", "procs_blocked".

    Raises ParseError.
    """
    return stat_numbers(host, _TASK_NUMBERS)


def parse_loadavg(text: str) -> tuple[list[float], int]:
    """The three load averages and the number of threads of `0.20 0.31 0.40 1/95 4242`."""
    words = text.split()
    tasks = words[3].partition("/")[2] if len(words) > 3 else ""
    if not is_number(tasks) or not all(map(_is_decimal, words[:3])):
        raise ParseError(f"/proc/loadavg: not load averages: {text[:80]!r}")
    return list(map(float, words[:3])), int(tasks)


def parse_cpu_list(text: str) -> set[int]:
    """The CPUs of a list such as `0-3,8`. Raises ParseError."""
    cpus: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, dash, last = part.partition("-")
        last = last if dash else first
        if not (is_number(first) and is_number(last) and int(last) < _MAX_CPUS):
            raise ParseError(f"not a list of CPUs: {text[:80]!r}")
        cpus.update(range(int(first), int(last) + 1))
    return cpus


def _is_decimal(word: str) -> bool:
    return is_number(word.replace(".", "", 1))


def _summed(cpus: Iterable[tuple[int, ...]]) -> dict[str, int]:
    return dict(zip(_STATES, map(sum, zip(*cpus))))


def _allowed(files: ControlFiles, cpus: Mapping[int, object]) -> list[int]:
    """The CPUs that we, and with us the job, may run on; all of them where that is unknown."""
    path = "/proc/self/status"
    for line in files.text(path).split("\n"):
        name, _, value = line.partition(":")
        if name == "Cpus_allowed_list":
            try:
                return sorted(parse_cpu_list(value) & cpus.keys()) or list(cpus)
            except ParseError as error:
                files.malformed(path, error)
    return list(cpus)


def _of_group(files: ControlFiles, cpus_online: int) -> dict[str, Any]:
    """The fields of the record that are about the control group that limits us most."""
    mount = _v1_mount(files, "cpu")
    version = 1 if mount else 2
    mount = mount or files.unified("cpu")
    if not mount:
        return {}
    levels = files.levels(mount, "cpu" if version == 1 else "")
    quotas = {level: _quota(files, version, level) for level in levels}
    cpusets = {level: _cpuset(files, version, level, mount) for level in levels}
    path = _tightest(levels, quotas, cpusets, cpus_online)
    counts = files.numbers(f"{path}/cpu.stat")
    pressure = {"cpu": f"{path}/cpu.pressure", "io": f"{path}/io.pressure"}
    # In nanoseconds by version 1, in microseconds by version 2.
    nanos, micros = counts.get("throttled_time"), counts.get("throttled_usec")
    return {
        "cgroup_version": version,
        "cgroup_path": path,
        "cgroup_is_root": _is_root(files.host, version, path),
        "cgroup_quota_cpus": quotas[path],
        "cgroup_cpus": cpusets[path],
        "cgroup_usage_s": _usage_s(files, version, path[len(mount) :], counts),
        "cgroup_periods": counts.get("nr_periods"),
        "cgroup_throttled": counts.get("nr_throttled"),
        "cgroup_throttled_s": _scaled(micros, 1e6) if nanos is None else nanos / 1e9,
        "cgroup_pressure": files.pressure(pressure) if version == 2 else {},
    }


def _tightest(
    levels: Sequence[str],
    quotas: Mapping[str, Optional[float]],
    cpusets: Mapping[str, Optional[int]],
    cpus_online: int,
) -> str:
    """The tightest quota's level, else the outermost with fewer CPUs than the node, else our own.

    Of equal quotas the outer level is nearer to its own: it counts the siblings too.
    """
    path, tightest = levels[0], None
    for level in levels:
        quota, cpus = quotas[level], cpusets[level]
        if quota is not None and (tightest is None or quota <= tightest):
            path, tightest = level, quota
        elif tightest is None and cpus is not None and cpus < cpus_online:
            path = level
    return path


def _v1_mount(files: ControlFiles, controller: str) -> str:
    """Where version 1 has the controller, alone or together with its usual companion; or ""."""
    for name in (controller, "cpu,cpuacct"):
        if files.host.exists(f"{ROOT}/{name}/cgroup.procs"):
            return f"{ROOT}/{name}"
    return ""


def _is_root(host: Host, version: int, path: str) -> bool:
    """Told by files that only the root has, or only the others; in a container the mount's root
    is a group like any other."""
    if version == 1:
        return host.exists(f"{path}/release_agent")
    return not host.exists(f"{path}/cgroup.type")


def _quota(files: ControlFiles, version: int, level: str) -> Optional[float]:
    """CPUs: `800000 100000` is 8; None for `max`, -1 and no file at all."""
    if version == 1:
        path = f"{level}/cpu.cfs_quota_us"
        text = f"{files.text(path)} {files.text(f'{level}/cpu.cfs_period_us')}"
    else:
        path = f"{level}/cpu.max"
        text = files.text(path)
    words = text.split()
    if not words or words[0] in ("max", "-1"):
        return None
    if len(words) != 2 or not all(map(is_number, words)) or int(words[1]) == 0:
        files.malformed(path, ParseError(f"not a quota: {text[:80]!r}"))
        return None
    return int(words[0]) / int(words[1])


def _cpuset(files: ControlFiles, version: int, level: str, mount: str) -> Optional[int]:
    path = f"{level}/cpuset.cpus.effective"
    if version == 1:
        path = f"{ROOT}/cpuset{level[len(mount) :]}/cpuset.effective_cpus"
    try:
        return len(parse_cpu_list(files.text(path))) or None
    except ParseError as error:
        files.malformed(path, error)
        return None


def _usage_s(
    files: ControlFiles, version: int, relative: str, counts: Mapping[str, int]
) -> Optional[float]:
    if version == 2:
        return _scaled(counts.get("usage_usec"), 1e6)
    return _scaled(files.integer(f"{_v1_mount(files, 'cpuacct')}{relative}/cpuacct.usage"), 1e9)


def _scaled(count: Optional[int], units_per_s: float) -> Optional[float]:
    return None if count is None else count / units_per_s
