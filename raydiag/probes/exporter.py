"""The metrics exporter on the node: does it answer, and how old is what it serves.

An HTTP server that serves a file keeps answering when the loop that writes the file hangs, and
Prometheus stamps the stale values as fresh. So the age of the values is measured in other ways: the
file's time where the file is what is served, and the kernel's own count of context switches.

Source: http://127.0.0.1:9400/metrics; /tmp/node_hw_metrics.prom, which the shell exporter serves;
its log /tmp/metrics_exporter.log; /proc/{stat,uptime} (proc(5)), /proc/<pid>/{comm,stat,cmdline}
"""

from __future__ import annotations

import os
import socket
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Optional, Union

from raydiag.cgroup import is_number
from raydiag.errors import NoData, ReadError
from raydiag.host import Host, as_unread
from raydiag.model import Unread
from raydiag.probes import SOCKETS, probe
from raydiag.procfs import process_ids, read_stat, stat_numbers, uptime_if_known

_INTERPRETERS = ("bash", "sh", "python", "metrics_export", "raydiag")
FILE = "/tmp/node_hw_metrics.prom"
LOG = "/tmp/metrics_exporter.log"

_ANSWER_LIMIT_S = 2.3
_BODY_LIMIT_BYTES = 8 << 20
_LOG_BYTES = 64 << 10
_LEAST_AGE_S = 60.0  # several cycles of the exporter; younger values need no further look
_MOST_LINES = 5
_MOST_GROUPS, _GROUP_LENGTH = 40, 40


@dataclass(frozen=True)
class Exporter:
    port: int  # on 127.0.0.1
    answer: str  # "ok", "refused", "timeout", "error"
    reason: str  # what is wrong with the answer; "" when it is ok
    duration_s: float  # until the answer was complete, or given up
    body_bytes: int  # of the answer
    samples: int  # lines with a value
    hw_samples: int  # those of hw_ metrics
    groups: tuple[str, ...]  # second words of the hw_ names, sorted: "gpu", "rdma", "tcp"
    checksum: int  # CRC-32 of the lines of hw_ metrics: equal when none moved
    scrape_duration_s: Optional[float]  # hw_scrape_duration_seconds: the last cycle of all plugins
    data_time_s: Optional[float]  # Unix seconds, change of FILE; None: FILE is not what is served
    data_age_s: Optional[float]  # from then until the answer
    switches_served: Optional[int]  # hw_context_switches_total as served
    switches_now: Optional[int]  # ctxt of /proc/stat; None where data_age_s tells enough
    uptime_s: Optional[float]  # of the node; None likewise
    file_age_s: Optional[float]  # of FILE, since its last change; None: no such file
    log_age_s: Optional[float]  # of LOG, since its last change; None: no such file
    log_lines: tuple[str, ...]  # the last ones in LOG about trouble, at most 300 characters each
    timed_out: dict[str, int]  # from LOG: plugin -> timeouts since the exporter's start
    ends_in_timeout: bool  # the last line of LOG is about one
    skipped: tuple[str, ...]  # from LOG: plugins that are not run any more since its start
    restarts: tuple[float, ...]  # Unix seconds, from the watchdog's lines in LOG
    processes: tuple[str, ...]  # "loop 4242 S 86400": role, pid, state, age in seconds
    process_age_s: Optional[float]  # of the oldest; None: none found, or there was no need to look
    gpu_errors: Optional[int] = None  # hw_dmesg_gpu_errors_total as served; None: no such series


@probe(Exporter, identity=("port",), timeout_s=3, reader=SOCKETS, samples=2)
def exporter(host: Host, port: int = 9400) -> Iterator[Union[Exporter, Unread]]:
    """One record. Processes are looked for only where something may be wrong.

    Raises NoData when nothing listens on the port and nothing is left of an exporter.
    """
    began = time.monotonic()
    answer, reason, body = fetch(port, _ANSWER_LIMIT_S)
    duration_s, now = time.monotonic() - began, time.time()
    served = parse_metrics(body)
    file_age_s, log_age_s = _age_s(host, FILE, now), _age_s(host, LOG, now)
    if answer == "refused" and file_age_s is None and log_age_s is None:
        raise NoData(f"nothing listens on port {port}, and nothing is left of an exporter")
    unread: list[Unread] = []
    data_age_s = data_time_s = switches = uptime_s = None
    if _is_served(host, served, unread) and file_age_s is not None:
        data_age_s, data_time_s = file_age_s, now - file_age_s
    log = _log_state(host, unread) if log_age_s is not None else LogState()
    yield from unread
    found_processes: list[Process] = []
    if data_age_s is None or data_age_s >= _LEAST_AGE_S:
        found_processes = list(processes(host))
        switches, uptime_s = _context_switches(host), uptime_if_known(host)
    yield Exporter(
        port=port,
        answer=answer,
        reason=reason,
        duration_s=duration_s,
        body_bytes=len(body),
        data_time_s=data_time_s,
        data_age_s=data_age_s,
        switches_now=switches,
        uptime_s=uptime_s,
        file_age_s=file_age_s,
        log_age_s=log_age_s,
        processes=tuple(map(str, found_processes)),
        process_age_s=max(map(attrgetter("age_s"), found_processes), default=None),
        **vars(served),
        **vars(log),
    )


