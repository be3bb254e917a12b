"""Tasks that are blocked in the kernel, or run in it and do not take a SIGKILL.

Only files that the kernel answers without the task's memory map: stat, status, wchan, stack, comm.
cmdline and environ take the mmap lock, which a stuck task may never release, and whoever reads them
is then stuck too. Not procs_blocked of /proc/stat: it counts tasks that wait for I/O only.

Source: /proc/<pid>/{stat,status,wchan,stack} and the same below task/<tid> (proc(5))
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple, Optional, Union

from raydiag import sandbox
from raydiag.errors import Denied, NoData, ReadError
from raydiag.host import Host, is_digits
from raydiag.model import Status, Unread
from raydiag.probes import FIRST, PROCESSES, probe
from raydiag.procfs import ProcessStat, process_ids, read_stat

SAMPLE_GAP_S = 1.0
MOST_TASKS = 20_000  # looked at, threads included
MOST_RECORDS = 500

# Processes whose threads matter: workers, trainers, and trainers that PyTorch has renamed.
_THREADED = ("ray::", "python", "pt_main_thread")
_PF_KTHREAD = 0x00200000  # include/linux/sched.h
_SIGKILL_BIT = 1 << 8
_STACK_LIMIT = 64


@dataclass(frozen=True)
class BlockedTask:
    pid: int  # id of the task: of a thread its own, as in the kernel's hung-task lines
    start_ticks: int  # clock ticks since boot, field 22 of stat; with pid an identity
    comm: str  # its name, at most 15 characters for all but kernel threads
    state: str  # "D", or "R" when it runs and does not take a SIGKILL
    kernel_thread: bool  # PF_KTHREAD is set in its flags
    wchan: str  # kernel symbol it waits in; "" unknown
    stack: tuple[str, ...]  # innermost first, "symbol+0x6a/0x2f0 [module]"; persistent tasks only
    persistent: bool  # blocked in both samples and did not run in between
    sample_gap_s: float  # between the samples
    kill_pending: bool  # SIGKILL was sent and not taken
    raydiag_reader: bool  # one of raydiag's own guarded readers


@probe(BlockedTask, identity=("pid", "start_ticks"), timeout_s=6, stage=FIRST, reader=PROCESSES)
def d_state(host: Host) -> Iterator[Union[BlockedTask, Unread]]:
    """Blocked tasks by pid, those that stayed blocked over two samples first; often none at all.

    State D is normal for a moment of I/O. `persistent` says that neither the task's context
    switches nor its CPU time moved in a second. An R task with SIGKILL pending is always running,
    so for it the signal must still be pending in the second sample.

    Raises Denied when /proc cannot be listed.
    """
    scan = _TaskScan(host)
    blocked = _sampled_twice(host, scan.blocked())
    blocked.sort(key=lambda task: (not task.persistent, task.sample.pid))
    refusals: list[str] = []  # of tasks that wait in an unknown function
    for task in blocked[:MOST_RECORDS]:
        stack: tuple[str, ...] = ()
        try:
            # Last of all: on some kernels the stack of a task that is stuck in execve blocks.
            stack = _stack(host, task.sample.path) if task.persistent else ()
        except Denied as error:
            if not task.wchan:
                refusals.append(str(error))
        yield task.record(stack)
    if len(blocked) > MOST_RECORDS:
        reason = f"{len(blocked) - MOST_RECORDS} more blocked tasks are not listed"
        yield Unread("/proc", Status.ERROR, reason)
    if refusals:
        reason = f"wait channels of {len(refusals)} tasks are hidden, the first: {refusals[0]}"
        yield Unread("/proc/<pid>/wchan", Status.DENIED, reason)
    yield from scan.unread()


class _Sample(NamedTuple):
    """One task at one moment."""

    path: str  # directory below /proc
    pid: int
    stat: ProcessStat
    switches: Optional[int]  # None: not asked for, or status does not say
    kill_pending: bool

    @property
    def blocked(self) -> bool:
        """In state D, or running without taking a SIGKILL."""
        return self.stat.state == "D" or (self.stat.state == "R" and self.kill_pending)

    def lasts_in(self, later: _Sample) -> bool:
        """Whether the same task is blocked in the later sample and did not run in between."""
        if self.stat.state == "R":
            return later.kill_pending
        if later.stat.state != "D":
            return False
        return self.stat.cpu_ticks == later.stat.cpu_ticks and self.switches == later.switches


class _Blocked(NamedTuple):
    """A task that was blocked in the first sample and still exists in the second."""

    sample: _Sample  # the first
    wchan: str
    persistent: bool

    def record(self, stack: tuple[str, ...]) -> BlockedTask:
        """The record, with the stack as far as it could be read."""
        stat, innermost = self.sample.stat, "".join(stack[:1])
        return BlockedTask(
            pid=self.sample.pid,
            start_ticks=stat.start_ticks,
            comm=stat.comm,
            state=stat.state,
            kernel_thread=bool(stat.flags & _PF_KTHREAD),
            wchan=self.wchan or innermost.partition("+")[0],
            stack=stack,
            persistent=self.persistent,
            sample_gap_s=SAMPLE_GAP_S,
            kill_pending=self.sample.kill_pending,
            raydiag_reader=sandbox.is_tag(stat.comm),
        )


def _sample(host: Host, path: str) -> _Sample:
    """One task now. Raises NoData when it has ended, ParseError, ReadError."""
    stat = read_stat(host, path)
    status = _status(host, path) if stat.state in ("D", "R") else {}
    pending = _has_sigkill(status.get("SigPnd", "")) or _has_sigkill(status.get("ShdPnd", ""))
    return _Sample(path, int(path.rsplit("/", 1)[-1]), stat, _switches(status), pending)


def _switches(status: dict[str, str]) -> Optional[int]:
    """Context switches of the task; None where status does not say."""
    counts = [status.get(f"{kind}_ctxt_switches", "") for kind in ("voluntary", "nonvoluntary")]
    if not all(map(is_digits, counts)):
        return None
    return sum(map(int, counts))


def _status(host: Host, path: str) -> dict[str, str]:
    """The `Key: value` lines of a status file; empty when it may not be read."""
    try:
        text = host.read_text(f"{path}/status", 1 << 14)
    except NoData:
        raise
    except ReadError:
        return {}
    pairs = (line.partition(":") for line in text.split("\n"))
    return {key: value.strip() for key, _, value in pairs}


def _has_sigkill(mask: str) -> bool:
    try:
        return bool(int(mask, 16) & _SIGKILL_BIT)
    except ValueError:
        return False


class _TaskScan:
    """The first sample: every process, then the threads of those that train."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.seen = 0
        self.left_out = 0
        self.failures: dict[Status, tuple[int, str]] = {}  # how many, and the first reason

    def blocked(self) -> list[_Sample]:
        """Blocked processes and threads. Raises Denied when /proc cannot be listed."""
        try:
            pids = sorted(process_ids(self.host))
        except ReadError as error:
            raise Denied(f"{error}; blocked tasks were not looked for") from None
        samples = self._samples([f"/proc/{pid}" for pid in pids])
        for process in list(samples):
            if process.stat.threads > 1 and process.stat.comm.startswith(_THREADED):
                samples += self._threads(process)
        return list(filter(attrgetter("blocked"), samples))

    def _threads(self, process: _Sample) -> list[_Sample]:
        """Its threads, without the main one."""
        directory, main = f"{process.path}/task", str(process.pid)
        # Empty: it has ended, or the count below /proc/<pid>/stat already says refused.
        names = self.host.names_or_empty(directory)
        others = [tid for tid in names if tid.isdigit() and tid != main]
        return self._samples([f"{directory}/{tid}" for tid in others])

    def _samples(self, paths: Sequence[str]) -> list[_Sample]:
        room = max(0, MOST_TASKS - self.seen)
        self.left_out += len(paths[room:])
        self.seen += len(paths[:room])
        samples = []
        for path in paths[:room]:
            try:
                samples.append(_sample(self.host, path))
            except NoData:
                pass  # ended since it was listed
            except ReadError as error:
                count, reason = self.failures.get(error.status, (0, str(error)))
                self.failures[error.status] = (count + 1, reason)
        return samples

    def unread(self) -> Iterator[Unread]:
        """What could not be, or was not, looked at."""
        for status, (count, reason) in self.failures.items():
            yield Unread("/proc/<pid>/stat", status, f"{count} tasks, the first: {reason}")
        if self.left_out:
            reason = f"{self.left_out} tasks were not looked at, the limit is {MOST_TASKS}"
            yield Unread("/proc/<pid>/stat", Status.ERROR, reason)


