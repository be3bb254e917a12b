"""Processes of exporters: who is who, and the one function that ends one.

A process is known by pid and start time, since a pid alone may be another's a moment later. Nothing
is ever looked for by a pattern: the exporter is the shell whose arguments begin `bash
<dir>/metrics_exporter.sh`, its server the Python that it started to hand out its file. The watchdog
shows its parent's arguments, as every subshell does, and that parent's end would end the training:
so what is ended is exactly one process, which was looked at twice, and never one that stands above
anything that has the GPUs open.

Source: proc(5): /proc/<pid>/{stat,cmdline,exe,fd}; /sys/class/kfd/kfd/proc
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Optional

from raydiag.errors import ParseError
from raydiag.hotfix.messages import ProcessInfo
from raydiag.procfs import split_stat

SCRIPT = "metrics_exporter.sh"
# Opened by what computes; monitoring through sysfs or NVML opens neither.
_GPU_DEVICES = ("/dev/kfd", "/dev/nvidia-uvm")
_KFD_PROCESSES = "/sys/class/kfd/kfd/proc"
_ARGUMENTS_LIMIT_BYTES = 1 << 18
_LOOKS_S, _LOOK_S = 2.0, 0.03


class Doubt(Exception):
    """A process is not, or may not be, what it has to be; nothing is done to it."""


class Gone(Doubt):
    """The process has ended by itself."""


@dataclass(frozen=True)
class SeenProcess:
    """One process as /proc/<pid>/stat shows it, which never blocks."""

    pid: int
    name: str
    state: str
    parent: int
    start_ticks: int


def numbers_doubt() -> str:
    """Why a number in /proc may be another process's for a signal; "" when both are the same."""
    with contextlib.suppress(OSError):
        if os.readlink("/proc/self") == str(os.getpid()):
            return ""
    return "/proc shows another PID namespace than ours"


def processes() -> dict[int, SeenProcess]:
    """Every process that can be seen now, by pid."""
    seen = {}
    for name in os.listdir("/proc"):
        if name.isascii() and name.isdigit():
            with contextlib.suppress(OSError, ParseError):
                seen[int(name)] = see(int(name))
    return seen


