"""Logs of this cluster's Ray session on the node: what its workers printed last.

Only ends of files are read, of workers that live and are not idle, and of the last few that ended
while they trained: how far a killed rank had come. Costs 0.5 to 2 ms of CPU for a worker. On the
head there is also what the newest submitted jobs printed, since of some trainings the driver alone
prints steps.

Source: <session>/logs/{worker-<worker id>-<job id>-<pid>.{out,err},job-driver-<submission id>.log,
raylet.out,gcs_server.out}; the session is that of the raylet which we descend from (--session_dir,
--log_dir in its command line).
Sample of a worker's file:

    :job_id:02000000
    :actor_name:Trainer
    completed step: 118, seconds: 3.412, TFLOP/s/device: 402.117, loss: 2.871
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple, Optional, Union

from raydiag.errors import NoData, ReadError
from raydiag.host import Host, attempted
from raydiag.model import Status, Unread
from raydiag.probes import probe
from raydiag.procfs import ProcessStat, process_ids, read_stat, uptime_s
from raydiag.worker_log import MOST_LINES, LogEnd, joined, markers, parse_end, shown

DEFAULT_TEMP = "/tmp/ray"

_HEAD_BYTES, _SHORT_BYTES = 1024, 64 << 10
_LONG_BYTES = 256 << 10  # where the short end has no step
_BUDGET_BYTES, _LEAST_BYTES = 8 << 20, 16 << 10  # of all ends together, and of each
_MOST_WRAPPERS = 8  # between a worker and its raylet
_MOST_ANCESTORS = 32  # between a process and its worker
_MOST_WORKERS = 256
_LOOKED_FOR_ENDED, _MOST_ENDED, _ENDED_S = 32, 8, 86_400.0  # files; workers; since they wrote last
# Workers, as far as the kernel keeps their name, that do not train: idle, of Ray itself, and ours.
_OTHERS = ("ray::IDLE", "ray::JobSupervi", "ray::RaydiagNod", "ray::DashboardA", "ray::RuntimeEnv")
_OWN_ACTOR = "RaydiagNodeActor"
_HARMLESS = b"Failed to establish connection to the metrics exporter agent"
_MOST_DRIVERS, _DRIVER_DAYS_S = 4, 86400.0
_MOST_LOOKS = 400  # at files of drivers
_UNIX_TIME = re.compile(r"(?<!\d)1\d{9}(?!\d)")
_DRIVER_FILE = re.compile(r"job-driver-(?!raydiag-)(.+)\.log\Z")
_WORKER_FILE = re.compile(r"worker-([0-9a-f]+)-([0-9a-f]{8})-(\d+)\.(out|err)\Z")


@dataclass(frozen=True)
class RayLog:
    component: str  # "worker", "ended worker", "driver" (of a job), "raylet", "gcs_server"
    path: str  # on the node; of a worker the file with the step line, else its .out
    session: str  # name of the session's directory, "session_<date>_<time>_<microseconds>_<pid>"
    session_from: str  # "raylet" (its arguments), "name" (was asked for), "newest" (a guess)
    size_bytes: int  # both files of a worker
    log_changed_s: float  # since the last change; supports a stall, a fresh change is no progress
    pid: Optional[int] = None  # of the worker, from the file's name; None for Ray's own logs
    process_age_s: Optional[float] = None  # since the worker was started
    cpu_s: Optional[float] = None  # CPU time that the worker, and what lives below it, have used
    job_id: str = ""  # Ray's, 8 hex digits, from the first lines; of a driver its submission id
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
    step_line_before: str = ""  # that of the step before it; "": not seen
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
    return log.step is not None and log.component == "worker"


@probe(RayLog, identity=("session", "pid", "path"), timeout_s=4, samples=2, watch=steps)
def ray_logs(host: Host, session_name: str = "") -> Iterator[Union[RayLog, Unread]]:
    """One record per worker at work (newest log first), of workers that ended after a step, of
    drivers, of the raylet and of the GCS.

    `session_name` is the cluster that is meant; without it the raylet above us decides. Raises
    NoData when the node has no log of it.
    """
    session = find_session(host, session_name)
    workers = _live_workers(host, session)
    most = max(_LEAST_BYTES, _BUDGET_BYTES // (2 * len(workers) or 1))
    for worker in workers[:_MOST_WORKERS]:
        yield from attempted(worker.files[0], _read_worker, host, session, worker, most)
    if len(workers) > _MOST_WORKERS:
        reason = f"logs of {len(workers) - _MOST_WORKERS} more workers were not read"
        yield Unread(f"{session.logs}/worker-*", Status.ERROR, reason)
    for worker in _ended_workers(host, session):
        for log in attempted(worker.files[0], _read_worker, host, session, worker, _SHORT_BYTES):
            if isinstance(log, RayLog) and log.step is not None:
                yield log
    drivers = _driver_logs(host, session)
    for path in _newest_drivers(host, drivers[:_MOST_LOOKS]):
        yield from attempted(path, _read_driver, host, session, path)
    if len(drivers) > _MOST_LOOKS:
        reason = f"logs of {len(drivers) - _MOST_LOOKS} more jobs were not looked at"
        # Said, and no blindness: nearly all of them are of jobs that ended long ago.
        yield Unread(f"{session.logs}/job-driver-*", Status.NO_DATA, reason)
    for component in ("raylet", "gcs_server"):
        path = f"{session.logs}/{component}.out"
        yield from attempted(path, _read_component, host, session, component, path)


class Session(NamedTuple):
    """A Ray session on the node."""

    name: str
    logs: str  # directory
    found: str  # as RayLog.session_from
    raylet: Optional[int]


def find_session(host: Host, name: str) -> Session:
    """The session of the raylet above us, of another raylet, or of a directory of that name.

    Several clusters may share a machine, so without a name only the raylet above us, or the only
    one, is sure. Raises NoData.
    """
    above = _raylet_above(host)
    session = _session_of(host, above) if above else None
    if session and name in ("", session.name):
        return session
    sessions = {session.name: session for session in _sessions(host)}
    if name in sessions:
        return sessions[name]
    if not name and len(sessions) == 1:
        return sessions.popitem()[1]
    path = host.realpath(f"{DEFAULT_TEMP}/{name or 'session_latest'}")
    if not host.exists(f"{path}/logs"):
        raise NoData(f"no logs of Ray session {name or 'session_latest'} in {DEFAULT_TEMP}")
    return Session(path.rsplit("/", 1)[-1], f"{path}/logs", "name" if name else "newest", None)


def _raylet_above(host: Host) -> Optional[int]:
    pid = os.getpid()
    while pid > 1 and (stat := _stat(host, pid)):
        if stat.comm == "raylet":
            return pid
        pid = stat.ppid
    return None


def _sessions(host: Host) -> Iterator[Session]:
    """The sessions of all raylets."""
    for pid in process_ids(host):
        if host.text_or_empty(f"/proc/{pid}/comm", 64) == "raylet":
            session = _session_of(host, pid)
            if session:
                yield session


def _session_of(host: Host, raylet: int) -> Optional[Session]:
    """From the raylet's arguments; None when they cannot be read."""
    stat = _stat(host, raylet)
    if stat is None or stat.state in "DZ":  # reading the arguments could block, or gives nothing
        return None
    options = _options(host.text_or_empty(f"/proc/{raylet}/cmdline", 1 << 17).split("\0"))
    directory = options.get("session_dir", "").rstrip("/")
    if not directory and "log_dir" not in options:
        return None
    logs = options.get("log_dir", "") or f"{directory}/logs"
    name = options.get("session_name", "") or directory.rsplit("/", 1)[-1]
    return Session(name, logs, "raylet", raylet)


