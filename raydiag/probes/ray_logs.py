"""Logs of this cluster's Ray session on the node: what its workers printed last.

Only ends of files are read, and only of workers that live and are not idle: what a dead process
left says nothing of now. Costs 0.5 to 2 ms of CPU for a worker.

Source: <session>/logs/{worker-<worker id>-<job id>-<pid>.{out,err},raylet.out,gcs_server.out}; the
session is that of the raylet which we descend from (--session_dir, --log_dir in its command line).
Sample of a worker's file:

    :job_id:02000000
    :actor_name:Trainer
    completed step: 118, seconds: 3.412, TFLOP/s/device: 402.117, loss: 2.871
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Optional, Union

from raydiag.errors import NoData, ReadError
from raydiag.host import Host, as_read_error
from raydiag.model import Status, Unread
from raydiag.probes import probe
from raydiag.procfs import split_stat
from raydiag.worker_log import MOST_LINES, LogEnd, joined, markers, parse_end, shown

DEFAULT_TEMP = "/tmp/ray"

_HEAD_BYTES, _SHORT_BYTES = 1024, 64 << 10
_LONG_BYTES = 256 << 10  # where the short end has no step
_BUDGET_BYTES, _LEAST_BYTES = 8 << 20, 16 << 10  # of all ends together, and of each
_MOST_WRAPPERS = 8  # between a worker and its raylet
_MOST_WORKERS = 256
# Workers, as far as the kernel keeps their name, that do not train: idle, of Ray itself, and ours.
_OTHERS = ("ray::IDLE", "ray::JobSupervi", "ray::RaydiagNod", "ray::DashboardA", "ray::RuntimeEnv")
_OWN_ACTOR = "RaydiagNodeActor"
_HARMLESS = b"Failed to establish connection to the metrics exporter agent"
_WORKER_FILE = re.compile(r"worker-([0-9a-f]+)-([0-9a-f]{8})-(\d+)\.(out|err)\Z")


@dataclass(frozen=True)
class RayLog:
    component: str  # "worker", "raylet", "gcs_server"
    path: str  # on the node; of a worker the file with the step line, else its .out
    session: str  # name of the session's directory, "session_<date>_<time>_<microseconds>_<pid>"
    session_from: str  # "raylet" (its arguments), "name" (was asked for), "newest" (a guess)
    size_bytes: int  # both files of a worker
    log_changed_s: float  # since the last change; supports a stall, a fresh change is no progress
    pid: Optional[int] = None  # of the worker, from the file's name; None for Ray's own logs
    process_age_s: Optional[float] = None  # since the worker was started
    job_id: str = ""  # Ray's, 8 hex digits, from the first lines; "" when not known
    actor: str = ""  # class of the actor or name of the task, from the first lines
    title: str = ""  # what the worker called itself last; mostly equal to `actor`
    whole: bool = False  # nothing of the files was left out
    step: Optional[int] = None  # last one in the end of a file, up to 256 KiB
    step_format: str = ""  # by its program or form, "MaxText"; "" when no step was seen
    total_steps: Optional[int] = None  # as the step's line has it
    step_duration_s: Optional[float] = None  # as the step's line has it
    step_age_s: Optional[float] = None  # by the line's own time; of a last line as log_changed_s
    step_stride: Optional[int] = None  # steps from one such line to the next; None: seen once
    step_line: str = ""  # at most 300 characters, secrets masked, as all lines here
    buffered: bool = False  # the end of `path` is half a line: output arrives late, in blocks
    errors: int = 0  # lines with words such as error or killed, last 64 KiB of each file
    error_lines: tuple[str, ...] = ()  # the last five of them
    comm_warnings: int = 0  # of NCCL or RCCL, in the end of each file: 64 to 256 KiB
    comm_lines: tuple[str, ...] = ()  # the last five lines of NCCL or RCCL there
    comm_inits_started: int = 0  # "Init START" and MSCCL++ lines there
    comm_inits_completed: int = 0  # "Init COMPLETE" lines there
    comm_init_waves: int = 0  # groups of those, apart by 20 other lines; all only if `whole`


def steps(log: RayLog) -> bool:
    """Whether it is one of training: in a second, one that moves may show it."""
    return log.step is not None


@probe(RayLog, timeout_s=4, samples=2, watch=steps)
def ray_logs(host: Host, session_name: str = "") -> Iterator[Union[RayLog, Unread]]:
    """One record per worker at work (newest log first), then the raylet's and the GCS's own logs.

    `session_name` is the cluster that is meant; without it the raylet above us decides. Raises
    NoData when the node has no log of it.
    """
    session = find_session(host, session_name)
    workers = _live_workers(host, session)
    most = max(_LEAST_BYTES, _BUDGET_BYTES // (2 * len(workers) or 1))
    for worker in workers[:_MOST_WORKERS]:
        try:
            record = _read_worker(host, session, worker, most)
        except NoData:
            continue
        except ReadError as error:
            yield Unread(worker.files[0], error.status, str(error))
            continue
        yield record
    if len(workers) > _MOST_WORKERS:
        reason = f"logs of {len(workers) - _MOST_WORKERS} more workers were not read"
        yield Unread(f"{session.logs}/worker-*", Status.ERROR, reason)
    for component in ("raylet", "gcs_server"):
        try:
            yield _read_component(host, session, component)
        except NoData:
            continue
        except ReadError as error:
            yield Unread(f"{session.logs}/{component}.out", error.status, str(error))


@dataclass(frozen=True)
class Session:
    name: str
    logs: str  # directory
    found: str  # as RayLog.session_from
    raylet: Optional[int]


def find_session(host: Host, wanted: str) -> Session:
    """The session of the raylet above us, of another raylet, or of a directory of that name.

    Several clusters may share a machine, so without a name only the raylet above us, or the only
    one, is sure. Raises NoData.
    """
    above = _raylet_above(host)
    session = _session_of(host, above) if above else None
    if session and wanted in ("", session.name):
        return session
    others = [_session_of(host, pid) for pid in _raylets(host)]
    found = {one.name: one for one in others if one}
    if wanted in found:
        return found[wanted]
    if not wanted and len(found) == 1:
        return next(iter(found.values()))
    path = host.realpath(f"{DEFAULT_TEMP}/{wanted or 'session_latest'}")
    if not host.exists(f"{path}/logs"):
        raise NoData(f"no logs of Ray session {wanted or 'session_latest'} in {DEFAULT_TEMP}")
    return Session(path.rsplit("/", 1)[-1], f"{path}/logs", "name" if wanted else "newest", None)


def _raylet_above(host: Host) -> Optional[int]:
    pid = os.getpid()
    while pid > 1:
        stat = _stat(host, pid)
        if stat is None or stat.comm == "raylet":
            return pid if stat else None
        pid = stat.ppid
    return None


def _raylets(host: Host) -> Iterator[int]:
    for name in host.listdir("/proc"):
        if name.isascii() and name.isdigit():
            try:
                comm = host.read_text(f"/proc/{name}/comm", 64)
            except ReadError:
                continue
            if comm == "raylet":
                yield int(name)


def _session_of(host: Host, raylet: int) -> Optional[Session]:
    """From the raylet's arguments; None when they are not to be had."""
    stat = _stat(host, raylet)
    if stat is None or stat.state in "DZ":  # reading the arguments could block, or gives nothing
        return None
    try:
        arguments = host.read_text(f"/proc/{raylet}/cmdline", 1 << 17).split("\0")
    except ReadError:
        return None
    values = dict(argument.lstrip("-").partition("=")[::2] for argument in arguments)
    values = {key.replace("-", "_"): value for key, value in values.items()}
    directory = values.get("session_dir", "").rstrip("/")
    logs = values.get("log_dir", "") or f"{directory}/logs"
    name = values.get("session_name", "") or directory.rsplit("/", 1)[-1]
    return Session(name, logs, "raylet", raylet) if directory or "log_dir" in values else None


