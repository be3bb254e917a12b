"""The metrics exporter on the node: does it answer, and how old is what it serves.

An HTTP server that hands out a file goes on answering when the loop that writes the file hangs, and
Prometheus stamps the old values as fresh. So what tells the age of the values is read as well: the
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
from typing import Optional, Union

from raydiag.errors import NoData, ReadError
from raydiag.host import Host, as_read_error
from raydiag.model import Unread
from raydiag.probes import SOCKETS, probe
from raydiag.procfs import split_stat

FILE = "/tmp/node_hw_metrics.prom"
LOG = "/tmp/metrics_exporter.log"

_ANSWER_LIMIT_S = 2.3
_BODY_LIMIT_BYTES = 8 << 20
_LOG_BYTES = 64 << 10
_LEAST_AGE_S = 60.0  # several cycles of the exporter; younger values need no further look
_MOST_LINES = 5


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


@probe(Exporter, timeout_s=3, reader=SOCKETS, samples=2)
def exporter(host: Host, port: int = 9400) -> Iterator[Union[Exporter, Unread]]:
    """One record. Processes are looked for only where something may be wrong.

    Raises NoData when nothing listens on the port and nothing is left of an exporter.
    """
    began = time.monotonic()
    answer, reason, body = fetch(port, _ANSWER_LIMIT_S)
    duration_s, now = time.monotonic() - began, time.time()
    served, log = parse_metrics(body), LogState()
    file_age_s, log_age_s = _age_s(host, FILE, now), _age_s(host, LOG, now)
    if answer == "refused" and file_age_s is None and log_age_s is None:
        raise NoData(f"nothing listens on port {port}, and nothing is left of an exporter")
    data_age_s = None
    try:
        if file_age_s is not None and served.hw_samples and _is_in_file(host, served):
            data_age_s = file_age_s
    except ReadError as error:
        yield Unread(FILE, error.status, str(error))
    try:
        if log_age_s is not None:
            log = parse_log(_tail(host, LOG))
    except ReadError as error:
        yield Unread(LOG, error.status, str(error))
    young = data_age_s is not None and data_age_s < _LEAST_AGE_S
    found = [] if young else list(processes(host))
    yield Exporter(
        port=port,
        answer=answer,
        reason=reason,
        duration_s=duration_s,
        body_bytes=len(body),
        samples=served.samples,
        hw_samples=served.hw_samples,
        groups=served.groups,
        checksum=served.checksum,
        scrape_duration_s=served.scrape_duration_s,
        data_time_s=None if data_age_s is None else now - data_age_s,
        data_age_s=data_age_s,
        switches_served=_whole(served.context_switches),
        switches_now=None if young else _context_switches(host),
        uptime_s=None if young else _uptime_s(host),
        file_age_s=file_age_s,
        log_age_s=log_age_s,
        log_lines=log.lines,
        timed_out=log.timed_out,
        ends_in_timeout=log.ends_in_timeout,
        skipped=log.skipped,
        restarts=log.restarts,
        processes=tuple(f"{p.role} {p.pid} {p.state} {p.age_s:.0f}" for p in found),
        process_age_s=max((process.age_s for process in found), default=None),
    )


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
    """What an answer in Prometheus's text format holds."""

    samples: int = 0
    hw_samples: int = 0
    groups: tuple[str, ...] = ()
    checksum: int = 0
    scrape_duration_s: Optional[float] = None
    context_switches: Optional[float] = None


def parse_metrics(body: bytes) -> Served:
    """Counts, and the few values that are needed. Comments and blank lines are passed over."""
    lines = [line for line in body.split(b"\n") if line.strip() and not line.startswith(b"#")]
    own = [line for line in lines if line.startswith(b"hw_")]
    names = {line.partition(b"{")[0].partition(b" ")[0] for line in own}
    groups = {name.split(b"_")[1].decode("utf-8", "replace")[:40] for name in names}
    return Served(
        samples=len(lines),
        hw_samples=len(own),
        groups=tuple(sorted(groups)[:40]),
        checksum=zlib.crc32(b"\n".join(own)),
        scrape_duration_s=_value(own, b"hw_scrape_duration_seconds", most=1e9),
        context_switches=_value(own, b"hw_context_switches_total"),
    )


def _whole(value: Optional[float]) -> Optional[int]:
    return None if value is None else int(value)


def _value(lines: Sequence[bytes], name: bytes, most: float = 1e18) -> Optional[float]:
    """Value of the first sample of that name: `name{labels} value [time]`. None: no such number."""
    for line in lines:
        if line.startswith((name + b"{", name + b" ")):
            rest = line.rpartition(b"}")[2] if b"}" in line else line[len(name) :]
            try:
                value = float(rest.split()[0])
            except (IndexError, ValueError):
                return None
            return value if 0 <= value <= most else None
    return None