def _options(arguments: Sequence[str]) -> dict[str, str]:
    """`--log-dir=/tmp/x` -> {"log_dir": "/tmp/x"}."""
    options = {}
    for argument in arguments:
        name, _, value = argument.lstrip("-").partition("=")
        options[name.replace("-", "_")] = value
    return options


def _stat(host: Host, pid: int) -> Optional[ProcessStat]:
    """None when the process has ended or is hidden."""
    try:
        return read_stat(host, f"/proc/{pid}")
    except ReadError:
        return None


class _WorkerLogs(NamedTuple):
    """The files of one worker."""

    pid: int
    job_id: str
    files: tuple[str, ...]  # .out before .err
    age_s: Optional[float]  # of the process; None: it is gone
    cpu_s: Optional[float]  # that it has used
    changed: float  # newest change of its files, Unix seconds


def _live_workers(host: Host, session: Session) -> list[_WorkerLogs]:
    """Workers whose process lives and is not idle, the one that wrote last first."""
    up_s, files = uptime_s(host), _worker_files(host, session, alive=True)
    cpu_s = _cpu_s(host, {pid for pid, _, _ in files})
    workers = []
    for (pid, _, job_id), paths in files.items():
        stat = _stat(host, pid)
        if stat is None or stat.state == "Z" or stat.comm.startswith(_OTHERS):
            continue
        changed = max(_changed(host, path) for path in paths)
        age_s = up_s - stat.start_s
        # A number that was given to another process since: the log is older than the process.
        is_older = time.time() - changed > age_s + 2
        if _is_below(host, stat, session.raylet) and not is_older:
            workers.append(_WorkerLogs(pid, job_id, tuple(paths), age_s, cpu_s[pid], changed))
    return sorted(workers, key=attrgetter("changed"), reverse=True)