@dataclass(frozen=True)
class _FileStat:
    comm: str
    state: str
    ppid: int
    start_s: float  # since boot


def _stat(host: Host, pid: int) -> Optional[_FileStat]:
    path = f"/proc/{pid}/stat"
    try:
        comm, values = split_stat(host.read_text(path, 4096), path)
    except ReadError:
        return None
    return _FileStat(comm, values[0], int(values[1]), int(values[19]) / os.sysconf("SC_CLK_TCK"))


@dataclass(frozen=True)
class _WorkerLogs:
    pid: int
    job_id: str
    files: tuple[str, ...]  # .out before .err
    age_s: float  # of the process
    changed: float  # newest change of its files, Unix seconds


def _live_workers(host: Host, session: Session) -> list[_WorkerLogs]:
    """Workers whose process lives and is not idle, the one that wrote last first."""
    alive = set(host.listdir("/proc"))
    uptime_s = _uptime_s(host)
    files: dict[tuple[int, str, str], list[str]] = {}
    for name in sorted(host.listdir(session.logs), reverse=True):  # .out before .err
        match = _WORKER_FILE.match(name)
        if match and match[3] in alive:
            key = (int(match[3]), match[1], match[2])
            files.setdefault(key, []).append(f"{session.logs}/{name}")
    workers = []
    for (pid, _, job_id), paths in files.items():
        stat = _stat(host, pid)
        if stat is None or stat.state == "Z" or stat.comm.startswith(_OTHERS):
            continue
        ours = _is_below(host, stat, session.raylet)
        changed = max(_changed(host, path) for path in paths)
        age_s = uptime_s - stat.start_s
        # A number that was given to another process since: the log is older than the process.
        if ours and time.time() - changed <= age_s + 2:
            workers.append(_WorkerLogs(pid, job_id, tuple(paths), age_s, changed))
    return sorted(workers, key=lambda worker: -worker.changed)


