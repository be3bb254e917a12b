"""Python stacks of Ray workers and what they started, read without pausing them.

Only when it is asked for: py-spy reads the memory of training processes. `--nonblocking` makes it
neither attach nor stop them, at the price that a stack may be torn; it is never run without.

Source: `py-spy dump --nonblocking --json --pid PID`; /proc/<pid>/{stat,exe} (proc(5))
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional, Union

from raydiag.errors import Denied, NoData, ParseError, ReadError
from raydiag.host import Host
from raydiag.model import Status, Unread
from raydiag.probes import COMMANDS, probe
from raydiag.probes.processes import RayProcess, processes
from raydiag.procfs import read_stat
from raydiag.sandbox import run_command
from raydiag.untrusted import parsed

MOST_PROCESSES = 64
MOST_BYTES = 2 << 20  # of all frames of a node
MOST_FRAMES = 200  # of a stack: more is a recursion
TIMEOUT_S = 15.0
_BUDGET_S = 12.0  # for all processes; the rest of the timeout is for the last one
_ONE_PROCESS_S = 3.0  # a dump takes some 10 ms; on a node whose CPUs are all taken, a second
_DUMP_LIMIT_BYTES = 8 << 20  # a hundred threads are half a megabyte
_FRAME_LENGTH = 300
_IDLE = "ray::IDLE"  # a worker without work


@dataclass(frozen=True)
class ThreadStack:
    pid: int  # in the PID namespace of the reader
    worker_pid: int  # the Ray worker that it is or descends from
    role: str  # "worker", or "child" of one: training often runs in a child
    command: str  # title or arguments, at most 200 characters, secrets masked
    thread_id: Optional[int]  # of the kernel; None when py-spy cannot tell
    thread: str  # its name in Python; "" unknown
    main: bool  # it is the process's first thread
    active: bool  # it runs on a CPU, as py-spy judges
    owns_gil: bool  # it holds the interpreter lock
    frames: tuple[str, ...]  # innermost first, "function (file.py:12)", at most MOST_FRAMES
    frames_left_out: int  # outer ones, beyond MOST_FRAMES


@probe(ThreadStack, timeout_s=TIMEOUT_S, reader=COMMANDS)
def stacks(host: Host) -> Iterator[Union[ThreadStack, Unread]]:
    """One record per thread; processes nearest to their worker first, main threads before others.

    Idle workers and what is not Python are passed over. A process in state D is not looked at:
    reading its memory could block.

    Raises NoData without py-spy, or when no worker of a job runs here; Denied when processes are
    hidden.
    """
    program = _py_spy()
    visible: list[RayProcess] = []
    for item in processes(host):
        if isinstance(item, RayProcess):
            visible.append(item)
        elif "stat" in item.source:
            yield item
    chosen = _chosen(host, visible)
    if not chosen:
        raise NoData("no worker of a job runs here")
    started, room_bytes = time.monotonic(), MOST_BYTES
    for index, process in enumerate(chosen):
        limit = _used_up(time.monotonic() - started, room_bytes, index)
        if limit:
            pids = ", ".join(str(process.pid) for process in chosen[index:])
            reason = f"{len(chosen) - index} processes were not looked at, {limit} is used up"
            yield Unread("py-spy", Status.TIMEOUT, f"{reason}: pid {pids}")
            return
        try:
            for stack in _dump(host, program, process):
                room_bytes -= sum(map(len, stack.frames))
                yield stack
        except NoData:
            continue  # it has ended
        except ReadError as error:
            yield Unread(f"/proc/{process.pid}", error.status, f"no stack: {error}")


def _used_up(seconds: float, room_bytes: int, count: int) -> str:
    """Which limit is reached; empty when none is."""
    if seconds > _BUDGET_S:
        return "the time"
    if room_bytes <= 0:
        return "what a report takes"
    return "the limit" if count >= MOST_PROCESSES else ""


def _py_spy() -> str:
    """Where py-spy is. Raises NoData, with what to install."""
    beside = [os.path.dirname(path) for path in (sys.executable, os.path.realpath(sys.executable))]
    for directory in [*os.environ.get("PATH", "").split(os.pathsep), *beside]:
        path = os.path.join(directory, "py-spy")
        if directory and os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    raise NoData(
        f"py-spy is neither on PATH nor beside {sys.executable}: `pip install py-spy` into the "
        "Python that runs Ray"
    )


def _chosen(host: Host, visible: Sequence[RayProcess]) -> list[RayProcess]:
    """Python processes of workers that have work, nearest to their worker first."""
    parents = {process.pid: process.ppid for process in visible}
    idle = {process.pid for process in visible if process.command.startswith(_IDLE)}
    chosen = []
    for process in visible:
        works = process.worker_pid is not None and process.worker_pid not in idle
        if works and process.state not in ("Z", "X") and _is_python(host, process.pid):
            chosen.append((_depth(process, parents), process.pid, process))
    return [process for _, _, process in sorted(chosen, key=lambda item: item[:2])]


def _depth(process: RayProcess, parents: Mapping[int, int]) -> int:
    """Steps from the process up to its worker."""
    pid, steps = process.pid, 0
    while pid != process.worker_pid and pid in parents and steps < len(parents):
        pid, steps = parents[pid], steps + 1
    return steps


def _is_python(host: Host, pid: int) -> bool:
    """Whether its program is Python; where that may not be read, py-spy will say why."""
    try:
        name = host.readlink(f"/proc/{pid}/exe").rsplit("/", 1)[-1]
    except NoData:
        return False
    except ReadError:
        return True
    return name.startswith(("python", "pypy"))


def _dump(host: Host, program: str, process: RayProcess) -> Iterator[ThreadStack]:
    """Stacks of one process. Raises NoData when it has ended, Denied, ParseError, ReadError."""
    path = f"/proc/{process.pid}/stat"
    if read_stat(host, f"/proc/{process.pid}").state == "D":
        raise Denied("it is in state D, where reading its memory could block")
    command = [program, "dump", "--nonblocking", "--json", "--pid", str(process.pid)]
    code, stdout, stderr = run_command(command, _ONE_PROCESS_S, _DUMP_LIMIT_BYTES)
    if code != 0:
        host.read_text(path, 4096)  # NoData: it ended meanwhile, which is no failure
        raise _refusal(stderr.decode("utf-8", "replace"))
    yield from parse_dump(stdout, process)


def _refusal(text: str) -> ReadError:
    """What py-spy's error means; it goes on for lines with causes and its own stack."""
    message = text.partition("Stack backtrace:")[0].replace("Caused by:", "")
    message = " ".join(message.split())[:300]
    refused = "permission" in message.lower() or "not permitted" in message.lower()
    reason = f"py-spy: {message or 'ended without an error message'}"
    return Denied(reason) if refused else ReadError(reason)