def _cpu_s(host: Host, workers: Collection[int]) -> dict[int, float]:
    """CPU time of each worker and of what it has started, as far as that lives."""
    stats, ticks = {}, dict.fromkeys(workers, 0)
    for pid in process_ids(host) if workers else ():
        if stat := _stat(host, pid):
            stats[pid] = stat
    for pid, stat in stats.items():
        for _ in range(_MOST_ANCESTORS):
            if pid in ticks:
                ticks[pid] += stat.cpu_ticks
                break
            pid = stats[pid].ppid if pid in stats else 0
    return {pid: count / os.sysconf("SC_CLK_TCK") for pid, count in ticks.items()}


def _worker_files(
    host: Host, session: Session, alive: bool
) -> dict[tuple[int, str, str], list[str]]:
    """Of workers whose pid exists, or of all others: paths by pid, worker id and job id.

    .out comes before .err.
    """
    pids = set(process_ids(host))
    files: dict[tuple[int, str, str], list[str]] = {}
    for name in sorted(host.listdir(session.logs), reverse=True):
        match = _WORKER_FILE.match(name)
        if match and (int(match[3]) in pids) is alive:
            key = (int(match[3]), match[1], match[2])
            files.setdefault(key, []).append(f"{session.logs}/{name}")
    return files


def _ended_workers(host: Host, session: Session) -> list[_WorkerLogs]:
    """Of workers that are gone, those that wrote last.

    Files of a long session are many, and looking at each may cost a round trip to a file server:
    the highest pids stand for the newest.
    """
    files = _worker_files(host, session, alive=False)
    oldest = time.time() - _ENDED_S
    workers = []
    for key in sorted(files, reverse=True)[:_LOOKED_FOR_ENDED]:
        changed = max(_changed(host, path) for path in files[key])
        if changed > oldest:
            workers.append(_WorkerLogs(key[0], key[2], tuple(files[key]), None, None, changed))
    return sorted(workers, key=attrgetter("changed"), reverse=True)[:_MOST_ENDED]


def _is_below(host: Host, stat: ProcessStat, raylet: Optional[int]) -> bool:
    """Whether the raylet started the process, perhaps through a wrapper process."""
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


def _changed(host: Host, path: str) -> float:
    try:
        return os.stat(host.path(path)).st_mtime
    except OSError:
        return 0.0


class _File(NamedTuple):
    head: bytes
    tail: bytes
    size: int
    changed: float


def _read_ends(host: Host, path: str, tail_bytes: int) -> _File:
    """First and last bytes of a file; raises ReadError."""
    with host.descriptor(path) as fd:
        status = os.fstat(fd)
        start = max(0, status.st_size - tail_bytes)
        tail = os.pread(fd, tail_bytes, start)
        head = os.pread(fd, _HEAD_BYTES, 0) if start else tail[:_HEAD_BYTES]
    if start:
        tail = tail.partition(b"\n")[2]  # the first line is cut
    return _File(head, tail, status.st_size, status.st_mtime)


class _ParsedFile(NamedTuple):
    path: str
    file: _File
    end: LogEnd

    @property
    def progress(self) -> tuple[bool, int]:
        """For order: files with a step first, by the step."""
        return self.end.step is not None, self.end.step or 0


def _read_worker(host: Host, session: Session, worker: _WorkerLogs, most_bytes: int) -> RayLog:
    parsed, whole = _read_files(host, worker, most_bytes)
    texts: list[bytes] = []
    for each in parsed:
        texts += (each.file.head, each.file.tail)
    names = _names(texts)
    if names.get("actor_name", "").startswith(_OWN_ACTOR):
        raise NoData(f"worker {worker.pid} is raydiag's own")
    best = max(parsed, key=attrgetter("progress"))  # of equals .out, which comes first
    title = names.get("actor_name") or names.get("task_name", "")
    now = time.time()
    end = joined(list(map(attrgetter("end"), parsed)), best.end)
    return RayLog(
        component="worker" if worker.age_s is not None else "ended worker",
        path=best.path,
        session=session.name,
        session_from=session.found,
        size_bytes=sum(map(attrgetter("file.size"), parsed)),
        log_changed_s=max(0.0, now - max(map(attrgetter("file.changed"), parsed))),
        pid=worker.pid,
        process_age_s=worker.age_s,
        cpu_s=worker.cpu_s,
        job_id=names.get("job_id") or worker.job_id.replace("ffffffff", ""),
        actor=names.get("first actor_name") or title,
        title=title,
        whole=whole,
        **_values(end, best.file),
    )


