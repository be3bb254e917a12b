"""Guarded readers that live across cycles, and what has become of those that hang.

One idle reader of each kind is kept, because a fork for each file would cost more than the reading.
A reader that hangs is killed and abandoned, and its source is left alone until that process is
gone. What an exporter before this one, or a probe, has left stuck in a source is known by the
source's lock, which lives as long as that process, and by its name: see `sandbox`.
"""

from __future__ import annotations

import select
import time
from dataclasses import dataclass
from socket import socket
from typing import TYPE_CHECKING, Any, Optional

from raydiag import sandbox
from raydiag.model import Status

if TYPE_CHECKING:
    from raydiag.exporter.source_task import SourceTask

Key = tuple[str, str]  # plugin, source; "" for a plugin that is its own only source


class IsStuck(Exception):
    """A reader hangs in this source; the text says which."""


class IsHeld(Exception):
    """Another reader is at work on this source, and may end soon."""


@dataclass(frozen=True)
class Stuck:
    since: float  # monotonic
    pid: int
    reader: Optional[sandbox.Reader]  # None: not our child


class Readers:
    """The readers of one collector."""

    def __init__(self, serve: sandbox.Serve) -> None:
        self.stuck: dict[Key, Stuck] = {}
        self.abandoned = 0  # readers of this exporter that have ever hung
        self._serve = serve
        self._idle: dict[tuple[str, bool], sandbox.Reader] = {}  # by kind and is_foreign

    def start(self, task: SourceTask, look: bool) -> sandbox.Reader:
        """Put a reader to work on its source; a foreign plugin never in one that ours share.

        Raises IsStuck, IsHeld (where `look` says to look for who holds it, which costs CPU, it is
        told from a stuck one), OSError when there can be no reader.
        """
        stuck = self.stuck.get(task.key)
        if stuck is not None and stuck.reader is not None:
            raise IsStuck(f"a reader (pid {stuck.pid}) is still stuck in it")
        lock = sandbox.lock(task.tag)
        if lock is None:
            self._find_holder(task, look)
            raise IsHeld("another raydiag reader on this machine holds it")
        self.stuck.pop(task.key, None)  # what somebody else has left there is gone
        try:
            return self._put_to_work(task, lock)
        except OSError:
            lock.close()
            raise

    def rest(self, task: SourceTask) -> None:
        """Keep one reader of each kind for the next source: each costs the node memory."""
        reader = task.at_work()
        if self._idle.setdefault((task.kind, task.is_foreign), reader) is not reader:
            reader.abandon()

    def abandon(self, task: SourceTask) -> str:
        """End a reader that does not answer; says what became of it, "" when it is gone."""
        reader = task.at_work()
        if not reader.abandon():
            return ""
        self.abandoned += 1
        self.stuck[task.key] = Stuck(task.started, reader.pid, reader)
        wchan = sandbox.wchan(reader.pid)
        return f"its reader (pid {reader.pid}) is stuck" + (f" in {wchan}" if wchan else "")

    def look_after_stuck(self) -> list[Key]:
        """Sources whose reader is gone, so that they may be read again."""
        freed = []
        for key, stuck in list(self.stuck.items()):
            if stuck.reader is not None and not stuck.reader.abandon():
                del self.stuck[key]
                freed.append(key)
        return freed

    def close(self) -> None:
        """End those that wait."""
        while self._idle:
            self._idle.popitem()[1].abandon()

    def _find_holder(self, task: SourceTask, look: bool) -> None:
        """Raises IsStuck when who holds the source hangs in it."""
        if task.key not in self.stuck and look:
            pid, stuck, age_s = sandbox.readers_at_work().get(task.tag, (0, False, 0.0))
            if stuck:
                self.stuck[task.key] = Stuck(time.monotonic() - age_s, pid, None)
        if task.key in self.stuck:
            pid = self.stuck[task.key].pid
            raise IsStuck(f"a reader that is not ours (pid {pid}) is still stuck in it")

    def _put_to_work(self, task: SourceTask, lock: socket) -> sandbox.Reader:
        idle = self._idle.pop((task.kind, task.is_foreign), None)
        if idle is not None:
            try:
                idle.ask(task.request, task.tag, lock)
                return idle
            except OSError:
                idle.abandon()  # it was ended while it waited
        reader = sandbox.Reader(self._serve, task.kind)
        try:
            reader.ask(task.request, task.tag, lock)
        except OSError:
            reader.abandon()
            raise
        return reader


def ask_one(
    serve: sandbox.Serve, kind: str, request: dict[str, Any], source: str, limit_s: float
) -> tuple[dict[str, Any], Status, str]:
    """What a reader of its own answers; {} and why, where it does not and is abandoned."""
    reader = sandbox.Reader(serve, kind)
    deadline = time.monotonic() + limit_s
    status, reason = Status.TIMEOUT, f"no answer within {limit_s:g} s"
    try:
        reader.ask(request, sandbox.tag(source), None)
        while (left_s := deadline - time.monotonic()) > 0:
            select.select([reader], [], [], left_s)
            for message in reader.receive():
                if "answer" in message:
                    return dict(message["answer"]), Status.OK, ""
    except (EOFError, OSError) as error:
        status, reason = Status.ERROR, f"the guarded reader: {error}"
    finally:
        if reader.abandon():
            reason += f"; it hangs in the kernel (pid {reader.pid}) and was abandoned"
    return {}, status, reason
