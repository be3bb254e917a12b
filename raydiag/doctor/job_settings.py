"""Settings of a job that runs by which it will leave nothing behind when it hangs or dies."""

from collections.abc import Callable, Iterator, Mapping

from raydiag.doctor.set_up import CheckResult, CheckStatus, SetUp, not_checked
from raydiag.model import NodeReport, Status

_AREA = "job"
_OFF = ("0", "false", "off", "no")
_LEVELS = ("WARN", "INFO", "TRACE")  # of NCCL_DEBUG: without one, its errors are not printed
_RECORDER = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
_HEARTBEAT, _LEAST_S, _MOST_S = "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", 60, 3600
_MOST_SHOWN = 4
_TOLD = (Status.OK, Status.NO_DATA)
_Weakness = Callable[[Mapping[str, str]], str]


def job_setting_checks(set_up: SetUp) -> Iterator[CheckResult]:
    """One for each kind of setting, of the Ray workers at work and what they started."""
    if "processes" not in set_up.probes_asked:
        return
    yield _judged(
        set_up,
        "job-nccl-debug",
        "NCCL or RCCL says why a collective fails",
        "NCCL or RCCL prints no errors",
        "start the job with NCCL_DEBUG=WARN (INFO while you look for something)",
        _silent_nccl,
    )
    yield _judged(
        set_up,
        "job-flight-recorder",
        "No worker has the flight recorder of PyTorch switched off",
        "PyTorch's flight recorder is off: after a hang nobody can tell which rank did not arrive",
        "TORCH_FR_BUFFER_SIZE=2000 (older: TORCH_NCCL_TRACE_BUFFER_SIZE) and "
        "TORCH_NCCL_DUMP_ON_TIMEOUT=1",
        _without_recorder,
    )
    yield _judged(
        set_up,
        "job-heartbeat",
        "The heartbeat of PyTorch's NCCL watchdog is left as it should be",
        "The heartbeat of PyTorch's NCCL watchdog hides hangs, or kills ranks that are well",
        f"leave {_HEARTBEAT} unset, or between {_LEAST_S} and {_MOST_S} s",
        _odd_heartbeat,
    )
    yield _judged(
        set_up,
        "job-ras",
        "No worker has NCCL's RAS service switched off",
        "NCCL's RAS service is off: a hang cannot be asked who is missing",
        "leave NCCL_RAS_ENABLE unset, or set it to 1",
        _without_ras,
    )
    if "ray_logs" in set_up.probes_asked:
        yield _unbuffered(set_up)


def _silent_nccl(settings: Mapping[str, str]) -> str:
    level = settings.get("NCCL_DEBUG", "")
    if not level or level.upper() in _LEVELS:
        return ""  # many a job has no NCCL at all
    return f"NCCL_DEBUG={level}"


def _without_recorder(settings: Mapping[str, str]) -> str:
    for name in _RECORDER:
        if settings.get(name, "").strip() == "0":
            return f"{name}=0"
    dump = settings.get("TORCH_NCCL_DUMP_ON_TIMEOUT", "")
    if dump.lower() in _OFF:
        return f"TORCH_NCCL_DUMP_ON_TIMEOUT={dump}"
    return ""


def _odd_heartbeat(settings: Mapping[str, str]) -> str:
    if settings.get("TORCH_NCCL_ENABLE_MONITORING", "").lower() in _OFF:
        return "TORCH_NCCL_ENABLE_MONITORING is off"
    seconds = settings.get(_HEARTBEAT, "")
    if seconds.isdecimal() and not _LEAST_S <= int(seconds) <= _MOST_S:
        return f"{_HEARTBEAT}={seconds}"
    return ""


def _without_ras(settings: Mapping[str, str]) -> str:
    value = settings.get("NCCL_RAS_ENABLE", "")
    return f"NCCL_RAS_ENABLE={value}" * (value.lower() in _OFF)


def _unbuffered(set_up: SetUp) -> CheckResult:
    """Whether a worker's log ends in half a line, as where output is held back in blocks."""
    name = "job-log-buffered"
    found: dict[str, str] = {}
    for report in set_up.answered:
        for log in report.records("ray_logs"):
            if log.component == "worker" and log.buffered:
                found.setdefault(report.node.host, f"{report.node.host}: {log.path}")
    if not found:
        return _without_weakness(set_up, "ray_logs", name, "No worker's log ends in half a line")
    title = "Output is held back in blocks: the last lines before a death are lost"
    fix = "start the job with PYTHONUNBUFFERED=1, or flush after each line"
    evidence = tuple(found.values())[:_MOST_SHOWN]
    return CheckResult(name, _AREA, CheckStatus.ADVICE, title, tuple(found), evidence, fix)


def _without_weakness(set_up: SetUp, probe: str, name: str, well: str) -> CheckResult:
    """Well, unless nodes did not tell."""

    def told(report: NodeReport) -> bool:
        return probe in report.probes and report.probes[probe].status in _TOLD

    blind = set_up.without(told)
    check = CheckResult(name, _AREA, CheckStatus.OK, well)
    return not_checked(check, blind) if blind else check


def _judged(
    set_up: SetUp, name: str, well: str, wrong: str, fix: str, weakness: _Weakness
) -> CheckResult:
    """An advice where a process at work has such a setting, named once for each host."""
    found: dict[str, str] = {}
    for report in set_up.answered:
        for process in report.records("processes"):
            text = weakness(process.settings)
            if text:
                where = f"{report.node.host}: pid {process.pid} ({process.comm}): {text}"
                found.setdefault(report.node.host, where)
    if not found:
        return _without_weakness(set_up, "processes", name, well)
    evidence = tuple(found.values())[:_MOST_SHOWN]
    return CheckResult(name, _AREA, CheckStatus.ADVICE, wrong, tuple(found), evidence, fix)