def _sampled_twice(host: Host, first: Sequence[_Sample]) -> list[_Blocked]:
    """The blocked tasks that have not ended meanwhile; waits only where there are any."""
    if not first:
        return []
    wait_channels = [host.text_or_empty(f"{sample.path}/wchan", 256) for sample in first]
    time.sleep(SAMPLE_GAP_S)
    blocked = []
    for sample, wchan in zip(first, wait_channels):
        try:
            later = _sample(host, sample.path)
        except ReadError:
            continue
        if later.stat.start_ticks == sample.stat.start_ticks:
            if wchan == "0":  # from a kernel that hides it
                wchan = ""
            blocked.append(_Blocked(sample, wchan, sample.lasts_in(later)))
    return blocked


def _stack(host: Host, path: str) -> tuple[str, ...]:
    """Symbols of `[<0>] symbol+0x6a/0x2f0 [module]` lines. Raises Denied unless root."""
    try:
        text = host.read_text(f"{path}/stack", 1 << 14)
    except Denied:
        raise
    except ReadError:
        return ()
    stack = []
    for line in text.split("\n"):
        frame = line.partition("] ")[2]
        # Older kernels end the list with a bare address.
        if line.startswith("[<") and frame and not frame.startswith("0x"):
            stack.append(frame)
    return tuple(stack[:_STACK_LIMIT])
