"""The collector: runs every plugin once a cycle, each source by itself, and never waits for one.

Single-threaded. It reads nothing risky itself: each source goes to a guarded reader with a deadline
of its own. A source that does not answer costs its own series, and is left alone until its reader
is gone, which is looked at in every cycle: so there is one stuck process for each hung source, for
ever. Plugins that touch what a driver fault hangs come last, one source at a time, to their first
hang in a cycle, and not at all while the kernel log shows that fault.
"""

from __future__ import annotations

import select
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Optional

from raydiag import sandbox
from raydiag.exporter import plugins
from raydiag.exporter.metrics import OWN_PREFIX, Sample
from raydiag.exporter.page import MetricsPage
from raydiag.exporter.plugin_record import PluginRecord
from raydiag.exporter.readers import IsHeld, IsStuck, Key, Readers
from raydiag.exporter.source_task import SourceTask, serve
from raydiag.exporter.state import SavedState
from raydiag.model import Status

if TYPE_CHECKING:
    from raydiag.exporter.external_plugins import Ask, ExternalPlugins

_LEFT_ALONE_S = 3600.0
_MOST_TOLD = 4
# Probes that read the same sources: under one lock, not both can get stuck in one of them.
_LOCKED_AS = {"gpu_ras": "ras"}


class Collector:
    """All plugins of one node. `begin` a cycle, then `work` until it is over or the next begins."""

    def __init__(
        self,
        own_plugins: Sequence[plugins.Plugin],
        page: MetricsPage,
        state: SavedState,
        root: str = "/",
        foreign: Optional[ExternalPlugins] = None,
        log: Callable[[str], None] = lambda line: None,
    ) -> None:
        """`log` takes a line when a plugin begins to fail, and when it succeeds again."""
        self.page = page
        self.cycles = 0
        self._own = {plugin.name: plugin for plugin in own_plugins}
        self._state = state
        self._root = root.rstrip("/")
        self._foreign = foreign
        self._log = log
        self._records = {plugin.name: PluginRecord() for plugin in own_plugins}
        self._readers = Readers(serve)
        self._queue: deque[SourceTask] = deque()
        self._last: deque[SourceTask] = deque()
        self._at_work: list[SourceTask] = []
        self._left_alone: dict[str, tuple[str, float]] = {}  # path -> plugin, monotonic
        self._unread: dict[Key, str] = {}  # what a source could not read, as it was logged
        self._problems: dict[str, str] = {}  # of foreign plugins, by path, as was told
        self._looks = 0  # at directories of foreign plugins, that have not ended
        self._began = self._ended = 0.0  # monotonic, of this cycle; 0: not yet

    @property
    def is_idle(self) -> bool:
        """Nothing is queued or at work: the cycle is over."""
        return not (self._queue or self._last or self._at_work)

    def begin(self) -> None:
        """Queue everything that is not still at work from the cycle before."""
        self._began, self._ended = time.monotonic(), 0.0
        self.cycles += 1
        for plugin_name, source in self._readers.look_after_stuck():
            self._log(f"{plugin_name}: the reader that hung in {source or 'it'} is gone")
        for plugin in self._own.values():
            if not self._records[plugin.name].sources:
                self._open(self._own_task(plugin, "", listing=plugin.sources is not None))
        if self._foreign is not None and not self._looks:
            for ask in self._foreign.looks():
                self._looks += 1
                self._queue.append(self._foreign_task(ask, PluginRecord()))

    def work(self, timeout_s: float, descriptors: Iterable[int] = ()) -> None:
        """Go on for so long at most; back at once when one of the descriptors is readable."""
        now = time.monotonic()
        self._start_what_may(now)
        answered = self._wait(timeout_s, now, descriptors)
        for task in answered:
            self._take(task)
        self._enforce_deadlines(answered)
        if self.is_idle and not self._ended:
            self._ended = time.monotonic()

    def _wait(self, timeout_s: float, now: float, descriptors: Iterable[int]) -> list[SourceTask]:
        """Until something is to be done; sources whose readers have sent something."""
        poller = select.poll()
        for fd in descriptors:
            poller.register(fd, select.POLLIN)
        tasks = {task.at_work().fileno(): task for task in self._at_work}
        for fd, task in tasks.items():
            poller.register(fd, select.POLLIN)
            timeout_s = min(timeout_s, task.due - now)
        if self._queue or self._last:
            timeout_s = min(timeout_s, sandbox.SLOW_S if self._at_work else sandbox.LOCK_RETRY_S)
        ready = poller.poll(max(0.0, timeout_s) * 1000)
        return [tasks[fd] for fd, _ in ready if fd in tasks]

    def duration_s(self) -> float:
        """How long this cycle took, or has taken so far."""
        return (self._ended or time.monotonic()) - self._began

    def samples(self, now: float) -> Iterator[Sample]:
        """What there is to say about the collecting itself; `now` is Unix time."""

        def own(name: str, value: float, **labels: str) -> Sample:
            return Sample(OWN_PREFIX + name, labels, value)

        for name, record in self._records.items():
            record.left_alone = sum(name == plugin for plugin, _ in self._left_alone.values())
            yield from record.samples(name, self.page.series(name))
        stuck = self._readers.stuck
        yield own("abandoned_readers", len(stuck))
        yield own("abandoned_readers_total", self._readers.abandoned)
        for (name, source), stuck_reader in stuck.items():
            age_s = round(time.monotonic() - stuck_reader.since, 3)
            yield own("stuck_source_seconds", age_s, plugin=name, source=source or name)
        yield own("cycles_total", self.cycles)
        yield own("cycle_timestamp_seconds", round(now, 3))
        if self._foreign is not None:
            yield from self._foreign.samples(now)

    def close(self) -> None:
        """End all readers; those that are stuck stay behind, as they must."""
        at_work = [task.at_work() for task in self._at_work]
        for reader in at_work:
            reader.kill()
        for reader in at_work:
            reader.abandon(patience_s=0.2)
        self._readers.close()

    # ---- tasks

    def _own_task(self, plugin: plugins.Plugin, source: str, listing: bool = False) -> SourceTask:
        request = {"plugin": plugin.name, "source": source, "listing": listing, "root": self._root}
        tag = sandbox.tag(f"{_LOCKED_AS.get(plugin.name, plugin.name)}:{self._root}{source}")
        record, key = self._records[plugin.name], (plugin.name, source)
        return SourceTask(record, key, plugin.reader, plugin.timeout_s, request, tag, plugin.last)

    def _foreign_task(self, ask: Ask, record: PluginRecord) -> SourceTask:
        tag, key = sandbox.tag(f"{ask.plugin}:{ask.source}"), (ask.plugin, ask.source)
        request = {"ask": ask.request}
        return SourceTask(record, key, ask.reader, ask.timeout_s, request, tag, ask=ask)

    def _open(self, task: SourceTask) -> None:
        """Queue a source of a plugin."""
        task.record.open()
        (self._last if task.is_last else self._queue).append(task)

    def _start_what_may(self, now: float) -> None:
        for _ in range(len(self._queue) + len(self._last)):
            queue = self._next_queue(now)
            if not queue:
                return
            task = queue.popleft()
            if now < task.not_before or not self._start(task, now):
                queue.append(task)

    def _next_queue(self, now: float) -> deque[SourceTask]:
        """From which the next source may be started; empty while none may."""
        is_full = len(self._at_work) >= sandbox.MOST_AT_WORK
        if is_full or any(now - task.started < sandbox.SLOW_S for task in self._at_work):
            return deque()
        if not self._queue and all(task.ask is not None for task in self._at_work):
            return self._last  # the kernel log and all else of ours has answered
        return self._queue

    def _start(self, task: SourceTask, now: float) -> bool:
        """Put a reader to work on it; False: not now, since another one is at work on it."""
        reason = self._why_not() if task.is_last else ""
        if reason:
            self._leave_out(task, f"not read: {reason}")
            return True
        if task.ask is None:
            task.request["left_alone"] = self._forbidden(now)
            task.request["state"] = self._state.get(task.key[0])
        task.waiting_since = task.waiting_since or now
        task.record.started = task.record.started or now
        is_over = now - task.waiting_since >= task.timeout_s + sandbox.SLOW_S
        try:
            task.reader = self._readers.start(task, look=is_over or task.waiting_since == now)
        except IsStuck as stuck:
            self._leave_out(task, f"not read: {stuck}")
        except IsHeld as held:
            if not is_over:
                task.not_before = now + sandbox.LOCK_RETRY_S
                return False
            self._leave_out(task, f"not read: {held}")
        except OSError as error:
            self._fail(task, Status.ERROR, f"no guarded reader: {error}")
        else:
            task.started, task.due = now, now + task.timeout_s
            self._at_work.append(task)
        return True

    def _why_not(self) -> str:
        """Why nothing that a driver fault hangs may be read; empty when it may."""
        for state in map(self._state.get, self._own):
            if state.get("driver_fault"):
                return f"{state['driver_fault']} in the kernel log shows the driver fault"
            if state.get("is_behind"):
                return "the kernel log, which may show the driver fault, is not read to its end yet"
        if len(self._readers.stuck) >= sandbox.MOST_STUCK:
            return f"{len(self._readers.stuck)} readers are stuck on this node already"
        return ""

    # ---- answers

    def _take(self, task: SourceTask) -> None:
        """Book what a reader sent."""
        reader = task.at_work()
        try:
            messages = reader.receive()
        except (EOFError, ValueError) as error:  # it ended, or what ran in it wrote to our socket
            self._at_work.remove(task)
            reader.abandon()
            self._fail(task, Status.ERROR, str(error))
            return
        for message in messages:
            if "answer" in message:
                self._book(task, message["answer"])
            elif "sources" in message:
                task.outcome = (Status.OK, "")
                for source in message["sources"]:
                    self._open(self._own_task(self._own[task.key[0]], source))
            elif "failed" in message:  # a listing, or an answer that JSON does not know
                task.outcome = (Status(message["failed"][0]), message["failed"][1])
            elif "end" in message:
                self._at_work.remove(task)
                self._readers.rest(task)
                self._end(task, *task.outcome)

    def _book(self, task: SourceTask, answer: Mapping[str, Any]) -> None:
        if task.ask is not None:
            self._book_foreign(task, task.ask, answer)
            return
        record, name = task.record, task.key[0]
        for path in set(answer["left_alone"]) - self._left_alone.keys():
            self._left_alone[path] = (name, time.monotonic())
        self._tell_unread(task.key, answer["unread"])
        if answer["state"] is not None:
            self._state.put(name, answer["state"])
        status, reason = answer["failed"] or ("ok", "")
        task.outcome = (Status(status), reason)
        samples = [Sample(*values) for values in answer["samples"]]
        if samples or task.outcome[0] in (Status.OK, Status.NO_DATA):
            refused = self.page.put(name, task.key[1], samples, time.monotonic())
            record.rejected += len(refused)

    def _forbidden(self, now: float) -> list[str]:
        """Paths to be left alone; after an hour one is tried again, since a GPU that is being
        reset refuses what it gives afterwards."""
        still = {
            path for path, (_, since) in self._left_alone.items() if now - since <= _LEFT_ALONE_S
        }
        for path in self._left_alone.keys() - still:
            del self._left_alone[path]
        return sorted(still)

    def _tell_unread(self, key: Key, unread: Sequence[Sequence[str]]) -> None:
        """Log what a source could not read, when that has changed."""
        reasons = [reason for _, status, reason in unread if status != Status.NO_DATA.value]
        summary = "; ".join(reasons[:_MOST_TOLD])
        if len(reasons) > _MOST_TOLD:
            summary += f" (and {len(reasons) - _MOST_TOLD} more)"
        if summary != self._unread.get(key, ""):
            message = f"not read: {summary}" if summary else f"all of {key[1] or 'it'} is read"
            self._log(f"{key[0]}: {message}")
        self._unread[key] = summary

    def _book_foreign(
        self, task: SourceTask, ask: Ask, answer: Optional[Mapping[str, Any]], reason: str = ""
    ) -> None:
        """Hand an answer (None: there is none, and why) to the foreign plugins; do as they say."""
        assert self._foreign is not None
        if not ask.plugin:
            self._looked(ask, answer, reason)
            task.outcome = (Status.OK, "")
            return
        outcome = self._foreign.took(ask, answer, time.time(), reason)
        record = task.record
        if outcome.is_new:
            self.page.drop(ask.plugin, is_gone=False)  # its metrics may have changed their types
        if outcome.samples is not None:
            now = time.monotonic()
            refused = self.page.put(ask.plugin, "", outcome.samples, now, outcome.declared)
            record.rejected += len(refused) + len(outcome.refused)
        record.timeouts += outcome.missed_deadline
        if outcome.then is not None:
            self._open(self._foreign_task(outcome.then, record))
        if outcome.measured_at is not None:
            record.last_success = outcome.measured_at
        task.outcome = (outcome.status, outcome.reason)
        if answer is not None:
            self._tell_unread(task.key, answer.get("unread", ()))

    def _looked(self, ask: Ask, answer: Optional[Mapping[str, Any]], reason: str) -> None:
        """A look at a directory has ended; after the last of them the plugins run."""
        assert self._foreign is not None
        for name in self._foreign.looked(ask, answer, reason):
            self.page.drop(name)
            self._records.pop(name, None)
        self._looks -= 1
        if self._looks:
            return
        problems = self._foreign.problems()
        for path, problem in problems.items() - self._problems.items():
            self._log(f"{path}: {problem}")
        self._problems = problems
        for run in self._foreign.asks():
            record = self._records.setdefault(run.plugin, PluginRecord())
            if not record.sources:
                self._open(self._foreign_task(run, record))

    def _enforce_deadlines(self, answered: Sequence[SourceTask]) -> None:
        now = time.monotonic()
        for task in list(self._at_work):
            if now < task.due:
                continue
            # Slow is not hung: on a node whose CPUs are all taken we get little of them.
            is_alive = task in answered or task.at_work().is_runnable()
            if is_alive and now - task.started < sandbox.MOST_TIMEOUTS * task.timeout_s:
                task.due = now + task.timeout_s / 4
            else:
                self._give_up(task, now)

    def _give_up(self, task: SourceTask, now: float) -> None:
        """Abandon a reader that does not answer; with it all that may hang likewise."""
        self._at_work.remove(task)
        reason = f"no answer within {now - task.started:.1f} s"
        hint = self._readers.abandon(task)
        self._fail(task, Status.TIMEOUT, f"{reason}; {hint}" if hint else reason)
        while task.is_last and self._last:
            reason = f"not read: {task.name} hung, and this may hang likewise"
            self._leave_out(self._last.popleft(), reason)

    def _fail(self, task: SourceTask, status: Status, reason: str) -> None:
        """End a source that gave no answer."""
        task.outcome = (status, reason)
        if task.ask is not None:
            self._book_foreign(task, task.ask, None, reason)
        self._end(task, *task.outcome)

    def _leave_out(self, task: SourceTask, reason: str) -> None:
        """End a source that was not read: the plugin is not healthy, and has no further failure."""
        if task.ask is not None and not task.ask.plugin:
            self._looked(task.ask, None, reason)
        task.record.trouble = task.record.trouble or reason
        self._end(task, Status.OK, "")

    def _end(self, task: SourceTask, status: Status, reason: str) -> None:
        """A source has ended; with the last one, the plugin's run has."""
        if not task.record.sources:
            return  # a look at a directory, which is no plugin
        line = task.record.end(status, reason, is_own=task.ask is None)
        if line:
            self._log(f"{task.key[0]}: {line}")