def _read_files(host: Host, worker: _WorkerLogs, most_bytes: int) -> tuple[list[_ParsedFile], bool]:
    """The ends of its files, more of them where the short ends have no step; whether all of it."""
    parsed: list[_ParsedFile] = []
    whole = False
    for tail_bytes in (min(_SHORT_BYTES, most_bytes), min(_LONG_BYTES, most_bytes)):
        parsed = []
        for path in worker.files:
            file = _read_ends(host, path, tail_bytes)
            parsed.append(_ParsedFile(path, file, _parsed(host, path, file, tail_bytes)))
        whole = max(map(attrgetter("file.size"), parsed)) <= tail_bytes
        if whole or any(each.end.step is not None for each in parsed):
            break
    return parsed, whole


def _parsed(host: Host, path: str, file: _File, tail_bytes: int) -> LogEnd:
    end = parse_end(file.tail)
    before = _rotated(host, path) if end.step is None and file.size < tail_bytes else ""
    return parse_end(_read_ends(host, before, tail_bytes).tail + file.tail) if before else end


def _rotated(host: Host, path: str) -> str:
    """Where Ray put the file when it became too long; empty when it did not."""
    stem, _, kind = path.rpartition(".")
    for rotated in (f"{stem}.1.{kind}", f"{path}.1"):
        if host.exists(rotated):
            return rotated
    return ""


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


def _driver_logs(host: Host, session: Session) -> list[str]:
    """What submitted jobs have printed: likely the newest first, by names and inode numbers alone.

    A head may have thousands of them, and each `stat` takes its time where storage is slow.
    """
    begun = {}
    with contextlib.suppress(OSError), os.scandir(host.path(session.logs)) as entries:
        for entry in entries:
            if _DRIVER_FILE.match(entry.name):
                stamp = _UNIX_TIME.search(entry.name)
                begun[f"{session.logs}/{entry.name}"] = (stamp[0] if stamp else "", entry.inode())
    return sorted(begun, key=begun.__getitem__, reverse=True)


def _newest_drivers(host: Host, paths: Sequence[str]) -> list[str]:
    """Those of the logs that were written to within a day, the newest first."""
    changed = {path: _changed(host, path) for path in paths}
    newest = sorted(changed, key=changed.__getitem__, reverse=True)[:_MOST_DRIVERS]
    return [path for path in newest if time.time() - changed[path] < _DRIVER_DAYS_S]


def _read_driver(host: Host, session: Session, path: str) -> RayLog:
    """Steps that a job printed. Raises NoData without any."""
    file = _read_ends(host, path, _LONG_BYTES)
    end = parse_end(file.tail)
    if end.step is None:
        raise NoData(f"{path}: no step in its end")
    match = _DRIVER_FILE.match(path.rsplit("/", 1)[-1])
    return RayLog(
        component="driver",
        path=path,
        session=session.name,
        session_from=session.found,
        size_bytes=file.size,
        log_changed_s=max(0.0, time.time() - file.changed),
        job_id=match[1] if match else "",
        **_values(end, file),
    )


def _values(end: LogEnd, file: _File) -> dict[str, Any]:
    """What a record says of the end of the file with the steps."""
    values, now = dict(vars(end)), time.time()
    stamp, is_last = values.pop("step_stamp"), values.pop("step_is_last")
    changed_s = max(0.0, now - file.changed)
    values["step_age_s"] = changed_s if is_last else _age_s(stamp, now, changed_s)
    return values


def _read_component(host: Host, session: Session, component: str, path: str) -> RayLog:
    """Errors that the raylet or the global control store logged last."""
    file = _read_ends(host, path, _LEAST_BYTES)
    errors = list(filter(_is_error, file.tail.split(b"\n")))
    return RayLog(
        component=component,
        path=path,
        session=session.name,
        session_from=session.found,
        size_bytes=file.size,
        log_changed_s=max(0.0, time.time() - file.changed),
        whole=file.size <= _LEAST_BYTES,
        errors=len(errors),
        error_lines=tuple(map(shown, errors[-MOST_LINES:])),
    )


def _is_error(line: bytes) -> bool:
    """Whether Ray logged it at level error or critical."""
    return (b" E " in line[:40] or b" C " in line[:40]) and _HARMLESS not in line