def parse_dump(text: bytes, process: RayProcess) -> list[ThreadStack]:
    """Threads of py-spy's JSON, the main one first, then by id. Raises ParseError."""
    try:
        threads = parsed(text.decode("utf-8", "replace"))
        stacks_of_threads = [_thread(thread, process) for thread in threads]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ParseError(
            f"py-spy: not the JSON that it documents: {type(error).__name__}: {error}"[:300]
        ) from None
    # The main one first.
    return sorted(
        stacks_of_threads, key=lambda each: (not each.main, each.thread_id or 0, each.thread)
    )


def _thread(thread: Mapping[str, Any], process: RayProcess) -> ThreadStack:
    thread_id = int(thread.get("os_thread_id") or 0) or None
    name = str(thread.get("thread_name") or "")
    frames = thread["frames"]
    return ThreadStack(
        pid=process.pid,
        worker_pid=process.worker_pid or process.pid,
        role=process.role,
        command=process.command,
        thread_id=thread_id,
        thread=name[:100],
        main=name == "MainThread" if thread_id is None else thread_id == process.pid,
        active=bool(thread["active"]),
        owns_gil=bool(thread["owns_gil"]),
        frames=tuple(_frame(frame) for frame in frames[:MOST_FRAMES]),
        frames_left_out=max(0, len(frames) - MOST_FRAMES),
    )


def _frame(frame: Mapping[str, Any]) -> str:
    place = frame.get("short_filename") or frame["filename"]
    line = int(frame.get("line") or 0)
    return f"{frame['name']} ({place}:{line})"[:_FRAME_LENGTH]