def see(pid: int) -> SeenProcess:
    """Raises OSError or ParseError when there is no such process."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        name, values = split_stat(file.read(4096), f"/proc/{pid}/stat")
    return SeenProcess(pid, name, values[0], int(values[1]), int(values[19]))


def arguments(process: SeenProcess) -> tuple[str, ...]:
    """Its argument list; empty when it has none, or when reading might block."""
    if process.state in ("D", "Z", "X"):
        return ()
    try:
        with open(f"/proc/{process.pid}/cmdline", "rb") as file:
            data = file.read(_ARGUMENTS_LIMIT_BYTES)
    except OSError:
        return ()
    # Undecodable bytes as JSON can carry them: two readings have to be equal, no more.
    return tuple(part.decode("utf-8", "backslashreplace") for part in data.split(b"\0")[:-1])


def program(pid: int) -> str:
    """Name of the file that it runs; "" when that may not be read."""
    try:
        return os.readlink(f"/proc/{pid}/exe").rpartition("/")[2]
    except OSError:
        return ""


def is_exporter(argv: tuple[str, ...]) -> bool:
    """`bash <dir>/metrics_exporter.sh ...`, exactly so."""
    return len(argv) > 1 and _last(argv[0]) == "bash" and _last(argv[1]) == SCRIPT


def is_server(argv: tuple[str, ...], metrics_file: str, port: int) -> bool:
    """`python3 -c <code> <metrics file> <port>`, exactly so."""
    return served_port(argv) == port and argv[3:] == (metrics_file, str(port))


def served_port(argv: tuple[str, ...]) -> Optional[int]:
    """Port of what looks like the server of any shell exporter."""
    looks_like = len(argv) == 5 and _last(argv[0]).startswith("python") and argv[1] == "-c"
    return int(argv[4]) if looks_like and argv[4].isascii() and argv[4].isdigit() else None


def is_own_exporter(argv: tuple[str, ...]) -> bool:
    """`python -m raydiag exporter run ...`, or the same by the installed command."""
    if not argv or not _last(argv[0]).startswith("python"):
        return False
    words = list(argv[1:])
    while words and words[0].startswith("-") and words[0] != "-m":
        words.pop(0)
    if words[:2] == ["-m", "raydiag"]:
        return words[2:4] == ["exporter", "run"]
    named = bool(words) and (_last(words[0]) == "raydiag" or words[0].endswith("/__main__.py"))
    return named and words[1:3] == ["exporter", "run"]


def _last(path: str) -> str:
    return path.rpartition("/")[2]


def descendants(pid: int, processes_seen: Mapping[int, SeenProcess]) -> Iterator[int]:
    """Pids below that process, without itself."""
    children: dict[int, list[int]] = {}
    for process in processes_seen.values():
        children.setdefault(process.parent, []).append(process.pid)
    waiting = list(children.get(pid, ()))
    visited = {pid}
    while waiting:
        child = waiting.pop()
        if child not in visited:
            visited.add(child)
            yield child
            waiting += children.get(child, ())


def below(pid: int) -> dict[int, SeenProcess]:
    """Processes below that one, as they are now."""
    seen = processes()
    return {child: seen[child] for child in descendants(pid, seen)}


def ancestors(pid: int, processes_seen: Mapping[int, SeenProcess]) -> list[int]:
    """Pids above that process, nearest first."""
    pids_above: list[int] = []
    while pid in processes_seen and processes_seen[pid].parent not in (0, *pids_above):
        pid = processes_seen[pid].parent
        pids_above.append(pid)
    return pids_above


def gpu_users(candidates: Mapping[int, SeenProcess], root: str = "") -> dict[int, str]:
    """Which of these processes use the GPUs, or may: pid -> why."""
    listed: set[str] = set()
    for directory in {_KFD_PROCESSES, root + _KFD_PROCESSES}:
        with contextlib.suppress(OSError):
            listed.update(os.listdir(directory))
    reasons = {}
    for pid, candidate in candidates.items():
        if str(pid) in listed:
            reasons[pid] = f"is listed in {_KFD_PROCESSES}"
        elif open_gpu := _open_gpu(candidate):
            reasons[pid] = open_gpu
    return reasons


def _open_gpu(seen: SeenProcess) -> str:
    if seen.state in ("Z", "X"):
        return ""  # has no files any more
    place = f"/proc/{seen.pid}/fd"
    try:
        for name in os.listdir(place):
            with contextlib.suppress(FileNotFoundError):
                target = os.readlink(f"{place}/{name}").partition(" (deleted)")[0]
                if target.endswith(_GPU_DEVICES):
                    return f"has {target} open"
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"has files that cannot be seen: {error.strerror}"
    return ""


class Aim:
    """A process that was verified, held so that its pid cannot come to mean another one.

    By pid, start and arguments it has to be the process of `identity` at the moment when it is
    ended. `metrics_file` and `port`: of the exporter that it belongs to. Raises Doubt.
    """

    def __init__(self, identity: ProcessInfo, metrics_file: str, port: int, root: str = "") -> None:
        self.identity = identity
        self.metrics_file, self.port, self.root = metrics_file, port, root
        self.fd: Optional[int] = None
        try:
            if hasattr(os, "pidfd_open"):
                self.fd = os.pidfd_open(identity.pid)
        except ProcessLookupError:
            raise Gone(f"pid {identity.pid}: has ended") from None
        except OSError:  # before Linux 5.3, or refused by a container: by pid then
            self.fd = None
        try:
            self.verify()
        except Doubt:
            self.close()
            raise

    def verify(self) -> None:
        """Look at it once more. Raises Doubt."""
        pid = self.identity.pid
        doubt = numbers_doubt()
        if doubt:
            raise Doubt(f"pid {pid}: {doubt}")
        if is_exporter(self.identity.argv):
            self._require_loop()
        seen = self._require_same_process()
        self._require_exporter(seen)
        if pid in (1, os.getpid()) or pid in ancestors(os.getpid(), processes()):
            raise Doubt(f"pid {pid}: stands above us")
        for user, reason in gpu_users({pid: seen, **below(pid)}, self.root).items():
            raise Doubt(f"pid {pid}: {reason if user == pid else f'pid {user} below it {reason}'}")

    def _require_same_process(self) -> SeenProcess:
        """The process as it is now. Raises Doubt when it is another one, or in no usual state."""
        pid = self.identity.pid
        try:
            seen = see(pid)
        except (OSError, ParseError):
            raise Gone(f"pid {pid}: has ended") from None
        if seen.start_ticks != self.identity.start_ticks:
            raise Doubt(f"pid {pid}: is another process now")
        if seen.state in ("Z", "X"):
            raise Gone(f"pid {pid}: has ended")
        if seen.state not in ("S", "R", "T", "t"):
            raise Doubt(f"pid {pid}: is in state {seen.state}")
        return seen

    def _require_exporter(self, seen: SeenProcess) -> None:
        """Raises Doubt when its arguments or its program are not those of an exporter."""
        pid, argv = self.identity.pid, self.identity.argv
        if not argv or arguments(seen) != argv:
            raise Doubt(f"pid {pid}: has other arguments now")
        is_shell = is_exporter(argv)
        is_ours = is_shell or is_server(argv, self.metrics_file, self.port) or is_own_exporter(argv)
        if not is_ours:
            raise Doubt(f"pid {pid}: is no exporter: {' '.join(argv)[:100]!r}")
        if not program(pid).startswith("bash" if is_shell else "python"):
            raise Doubt(f"pid {pid}: runs {program(pid) or 'an unknown program'}")

    def _require_loop(self) -> None:
        """Raises Doubt, but not for a subshell that is gone in a moment, as a plugin's is."""
        deadline = time.monotonic() + _LOOKS_S
        while True:
            try:
                self._require_not_watchdog(below(self.identity.pid))
                return
            except Doubt:
                if time.monotonic() > deadline:
                    raise
            time.sleep(_LOOK_S)

    def _require_not_watchdog(self, below_it: Mapping[int, SeenProcess]) -> None:
        """A watchdog of the same arguments has its exporter below it, as the loop has subshells."""
        pid = self.identity.pid
        shells = set()
        parents_of_servers = set()
        for process in below_it.values():
            argv = arguments(process)
            if argv == self.identity.argv:
                shells.add(process.pid)
            if is_server(argv, self.metrics_file, self.port):
                parents_of_servers.add(process.parent)
        for shell in shells & parents_of_servers:
            raise Doubt(f"pid {pid}: is the watchdog of pid {shell}")
        if shells and pid not in parents_of_servers:
            raise Doubt(f"pid {pid}: cannot be told from its watchdog")

    def close(self) -> None:
        """Let go of the process."""
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None


def end(aim: Aim) -> None:
    """End exactly this process, at once. The only function of raydiag that ends a foreign one.

    SIGKILL, because the exporter turns SIGTERM into an exit that its watchdog takes for the end of
    the job. Raises Doubt, when it is not any more what was verified.
    """
    aim.verify()
    try:
        if aim.fd is not None:
            signal.pidfd_send_signal(aim.fd, signal.SIGKILL)
        else:
            os.kill(aim.identity.pid, signal.SIGKILL)
    except ProcessLookupError:
        raise Gone(f"pid {aim.identity.pid}: has ended") from None
    except OSError as error:
        raise Doubt(f"pid {aim.identity.pid}: {error.strerror}") from None
