"""When a job did what: steps, saves and stops, before anything is measured.

A fault acts here first: it slows steps down or stops them. What the instruments then show follows
from the phases and the load; see baseline.py.
"""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# Phases of a host, in the order in which a job goes through them.
IDLE, COMPILE, TRAIN, SAVE, WAIT = range(5)


@dataclass(frozen=True)
class Step:
    """One completed step."""

    number: int
    start: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.start


@dataclass(frozen=True)
class Save:
    """One checkpoint; `blocked_s` of it stands in the way of training."""

    step: int
    start: float
    end: float
    blocked_s: float


@dataclass(frozen=True)
class Slow:
    """From `start` to `end` a step takes `factor` times as long."""

    start: float
    end: float
    factor: float


@dataclass
class Plan:
    """What the timeline is made from; faults edit it before it is built."""

    train_start: float
    train_end: float  # no step begins after this
    first_step: int
    step_s: float
    compile_s: float
    period: int | None  # steps between saves; None: no checkpointing
    asynchronous: bool
    save_s: float
    save_first: bool  # a fresh job saves step 0
    stop_at: float = math.inf  # training stands still from here on
    slows: list[Slow] = field(default_factory=list)
    save_lengths_s: dict[int, float] = field(default_factory=dict)  # step -> instead of `save_s`

    def finish(self, at: float, work_s: float) -> float:
        """When `work_s` of undisturbed work are done that begin at `at`."""
        edges = sorted({edge for one in self.slows for edge in (one.start, one.end)})
        while True:
            factor = math.prod(s.factor for s in self.slows if s.start <= at < s.end)
            after = bisect.bisect_right(edges, at)
            limit = edges[after] if after < len(edges) else math.inf
            if at + work_s * factor <= limit:
                return at + work_s * factor
            work_s -= (limit - at) / factor
            at = limit


@dataclass(frozen=True)
class Timeline:
    """Steps and saves as they came about."""

    plan: Plan
    steps: tuple[Step, ...]
    saves: tuple[Save, ...]

    @property
    def last(self) -> Step | None:
        return self.steps[-1] if self.steps else None

    def phase(self, times: Floats) -> NDArray[np.int64]:
        """Phase of every host at these times, where no fault says otherwise."""
        plan = self.plan
        phase = np.full(times.shape, IDLE)
        first_end = self.steps[0].end if self.steps else math.inf
        phase[(times >= plan.train_start) & (times < first_end)] = COMPILE
        phase[times >= first_end] = TRAIN
        for save in self.saves:
            blocked = (times >= save.start) & (times < save.start + save.blocked_s)
            phase[blocked] = SAVE
        phase[times >= plan.stop_at] = WAIT
        return phase

    def load(self, times: Floats) -> Floats:
        """Share of the time in which GPUs compute and do not wait for each other, 0 to 1."""
        load = np.ones(times.shape)
        for slow in self.plan.slows:
            load[(times >= slow.start) & (times < slow.end)] /= slow.factor
        return load


def build(plan: Plan, noise: Floats) -> Timeline:
    """Steps one after the other; `noise` is the relative deviation of each, used in turn."""
    steps: list[Step] = []
    saves: list[Save] = []
    at, number = plan.train_start, plan.first_step
    while at < plan.train_end:
        work = plan.step_s * (1 + float(noise[len(steps) % len(noise)]))
        if not steps:
            work += plan.compile_s
        end = plan.finish(at, work)
        save = _save(plan, number, end) if end < plan.stop_at else None
        if save:
            saves.append(save)
            end += save.blocked_s
        if end >= plan.stop_at:
            break
        steps.append(Step(number, at, end))
        at, number = end, number + 1
    return Timeline(plan, tuple(steps), tuple(saves))


def _save(plan: Plan, number: int, at: float) -> Save | None:
    if not plan.period or number % plan.period or (number == 0 and not plan.save_first):
        return None
    length = plan.save_lengths_s.get(number, plan.save_s * (1 + 0.1 * math.sin(number)))
    blocked = min(12.0, length) if plan.asynchronous else length
    return Save(number, at, at + length, blocked)
