"""One request to a guarded reader, with a time limit: what it reads may block for ever."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time
from typing import Any

from raydiag import confinement, sandbox
from raydiag.hotfix import process

LOOKS_AS = "sockets"  # kind of reader of what only looks: no writes, no signals, but TCP
RUNS_AS = "commands"
_LOOK = os.WEXITED | os.WNOHANG | os.WNOWAIT
_PATIENCE_S = 1.0  # one that was killed is gone by then, unless it hangs


class NoAnswer(Exception):
    """The reader did not answer in time, or ended; the message says which."""


def ask(
    serve: sandbox.Serve, request: dict[str, Any], source: str, kind: str, limit_s: float
) -> Any:
    """The `answer` that `serve` yields for the request, in a reader of that kind.

    The reader is never waited for. While one of an earlier run is stuck on the same source, or a
    program that it ran, there is no second one. With it ends what it started: in a session of its
    own, which it tells by a message `session`, and in others, which is no good answer then. Raises
    NoAnswer.
    """
    name = sandbox.tag(f"hotfix:{source}")
    pid, is_stuck, age_s = sandbox.readers_at_work().get(name, (0, False, 0.0))
    if is_stuck:
        raise NoAnswer(f"{source}: our reader {pid} hangs in the kernel since {age_s:.0f} s")
    held, ours = None, set[int]()
    if kind == RUNS_AS:
        held, ours = _lock(source, name), _children()
        confinement.adopt_orphans(True)
    reader = sandbox.Reader(serve, kind)
    messages: list[dict[str, Any]] = []
    orphans = 0
    try:
        reader.ask(request, name, held)
        answer = _answer(reader, messages, source, limit_s)
    except (EOFError, OSError) as error:
        raise NoAnswer(f"{source}: {error}") from None
    finally:
        if any("session" in message for message in messages):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(reader.pid, signal.SIGKILL)  # its own session, and not yet reaped
        reader.abandon()
        if kind == RUNS_AS:
            orphans = _end_orphans(reader.pid, ours)
            confinement.adopt_orphans(False)
    if orphans:
        raise NoAnswer(f"{source}: {orphans} of the processes that it started were left running")
    return answer


def _answer(
    reader: sandbox.Reader, messages: list[dict[str, Any]], source: str, limit_s: float
) -> Any:
    """What it answers; `messages` takes all that it says. Raises NoAnswer, EOFError or OSError."""
    deadline = time.monotonic() + limit_s
    while select.select([reader], [], [], max(0.0, deadline - time.monotonic()))[0]:
        messages += reader.receive()
        for message in messages:
            if "answer" in message:
                return message["answer"]
            if "failed" in message:
                raise NoAnswer(f"{source}: {message['failed'][-1]}")
    raise NoAnswer(f"{source}: no answer within {limit_s:g} s")


def _children() -> set[int]:
    seen = process.processes().values()
    return {child.pid for child in seen if child.parent == os.getpid()}


def _end_orphans(session: int, ours: set[int]) -> int:
    """End what left the reader's process group, and became our child when the reader ended.

    How many those were. One that hangs in the kernel is not waited for.
    """
    escaped: set[int] = set()
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        orphans = _children() - ours - {session}
        if not orphans:
            break
        for pid in orphans:
            if os.getpgid(pid) != session and os.waitid(os.P_PID, pid, _LOOK) is None:
                escaped.add(pid)
            os.kill(pid, signal.SIGKILL)  # our own child, not yet reaped
            os.waitpid(pid, os.WNOHANG)
        time.sleep(0.01)
    return len(escaped)


def _lock(source: str, name: str) -> socket.socket:
    """What the reader and the programs that it runs hold as long as one of them is there."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        held = sandbox.lock(name)
        if held is not None:
            return held
        if time.monotonic() > deadline:
            raise NoAnswer(f"{source}: what an earlier one started is still there")
        time.sleep(0.02)
