"""Work that may outlast a command by some seconds, so that nobody waits for it."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from raydiag import environment

_at_work: list[subprocess.Popen[bytes]] = []  # of this process, which may be a long one


def do_afterwards(program: str, values: Mapping[str, Any], more: tuple[str, ...] = ()) -> None:
    """Have a new interpreter run that; it holds nothing of ours open. What it raises is lost.

    Not a fork: a process with threads must not. `program` is source that needs the standard library
    alone. It gets `values` as JSON on its stdin, where `ps` does not show them, and of our
    environment what every child gets and the variables named in `more`.
    """
    _at_work[:] = [child for child in _at_work if child.poll() is None]
    with contextlib.suppress(OSError):
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env=environment.named(more),
            start_new_session=True,
        )
        _at_work.append(child)
        assert child.stdin is not None
        with child.stdin as pipe:
            pipe.write(json.dumps(values).encode())
