"""Which exporter runs on this node, its files' directory, its watchdog; found, never guessed.

Source: proc(5); the watchdog's own lines, `[2026-02-12T19:58:10Z] [Metrics Exporter] Watchdog:
exited with code 137, restart #3`
"""

from __future__ import annotations

import calendar
import contextlib
import dataclasses
import os
import re
import stat
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Optional

from raydiag.errors import ParseError
from raydiag.hotfix import guarded_request, process
from raydiag.hotfix.messages import NodeRequest, ProcessInfo, Watchdog
from raydiag.hotfix.process import SeenProcess

MOST_RESTARTS = 50
_LABEL = "Metrics Exporter"
_LOG_BYTES, _LOG_BLOCKS = 4 << 20, 16
_CLOCK_S = 2.0  # its lines have whole seconds
_RESAMPLES_S, _RESAMPLE_S = 2.5, 0.05
_LOOK_LIMIT_S = 5.0
_ALONE = "no watchdog stands above the exporter: nothing would start it again"
_UNCOUNTED = "the exporter's output goes to no file: restarts cannot be counted"
_TOO_LONG = "the watchdog's last line is too far back in its log: restarts cannot be counted"
_SEVERAL = "several processes look like the exporter"
_LINE = re.compile(
    r"^\[(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)\] \[" + _LABEL + r"\] Watchdog: (.*)$", re.MULTILINE
)
_RESTART = re.compile(r"exited with code (-?\d+), restart #(\d+)$")


@dataclass(frozen=True)
class RestartCount:
    """One restart line."""

    at: float  # Unix s
    code: int
    number: int


@dataclass(frozen=True)
class Found:
    """The exporter of this node, as far as it is beyond doubt."""

    exporter: Optional[ProcessInfo] = None
    server: Optional[ProcessInfo] = None  # that the exporter started
    orphans: tuple[
        ProcessInfo, ...
    ] = ()  # servers of the same file and port without their exporter
    watchdog: Optional[Watchdog] = None
    directory: Optional[str] = None
    elsewhere: str = ""  # why the files that we see may be none of the exporter's
    doubts: tuple[str, ...] = ()  # why nothing here may be ended
    environment: Mapping[str, str] = field(default_factory=dict)  # of the exporter


def look(request: NodeRequest) -> Found:
    """`find`, in a guarded reader: the arguments of a process that hangs may block their reader."""
    fields = {one.name: getattr(request, one.name) for one in dataclasses.fields(NodeRequest)}
    try:
        seen = guarded_request.ask(
            _serve, fields, "processes", guarded_request.LOOKS_AS, _LOOK_LIMIT_S
        )
    except guarded_request.NoAnswer as error:
        return Found(doubts=(str(error),))
    one = {name: _process(seen[name]) for name in ("exporter", "server")}
    return Found(
        **one,
        orphans=tuple(filter(None, map(_process, seen["orphans"]))),
        watchdog=Watchdog(**seen["watchdog"]) if seen["watchdog"] else None,
        directory=seen["directory"],
        elsewhere=seen["elsewhere"],
        doubts=tuple(seen["doubts"]),
        environment=seen["environment"],
    )


