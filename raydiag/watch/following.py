"""What changed since the last look at a job, and what of it somebody should hear: pure functions.

Progress goes by steps, never by the age of a file. A pause is late when it is longer than three
steps, than a floor, and than half as much again as any pause that this job has made before: saves
and evaluations are pauses of its own, time in which nobody looked is not. A look that fails says
nothing about the job.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from raydiag.triage.verdict import JobStatus

ENDED = (JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELLED)
_MISSED_STEPS = 3
_LONGER = 1.5
_LOST_LOOKS = 3
_LONGEST_GAP_S = 600.0  # between two looks that still measure what lies between them
_LATE, _SLOWER, _NO_STEP, _LOST = "late", "slower", "no-first-step", "unreachable"
_BLIND = "nodes-not-seen"
IN_LOG, ON_NODES = "log", "nodes"


@dataclass(frozen=True)
class SeenProblem:
    """A finding as it is told apart from others."""

    failure_class: str
    where: str  # host, GPU and device; "" without
    title: str
    source: str = IN_LOG  # or ON_NODES

    @property
    def key(self) -> str:
        """The same for the same fault."""
        return f"{self.failure_class} {self.where}".strip()


@dataclass(frozen=True)
class JobLook:
    """One look at a job; times are Unix seconds."""

    time: float
    status: JobStatus = JobStatus.UNKNOWN
    primary: str | None = None
    last_step: int | None = None
    total_steps: int | None = None
    step_time_s: float | None = None
    last_step_time: float | None = None
    last_save: int | None = None
    is_slower: bool = False  # than it was early on
    problems: Sequence[SeenProblem] = ()
    nodes: tuple[int, int] | None = None  # answered, asked; None: nodes were not asked
    blind: str = ""  # why nodes that should have been asked were not
    failed: str = ""  # why there is no look at the log


@dataclass(frozen=True)
class Patience:
    """When silence becomes an alarm, seconds."""

    floor_s: float = 120.0
    start_s: float = 1800.0  # until the first step


@dataclass(frozen=True)
class Memory:
    """What a watcher knows; plain values, so that it can be written down."""

    job: str
    began: float
    looks: int = 0
    looked_at: float | None = None  # the last look that saw the job
    lost_looks: int = 0  # in a row
    last_step: int | None = None
    advanced_at: float | None = None  # when the newest step was seen or written
    longest_pause_s: float = 0.0
    step_time_s: float | None = None
    status: str = ""
    alarms: dict[str, float] = field(default_factory=dict)  # open ones, since when
    problems: dict[str, float] = field(default_factory=dict)  # by key, since when
    on_nodes: tuple[str, ...] = ()  # keys of problems that nodes told
    gave_up: bool = False
    ended: str = ""  # how; "" while the job is watched

    @property
    def open_alarms(self) -> dict[str, float]:
        """What is wrong, and since when it has been known."""
        return {**self.alarms, **self.problems}


@dataclass(frozen=True)
class WatchEvent:
    """Something that changed."""

    kind: str  # late, resumed, slower, problem, gone, ended and others, see the schema
    text: str
    is_alarm: bool = False
    asks_why: bool = False  # one diagnosis should say why


def considered(
    memory: Memory, look: JobLook, patience: Patience
) -> tuple[Memory, list[WatchEvent]]:
    """The memory with the look, and what is new."""
    memory = replace(memory, looks=memory.looks + 1, alarms=dict(memory.alarms))
    memory, events = _nodes(memory, look)
    if look.failed:
        memory, lost = _without_look(memory, look)
        return memory, [*events, *lost]
    if memory.alarms.pop(_LOST, None) is not None:
        events.append(WatchEvent("reachable", "the job can be looked at again"))
    memory, progress = _with_progress(memory, look)
    memory = replace(memory, lost_looks=0, looked_at=look.time, status=look.status.value)
    events += progress
    if look.status in ENDED:
        return replace(memory, ended=look.status.value), [*events, _end(look)]
    memory, in_log = _with_problems(memory, look, IN_LOG)
    events += [*in_log, *_silence(memory, look, patience), *_pace(memory, look)]
    return memory, events


def _nodes(memory: Memory, look: JobLook) -> tuple[Memory, list[WatchEvent]]:
    """What nodes tell; that they could not be asked is told once."""
    if look.blind:
        if _BLIND in memory.alarms:
            return memory, []
        memory.alarms[_BLIND] = look.time
        return memory, [WatchEvent(_BLIND, f"nodes were not probed: {look.blind}", is_alarm=True)]
    if look.nodes is None:
        return memory, []
    memory.alarms.pop(_BLIND, None)
    return _with_problems(memory, look, ON_NODES)


def _with_problems(memory: Memory, look: JobLook, source: str) -> tuple[Memory, list[WatchEvent]]:
    """New problems of a source; those that are gone, unless a node was not seen."""
    seen = {problem.key: problem for problem in look.problems if problem.source == source}
    problems, events = dict(memory.problems), []
    for key, problem in seen.items():
        if key not in problems:
            problems[key] = look.time
            place = f" {problem.where}" if problem.where else ""
            text = f"{problem.failure_class}{place}: {problem.title}"
            events.append(WatchEvent("problem", text, is_alarm=True))
    on_nodes = set(memory.on_nodes)
    if source == ON_NODES:
        on_nodes |= seen.keys()
    all_seen = source == IN_LOG or (look.nodes is not None and look.nodes[0] == look.nodes[1])
    for key in list(problems) if all_seen else []:
        if key not in seen and (key in on_nodes) == (source == ON_NODES):
            del problems[key]
            on_nodes.discard(key)
            events.append(WatchEvent("gone", f"{key} is not seen any more"))
    return replace(memory, problems=problems, on_nodes=tuple(sorted(on_nodes))), events


def _without_look(memory: Memory, look: JobLook) -> tuple[Memory, list[WatchEvent]]:
    memory = replace(memory, lost_looks=memory.lost_looks + 1)
    if memory.lost_looks < _LOST_LOOKS or _LOST in memory.alarms:
        return memory, []
    memory.alarms[_LOST] = look.time
    text = f"{memory.lost_looks} looks in a row failed: {look.failed}"
    return memory, [WatchEvent(_LOST, text, is_alarm=True)]


def _with_progress(memory: Memory, look: JobLook) -> tuple[Memory, list[WatchEvent]]:
    """Whether there is a step that was not there before; a step that is smaller is a restart."""
    memory = replace(memory, step_time_s=look.step_time_s or memory.step_time_s)
    if look.last_step is None or look.last_step == memory.last_step:
        return memory, []
    at = min(look.time, look.last_step_time or look.time)
    events = []
    pause_s = _pause_s(memory, look, at)
    if memory.last_step is not None and look.last_step < memory.last_step:
        text = f"training went back from step {memory.last_step} to {look.last_step}"
        events.append(WatchEvent("went-back", text, is_alarm=True))
    if memory.alarms.pop(_NO_STEP, None) is not None or memory.alarms.pop(_LATE, None) is not None:
        events.append(WatchEvent("resumed", f"training goes on: step {look.last_step}"))
    else:
        memory = replace(memory, longest_pause_s=max(memory.longest_pause_s, pause_s))
    return replace(memory, last_step=look.last_step, advanced_at=at), events


def _pause_s(memory: Memory, look: JobLook, at: float) -> float:
    """What the new steps took beyond their usual time; 0 where nobody looked meanwhile."""
    if memory.advanced_at is None or memory.last_step is None or look.last_step is None:
        return 0.0
    gap_s = look.time - (memory.looked_at or look.time)
    if memory.lost_looks or gap_s > _LONGEST_GAP_S or look.last_step < memory.last_step:
        return 0.0
    usual_s = (look.last_step - memory.last_step) * (memory.step_time_s or 0.0)
    return max(0.0, at - memory.advanced_at - usual_s)


def _silence(memory: Memory, look: JobLook, patience: Patience) -> Iterator[WatchEvent]:
    if memory.advanced_at is None or memory.last_step is None:
        if look.time - memory.began > patience.start_s and _NO_STEP not in memory.alarms:
            memory.alarms[_NO_STEP] = look.time
            text = f"no step {_minutes(look.time - memory.began)} after watching began"
            yield WatchEvent(_NO_STEP, text, is_alarm=True, asks_why=True)
        return
    silent_s = look.time - memory.advanced_at
    steps_s = _MISSED_STEPS * (memory.step_time_s or 0.0)
    limit_s = max(steps_s, patience.floor_s, _LONGER * memory.longest_pause_s)
    is_late = silent_s > limit_s or look.status is JobStatus.HANGING
    if is_late and _LATE not in memory.alarms:
        memory.alarms[_LATE] = look.time
        text = f"no step for {_minutes(silent_s)} after step {memory.last_step}"
        if memory.step_time_s:
            text += f" (usual: {memory.step_time_s:.3g} s a step)"
        yield WatchEvent(_LATE, text, is_alarm=True, asks_why=True)


def _pace(memory: Memory, look: JobLook) -> Iterator[WatchEvent]:
    if look.is_slower and _SLOWER not in memory.alarms:
        memory.alarms[_SLOWER] = look.time
        text = f"steps take longer than early on: {look.step_time_s or 0:.3g} s"
        yield WatchEvent(_SLOWER, text, is_alarm=True, asks_why=True)
    elif not look.is_slower and memory.alarms.pop(_SLOWER, None) is not None:
        yield WatchEvent("gone", "steps are as fast as early on again")


_ENDS = {
    JobStatus.COMPLETED: "the job completed",
    JobStatus.FAILED: "the job failed",
    JobStatus.CANCELLED: "the job was cancelled",
}


def _end(look: JobLook) -> WatchEvent:
    text = ": ".join(filter(None, [_ENDS[look.status], look.primary]))
    is_well = look.status is JobStatus.COMPLETED
    return WatchEvent("ended", text, is_alarm=not is_well, asks_why=not is_well)


def _minutes(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min"
