"""Linux namespaces and the processes in them, without Ray.

Source: /proc/<pid>/{ns/net,task/<pid>/children,net/tcp,net/tcp6,comm}
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any


@functools.cache
def unavailable() -> str:
    """Why no host can be simulated here; empty when it can."""
    if os.geteuid() != 0:
        return "simulated hosts need root"
    for tool in ("ip", "unshare", "nsenter", "mount", "bash"):
        if not shutil.which(tool):
            return f"simulated hosts need the command {tool}"
    attempt = ["unshare", "-n", "-m", "-u", "-i", "-p", "--fork", "--mount-proc", "bash", "-ec"]
    trial = "ip link add trial0 type bridge; ip link add trial1 type veth peer name trial2"
    done = subprocess.run([*attempt, trial], capture_output=True, text=True, check=False)
    if done.returncode:
        return f"simulated hosts need namespaces, bridge and veth: {done.stderr.strip()}"
    return ""


def hold(separate: Sequence[str], start: str, *arguments: str) -> subprocess.Popen[str]:
    """Start the first process of new namespaces. Returns when they are set up."""
    pipe = subprocess.PIPE
    argv = [*separate, "bash", "-ec", start, "simulated-host", *arguments]
    holder = subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True, start_new_session=True)
    if pipe_of(holder.stdout).readline() != "ready\n":
        raise RuntimeError(f"cannot set up namespaces: {argv} ended with {holder.wait(5)}")
    return holder


def pipe_of(stream: Any) -> Any:
    assert stream is not None
    return stream


def check(argv: Sequence[object]) -> None:
    """Run a command of ours. Raises RuntimeError with its complaint."""
    words = [os.fspath(a) if isinstance(a, os.PathLike) else str(a) for a in argv]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")


def children(pid: int) -> list[int]:
    with suppress(OSError):
        return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def comm(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def processes_in(network: str) -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError):
                if os.readlink(f"/proc/{name}/ns/net") == network:
                    found.append(int(name))
    return sorted(found)


def listens(pid: int, port: int) -> bool:
    """Whether somebody listens on that TCP port in the network namespace of `pid`."""
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                return True
    return False