def _is_served(host: Host, served: Served, unread: list[Unread]) -> bool:
    """Whether FILE holds the values that are served; one of an earlier exporter does not."""
    try:
        body = host.read_bytes(FILE, _BODY_LIMIT_BYTES) if served.hw_samples else b""
    except ReadError as error:
        unread += as_unread(FILE, error)
        return False
    return bool(body) and parse_metrics(body).checksum == served.checksum


def _log_state(host: Host, unread: list[Unread]) -> LogState:
    try:
        return parse_log(_tail(host, LOG))
    except ReadError as error:
        unread.append(Unread(LOG, error.status, str(error)))
        return LogState()


def fetch(port: int, limit_s: float) -> tuple[str, str, bytes]:
    """GET /metrics: `answer` and `reason` as in Exporter, and the body. Ends within the limit."""
    deadline = time.monotonic() + limit_s
    data = bytearray()
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as connection:
            connection.settimeout(limit_s)
            connection.connect(("127.0.0.1", port))
            connection.sendall(b"GET /metrics HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n")
            while len(data) < _BODY_LIMIT_BYTES:
                connection.settimeout(max(0.001, deadline - time.monotonic()))
                chunk = connection.recv(1 << 16)
                if not chunk:
                    break
                data += chunk
                if time.monotonic() > deadline:
                    raise socket.timeout
    except ConnectionRefusedError:
        return "refused", f"nothing listens on port {port}", b""
    except socket.timeout:
        return "timeout", f"no whole answer within {limit_s} s ({len(data)} bytes came)", b""
    except OSError as error:
        return "error", os.strerror(error.errno or 0), b""
    head, _, body = bytes(data).partition(b"\r\n\r\n")
    status = head.partition(b"\r\n")[0].decode("ascii", "replace")[:100]
    if not status.startswith("HTTP/") or status.split(" ")[1:2] != ["200"]:
        return "error", f"answered {status!r}", b""
    return "ok", "", body


@dataclass(frozen=True)
class Served:
    """What an answer in Prometheus's text format holds, as in Exporter."""

    samples: int
    hw_samples: int
    groups: tuple[str, ...]
    checksum: int
    scrape_duration_s: Optional[float]
    switches_served: Optional[int]
    gpu_errors: Optional[int]


def parse_metrics(body: bytes) -> Served:
    """Counts, and the few values that are needed. Comments and blank lines are passed over."""
    lines = [line for line in body.split(b"\n") if line.strip() and not line.startswith(b"#")]
    hw_lines = [line for line in lines if line.startswith(b"hw_")]
    switches = _value(hw_lines, b"hw_context_switches_total")
    errors = _value(hw_lines, b"hw_dmesg_gpu_errors_total")
    return Served(
        samples=len(lines),
        hw_samples=len(hw_lines),
        groups=tuple(sorted(set(map(_group, hw_lines)))[:_MOST_GROUPS]),
        checksum=zlib.crc32(b"\n".join(hw_lines)),
        scrape_duration_s=_value(hw_lines, b"hw_scrape_duration_seconds", most=1e9),
        switches_served=None if switches is None else int(switches),
        gpu_errors=None if errors is None else int(errors),
    )


def _group(line: bytes) -> str:
    """The second word of a metric's name: "gpu" of `hw_gpu_power_watts{...} 900`."""
    name = line.partition(b"{")[0].partition(b" ")[0]
    return name.split(b"_")[1].decode("utf-8", "replace")[:_GROUP_LENGTH]


def _value(lines: Sequence[bytes], name: bytes, most: float = 1e18) -> Optional[float]:
    """Value of the first sample of that name: `name{labels} value [time]`. None: no such number."""
    for line in lines:
        if line.startswith((name + b"{", name + b" ")):
            after_name = line.rpartition(b"}")[2] if b"}" in line else line[len(name) :]
            try:
                value = float(after_name.split()[0])
            except (IndexError, ValueError):
                return None
            return value if 0 <= value <= most else None
    return None


