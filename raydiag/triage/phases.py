"""How far the start-up of a Ray training job has come, and whether it takes longer than normal.

Trainers and inference engines start side by side, so several phases may be open at once. The phase
that is reported is the furthest one that is not over.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter

from raydiag.joblog.facts import JobFacts, PhaseMark
from raydiag.triage.tables import TABLES
from raydiag.triage.verdict import Moment, Phase


@dataclass(frozen=True)
class _Step:
    """One of the seven; `begun` and `done` are ids of marks."""

    name: str
    begun: list[str]
    done: list[str]
    normal_s: float  # longer is late
    advice: str  # for when it is

    @property
    def marks(self) -> list[str]:
        """Any of them shows that the phase has begun."""
        return self.begun + self.done


_STEPS = tuple(_Step(**row) for row in TABLES["start_up"])
_TRAINER = 3  # its marks may stand in the workers' logs only; it ends when it ends
_ENGINE = 4
_SHARDS_LOADED = "engine-init done"
_Marks = Mapping[str, PhaseMark]


def phase(facts: JobFacts, moment: Moment) -> Phase | None:
    """The phase that the job is in; None for jobs that print no marks."""
    marks = {f"{mark.phase} {mark.event}": mark for mark in facts.phases}
    newest = max((n for n, step in enumerate(_STEPS) if _any(marks, step.marks)), default=None)
    if newest is None:
        return None
    over = [index for index in range(newest + 1) if _is_over(index, newest, marks)]
    current = newest + 1 if newest in over else newest
    step, normal_s, advice = _STEPS[current], _STEPS[current].normal_s, _STEPS[current].advice
    present = _present(marks, step.begun) or _present(marks, _STEPS[newest].marks)
    since = _since(present, goes_on=current == newest)
    if current == _ENGINE and _SHARDS_LOADED in marks:
        normal_s, advice = TABLES["after_shards"]["normal_s"], TABLES["after_shards"]["advice"]
        since = marks[_SHARDS_LOADED].last_time
    seconds = None if since is None or moment.now is None else max(0.0, moment.now - since)
    last_mark = max(present, key=attrgetter("last_line"))
    return Phase(
        name=step.name,
        number=current + 1,
        done=tuple(_STEPS[index].name for index in over),
        seconds=seconds,
        normal_s=normal_s,
        late=seconds is not None and seconds > normal_s,
        advice=advice,
        line=last_mark.last_line,
        file=last_mark.file,
        raw=last_mark.raw,
    )


def _any(marks: _Marks, names: list[str]) -> bool:
    return not marks.keys().isdisjoint(names)


def _present(marks: _Marks, names: list[str]) -> list[PhaseMark]:
    return [marks[name] for name in names if name in marks]


def _is_over(index: int, newest: int, marks: _Marks) -> bool:
    """By its own closing mark, or because something later has begun."""
    if _any(marks, _STEPS[index].done):
        return True
    side_by_side = index == _TRAINER and newest == _ENGINE
    return index < newest and not (side_by_side and _any(marks, _STEPS[index].begun))


def _since(marks: list[PhaseMark], goes_on: bool) -> float | None:
    """The phase's own first mark; else where the phase before it ended."""
    if goes_on:
        return min(filter(None, map(attrgetter("first_time"), marks)), default=None)
    return max(filter(None, map(attrgetter("last_time"), marks)), default=None)