def _serve(fields: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """In the reader."""
    yield {"answer": dataclasses.asdict(find(NodeRequest(**fields)))}


def _process(fields: Optional[dict[str, Any]]) -> Optional[ProcessInfo]:
    return ProcessInfo(**{**fields, "argv": tuple(fields["argv"])}) if fields else None


def find(request: NodeRequest) -> Found:
    """Look at the processes; may block, see `look`. Reads no arguments of training processes."""
    if process.numbers_doubt():
        return Found(doubts=(process.numbers_doubt(),))
    if request.exporter == "raydiag":
        return _find_own(request)
    deadline = time.monotonic() + _RESAMPLES_S
    while True:
        found = _find_shell(request)
        several = any(doubt.startswith(_SEVERAL) for doubt in found.doubts)
        if not several or time.monotonic() > deadline:
            return found
        time.sleep(_RESAMPLE_S)  # a subshell that waits for a plugin is gone in a moment


def _find_shell(request: NodeRequest) -> Found:
    seen = process.processes()
    shells, hidden = _shells(seen, request.port)
    servers, strangers = _servers(seen, shells, request)
    shells = {pid: argv for pid, argv in shells.items() if pid not in strangers}
    parents = {one.pid: seen[one.pid].parent for one in servers}
    orphans = tuple(
        replace(one, role="orphan") for one in servers if parents[one.pid] not in shells
    )
    # Without a server the exporter is known by its arguments alone.
    owners = {pid for pid in parents.values() if pid in shells} or set(shells)
    if len(owners) > 1:
        return Found(doubts=(f"{_SEVERAL}: {', '.join(map(str, sorted(owners)))}",))
    if not owners and hidden:
        return Found(doubts=(f"pid {hidden[0]} may be the exporter and belongs to somebody else",))
    if not owners:
        return Found(orphans=orphans, doubts=("no exporter runs here",))
    pid = owners.pop()
    exporter = _described(seen[pid], shells[pid], "exporter")
    own = next((one for one in servers if parents[one.pid] == pid), None)
    watchdog, doubts = _watchdog(exporter, seen)
    directory, elsewhere = _directory(exporter)
    doubts += [elsewhere] if elsewhere else []
    return Found(
        exporter, own, orphans, watchdog, directory, elsewhere, tuple(doubts), _environment(pid)
    )


def _servers(
    seen: Mapping[int, SeenProcess], shells: Mapping[int, object], request: NodeRequest
) -> tuple[list[ProcessInfo], set[int]]:
    """Servers of our file and port; pids of exporters of other ports, with what is below them."""
    listening = process.listeners(request.port)
    servers: list[ProcessInfo] = []
    strangers: set[int] = set()
    for one in seen.values():
        # Only what can be the server is asked for its arguments: a trainer is a Python as well.
        if one.name.startswith("python") and (
            one.parent in shells or (listening and process.holds(one.pid, listening))
        ):
            argv = process.arguments(one)
            if process.is_server(argv, request.metrics_file, request.port):
                servers.append(_described(one, argv, "server"))
            elif one.parent in shells and process.served_port(argv) not in (None, request.port):
                strangers.update((one.parent, *process.descendants(one.parent, seen)))
    return servers, strangers


def _shells(
    seen: Mapping[int, SeenProcess], port: int
) -> tuple[dict[int, tuple[str, ...]], list[int]]:
    """Arguments of the shells that run the exporter's script; pids that may not be looked at."""
    shells, hidden = {}, []
    for one in seen.values():
        if not one.name.startswith(("bash", process.SCRIPT[:15])):
            continue
        argv = process.arguments(one)
        if process.is_exporter(argv) and _port(argv) in (None, port):
            program = process.program(one.pid)
            if program.startswith("bash"):
                shells[one.pid] = argv
            elif not program:
                hidden.append(one.pid)
    return shells, hidden


def _find_own(request: NodeRequest) -> Found:
    """By its pid file: `<pid> [<start time in clock ticks since boot>]`."""
    if not request.pid_file:
        return Found(doubts=("no pid file was named",))
    try:
        with open(request.pid_file, encoding="ascii") as file:
            words = file.read(200).split()
            written_at = os.fstat(file.fileno()).st_mtime
        pid = int(words[0])
        one = process.see(pid)
    except (OSError, ValueError, IndexError, ParseError) as error:
        return Found(doubts=(f"{request.pid_file}: names no process: {error}",))
    argv, started_at = process.arguments(one), _started_at(one)
    if words[1:2] and words[1] != str(one.start_ticks):
        return Found(doubts=(f"pid {pid}: is another process than {request.pid_file} means",))
    if not words[1:2] and started_at > written_at + 1:
        return Found(doubts=(f"pid {pid}: is younger than {request.pid_file}",))
    if not process.is_own_exporter(argv) or not process.program(pid).startswith("python"):
        return Found(doubts=(f"pid {pid}: is no exporter of ours: {' '.join(argv)[:100]!r}",))
    exporter = _described(one, argv, "exporter")
    watchdog, doubts = _counted(pid)
    if not _is_supervised(one):
        doubts.append(_ALONE)
    elsewhere = _sees_others(pid)
    return Found(
        exporter,
        watchdog=watchdog,
        directory=None if elsewhere else _own_directory(exporter),
        elsewhere=elsewhere,
        doubts=tuple(doubts),
        environment=_environment(pid),
    )


def _is_supervised(exporter: SeenProcess) -> bool:
    try:
        above = process.arguments(process.see(exporter.parent))
    except (OSError, ParseError):
        return False
    return process.is_own_exporter(above) and "--supervise" in above


def _own_directory(exporter: ProcessInfo) -> Optional[str]:
    """The directory of `--plugins`, where there is exactly one."""
    words = [part for word in exporter.argv for part in word.split("=", 1)]
    named = [value for option, value in zip(words, words[1:]) if option == "--plugins"]
    with contextlib.suppress(OSError):
        if len(named) == 1:
            return os.path.join(os.readlink(f"/proc/{exporter.pid}/cwd"), named[0])
    return None


def _described(one: SeenProcess, argv: tuple[str, ...], role: str) -> ProcessInfo:
    return ProcessInfo(one.pid, one.start_ticks, argv, role, one.state, _started_at(one))


def _started_at(one: SeenProcess) -> float:
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    boot = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return round(boot + one.start_ticks / ticks_per_s, 2)


def _port(argv: tuple[str, ...]) -> Optional[int]:
    """The port that the arguments name; None when they leave it to the environment."""
    for option, value in zip(argv[2:], argv[3:]):
        if option in ("--port", "-p") and value.isascii() and value.isdigit():
            return int(value)
    return None


def _directory(exporter: ProcessInfo) -> tuple[Optional[str], str]:
    """Where the script lies, from argv[1] and the working directory; or why that is not known."""
    pid = exporter.pid
    if _sees_others(pid):
        return None, _sees_others(pid)
    try:
        path = os.path.join(os.readlink(f"/proc/{pid}/cwd"), exporter.argv[1])
        os.stat(path)
    except OSError as error:
        return None, f"pid {pid}: its directory is not known: {error.strerror}"
    directory = os.path.dirname(path)
    plain = os.path.normpath(directory)
    # The kernel follows a link before `..` and a shell's `cd` does not: they mean two directories.
    if os.path.realpath(plain) != os.path.realpath(directory):
        return None, f"pid {pid}: {directory} and {plain} are not one directory"
    return plain, ""


def _sees_others(pid: int) -> str:
    """Why that process sees other files than we do, or may; "" when it sees the same."""
    try:
        same = os.readlink(f"/proc/{pid}/ns/mnt") == os.readlink("/proc/self/ns/mnt")
        same = same and os.path.samestat(os.stat(f"/proc/{pid}/root"), os.stat("/"))
    except OSError as error:
        return f"pid {pid}: which files it sees is not known: {error.strerror}"
    return "" if same else f"pid {pid}: sees other files than we do"


def _environment(pid: int) -> dict[str, str]:
    """Variables that it was started with; empty when they may not be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            parts = file.read(1 << 20).split(b"\0")
    except OSError:
        return {}
    pairs = (part.decode("utf-8", "surrogateescape").partition("=") for part in parts if part)
    return {name: value for name, equals, value in pairs if name and equals}


def _watchdog(
    exporter: ProcessInfo, seen: Mapping[int, SeenProcess]
) -> tuple[Optional[Watchdog], list[str]]:
    """Its log and count; and why it may not be there to start the exporter again."""
    watchdog, doubts = _counted(exporter.pid)
    if watchdog is None:
        return None, doubts
    parent = seen.get(seen[exporter.pid].parent)
    if parent is None or parent.pid <= 1 or not process.program(parent.pid).startswith("bash"):
        return watchdog, [_ALONE]
    argv, above = process.arguments(parent), seen.get(parent.parent)
    if not argv:
        return watchdog, [f"pid {parent.pid} above the exporter cannot be looked at"]
    is_subshell = above is not None and process.arguments(above) == argv
    has_restarted = (watchdog.last_restart_at or 0.0) > _started_at(parent) - _CLOCK_S
    if not is_subshell and argv != exporter.argv and not has_restarted:
        return watchdog, [f"pid {parent.pid} above the exporter may be no watchdog"]
    return watchdog, []


def _log_of(pid: int) -> tuple[str, int]:
    """Path and size of the file that its output goes to; "" where there is none."""
    for fd in (1, 2):
        link = f"/proc/{pid}/fd/{fd}"
        with contextlib.suppress(OSError):
            path = os.readlink(link)
            opened, named = os.stat(link), os.stat(path)
            same = (opened.st_dev, opened.st_ino) == (named.st_dev, named.st_ino)
            if stat.S_ISREG(opened.st_mode) and same:
                return path, opened.st_size
    return "", 0


def _last_words(log: str, size: int) -> Optional[str]:
    """The log's text around the watchdog's last line; None when that line is too far back.

    What the exporter and its server say goes to the same file.
    """
    begin = size
    for _ in range(_LOG_BLOCKS):
        begin = max(0, begin - _LOG_BYTES + 1024)  # a line may lie across two blocks
        text = tail(log, begin)
        if begin == 0 or _LINE.search(text):
            return text
    return None


def tail(path: str, begin: Optional[int] = None) -> str:
    """The file's text from that byte on, or its last 4 MiB; "" when it cannot be read."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - _LOG_BYTES) if begin is None else begin)
            return file.read(_LOG_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


def size(path: str) -> int:
    """Bytes of a file; 0 when there is none."""
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def restarts_in(text: str) -> list[RestartCount]:
    """Restart lines of the exporter's watchdog, in order."""
    found = []
    for stamp, said in _LINE.findall(text):
        match = _RESTART.match(said)
        if match:
            with contextlib.suppress(ValueError):
                at = calendar.timegm(time.strptime(stamp, "%Y-%m-%dT%H:%M:%SZ"))
                found.append(RestartCount(float(at), int(match[1]), int(match[2])))
    return found


def _counted(exporter: int) -> tuple[Optional[Watchdog], list[str]]:
    """A watchdog counts from its own start, so the last line's number is what it has used up."""
    log, size = _log_of(exporter)
    text = _last_words(log, size) if log else None
    if text is None:
        return None, [_TOO_LONG if log else _UNCOUNTED]
    lines = restarts_in(text)
    number = lines[-1].number if lines else 0
    gave_up = any("too many restarts" in said for _, said in _LINE.findall(text)[-1:])
    watchdog = Watchdog(
        log=log,
        log_bytes=size,
        restarts=number,
        left=max(0, MOST_RESTARTS - number),
        last_restart_at=lines[-1].at if lines else None,
        gave_up=gave_up,
    )
    return watchdog, []


def driver_fault(request: NodeRequest) -> str:
    """What shows the GPU driver fault here, or may; "" when nothing does.

    Besides what the request says: a process that waits in one of the driver's functions, and
    timeouts of the GPU plugin, which are what the fault looks like from outside.
    """
    if request.driver_fault:
        return request.driver_fault
    wanted = request.driver_fault_symbols
    for one in process.processes().values() if wanted else ():
        for name in ("wchan", "stack") if one.state == "D" else ():
            with contextlib.suppress(OSError), open(f"/proc/{one.pid}/{name}") as file:
                text = file.read(1 << 16)
                hit = next((symbol for symbol in wanted if symbol in text), "")
                if hit:
                    return f"pid {one.pid} waits in {hit}"
    text = tail(request.plugin_log)
    count = text[text.rfind("] Starting on port ") + 1 :].count("gpu_metrics_plugin timed out")
    return f"gpu_metrics_plugin timed out {count} times" if count else ""
