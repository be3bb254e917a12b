"""A directory on which chosen reads never answer, and answer again when told to.

`HangingFile(directory)` mounts a FUSE file system over `directory`. It shows what was there before,
read-only, until a path is told to hang. A reader of that path waits in the kernel; once it has been
sent SIGKILL it is in state D (wchan `request_wait_answer`) and stays there, exactly like a reader
of a hung driver, until `release()`.

The file doubles as the program of the file system's process: it obeys commands on stdin and answers
each with one JSON line. When stdin closes, it unmounts and ends, so that a test run that was killed
leaves no mount behind.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

WAIT_CHANNEL = "request_wait_answer"
# Each hanging call holds one thread of libfuse, whose own default is ten.
_MAX_THREADS = 64
_START_DEADLINE_S = 10.0


def unavailable() -> str:
    """Why no hanging file can be made here; empty when it can."""
    if os.geteuid() != 0:
        return "a hanging FUSE file needs root"
    if not os.path.exists("/dev/fuse"):
        return "a hanging FUSE file needs /dev/fuse"
    if not shutil.which("fusermount3") and not shutil.which("fusermount"):
        return "a hanging FUSE file needs fusermount (package fuse3)"
    try:
        import mfusepy  # noqa: F401
    except (ImportError, OSError) as error:  # OSError: the library libfuse itself is missing
        return f"a hanging FUSE file needs mfusepy and libfuse: {error}"
    return ""


class HangingFile:
    """Context manager: `directory` behind FUSE, with reads that can be made to hang.

    Paths are relative to `directory` or absolute below it. Nothing in it can be written meanwhile,
    so take the smallest directory that will do. Enter it before a simulated host starts that shall
    see it: a host takes a copy of the mounts of its start, and no later one. Release before the
    host stops: what is stuck keeps its namespaces alive.
    """

    def __init__(self, directory: str | os.PathLike[str], hang: tuple[str, ...] = ()) -> None:
        self.directory = Path(directory).resolve()
        self._hang_first = hang
        self._server: subprocess.Popen[str] | None = None

    def __enter__(self) -> HangingFile:
        """Raises RuntimeError when the file system does not come up."""
        self._server = subprocess.Popen(
            [sys.executable, __file__, str(self.directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C in the terminal is for the test, which then releases
        )
        try:
            self._wait_until_mounted()
            for path in self._hang_first:
                self.hang(path)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def hang(self, path: str | os.PathLike[str], operation: str = "read") -> None:
        """From now on `read` of that file never answers; `statfs` hangs for the whole mount."""
        self._ask("hang", operation, self._relative(path))

    def release(self) -> None:
        """Everything answers again, also what already waits."""
        self._ask("release")

    def reader_pids(self) -> list[int]:
        """Processes that wait in this file system now, in any state."""
        return sorted({_process_of(thread) for thread in self._ask("waiting")} - {0})

    def stuck_pids(self, comm: str = "") -> list[int]:
        """Those that no signal ends: state D in the FUSE wait, name starting with `comm`."""
        return [pid for pid in self.reader_pids() if _is_stuck(pid, comm)]

    def wait_for_readers(self, count: int = 1, deadline_s: float = 10.0) -> list[int]:
        """Wait until at least `count` processes wait here. Raises TimeoutError."""
        end = time.monotonic() + deadline_s
        while len(pids := self.reader_pids()) < count:
            if time.monotonic() > end:
                raise TimeoutError(f"{len(pids)} readers of {self.directory}, expected {count}")
            time.sleep(0.02)
        return pids

    def close(self) -> None:
        """Release, unmount lazily, end the server; safe to call twice.

        The server's end closes /dev/fuse, which is the kernel's own abort of the connection: what
        still waits gets ENOTCONN, in every mount namespace.
        """
        server, self._server = self._server, None
        if server is None:
            return
        with suppress(OSError):
            if server.stdin:
                server.stdin.close()
        try:
            server.wait(5)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        subprocess.run(["umount", "-l", self.directory], stderr=subprocess.DEVNULL, check=False)
        if server.stdout:
            server.stdout.close()

    def _relative(self, path: str | os.PathLike[str]) -> str:
        inside = os.path.relpath(os.path.join(self.directory, path), self.directory)
        if inside.startswith(".."):
            raise ValueError(f"{path} is not below {self.directory}")
        return "/" if inside == "." else f"/{inside}"

    def _wait_until_mounted(self) -> None:
        assert self._server is not None
        end = time.monotonic() + _START_DEADLINE_S
        # The mount table, not stat: a stat could be answered by the directory underneath.
        while f" {self.directory} fuse" not in Path("/proc/self/mounts").read_text():
            if self._server.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"no FUSE mount on {self.directory}")
            time.sleep(0.02)

    def _ask(self, *command: str) -> list[int]:
        if self._server is None or not self._server.stdin or not self._server.stdout:
            raise RuntimeError(f"{self.directory} is not mounted")
        self._server.stdin.write(json.dumps(command) + "\n")
        self._server.stdin.flush()
        line = self._server.stdout.readline()
        if not line:
            raise RuntimeError(f"the file system on {self.directory} has ended")
        answer: list[int] = json.loads(line)
        return answer


def _process_of(thread: int) -> int:
    """The process of a thread id; 0 when it is gone."""
    with suppress(OSError):
        for line in Path(f"/proc/{thread}/status").read_text().splitlines():
            if line.startswith("Tgid:"):
                return int(line.split()[1])
    return 0


def _is_stuck(pid: int, comm: str) -> bool:
    with suppress(OSError):
        name, _, rest = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
        wait_channel = Path(f"/proc/{pid}/wchan").read_text()
        return rest.split()[0] == "D" and wait_channel == WAIT_CHANNEL and name.startswith(comm)
    return False


class _Gate:
    """Which calls hang, and which threads hang in them."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._closed: set[tuple[str, str]] = set()
        self._waiting: list[int] = []

    def close(self, operation: str, path: str) -> None:
        with self._changed:
            self._closed.add((operation, path))

    def open_all(self) -> None:
        with self._changed:
            self._closed.clear()
            self._changed.notify_all()

    def waiting(self) -> list[int]:
        with self._changed:
            return list(self._waiting)

    def pass_through(self, operation: str, path: str, thread: int) -> None:
        """Return at once, or when the gate opens. `thread` is the caller's id."""
        with self._changed:
            if (operation, path) not in self._closed:
                return
            self._waiting.append(thread)
            self._changed.wait_for(lambda: (operation, path) not in self._closed)
            self._waiting.remove(thread)


