"""Guarded children: every risky read happens in one, and none is ever waited for.

A read from a faulty driver or mount can hang in the kernel; SIGKILL does not help, and
whoever waits for such a child hangs with it. So a reader is a confined child process that serves
one source at a time over a socket. A reader that misses its deadline is killed and abandoned, its
source is remembered, and the next source goes to a fresh reader.

What is stuck is known to later runs without any state on the node: a reader carries a tag made from
host and source as its process name (`rd-` and 12 hex digits, visible in /proc/<pid>/stat) while it
reads, and holds an abstract socket of the same name, which is an atomic lock that lives exactly as
long as the child does.
"""

from __future__ import annotations

import array
import contextlib
import errno
import json
import math
import os
import select
import signal
import socket
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Optional

from raydiag import confinement, environment
from raydiag.errors import NoData, ReadError

TAG_PREFIX = "rd-"
_IDLE_NAME = "rd-idle"
_OUTPUT_LIMIT_BYTES = 4 << 20  # of one source; a probe that says more than this is broken
_MESSAGE_BYTES = 1 << 16
_SIGKILL_BIT, _PF_EXITING = 1 << 8, 4  # include/linux/sched.h

# How the node runner and the exporter's collector use readers.
SLOW_S = 0.25  # after this long the next source is started beside a slow one
MOST_AT_WORK = 8  # readers at once
MOST_STUCK = 8  # stuck readers on a node; with that many, no source that may hang is read
MOST_TIMEOUTS = 4  # of its own timeout, for a source whose reader runs or still sends
LOCK_RETRY_S = 0.05

Serve = Callable[[dict[str, Any]], Iterator[dict[str, Any]]]

_locks: list[int] = []  # in a reader: descriptors of the lock of the source that it is on


def tag(source: str) -> str:
    """The process and lock name of a reader of `source` on this host.

    The host name is part of it: containers that share a PID namespace are still different hosts.
    Adler and CRC together, because hashlib would load OpenSSL into every runner.
    """
    data = f"{os.uname().nodename}\0{source}".encode("utf-8", "surrogateescape")
    return f"{TAG_PREFIX}{zlib.crc32(data):08x}{zlib.adler32(data) & 0xFFFF:04x}"


def is_tag(name: str) -> bool:
    """Whether a process name is that of a reader that is at work (or stuck) on a source."""
    digits = name[len(TAG_PREFIX) :]
    is_hash = len(digits) == 12 and not digits.strip("0123456789abcdef")
    return name.startswith(TAG_PREFIX) and is_hash


def lock(name: str) -> Optional[socket.socket]:
    """Take the lock of that tag; None while another process holds it.

    The lock is an abstract socket, so it needs no file, and closing its last copy frees it. Raises
    OSError when there can be no lock at all, as without a descriptor left.
    """
    holder = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        holder.bind(f"\0raydiag/{name}")
    except OSError as error:
        holder.close()
        if error.errno == errno.EADDRINUSE:
            return None
        raise
    return holder


def readers_at_work() -> dict[str, tuple[int, bool, float]]:
    """Readers of this and of earlier runs that are on a source: tag -> (pid, stuck, age in s).

    Stuck is one that was killed and is still there, in state D. D alone is normal for a moment.

    Source: /proc/<pid>/stat, which never blocks; fields as in proc(5).
    """
    readers = {}
    uptime_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", "rb") as stat:
                text = stat.read(512)
        except OSError:
            continue
        if b"(rd-" not in text:
            continue
        comm = text[text.index(b"(") + 1 : text.rindex(b")")].decode("ascii", "replace")
        fields = text[text.rindex(b")") + 2 :].split()
        if is_tag(comm) and fields[0] not in (b"Z", b"X"):
            killed = int(fields[28]) & _SIGKILL_BIT or int(fields[6]) & _PF_EXITING
            age_s = uptime_s - int(fields[19]) / ticks_per_s
            readers[comm] = (int(name), fields[0] == b"D" and bool(killed), age_s)
    return readers


def held_locks() -> tuple[int, ...]:
    """In a reader: descriptors of its source's lock, for a program that shall hold it as well."""
    return tuple(_locks)


