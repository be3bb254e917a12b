"""An exporter as a user starts it: a process of its own, asked over HTTP."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

RAYDIAG = [sys.executable, "-m", "raydiag"]
_LONG_S = 60.0  # nothing waits for that long unless it never comes


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Running:
    """`raydiag exporter run` on a port; `stderr` is the file that it writes to."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self.process = process
        self.port = port
        self.log = log

    def page(self) -> str:
        """What /metrics says. Raises OSError while nobody answers."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://127.0.0.1:{self.port}/metrics", timeout=20) as answer:
            return str(answer.read().decode())

    def value(self, series: str) -> float | None:
        """Of the series of that name and labels (but host), as `name{a="b"}`; None: not there."""
        return value(self.page(), series)

    def wait_for(self, series: str, more_than: float = -1.0) -> float:
        """Wait until the series is there, and above that value."""
        until = time.monotonic() + _LONG_S
        while time.monotonic() < until:
            if self.process.poll() is not None:
                raise RuntimeError(f"it ended ({self.process.returncode}): {self.said()}")
            try:
                found = self.value(series)
            except OSError:
                found = None
            if found is not None and found > more_than:
                return found
            time.sleep(0.03)
        raise TimeoutError(f"no {series} above {more_than}; {self.said()}")

    def said(self) -> str:
        return self.log.read_text()


def value(page: str, series: str) -> float | None:
    name, _, inside = series.partition("{")
    wanted = set(inside.rstrip("}").split(",")) - {""}
    for line in page.splitlines():
        found = re.fullmatch(r"([a-zA-Z_:0-9]+)\{([^}]*)\} (\S+)", line)
        if found is None or found[1] != name:
            continue
        labels = {one for one in found[2].split(",") if not one.startswith("host=")}
        if labels == wanted:
            return float(found[3])
    return None


@contextmanager
def exporter(
    directory: Path, *arguments: str, port: int = 0, address: str = "127.0.0.1", stderr: int = -1
) -> Iterator[Running]:
    """Start it with its state and its log in `directory`; it is ended afterwards.

    `stderr` is a descriptor to take the place of the log.
    """
    port = port or free_port()
    log = directory / "log"
    argv = [*RAYDIAG, "exporter", "run", "--listen", f"{address}:{port}", *arguments]
    if "--state-dir" not in arguments:
        argv += ["--state-dir", str(directory / "state")]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    with open(log, "ab") as file:
        error = file.fileno() if stderr < 0 else stderr
        process = subprocess.Popen(argv, stderr=error, env=environment)
    try:
        yield Running(process, port, log)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(120)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def processes_below(pid: int) -> dict[int, str]:
    """Descendants that are not zombies: pid -> name."""
    found: dict[int, str] = {}
    waiting = [pid]
    while waiting:
        parent = waiting.pop()
        try:
            text = Path(f"/proc/{parent}/task/{parent}/children").read_text()
        except OSError:
            continue
        for child in map(int, text.split()):
            waiting.append(child)
            if (name := living(child)) is not None:
                found[child] = name
    return found


def living(pid: int) -> str | None:
    """Name of the process; None when it has ended."""
    try:
        head, _, rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
    except OSError:
        return None
    return None if rest.split()[0] in "ZX" else head.partition("(")[2]


def wait_until_gone(pids: list[int]) -> list[int]:
    """Those that are still there after a long while."""
    until = time.monotonic() + _LONG_S
    while (left := [pid for pid in pids if living(pid) is not None]) and time.monotonic() < until:
        time.sleep(0.02)
    return left
