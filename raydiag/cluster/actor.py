"""The actor that stands on each node while a probe runs.

It starts one lean interpreter (the node runner), hands it the bundle, and stays responsive whatever
the runner meets: it never reads a risky source, never forks without exec, and never waits without a
limit. Pickled by value by the coordinator, so that nodes need no raydiag.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import socket
import subprocess
import sys
import time
from importlib.util import MAGIC_NUMBER

_MFD_CLOEXEC, _MFD_NOEXEC_SEAL = 0x0001, 0x0008  # linux/memfd.h
_STDERR_BYTES = 2000
_ANSWER_LIMIT_BYTES = 64 << 20


class RaydiagNodeActor:
    """Created with 0 CPU and 0 GPU, pinned to one node; ended by the coordinator."""

    def __init__(self) -> None:
        os.nice(19)

    def identify(self) -> bytes:
        """Who really answers: JSON with node_id, hostname."""
        import ray

        node_id = ray.get_runtime_context().get_node_id()
        return json.dumps({"node_id": node_id, "hostname": socket.gethostname()}).encode()

    def probe(self, entrypoint: str, bundle: bytes, budget_s: float) -> bytes:
        """Run the node runner; its answer is zlib-compressed JSON.

        Before it stand two times of this node's clock, in Unix seconds, and a newline: when the
        call came, and when the answer left. They bound how far the clock is off the head's.

        Raises RuntimeError, with the runner's last line on stderr, when it does not answer in time.
        """
        deadline, came_at = time.monotonic() + budget_s, time.time()
        if not bundle.startswith(MAGIC_NUMBER):
            raise RuntimeError(f"Python {sys.version.split()[0]} here, another one on the head")
        arguments = [str(deadline), str(budget_s), str(os.getpid())]
        names = ("HOME", "LD_LIBRARY_PATH", "PATH")
        environment = {name: os.environ[name] for name in names if name in os.environ}
        # Memory files, not pipes: writing the bundle cannot block on a runner that does not read,
        # and reading stderr cannot block on a child that still holds it.
        stdin, stderr = _memory_file("raydiag-bundle"), _memory_file("raydiag-stderr")
        try:
            os.write(stdin, bundle)
            os.lseek(stdin, 0, os.SEEK_SET)
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-B", "-c", entrypoint, *arguments],
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=environment,
                cwd="/",
            )
            assert process.stdout is not None
            try:
                answer = _read_answer(process.stdout.fileno(), deadline)
                return b"%.6f %.6f\n" % (came_at, time.time()) + answer
            except EOFError as error:
                words = os.pread(stderr, _STDERR_BYTES, 0).decode("utf-8", "replace").strip()
                last = words.splitlines()[-1] if words else f"exit status {process.poll()}"
                raise RuntimeError(f"node runner: {error}: {last}") from None
            finally:
                process.kill()  # no wait: were it stuck in the kernel, so would we be
                process.poll()
                process.stdout.close()
        finally:
            os.close(stdin)
            os.close(stderr)


def _memory_file(name: str) -> int:
    """A file that exists in memory only; said to hold no program, or the kernel would log it."""
    create = getattr(os, "memfd_create", _memfd_create)
    try:
        return int(create(name, _MFD_CLOEXEC | _MFD_NOEXEC_SEAL))
    except OSError:  # before Linux 6.3 the flag is unknown
        return int(create(name, _MFD_CLOEXEC))


def _memfd_create(name: str, flags: int) -> int:
    """For Pythons that were built against an old C library. Raises OSError."""
    number = {"x86_64": 319, "aarch64": 279}.get(os.uname().machine, -1)
    fd = int(ctypes.CDLL(None, use_errno=True).syscall(number, name.encode(), flags))
    if fd < 0:
        raise OSError(ctypes.get_errno(), "memfd_create")
    return fd


def _read_answer(fd: int, deadline: float) -> bytes:
    """Read `<length>\\n<bytes>`. Raises EOFError when it ends early, or not in time."""
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    received = bytearray()
    while True:
        head, newline, body = received.partition(b"\n")
        if newline and len(body) >= int(head):
            return bytes(body[: int(head)])
        left_s = deadline - time.monotonic()
        if left_s <= 0 or not poller.poll(left_s * 1000):
            raise EOFError("no answer in time")
        chunk = os.read(fd, 1 << 20)
        if not chunk:
            raise EOFError("ended before it answered")
        received += chunk
        if len(received) > _ANSWER_LIMIT_BYTES:
            raise EOFError("answer over the size limit")
