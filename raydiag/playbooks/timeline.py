"""Worked out once for all: when training ran and stood, who was there, what power means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Optional

import numpy as np

from raydiag.catalog.hardware import Accelerator, accelerator
from raydiag.model import Window
from raydiag.playbooks import onset
from raydiag.playbooks.context import GHOST, LOADED, SAVE, Context
from raydiag.playbooks.observations import ObservationRecorder
from raydiag.playbooks.queries import QUESTIONS, range_s
from raydiag.playbooks.query_results import Answers, ResultTable
from raydiag.playbooks.spans import Span
from raydiag.playbooks.training import Training
from raydiag.tsdb.series import Floats, Series

_STALL_STEPS, _STALL_S = 10.0, 300.0
_STALL_SAVES, _STALL_SAVE_S = 3.0, 1800.0
_SAVE_UNSEEN_S = 480.0  # a save may take, where none was seen: what writing one usually takes
_SAVE_STEPS = 2.0  # times the usual step
_UNDATED_S = 1800.0  # of spinning, where no step says when they stopped: longer than compiling
BUSY_PERCENT = 80.0  # a kernel is there, whatever it does
_SETTLE_S = 60.0  # until power and utilisation show what the collective does
_IDLE_SHARE = 0.6  # of the power in training: below it nothing is computed
_ACTIVE_SHARE = 0.75
_IDLE_FACTOR = 2.0  # times idle power: waiting takes little more, training three times as much
_UNUSED_PERCENT = 5.0
_LIMIT_SHARE = 0.5  # of the power limit, between waiting and training on every known model
_DEATH_S = 60.0
_DEATH_SAMPLES = 5.0
_FINAL = ("completed",)
_HANGS = ("hang", "rccl-hang", "nccl-timeout")
_OVER_S = 120.0
_KEEPS_FAULTS = (
    "gpu-errors",
    "gpu-corrected",
    "oom-kills",
    "tcp-errors",
    "rdma-errors",
    "rdma-ports-down",
    "nic-errors",
)
_BY_GPU = ("gpu-power", "gpu-temperature", "gpu-clock", "gpu-vram")
_BY_GPU_FINE = tuple(f"{question}-fine" for question in _BY_GPU)


@dataclass(frozen=True)
class StepStall:
    """Steps stopped; `end` is the end of the window, or the error that ended the job."""

    start: float  # the last completed step
    end: float
    step: Optional[int]

    @property
    def settled(self) -> Window:
        """Without its beginning, in which GPUs still finish what they had."""
        return Window(min(self.start + _SETTLE_S, self.end), self.end)


@dataclass(frozen=True)
class Death:
    """A host whose series of every kind stopped while others went on."""

    host: str
    time: float  # its last sample
    sources: tuple[str, ...]  # "hw", "ray": what it had


@dataclass(frozen=True)
class Levels:
    """What power means in this job."""

    idle_watts: float  # below: nothing is computed, though a collective may spin
    active_watts: float  # at least: training
    usual_watts: Optional[float]  # in this job's own steady training
    source: str


class RunTimeline:
    """The context, the answers, and what follows from both."""

    def __init__(self, context: Context, answers: Answers) -> None:
        self.context, self.answers = context, answers
        self.window, self.job = context.window, context.job
        self._tables: dict[str, ResultTable] = {}
        self._steady: dict[str, ResultTable] = {}
        self.memory: dict[str, object] = {}  # what a module has worked out once for all playbooks

    @cached_property
    def training(self) -> Training:
        return Training.of(self.answers)

    def missing(self, question: str) -> str:
        """Why there is nothing to judge; "" when there is, also when all of it is well.

        Questions that keep only what is wrong are answered by nothing when nothing is.
        """
        answer = self.answers.answer(question)
        if answer is not None and answer.ok and question in _KEEPS_FAULTS:
            return ""
        return self.answers.missing(question)

    def undecided(self, record: ObservationRecorder, row: str, question: str) -> bool:
        """Writes that a row cannot be decided; True when so."""
        why = self.missing(question)
        if why:
            record.row(row, None, why, question=question)
        return bool(why)

    def over(self, span: Span) -> bool:
        """It ended while the job went on."""
        return not span.open and span.end < self.window.end - _OVER_S

    def table(self, question: str) -> ResultTable:
        """The answer by host, without ghost data."""
        if question not in self._tables:
            self._tables[question] = self._table(question)
        return self._tables[question]

    def _table(self, question: str) -> ResultTable:
        found = self.answers.table(question)
        known = next((one for one in QUESTIONS if one.id == question), None)
        is_rate = known is not None and known.counter and found.step_s > 0
        span = range_s(self.context, found.step_s) if is_rate else found.span_s
        table = replace(found, span_s=span)
        if question in _BY_GPU or question in _BY_GPU_FINE:
            table = self._fresh(table)
        return self.without(table, GHOST, question=question)

    def _fresh(self, table: ResultTable) -> ResultTable:
        """NaN where a host's GPUs gave no sample: the server repeats the last ones for minutes."""
        counts = self.answers.table("gpu-count")
        if not len(counts) or not table.times.size:
            return table
        values = table.values.copy()
        at = np.searchsorted(counts.times, table.times).clip(0, counts.times.size - 1)
        for index, where in enumerate(table.where):
            row = counts.row(where.host)
            if row is not None:
                values[index, np.isnan(row[at])] = np.nan
        return replace(table, values=values)

    def without(self, table: ResultTable, *kinds: str, question: str = "") -> ResultTable:
        """NaN where a mask of these kinds (default: any) covers a value."""
        asked = question.removesuffix("-fine")  # of single devices, the same metric
        metric = next((one.metrics[0] for one in QUESTIONS if one.id == asked), "")
        values, hosts = table.values, {one.host for one in self.context.masks if one.host}
        common = self.context.judged(table.times, "", metric, *kinds, lag_s=table.span_s)
        if not common.all():
            values = np.where(common[None, :], values, np.nan)
        for index, where in enumerate(table.where):
            if where.host in hosts:
                keep = self.context.judged(
                    table.times, where.host, metric, *kinds, lag_s=table.span_s
                )
                values = values.copy() if values is table.values else values
                values[index, ~keep] = np.nan
        return replace(table, values=values)

    def steady(self, question: str) -> ResultTable:
        """Only while training went on, without saves, warm-up and the like."""
        if question not in self._steady:
            table = self.without(self.table(question), question=question)
            if self.trained is not None:
                table = table.between(*self.trained)
            self._steady[question] = table
        return self._steady[question]

    @cached_property
    def trained(self) -> Optional[tuple[float, float]]:
        """First and last completed step; None without steps."""
        times, placed = self.training.times, self.context.trained
        if times.size > 1:
            return float(times[0]), float(times[-1])
        return (placed.start, placed.end) if placed is not None else None

    # ---- steps that stop

    @cached_property
    def last_step(self) -> tuple[Optional[int], Optional[float]]:
        """The newest step and when it ended, from series and log together."""
        job, seen = self.job, self.training.last
        if seen is None:
            return job.last_step, job.last_step_time
        step, time = seen
        if job.last_step is None or job.last_step <= step:
            return step, time
        if job.last_step_time is not None and job.last_step_time > time:
            return job.last_step, job.last_step_time
        # The log got further than the bridge: what is missing took its usual time.
        each = job.step_time_s or self.training.step_time_s or 0.0
        return job.last_step, min(time + (job.last_step - step) * each, self.window.end)

    @cached_property
    def stall(self) -> Optional[StepStall]:
        """When steps stopped for longer than any save or slow step explains."""
        step, time = self.last_step
        if self.job.status in _FINAL or self._finished(step):
            return None
        end = self.window.end
        if self.job.crash_time is not None:
            end = min(end, self.job.crash_time)
        if time is None:
            return self._spinning(end, step)
        # Where triage has judged it a hang, by more than the time, a save is no excuse any more.
        saving = self._saves_next(step) and self.job.primary not in _HANGS
        if end - time <= self._patience_s(saving):
            return None
        return StepStall(time, end, step)

    def _spinning(self, end: float, step: Optional[int]) -> Optional[StepStall]:
        """Where no step is dated: GPUs that are busy and compute nothing, for long, to the end."""
        levels, use = self.levels, self.table("gpu-utilisation").pick("max")
        power = self.table("gpu-power").pick("max")
        if levels is None or not len(use) or not len(power):
            return None
        highest = np.nan_to_num(power.values, nan=-np.inf).max(axis=0)
        at = np.searchsorted(power.times, use.times).clip(0, power.times.size - 1)
        busy = np.nan_to_num(use.values).max(axis=0) > BUSY_PERCENT
        spins = busy & (highest[at] > 0) & (highest[at] < levels.idle_watts)
        inside = np.flatnonzero(use.times <= end)
        if not inside.size or not spins[inside[-1]]:
            return None
        quiet = np.flatnonzero(~spins[: inside[-1] + 1])
        start = float(use.times[quiet[-1] + 1 if quiet.size else 0])
        return StepStall(start, end, step) if end - start > _UNDATED_S else None

    def _finished(self, step: Optional[int]) -> bool:
        total = self.job.total_steps
        return step is not None and total is not None and step >= total - 1

    @property
    def next_step_s(self) -> float:
        """How long after the last step they may have stopped: a step, and a save where one came."""
        each = self.training.step_time_s or self.job.step_time_s or self.context.resolution_s()
        if not self._saves_next(self.last_step[0]):
            return each
        longest = self.job.longest_save_s or 0.0
        # A step of the usual length is no save that blocked: the first one is still to come.
        seen = longest > _SAVE_STEPS * each or self.job.async_saves is True
        return each + (longest if seen else _SAVE_UNSEEN_S)

    def _saves_next(self, step: Optional[int]) -> bool:
        period = self.job.checkpoint_period
        return step is not None and bool(period) and (step + 1) % (period or 1) == 0

    def _patience_s(self, saving: bool) -> float:
        each = self.training.step_time_s or self.job.step_time_s or 0.0
        patience = max(_STALL_STEPS * each, _STALL_S)
        if saving:
            longest = self.job.longest_save_s or 0.0
            patience = max(patience, _STALL_SAVES * longest, _STALL_SAVE_S)
        return patience

    # ---- hosts that stop

    @cached_property
    def deaths(self) -> tuple[Death, ...]:
        """Hosts that went silent well before the others did."""
        seen = {host: self.answers.last_seen(host) for host in self.context.hosts}
        seen = {host: sources for host, sources in seen.items() if sources}
        if len(seen) < 2:
            return ()
        lasts = {host: max(sources.values()) for host, sources in seen.items()}
        patience = max(_DEATH_S, _DEATH_SAMPLES * self.context.resolution_s())
        others = float(np.median(list(lasts.values())))
        latest = max(lasts.values())
        end = min(latest, self.window.end)
        gone = [host for host, last in lasts.items() if last < end - patience]
        # When most are silent it is the monitoring that ended, or the job.
        if len(gone) * 2 > len(lasts) and others < end - patience:
            return ()
        return tuple(
            Death(host, lasts[host], tuple(sorted(seen[host])))
            for host in sorted(gone, key=lambda host: lasts[host])
        )

    @cached_property
    def dead(self) -> frozenset[str]:
        return frozenset(death.host for death in self.deaths)

    @cached_property
    def unseen(self) -> tuple[str, ...]:
        """Hosts of the job without any power or utilisation in the answers."""
        known = {*self.table("gpu-power").hosts, *self.table("gpu-utilisation").hosts}
        return tuple(host for host in self.context.hosts if host not in known)

    # ---- power

    @cached_property
    def accelerator(self) -> Optional[Accelerator]:
        """The model, as told from outside or by Ray's series."""
        known = accelerator(self.context.gpu_model)
        answer = self.answers.answer("gpu-utilisation")
        for series in answer.series if answer is not None else ():
            known = known or accelerator(series.labels.get("GpuDeviceName"))
        return known

    @cached_property
    def levels(self) -> Optional[Levels]:
        """From the model's numbers and this job's own training; None with neither."""
        model, usual = self.accelerator, self._usual_watts()
        idle = (model.waiting_watts or model.idle_watts) if model else None
        active = usual or (model.active_watts if model else None)
        if active is None and model and model.limit_watts:
            half = _LIMIT_SHARE * model.limit_watts
            return Levels(half, half, None, f"half of {model.model}'s limit")
        if active is None:
            resting = self._resting_watts()
            if resting is None:
                return None
            twice = _IDLE_FACTOR * resting
            return Levels(twice, twice, None, "twice this job's own idle power")
        between = (idle + active) / 2 if idle and idle < active else _IDLE_SHARE * active
        source = "this job's own training" if usual else "the model's levels"
        if model and idle:
            source += f" and {model.model}'s idle power" if usual else f" ({model.model})"
        return Levels(between, max(_ACTIVE_SHARE * active, between), usual, source)

    def _resting_watts(self) -> Optional[float]:
        """What GPUs drew while none of them was used; None when they always were."""
        power, use = self.table("gpu-power").pick("avg"), self.table("gpu-utilisation").pick("max")
        if not len(power) or not len(use):
            return None
        unused = use.times[np.nan_to_num(use.values, nan=np.inf).max(axis=0) < _UNUSED_PERCENT]
        return middle(power.values[:, np.isin(power.times, unused)].ravel())

    def _usual_watts(self) -> Optional[float]:
        power = self.steady("gpu-power").pick("avg")
        values = power.values[~np.isnan(power.values)]
        if self.trained is None or values.size < 8:
            return None
        usual = float(np.median(values))
        model = self.accelerator
        # A job that computed nothing all along has no baseline of its own.
        if model and model.idle_watts and usual <= model.idle_watts:
            return None
        return usual


