"""The numbers that step lines print, kept within bounds: columns and sums."""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass, field
from typing import Optional

from raydiag.joblog.facts import StepRun, StepSeries

SERIES = 16384
HEAD, TAIL = 256, 4096
WARM_UP = 5
_COLUMNS = ("step", "seconds", "loss", "tflops", "tokens", "time", "line")


@dataclass
class Series:
    """Columns that grow with the run until they are thinned in the middle."""

    columns: dict[str, array[float]] = field(
        default_factory=lambda: {name: array("d") for name in _COLUMNS}
    )
    states: bytearray = field(default_factory=bytearray)
    thinned: bool = False

    def append(self, values: tuple[float, ...], state: str) -> None:
        for name, value in zip(_COLUMNS, values, strict=True):
            self.columns[name].append(value)
        self.states += state.encode()
        if len(self.states) > SERIES:
            keep = [*range(HEAD), *range(HEAD, len(self.states) - TAIL, 2)]
            keep += range(len(self.states) - TAIL, len(self.states))
            for name, column in self.columns.items():
                self.columns[name] = array("d", [column[i] for i in keep])
            self.states = bytearray(self.states[i] for i in keep)
            self.thinned = True

    def last_loss(self, loss: float, state: str) -> None:
        """Gives the newest step the loss that stands on a line of its own."""
        if self.states and self.states[-1:] == b"n":
            self.columns["loss"][-1] = loss
            self.states[-1:] = state.encode()

    def told(self, where: str, unit: str) -> StepSeries:
        copies = [array("d", self.columns[name]) for name in _COLUMNS]
        step, seconds, loss, tflops, tokens, time, line = copies
        return StepSeries(
            where=where,
            step=step,
            seconds=seconds,
            loss=loss,
            loss_state=bytes(self.states),
            tflops=tflops,
            tokens_per_s=tokens,
            time=time,
            line=line,
            throughput_unit=unit if any(value == value for value in tokens) else "",
            thinned=self.thinned,
        )


@dataclass
class Run:
    first_step: int
    last_step: int
    first_line: int
    last_line: int
    first_time: Optional[float]
    last_time: Optional[float]
    steps: int = 0
    seconds_sum: float = 0.0
    seconds_count: int = 0
    steady_sum: float = 0.0
    steady_count: int = 0
    steady_max: float = 0.0
    nan_losses: int = 0
    first_nan_step: Optional[int] = None
    file: str = ""

    def add_up(self, step: int, seconds: float, weight: int, state: str) -> None:
        """Adds a step's seconds, for `weight` steps, and the state of its loss."""
        if state in "ai":
            self.nan_losses += 1
            self.first_nan_step = step if self.first_nan_step is None else self.first_nan_step
        if not math.isfinite(seconds):
            return
        self.seconds_sum += seconds * weight
        self.seconds_count += weight
        if step >= self.first_step + WARM_UP:
            self.steady_sum += seconds * weight
            self.steady_count += weight
            self.steady_max = max(self.steady_max, seconds)

    def told(self) -> StepRun:
        return StepRun(**vars(self))