def wchan(pid: int) -> str:
    """Kernel symbol that the process waits in; empty when unknown."""
    try:
        with open(f"/proc/{pid}/wchan", encoding="ascii", errors="replace") as file:
            text = file.read(256)
    except OSError:
        return ""
    return "" if text == "0" else text


class Reader:
    """A confined child process that serves requests one at a time.

    `serve` runs in the child: it takes the request and yields JSON objects. The parent sends a
    request with `ask`, watches `fileno()` and takes what came with `receive`.
    """

    def __init__(self, serve: Serve, kind: str) -> None:
        ours, theirs = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            _child(theirs, serve, kind)  # never returns
        theirs.close()
        ours.setblocking(False)
        self._socket = ours
        self._buffer = b""
        self._received_bytes = 0
        self._killed_at = 0.0

    def fileno(self) -> int:
        """The descriptor to poll for what it sends."""
        return self._socket.fileno()

    def ask(self, request: dict[str, Any], name: str, held: Optional[socket.socket]) -> None:
        """Hand a request over; the reader works under the tag `name` and keeps `held` meanwhile.

        The request is small against a socket's buffer, so that this does not block. Raises
        OSError when the reader is gone.
        """
        self._received_bytes = 0
        data = json.dumps([name, request]).encode() + b"\n"
        ancillary = []
        if held:
            descriptors = array.array("i", [held.fileno()])
            ancillary.append((socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors))
        self._socket.setblocking(True)
        sent = self._socket.sendmsg([data], ancillary)
        self._socket.sendall(data[sent:])
        self._socket.setblocking(False)
        if held:
            held.close()

    def receive(self) -> list[dict[str, Any]]:
        """Objects that have arrived. Raises EOFError when the reader ended, or talks too much."""
        try:
            chunk = self._socket.recv(_MESSAGE_BYTES)
        except BlockingIOError:
            return []
        except OSError as error:
            raise EOFError(f"the guarded reader ended: {error.strerror}") from None
        if not chunk:
            raise EOFError("the guarded reader ended before it answered")
        self._received_bytes += len(chunk)
        if self._received_bytes > _OUTPUT_LIMIT_BYTES:
            raise EOFError(f"more than {_OUTPUT_LIMIT_BYTES >> 20} MiB of records")
        *complete, self._buffer = (self._buffer + chunk).split(b"\n")
        return [json.loads(line) for line in complete]

    def kill(self) -> None:
        """Kill the reader, once; `abandon` returns what became of it."""
        if not self._killed_at:
            self._killed_at = time.monotonic()
            self._socket.close()
            os.kill(self.pid, signal.SIGKILL)  # our own child, not yet reaped: no other's pid
            with contextlib.suppress(PermissionError):
                # At the least priority it may wait for a second on a busy node before it can end.
                os.setpriority(os.PRIO_PROCESS, self.pid, 0)

    def abandon(self, patience_s: float = math.inf) -> bool:
        """Kill the reader and do not wait for it. True when it is still there afterwards: stuck.

        A killed process that is not stuck in the kernel is gone within a moment, on a busy node
        within a second. One that is in D after 50 ms will not go; one that still runs after a
        second spins in the kernel. With less patience than that, one that runs is not called stuck.
        To abandon several, kill all of them first: then their moments pass together.
        """
        self.kill()
        while not os.waitpid(self.pid, os.WNOHANG)[0]:
            passed_s = time.monotonic() - self._killed_at
            if passed_s > 1.0 or (passed_s > 0.05 and self._stat()[0] == "D"):
                return True
            if passed_s > patience_s:
                return False
            time.sleep(0.001)
        return False

    def cpu_s(self) -> float:
        """CPU time that the reader has used, in seconds."""
        stat = self._stat()
        return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")

    def is_runnable(self) -> bool:
        """Whether it runs, or waits for nothing but a CPU."""
        return self._stat()[0] == "R"

    def _stat(self) -> list[str]:
        """/proc/<pid>/stat from the state letter on; a child of ours is there until reaped."""
        with open(f"/proc/{self.pid}/stat", "rb") as stat:
            return stat.read(1024).rsplit(b")", 1)[-1].decode().split()