@dataclass(frozen=True)
class LogState:
    """What the exporter's log says, as in Exporter."""

    log_lines: tuple[str, ...] = ()
    timed_out: dict[str, int] = field(default_factory=dict)
    ends_in_timeout: bool = False
    skipped: tuple[str, ...] = ()
    restarts: tuple[float, ...] = ()


def parse_log(text: str) -> LogState:
    """From `[metrics_exporter] <plugin> timed out after 10s`, `<plugin> exited 99 ...` and so on.

    Plugins are counted from the exporter's last start on, where the log has it.
    """
    lines = list(filter(None, map(str.strip, text.split("\n"))))
    trouble: list[str] = []
    restarts: list[float] = []
    timed_out: dict[str, int] = {}
    skipped: list[str] = []
    for line in lines:
        plugin = line.partition("] ")[2].partition(" ")[0][:100]
        if "] Starting on port " in line:
            timed_out, skipped = {}, []
            continue
        if " timed out after " in line:
            timed_out[plugin] = timed_out.get(plugin, 0) + 1
        elif " exited 99 " in line:
            skipped.append(plugin)
        elif "Watchdog: exited" in line:
            restarts += time_of(line)
        elif "Address already in use" not in line:
            continue
        trouble.append(line[:300])
    return LogState(
        tuple(trouble[-_MOST_LINES:]),
        timed_out,
        bool(lines) and " timed out after " in lines[-1],
        tuple(dict.fromkeys(skipped)),
        tuple(restarts),
    )


def time_of(line: str) -> Iterator[float]:
    """Unix seconds of a line that begins with `[2026-02-12T19:58:10Z]`; nothing for another."""
    stamp, _, zone = line[1:].partition("]")[0].partition("Z")
    parts = stamp.replace("T", "-").replace(":", "-").split("-")
    if zone or len(parts) != 6 or not all(map(is_number, parts)):
        return
    try:
        # The time is UTC, and mktime takes local time.
        yield time.mktime((*map(int, parts), 0, 0, 0)) - time.timezone  # type: ignore[arg-type]
    except (OverflowError, ValueError):
        return


@dataclass(frozen=True)
class Process:
    """A process of an exporter."""

    pid: int
    parent: int
    role: str  # "loop" (runs the plugins), "server" (of the file), "plugin"; "raydiag" is ours
    state: str
    age_s: float

    def __str__(self) -> str:
        return f"{self.role} {self.pid} {self.state} {self.age_s:.0f}"


def processes(host: Host) -> Iterator[Process]:
    """The exporter's processes. Arguments are read of shells and Pythons only."""
    uptime_s = uptime_if_known(host) or 0.0
    for pid in process_ids(host):
        try:
            comm = host.read_text(f"/proc/{pid}/comm", 64)
            if not comm.startswith(_INTERPRETERS):
                continue
            stat = read_stat(host, f"/proc/{pid}")
            arguments = ""
            if stat.state not in "DZ":  # of a stuck process they may block
                arguments = host.read_text(f"/proc/{pid}/cmdline", 1 << 14)
        except ReadError:
            continue
        role = _role(comm, arguments)
        if role:
            yield Process(pid, stat.ppid, role, stat.state, max(0.0, uptime_s - stat.start_s))


_OWN_COMMAND = ("raydiag", "exporter", "run")


def _role(comm: str, arguments: str) -> str:
    """By the script that a shell runs, or the file that a Python is given; "" for others."""
    parts = arguments.split("\0")
    scripts = [part.rpartition("/")[2] for part in parts[1:] if not part.startswith("-")]
    script = "".join(scripts[:1])  # what an interpreter runs: the first argument that is no option
    if comm.startswith("metrics_export") or script.startswith("metrics_exporter"):
        return "loop"
    if script.endswith("_metrics_plugin.sh"):
        return "plugin"
    if comm.startswith("python") and FILE in parts:
        return "server"
    names = [part.rpartition("/")[2] for part in parts[:6]]
    return "raydiag" if _OWN_COMMAND in zip(names, names[1:], names[2:]) else ""


def _age_s(host: Host, path: str, now: float) -> Optional[float]:
    """Since the file's last change; None when it is not there."""
    try:
        return max(0.0, now - os.stat(host.path(path)).st_mtime)
    except OSError:
        return None


def _tail(host: Host, path: str) -> str:
    with host.descriptor(path) as fd:
        size = os.fstat(fd).st_size
        return os.pread(fd, _LOG_BYTES, max(0, size - _LOG_BYTES)).decode("utf-8", "replace")


def _context_switches(host: Host) -> Optional[int]:
    """Of all CPUs since boot."""
    try:
        return stat_numbers(host, ("ctxt",))["ctxt"]
    except ReadError:
        return None