@dataclass(frozen=True)
class LogState:
    """What the exporter's log says, as in Exporter."""

    lines: tuple[str, ...] = ()
    timed_out: dict[str, int] = field(default_factory=dict)
    ends_in_timeout: bool = False
    skipped: tuple[str, ...] = ()
    restarts: tuple[float, ...] = ()


def parse_log(text: str) -> LogState:
    """From `[metrics_exporter] <plugin> timed out after 10s`, `<plugin> exited 99 ...` and so on.

    Plugins are counted from the exporter's last start on, where the log has it.
    """
    lines = [line.strip() for line in text.split("\n") if line.strip()]
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
    if zone or len(parts) != 6 or not all(part.isascii() and part.isdigit() for part in parts):
        return
    numbers = [int(part) for part in parts]
    try:
        # The time is UTC, and mktime takes local time.
        yield time.mktime((*numbers, 0, 0, 0)) - time.timezone  # type: ignore[arg-type]
    except (OverflowError, ValueError):
        return


@dataclass(frozen=True)
class Process:
    pid: int
    parent: int
    role: str  # "loop" (runs the plugins), "server" (of the file), "plugin"; "raydiag" is ours
    state: str
    age_s: float


def processes(host: Host) -> Iterator[Process]:
    """The exporter's processes. Arguments are read of shells and Pythons only."""
    uptime_s = _uptime_s(host) or 0.0
    for name in host.listdir("/proc"):
        if not (name.isascii() and name.isdigit()):
            continue
        try:
            comm = host.read_text(f"/proc/{name}/comm", 64)
            if not comm.startswith(("bash", "sh", "python", "metrics_export", "raydiag")):
                continue
            _, values = split_stat(host.read_text(f"/proc/{name}/stat", 4096), name)
            arguments = ""
            if values[0] not in "DZ":  # of a stuck process they may block
                arguments = host.read_text(f"/proc/{name}/cmdline", 1 << 14)
        except ReadError:
            continue
        role = _role(comm, arguments)
        if role:
            start_s = int(values[19]) / os.sysconf("SC_CLK_TCK")
            age_s = max(0.0, uptime_s - start_s)
            yield Process(int(name), int(values[1]), role, values[0], age_s)


def _role(comm: str, arguments: str) -> str:
    """By the script that a shell runs, or the file that a Python is given; "" for others."""
    parts = arguments.split("\0")
    script = next((part for part in parts[1:] if not part.startswith("-")), "").rpartition("/")[2]
    if comm.startswith("metrics_export") or script.startswith("metrics_exporter"):
        return "loop"
    if script.endswith("_metrics_plugin.sh"):
        return "plugin"
    if comm.startswith("python") and FILE in parts:
        return "server"
    words = [part.rpartition("/")[2] for part in parts[:6]]
    ours = any(words[n : n + 3] == ["raydiag", "exporter", "run"] for n in range(4))
    return "raydiag" if ours else ""


def _is_in_file(host: Host, served: Served) -> bool:
    """Whether FILE holds the values that are served; one of an earlier exporter does not."""
    return parse_metrics(host.read_bytes(FILE, _BODY_LIMIT_BYTES)).checksum == served.checksum


def _age_s(host: Host, path: str, now: float) -> Optional[float]:
    """Since the file's last change; None when it is not there."""
    try:
        return max(0.0, now - os.stat(host.path(path)).st_mtime)
    except OSError:
        return None


def _tail(host: Host, path: str) -> str:
    fd = host.open(path)
    try:
        size = os.fstat(fd).st_size
        data = os.pread(fd, _LOG_BYTES, max(0, size - _LOG_BYTES))
    except OSError as error:
        raise as_read_error(error, path) from None
    finally:
        os.close(fd)
    return data.decode("utf-8", "replace")


def _context_switches(host: Host) -> Optional[int]:
    """Of all CPUs since boot."""
    try:
        text = host.read_text("/proc/stat", 4 << 20)  # interrupt counts of many CPUs come first
    except ReadError:
        return None
    for line in text.split("\n"):
        name, _, value = line.partition(" ")
        if name == "ctxt" and value.isascii() and value.isdigit():
            return int(value)
    return None


def _uptime_s(host: Host) -> Optional[float]:
    try:
        return float(host.read_text("/proc/uptime", 100).split()[0])
    except (ReadError, ValueError, IndexError):
        return None
