"""A program of somebody else's, run so that nothing of it is left: only in a `plugins` reader.

What `sandbox.run_command` does not need, a plugin does: it forks children, which may outlive it,
hang, or hold its output open. So a plugin runs in a process group of its own, whose leader is a
process of ours, the guard. The guard's id cannot become anybody else's while we have not reaped it,
so the group that is ended is never a wrong one. The guard also ends the group when the reader is
gone, however that ended. Descendants that left the group come back as children of the reader, which
is their subreaper, and are ended as such.

What hangs in the kernel (state D) survives all that: it is told, holds the lock of its source as
long as it lives, and is never waited for.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Optional

from raydiag import confinement, sandbox
from raydiag.errors import NoData, ReadError

_STDERR_BYTES = 4096  # what is kept; the rest is read and dropped
_LOOK_S = 0.05  # how often to look whether the program ended while its children talk on
_GONE_S, _SURELY_S = 0.05, 1.0  # see sandbox.Reader.abandon
_SIGNALLED = 128

_Process = subprocess.Popen[bytes]


@dataclass(frozen=True)
class Ended:
    """A program that ended by itself, in time."""

    status: int  # exit status; 128 + N for signal N, as a shell says it
    stdout: bytes
    stderr: bytes  # its beginning
    remaining_pids: tuple[int, ...]  # children that no signal ends; they hold the source's lock


class TooLong(ReadError):
    """The program did not end in time, and was ended."""


class StillThere(ReadError):
    """The program was ended, and is still there: it hangs in the kernel."""

    pids: tuple[int, ...] = ()


def run(
    argv: Sequence[str],
    timeout_s: float,
    limit_bytes: int,
    environment: Mapping[str, str],
    keep: Sequence[int] = (),
) -> Ended:
    """Run it to its end, and end what it started. `keep` are descriptors that it inherits.

    Raises NoData where there is no such program, TooLong past `timeout_s`, StillThere when it hangs
    in the kernel besides, ReadError when it prints more than `limit_bytes`. The program counts as
    ended when it exits, whoever holds its output then.
    """
    confinement.adopt_orphans(True)
    earlier = frozenset(_children())  # what hangs of other programs
    guard, alive = _start_guard()

    def lead() -> None:
        os.setpgid(0, guard)
        confinement.die_with_parent()

    stdout, stderr = bytearray(), bytearray()
    process, failure, status = None, None, 0
    try:
        process = _start(list(argv), environment, (*sandbox.held_locks(), *keep), lead)
        status = _listen(process, stdout, stderr, time.monotonic() + timeout_s, limit_bytes)
    except ReadError as error:
        failure = error
    finally:
        remaining_pids = _end(guard, alive, process, earlier)
    if failure is not None and remaining_pids:
        failure = StillThere(f"{failure}; {_where(remaining_pids)}")
        failure.pids = remaining_pids
    if failure is not None:
        raise failure
    return Ended(status, bytes(stdout), bytes(stderr), remaining_pids)


def _start_guard() -> tuple[int, int]:
    """The leader of a new process group: its pid, and the descriptor whose closing it waits for."""
    reading, writing = os.pipe()
    guard = os.fork()
    if guard == 0:
        try:
            os.setpgid(0, 0)
            confinement.set_name("rd-guard")
            for fd in map(int, os.listdir("/proc/self/fd")):
                if fd != reading:
                    with contextlib.suppress(OSError):  # that of this listing is closed already
                        os.close(fd)
            os.read(reading, 1)  # answers when the reader is gone
            os.kill(0, signal.SIGKILL)  # our own group, of which the guard is one
        finally:
            os._exit(0)
    os.close(reading)
    with contextlib.suppress(PermissionError):  # in both, because either may come first
        os.setpgid(guard, guard)
    return guard, writing


def _start(
    argv: list[str], environment: Mapping[str, str], keep: Sequence[int], lead: Callable[[], None]
) -> _Process:
    try:
        return subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "LC_ALL": "C", **environment},
            pass_fds=tuple(keep),
            preexec_fn=lead,  # a reader has one thread
        )
    except FileNotFoundError:
        raise NoData(f"{argv[0]}: not there, or what its first line names is not") from None
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ReadError(f"{argv[0]}: cannot be started: {reason}") from None


def _listen(
    process: _Process, stdout: bytearray, stderr: bytearray, deadline: float, limit_bytes: int
) -> int:
    """Take what it prints until it exits; its status. Raises ReadError past limit or deadline."""
    assert process.stdout is not None
    assert process.stderr is not None
    output = {process.stdout.fileno(): stdout, process.stderr.fileno(): stderr}
    poller = select.poll()
    for fd in output:
        os.set_blocking(fd, False)
        poller.register(fd, select.POLLIN)
    started = time.monotonic()
    while True:
        exited = process.poll() is not None
        left_s = deadline - time.monotonic()
        wait_s = 0.0 if exited else max(0.0, min(_LOOK_S if output else 0.005, left_s))
        for fd, _ in poller.poll(wait_s * 1000):
            if not _take(fd, output[fd]):
                poller.unregister(fd)
                del output[fd]
            if len(stdout) > limit_bytes:
                raise ReadError(f"prints more than {limit_bytes} bytes")
            del stderr[_STDERR_BYTES:]
            exited = False  # there may be more
        if exited:
            status = process.returncode
            return _SIGNALLED - status if status < 0 else status
        if time.monotonic() >= deadline:
            raise TooLong(f"no end within {deadline - started:.3g} s")


def _take(fd: int, output: bytearray) -> bool:
    """Read once; False at the end."""
    try:
        chunk = os.read(fd, 1 << 16)
    except BlockingIOError:
        return True
    output += chunk
    return bool(chunk)


def _end(
    guard: int, alive: int, process: Optional[_Process], earlier: Collection[int]
) -> tuple[int, ...]:
    """End the group and whatever else descends from it; the pids of what does not go.

    `earlier` are children that hang since before, and are none of this program's.
    """
    with contextlib.suppress(ProcessLookupError):
        os.killpg(guard, signal.SIGKILL)  # our own unreaped child leads it: no other's group
    os.close(alive)
    began = time.monotonic()
    while True:
        if process is not None:
            process.poll()  # before the rest, or its status would be lost to it
        _reap()
        children = [pid for pid in _children() if pid not in earlier]
        passed_s = time.monotonic() - began
        stuck = [pid for pid in children if _state(pid) == "D"]
        if not children or passed_s > _SURELY_S or (passed_s > _GONE_S and stuck == children):
            break
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)  # an unreaped child of ours, by birth or adopted
        time.sleep(0.001)
    for stream in (process.stdout, process.stderr) if process else ():
        if stream is not None:
            stream.close()
    return tuple(children)


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _children() -> list[int]:
    """Children of this process, those that ended and were not reaped left out.

    Source: /proc/<pid>/task/<tid>/children; it is missing in kernels without CONFIG_PROC_CHILDREN.
    """
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
            pids = [int(word) for word in file.read().split()]
    except OSError:
        return []
    return [pid for pid in pids if _state(pid) not in ("Z", "X", "")]


def _stat(pid: int, field: int) -> str:
    """A field of its stat file, the state being the first one; "" when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return stat.read(1024).rsplit(b")", 1)[-1].split()[field].decode()
    except (OSError, IndexError):
        return ""


def _state(pid: int) -> str:
    return _stat(pid, 0)


def hangs(pid: int, start: str) -> bool:
    """Whether the process with that pid and start (of `started`) is still there."""
    return _state(pid) not in ("Z", "X", "") and started(pid) == start


def started(pid: int) -> str:
    """When a process began, in clock ticks since boot, which tells it from others of its pid."""
    return _stat(pid, 19)


def _where(pids: Sequence[int]) -> str:
    places = ", ".join(f"{pid} in {sandbox.wchan(pid) or 'the kernel'}" for pid in pids[:4])
    return f"{len(pids)} of its processes cannot be ended ({places}) and were abandoned"