def _is_below(host: Host, stat: _FileStat, raylet: Optional[int]) -> bool:
    """Whether the raylet started the process, through a wrapper that stays perhaps."""
    if raylet is None:
        return stat.comm.startswith("ray::")
    for _ in range(_MOST_WRAPPERS):
        if stat.ppid == raylet:
            return True
        above = _stat(host, stat.ppid)
        if above is None:
            return False
        stat = above
    return False


def _uptime_s(host: Host) -> float:
    first = host.read_text("/proc/uptime", 100).partition(" ")[0]
    try:
        return float(first)
    except ValueError:
        raise ReadError(f"/proc/uptime: not a number: {first[:80]!r}") from None


def _changed(host: Host, path: str) -> float:
    try:
        return os.stat(host.path(path)).st_mtime
    except OSError:
        return 0.0


@dataclass(frozen=True)
class _File:
    head: bytes
    tail: bytes
    size: int
    changed: float


def _read_ends(host: Host, path: str, tail_bytes: int) -> _File:
    """First and last bytes of a file; raises ReadError."""
    fd = host.open(path)
    try:
        status = os.fstat(fd)
        start = max(0, status.st_size - tail_bytes)
        tail = os.pread(fd, tail_bytes, start)
        head = os.pread(fd, _HEAD_BYTES, 0) if start else tail[:_HEAD_BYTES]
    except OSError as error:
        raise as_read_error(error, path) from None
    finally:
        os.close(fd)
    if start:
        tail = tail.partition(b"\n")[2]  # the first line is cut
    return _File(head, tail, status.st_size, status.st_mtime)


def _read_worker(host: Host, session: Session, worker: _WorkerLogs, most_bytes: int) -> RayLog:
    for tail_bytes in (min(_SHORT_BYTES, most_bytes), min(_LONG_BYTES, most_bytes)):
        read = [(path, _read_ends(host, path, tail_bytes)) for path in worker.files]
        ends = [_parsed(host, path, file, tail_bytes) for path, file in read]
        whole = max(file.size for _, file in read) <= tail_bytes
        if whole or any(end.step is not None for end in ends):
            break
    names = _names([text for _, file in read for text in (file.head, file.tail)])
    if names.get("actor_name", "").startswith(_OWN_ACTOR):
        raise NoData(f"worker {worker.pid} is raydiag's own")
    # The one with the most steps; .out, which comes first, when there are none.
    at = max(range(len(ends)), key=lambda i: (ends[i].step is not None, ends[i].step or 0, -i))
    path, now = read[at][0], time.time()
    end = joined(ends, ends[at])
    title = names.get("actor_name") or names.get("task_name", "")
    values = dict(vars(end))
    stamp, is_last = values.pop("step_stamp"), values.pop("step_is_last")
    changed_s = max(0.0, now - read[at][1].changed)
    return RayLog(
        component="worker",
        path=path,
        session=session.name,
        session_from=session.found,
        size_bytes=sum(file.size for _, file in read),
        log_changed_s=max(0.0, now - max(file.changed for _, file in read)),
        pid=worker.pid,
        process_age_s=worker.age_s,
        job_id=names.get("job_id") or worker.job_id.replace("ffffffff", ""),
        actor=names.get("first actor_name") or title,
        title=title,
        whole=whole,
        step_age_s=changed_s if is_last else _age_s(stamp, now, changed_s),
        **values,
    )


def _parsed(host: Host, path: str, file: _File, tail_bytes: int) -> LogEnd:
    end = parse_end(file.tail)
    before = _rotated(host, path) if end.step is None and file.size < tail_bytes else ""
    return parse_end(_read_ends(host, before, tail_bytes).tail + file.tail) if before else end


def _rotated(host: Host, path: str) -> str:
    """Where Ray put the file when it became too long; empty when it did not."""
    stem, _, kind = path.rpartition(".")
    return next((p for p in (f"{stem}.1.{kind}", f"{path}.1") if host.exists(p)), "")


def _names(texts: Sequence[bytes]) -> dict[str, str]:
    """The last value of each marker, and under "first <marker>" the first one."""
    names: dict[str, str] = {}
    for text in texts:
        for kind, value in markers(text):
            names.setdefault(f"first {kind}", value)
            names[kind] = value
    return names


def _age_s(stamp: Optional[float], now: float, changed_s: float) -> Optional[float]:
    """None for a time that cannot be: a line is not younger than the file's last change."""
    return now - stamp if stamp is not None and now - stamp >= changed_s - 5 else None


def _read_component(host: Host, session: Session, component: str) -> RayLog:
    """Errors that the raylet or the global control store logged last."""
    path = f"{session.logs}/{component}.out"
    file = _read_ends(host, path, _LEAST_BYTES)
    bad = [
        line
        for line in file.tail.split(b"\n")
        if (b" E " in line[:40] or b" C " in line[:40]) and _HARMLESS not in line
    ]
    return RayLog(
        component=component,
        path=path,
        session=session.name,
        session_from=session.found,
        size_bytes=file.size,
        log_changed_s=max(0.0, time.time() - file.changed),
        whole=file.size <= _LEAST_BYTES,
        errors=len(bad),
        error_lines=tuple(shown(line) for line in bad[-MOST_LINES:]),
    )