def _serve(directory: str) -> None:
    """Mount over `directory` and answer until stdin ends."""
    import mfusepy

    gate = _Gate()
    # The only way to what lies under the mount, once it is there.
    below = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)

    def caller() -> int:
        return int(mfusepy.fuse_get_context()[2])

    def under(path: str) -> str:
        return f"/proc/self/fd/{below}{path}"

    class Mirror(mfusepy.Operations):  # type: ignore[misc]
        use_ns = True

        def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
            found = os.stat(below) if path == "/" else os.lstat(under(path))
            names = ("mode", "nlink", "size", "uid", "gid", "mtime_ns", "ctime_ns", "atime_ns")
            return {f"st_{n.removesuffix('_ns')}": getattr(found, f"st_{n}") for n in names}

        def readdir(self, path: str, fh: int) -> Iterator[str]:
            yield from (".", "..", *os.listdir(under(path)))

        def readlink(self, path: str) -> str:
            return os.readlink(under(path))

        def open(self, path: str, flags: int) -> int:
            if flags & (os.O_WRONLY | os.O_RDWR):
                raise OSError(errno.EROFS, os.strerror(errno.EROFS))
            return 0

        def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
            gate.pass_through("read", path, caller())
            fd = os.open(under(path), os.O_RDONLY)
            try:
                return os.pread(fd, size, offset)
            finally:
                os.close(fd)

        def statfs(self, path: str) -> dict[str, int]:
            gate.pass_through("statfs", "/", caller())
            found = os.statvfs(under("/"))
            return {
                n: getattr(found, n) for n in dir(found) if n.startswith("f_") and n != "f_fsid"
            }

    threading.Thread(target=_obey, args=(gate, directory, sys.stdin), daemon=True).start()
    # Before 3.12 libfuse had no such option, and no such limit.
    limit = {"max_threads": _MAX_THREADS} if mfusepy.fuse_version_minor >= 12 else {}
    # direct_io: each read reaches us, none is answered from the page cache.
    mfusepy.FUSE(Mirror(), directory, foreground=True, direct_io=True, allow_other=True, **limit)


def _obey(gate: _Gate, directory: str, commands: TextIO) -> None:
    for line in commands:
        verb, *arguments = json.loads(line)
        if verb == "hang":
            gate.close(*arguments)
        elif verb == "release":
            gate.open_all()
        answer = gate.waiting() if verb == "waiting" else []
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    gate.open_all()
    subprocess.run(["umount", "-l", directory], stderr=subprocess.DEVNULL, check=False)
    time.sleep(0.2)  # what was just released gets its answer, and no ENOTCONN
    os._exit(0)


if __name__ == "__main__":
    _serve(sys.argv[1])