def departure(
    scene: RunTimeline,
    table: ResultTable,
    row: Floats,
    host: str,
    before: float,
    least: float,
    sign: int,
    masked: Sequence[str] = (GHOST, *LOADED),
) -> float:
    """When a row left its level on the way to what it was at `before`; that time if it never did.

    A threshold is crossed later than the trouble begins.
    """
    keep = scene.context.judged(table.times, host, "hw_", *masked)
    usual = onset.level(row, keep)
    if usual is None:
        return before
    away = onset.deviations(table.times, row, keep, usual, least, sign)
    working = scene.context.judged(table.times, host, "hw_", SAVE)
    found: Optional[onset.Deviation] = None
    for one in reversed(away):
        if found is None and one.time <= before and (one.ended is None or one.ended >= before):
            found = one
        elif found is not None and one.ended is not None:
            between = (table.times >= one.ended) & (table.times < found.time)
            if working[between].any():
                break
            found = one  # a save, in which everything rests, had interrupted it
    return before if found is None else min(before, _ramp(table.times, row, found))


def _ramp(times: Floats, row: Floats, found: onset.Deviation) -> float:
    """The slope followed back, but not beyond the last sample that was at the level."""
    known = ~np.isnan(row)
    start = onset.ramp_start(Series({}, times[known], row[known]), found)
    near = np.abs(row - found.level.median) <= 2.0 * found.level.sigma
    quiet = times[known & near & (times < found.time)]
    return max(start, float(quiet[-1])) if quiet.size else start


def capacities(scene: RunTimeline, metric: str) -> dict[str, float]:
    """What each host has of something, in bytes."""
    found = {}
    for where, row in scene.answers.table("capacity").pick(metric):
        known = row[~np.isnan(row)]
        if known.size:
            found[where.host] = float(known[-1])
    return found


def medians(table: ResultTable, window: Window) -> dict[str, float]:
    """Median of each host within a window; hosts without a sample are not in it."""
    part = table.between(window.start, window.end)
    known = ~np.isnan(part.values).all(axis=1)
    if not known.any():
        return {}
    found = np.nanmedian(part.values[known], axis=1)
    rows = np.flatnonzero(known)
    return {part.where[row].host: float(value) for row, value in zip(rows, found, strict=True)}


def middle(values: Sequence[float] | Floats) -> Optional[float]:
    """Median of what is known; None of nothing."""
    known = np.asarray(values, dtype=np.float64)
    known = known[~np.isnan(known)]
    return float(np.median(known)) if known.size else None
