"""Ray's processes on the node and what they started: raylet, its agents, workers, their children.

Source: /proc/<pid>/{stat,cmdline,environ} (proc(5)); btime in /proc/stat
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Optional, Union

from raydiag.errors import Denied, NoData, ParseError, ReadError
from raydiag.host import Host
from raydiag.masking import masked_line
from raydiag.model import Status, Unread
from raydiag.probes import PROCESSES, probe
from raydiag.procfs import ProcessStat, boot_time_s, process_ids, read_stat

# All nodes of a job must agree on these, or its ranks look for each other on different networks.
VARIABLES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
# What a scheduler, or the script that it started, says of the job.
# fmt: off
JOB_VARIABLES = (
    "SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_NODELIST", "SLURM_JOB_NUM_NODES",
    "JOB_NODELIST", "NNODES", "JAX_COORDINATOR_PORT",
)
# Which GPUs a process may use, and which rank it is, as launchers and shells set it.
PLACE_VARIABLES = (
    "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES",
    "RANK", "LOCAL_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID",
)
# What decides how much a job that hangs or dies leaves behind, and where.
SETTING_VARIABLES = (
    "NCCL_DEBUG", "RCCL_DEBUG", "NCCL_RAS_ENABLE", "NCCL_RAS_ADDR", "TORCH_FR_BUFFER_SIZE",
    "TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
    "TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_NCCL_ENABLE_MONITORING",
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "PYTHONUNBUFFERED",
)
# fmt: on

_TITLE = "ray::"  # Ray titles its workers "ray::<actor or task>"
_AGENTS = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")  # Ray's own, run nothing of the user's
_SUPERVISOR = "ray::JobSupervisor"  # Ray's own as well; below it are the drivers of jobs
_OWN_ACTOR = "ray::RaydiagNodeActor"
_OWN_DRIVER = "raydiag.cluster.coordinator"  # in the arguments of our job's shell and Python
_COMM_LENGTH = 15
_COMMAND_LENGTH = 200
_ENVIRON_LIMIT_BYTES = 1 << 20
_JOB_VALUE_LENGTH = 1 << 14  # a node list in brackets; one that is cut would name other hosts

# To the end of the argument: too much is hidden rather than too little.
_SECRET = re.compile(
    r"((?:token|secret|password|passwd|passphrase|key|credentials?|authorization)[\"']?"
    r"(?:\s*[=:]\s*|[\s\0]))[^\0]+",
    re.IGNORECASE,
)
_ALL = (*VARIABLES, *JOB_VARIABLES, *PLACE_VARIABLES, *SETTING_VARIABLES)
_PREFIXES = tuple(f"{name}=".encode() for name in _ALL)


@dataclass(frozen=True)
class RayProcess:
    pid: int  # in the PID namespace of the reader
    ppid: int  # 0 when the parent is outside of that namespace
    start_time_s: float  # Unix seconds, good to a second: btime + start time in clock ticks
    comm: str  # name of its main thread, at most 15 characters
    command: str  # title or arguments, at most 200 characters, secrets masked; "" when not readable
    role: str  # "raylet", "agent" (Ray's own, of the dashboard and of runtimes), "worker", "child"
    worker_pid: Optional[int]  # the Ray worker that it is or descends from
    state: str  # R, S, D, Z, ...
    threads: int  # num_threads of stat
    rss_bytes: int  # resident memory, shared pages included
    environment: dict[str, str]  # those of VARIABLES that it was started with
    job: dict[str, str] = field(default_factory=dict)  # those of JOB_VARIABLES that are not its
    # parent's, when that one has a record too; without values of more than 16 KiB
    place: dict[str, str] = field(default_factory=dict)  # those of PLACE_VARIABLES
    settings: dict[str, str] = field(default_factory=dict)  # those of SETTING_VARIABLES


@probe(RayProcess, identity=("pid", "start_time_s"), timeout_s=4, reader=PROCESSES)
def processes(host: Host) -> Iterator[Union[RayProcess, Unread]]:
    """One record per process, by pid; those of raydiag are left out.

    Of a process in state D only stat is read: the rest could block on its memory map. `environment`
    is that of its start; what the process set later does not show.

    Raises NoData when no Ray process is visible, Denied when that is because they are hidden.
    """
    table = _ProcessTable(host)
    roles = table.roles()
    if not roles:
        for unread in table.unread():
            raise Denied(f"no Ray process is visible; {unread.source}: {unread.reason}")
        raise NoData("no Ray process is visible")
    boot_s = boot_time_s(host)
    for pid, role in roles.items():
        stat = table.stats[pid]
        variables = table.environment(pid) if role != "agent" else {}
        inherited = table.environment(stat.ppid) if stat.ppid in roles else {}
        is_of_job = role in ("worker", "child")
        yield RayProcess(
            pid=pid,
            ppid=stat.ppid,
            start_time_s=boot_s + stat.start_s,
            comm=stat.comm,
            command=masked(table.command(pid))[:_COMMAND_LENGTH],
            role=role,
            worker_pid=table.worker_of(pid),
            state=stat.state,
            threads=stat.threads,
            rss_bytes=stat.rss_pages * os.sysconf("SC_PAGE_SIZE"),
            environment=_chosen(variables, VARIABLES) if is_of_job else {},
            job=_chosen(dict(variables.items() - inherited.items()), JOB_VARIABLES),
            place=_chosen(variables, PLACE_VARIABLES) if is_of_job else {},
            settings=_chosen(variables, SETTING_VARIABLES) if is_of_job else {},
        )
    yield from table.unread()


def masked(command: str) -> str:
    """A command line (arguments end with NUL) as one line of text without the secrets in it.

    Hidden is what follows words such as token, password or key= in the same or the next argument,
    and the user part of URLs.
    """
    command = _SECRET.sub(r"\1***", command)
    return " ".join(masked_line(part) for part in command.split("\0") if part).strip()


def selected_variables(environ: bytes) -> dict[str, str]:
    """What is set in NUL-separated `NAME=value` items of the variables above, no others."""
    variables = {}
    for item in environ.split(b"\0"):
        if item.startswith(_PREFIXES):
            name, _, value = item.decode("utf-8", "replace").partition("=")
            if len(value) <= _JOB_VALUE_LENGTH:
                variables[name] = value
    return variables


def _chosen(variables: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    return {name: variables[name] for name in names if name in variables}


class _ProcessTable:
    """All processes by pid, and what was refused on the way."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.failures: dict[tuple[str, Status], tuple[int, str]] = {}
        self._commands: dict[int, str] = {}
        self._environments: dict[int, dict[str, str]] = {}
        self.stats: dict[int, ProcessStat] = {}
        for pid in process_ids(host):
            try:
                self.stats[pid] = read_stat(host, f"/proc/{pid}")
            except ReadError as error:
                self._failed("stat", error)

    def roles(self) -> dict[int, str]:
        """Role by pid, of Ray's processes only, in the order of pids."""
        roles = {pid: self.role(pid) for pid in sorted(self.stats)}
        return {pid: role for pid, role in roles.items() if role}

    def command(self, pid: int) -> str:
        """Arguments (each ended by NUL) or title; empty when it is not or must not be read."""
        if pid not in self._commands:
            text = self._read(pid, "cmdline", 1 << 14)
            self._commands[pid] = text.decode("utf-8", "replace")
        return self._commands[pid]

    def environment(self, pid: int) -> dict[str, str]:
        """The variables that it was started with, of those that are looked for."""
        if pid in self._environments:
            return self._environments[pid]
        environ = self._read(pid, "environ", _ENVIRON_LIMIT_BYTES)
        if environ and b"=" not in environ:
            # Setting a long title overwrites the variables: that they are unset is not known.
            path = f"/proc/{pid}/environ"
            self._failed("environ", ParseError(f"{path}: overwritten by the process's title"))
        self._environments[pid] = selected_variables(environ)
        return self._environments[pid]

    def role(self, pid: int) -> str:
        """Empty for what is not Ray's, and for raydiag's own."""
        if any(map(self._is_own, self._ancestry(pid))):
            return ""
        if self.stats[pid].comm == "raylet":
            return "raylet"
        if _is_title_of(_AGENTS, self._title(pid)):
            return "agent"
        worker = self.worker_of(pid)
        if worker is None or _is_title_of((_SUPERVISOR,), self._title(pid)):
            return ""
        return "worker" if worker == pid else "child"

    def worker_of(self, pid: int) -> Optional[int]:
        """The Ray worker that the process is or descends from.

        The topmost one with a worker's title below the raylet: what a worker forks (data loaders)
        inherits the title and is no worker.
        """
        worker = None
        for ancestor in self._ancestry(pid):
            if self.stats[ancestor].comm == "raylet":
                break
            title = self._title(ancestor)
            if title.startswith(_TITLE) and not _is_title_of(_AGENTS, title):
                worker = ancestor
        return worker

    def _ancestry(self, pid: int) -> list[int]:
        """The process, its parent and so on, as far as they are visible."""
        line: list[int] = []
        while pid in self.stats and pid not in line:
            line.append(pid)
            pid = self.stats[pid].ppid
        return line

    def _is_own(self, pid: int) -> bool:
        title = self._title(pid)
        return _OWN_DRIVER in title or _OWN_ACTOR in title or _is_title_of((_OWN_ACTOR,), title)

    def _title(self, pid: int) -> str:
        """Command of what may be a worker, the name where that is no title; empty for the rest.

        Libraries rename the main thread, never the title, so that of the raylet's descendants
        counts as well; commands of unrelated processes are not read.
        """
        comm = self.stats[pid].comm
        if comm.startswith(_TITLE):
            command = self.command(pid)
            return command if command.startswith(_TITLE) else comm
        ancestors = self._ancestry(pid)[1:]
        below_raylet = any(self.stats[ancestor].comm == "raylet" for ancestor in ancestors)
        return self.command(pid) if below_raylet else ""

    def _read(self, pid: int, name: str, limit: int) -> bytes:
        if self.stats[pid].state == "D":
            return b""
        try:
            return self.host.read_bytes(f"/proc/{pid}/{name}", limit)
        except ReadError as error:
            self._failed(name, error)
            return b""

    def _failed(self, name: str, error: ReadError) -> None:
        if not isinstance(error, NoData):  # that one has ended
            count, reason = self.failures.get((name, error.status), (0, str(error)))
            self.failures[name, error.status] = (count + 1, reason)

    def unread(self) -> Iterator[Unread]:
        """One for each kind of refusal, however many processes it met."""
        for (name, status), (count, reason) in self.failures.items():
            yield Unread(f"/proc/<pid>/{name}", status, f"{count} processes, the first: {reason}")


def _is_title_of(titles: Sequence[str], title: str) -> bool:
    """Whether a title, or a name cut to what the kernel keeps of one, is one of `titles`."""
    cut_titles = [full_title[:_COMM_LENGTH] for full_title in titles]
    return title in cut_titles or title.startswith(tuple(titles))
