"""How far the start-up of a Ray training job has come, and whether it takes longer than normal.

Phases overlap: trainers and inference engines start side by side. So each one counts as done by its
own mark or by one that can only come later.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from raydiag.joblog.facts import JobFacts, PhaseMark
from raydiag.triage.verdict import Moment, Phase


@dataclass(frozen=True)
class _Stage:
    id: str  # as in PhaseMark.phase
    name: str
    normal_s: float  # longer is late
    advice: str  # for when it is


_QUICK_S = 120.0
_STAGES = (
    _Stage("dataset", "config and dataset", _QUICK_S, "Check the dataset's path and its disk."),
    _Stage(
        "placement",
        "placement groups",
        _QUICK_S,
        "Workers may not have joined: compare the GPU count in `ray status` with the one needed.",
    ),
    _Stage("mooncake", "Mooncake master", _QUICK_S, "Read the Mooncake master's own worker log."),
    _Stage(
        "trainer-init",
        "trainer start",
        300.0,
        "Compare NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME and TP_SOCKET_IFNAME across nodes.",
    ),
    _Stage(
        "engine-init",
        "engine start",
        900.0,
        "Loading shards: look at disk and NFS throughput, and in the kernel log for oom kills.",
    ),
    _Stage("queues", "queue wiring", _QUICK_S, "Read the newest worker-*.err."),
    _Stage("training", "training", float("inf"), ""),
)
_AFTER_SHARDS_S = 600.0  # KV cache and CUDA graphs take minutes, in silence
_AFTER_SHARDS = (
    "All shards are loaded: a CUDA graph capture hangs, or the KV cache does not fit. Look at GPU "
    "memory and for CUDA errors in worker-*.err."
)
_ALL_SHARDS = 100.0


def phase(facts: JobFacts, moment: Moment) -> Optional[Phase]:
    """The phase that the job is in; None for jobs that print no marks."""
    marks = {one.phase: one for one in facts.phases if one.event != "error"}
    reached = [index for index, stage in enumerate(_STAGES) if stage.id in marks]
    if not reached:
        return None
    done, current = _current(marks, max(reached))
    stage, mark = _STAGES[current], marks[_STAGES[max(reached)].id]
    own = marks.get(stage.id)
    loaded = own is not None and own.value is not None and own.value >= _ALL_SHARDS
    since = _since(own or mark, waits=loaded)
    seconds = None if since is None or moment.now is None else max(0.0, moment.now - since)
    normal, advice = stage.normal_s, stage.advice
    if stage.id == "engine-init" and loaded:
        normal, advice = _AFTER_SHARDS_S, _AFTER_SHARDS
    shown = own or mark
    return Phase(
        name=stage.name,
        number=current + 1,
        done=tuple(_STAGES[index].name for index in done),
        seconds=seconds,
        normal_s=normal,
        late=seconds is not None and seconds > normal,
        advice=advice,
        line=shown.last_line,
        file=shown.file,
        raw=shown.raw,
    )


def _current(marks: dict[str, PhaseMark], newest: int) -> tuple[list[int], int]:
    """Phases that are over, and the one that is not.

    A phase whose mark is its end is over; loading shards goes on until something later is seen.
    """
    if _STAGES[newest].id == "training":
        return list(range(newest)), newest
    over = [
        index
        for index, stage in enumerate(_STAGES[: newest + 1])
        if stage.id in marks and (stage.id != "engine-init" or index < newest)
    ]
    ready = [index for index in range(newest) if index not in over and index < newest - 1]
    over = sorted({*over, *ready})
    waiting = [index for index in range(newest + 1) if index not in over]
    return over, waiting[0] if waiting else newest + 1


def _since(mark: PhaseMark, waits: bool) -> Optional[float]:
    """When it began: at its first mark, or at its newest where silence after it counts."""
    if waits:
        return mark.last_time if mark.last_time is not None else mark.last_near_time
    return mark.first_time if mark.first_time is not None else mark.first_near_time