def _child(connection: socket.socket, serve: Serve, kind: str) -> None:
    """Body of a reader: confine, then serve until the parent closes its end."""
    try:
        confinement.set_name(_IDLE_NAME)
        confinement.die_with_parent()
        confinement.keep_only(connection.fileno())
        environment.forget()  # also for what it starts
        holds = confinement.confine(kind)
        _send(connection.fileno(), {"sandbox": holds})
        buffer = b""
        while True:
            while b"\n" not in buffer:
                data, descriptors = _receive(connection)
                if not data:
                    return
                buffer += data
                _locks.extend(descriptors)
            line, buffer = buffer.split(b"\n", 1)
            name, request = json.loads(line)
            confinement.set_name(name)
            for message in serve(request):
                try:
                    _send(connection.fileno(), message)
                except (TypeError, ValueError) as error:  # a value that JSON does not know
                    _send(connection.fileno(), {"failed": ["error", f"cannot be sent: {error}"]})
            while _locks:
                os.close(_locks.pop())
            confinement.set_name(_IDLE_NAME)
            _send(connection.fileno(), {"end": True})
    except OSError:
        pass  # the parent is gone
    finally:
        os._exit(0)


def run_command(
    argv: Sequence[str], timeout_s: float, limit_bytes: int = 1 << 20
) -> tuple[int, bytes, bytes]:
    """Run a program; only in a reader of kind `commands`. Returns (exit status, stdout, stderr).

    It ends with the reader, and is abandoned, never awaited, when it does not end in time. It holds
    the lock of the reader's source as long as it lives, so that a program that hangs in the kernel
    is not started again beside itself. Raises NoData where there is no such program, ReadError when
    it takes longer than `timeout_s` or says more than `limit_bytes`.
    """
    import subprocess  # what few readers need

    try:
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "LC_ALL": "C"},
            pass_fds=tuple(_locks),
            preexec_fn=confinement.die_with_parent,  # a reader has one thread
        )
    except FileNotFoundError:
        raise NoData(f"{argv[0]}: not installed here") from None
    except OSError as error:
        raise ReadError(f"{argv[0]}: {error.strerror}") from None
    assert process.stdout is not None
    assert process.stderr is not None
    output = {process.stdout.fileno(): bytearray(), process.stderr.fileno(): bytearray()}
    deadline = time.monotonic() + timeout_s
    try:
        _listen(output, deadline, limit_bytes, argv[0])
        while process.poll() is None:
            if time.monotonic() > deadline:
                raise ReadError(f"{argv[0]}: no answer within {timeout_s:g} s")
            time.sleep(0.005)
    finally:
        process.kill()  # no wait: were it stuck in the kernel, so would we be
    stdout, stderr = output.values()
    return process.returncode, bytes(stdout), bytes(stderr)


def _listen(output: dict[int, bytearray], deadline: float, limit_bytes: int, name: str) -> None:
    """Read descriptors to their ends. Raises ReadError past the deadline, or for too much."""
    poller = select.poll()
    for fd in output:
        poller.register(fd, select.POLLIN)
    still_open = set(output)
    while still_open:
        left_s = deadline - time.monotonic()
        ready = poller.poll(left_s * 1000) if left_s > 0 else []
        if not ready:
            raise ReadError(f"{name}: no answer in time")
        for fd, _ in ready:
            chunk = os.read(fd, 1 << 16)
            output[fd] += chunk
            if len(output[fd]) > limit_bytes:
                raise ReadError(f"{name}: says more than {limit_bytes} bytes")
            if not chunk:
                still_open.discard(fd)
                poller.unregister(fd)


def _send(fd: int, message: dict[str, Any]) -> None:
    # os.write and not send(): the filter refuses sendto(), which is what send() is.
    # A record within a record is sent as its fields.
    data = memoryview(json.dumps(message, default=vars).encode() + b"\n")
    while data:
        data = data[os.write(fd, data) :]


def _receive(connection: socket.socket) -> tuple[bytes, list[int]]:
    held = array.array("i")
    data, ancillary, _, _ = connection.recvmsg(_MESSAGE_BYTES, socket.CMSG_SPACE(held.itemsize))
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            held.frombytes(content[: len(content) - len(content) % held.itemsize])
    return data, list(held)
