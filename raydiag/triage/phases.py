"""How far the start-up of a Ray training job has come, and whether it takes longer than normal.

Trainers and inference engines start side by side, so the phases that are over are a set; the one
that is told is the furthest that is not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from raydiag.joblog.facts import JobFacts
from raydiag.joblog.script_facts import PhaseMark
from raydiag.triage.verdict import Moment, Phase


@dataclass(frozen=True)
class _Step:
    """One of the seven; `begun` and `done` are ids of marks."""

    name: str
    begun: tuple[str, ...]
    done: tuple[str, ...]
    normal_s: float  # longer is late
    advice: str  # for when it is


_QUICK_S = 120.0
_STEPS = (
    _Step(
        "config and dataset",
        (),
        ("dataset done",),
        _QUICK_S,
        "Check the dataset's path, and the disk that it is on.",
    ),
    _Step(
        "placement groups",
        ("gpus progress", "gpus done"),
        ("placement reached",),
        300.0,
        "Workers may not have joined: compare the GPUs of `ray status` with those asked for, and "
        "run `ray start` on the missing nodes.",
    ),
    _Step(
        "Mooncake master",
        (),
        ("mooncake reached",),
        _QUICK_S,
        "Read the Mooncake master's own worker log.",
    ),
    _Step(
        "trainer start",
        ("trainer-init reached",),
        ("trainer-init done",),
        300.0,
        "Compare NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME and TP_SOCKET_IFNAME across the nodes.",
    ),
    _Step(
        "engine start",
        ("engine-init progress", "engine-init done", "engine-graphs reached"),
        ("engine-graphs done",),
        900.0,
        "Loading shards: look at disk and NFS throughput, and in the kernel log for oom kills.",
    ),
    _Step(
        "queue wiring",
        ("engine-graphs done",),
        ("queues reached", "init-done done"),
        _QUICK_S,
        "Read the newest worker-*.err.",
    ),
    _Step("training", ("training progress", "training done"), (), float("inf"), ""),
)
_TRAINER = 3  # its marks may stand in the workers' logs only; it ends when it ends
_AFTER_SHARDS_S = 600.0  # KV cache and CUDA graphs take minutes, in silence
_AFTER_SHARDS = (
    "All shards are loaded: a CUDA graph capture hangs, or the KV cache does not fit. Look at GPU "
    "memory, and for CUDA errors in worker-*.err."
)


def phase(facts: JobFacts, moment: Moment) -> Optional[Phase]:
    """The phase that the job is in; None for jobs that print no marks."""
    marks = {f"{one.phase} {one.event}": one for one in facts.phases}
    places = [n for n, one in enumerate(_STEPS) if _marks(marks, one.begun + one.done)]
    if not places:
        return None
    newest = max(places)
    done = [n for n in range(newest + 1) if _is_over(n, newest, marks)]
    current = newest + 1 if newest in done else newest
    step = _STEPS[current]
    seen = _marks(marks, step.begun) or _marks(marks, _STEPS[newest].begun + _STEPS[newest].done)
    loaded = step is _STEPS[4] and "engine-init done" in marks
    since = _last(marks["engine-init done"]) if loaded else _first(seen, current > newest)
    seconds = None if since is None or moment.now is None else max(0.0, moment.now - since)
    normal = _AFTER_SHARDS_S if loaded else step.normal_s
    shown = max(seen, key=lambda one: one.last_line)
    return Phase(
        name=step.name,
        number=current + 1,
        done=tuple(_STEPS[n].name for n in done),
        seconds=seconds,
        normal_s=normal,
        late=seconds is not None and seconds > normal,
        advice=_AFTER_SHARDS if loaded else step.advice,
        line=shown.last_line,
        file=shown.file,
        raw=shown.raw,
    )


def _marks(marks: dict[str, PhaseMark], names: tuple[str, ...]) -> list[PhaseMark]:
    return [marks[name] for name in names if name in marks]


def _is_over(place: int, newest: int, marks: dict[str, PhaseMark]) -> bool:
    """By its own closing mark, or because something later has begun."""
    if _marks(marks, _STEPS[place].done):
        return True
    side_by_side = place == _TRAINER and newest == _TRAINER + 1
    return place < newest and not (side_by_side and _marks(marks, _STEPS[place].begun))


def _first(seen: list[PhaseMark], after: bool) -> Optional[float]:
    """When the phase began: at its own first mark, or where the one before it ended."""
    times = [_last(one) if after else _begin(one) for one in seen]
    known = [time for time in times if time is not None]
    if not known:
        return None
    return max(known) if after else min(known)


def _begin(mark: PhaseMark) -> Optional[float]:
    return mark.first_time if mark.first_time is not None else mark.first_near_time


def _last(mark: PhaseMark) -> Optional[float]:
    return mark.last_time if mark.last_time is not None else mark.last_near_time
