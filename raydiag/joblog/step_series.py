"""The numbers that step lines print, kept within bounds: columns and sums."""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass, field
from typing import Optional

from raydiag.joblog.step_facts import StepRun, StepSeries

SERIES = 16384
HEAD, TAIL = 256, 4096
WARM_UP = 5
_UNSETTLED = 1024
_COLUMNS = ("step", "seconds", "loss", "tflops", "tokens", "time", "line")
_STATES = {state: state.encode() for state in "nfai"}


@dataclass
class StepColumns:
    """Columns that grow with the run until they are thinned in the middle."""

    columns: dict[str, array[float]] = field(
        default_factory=lambda: {name: array("d") for name in _COLUMNS}
    )
    newest: list[tuple[float, ...]] = field(default_factory=list)  # rows not yet in the columns
    states: bytearray = field(default_factory=bytearray)
    thinned: bool = False

    def append(self, values: tuple[float, ...], state: str) -> None:
        """One step: a value for each column, and the state of its loss."""
        self.newest.append(values)
        self.states += _STATES[state]
        if len(self.newest) >= _UNSETTLED:
            self._settle()
        if len(self.states) > SERIES:
            self._settle()
            for name, column in self.columns.items():
                self.columns[name] = column[:HEAD] + column[HEAD:-TAIL:2] + column[-TAIL:]
            states = self.states
            self.states = states[:HEAD] + states[HEAD:-TAIL:2] + states[-TAIL:]
            self.thinned = True

    def _settle(self) -> None:
        """The newest rows into the columns: many at a time cost a third."""
        if self.newest:
            for name, column in zip(_COLUMNS, zip(*self.newest, strict=True), strict=True):
                self.columns[name].extend(column)
            self.newest.clear()

    def last_loss(self, loss: float, state: str) -> None:
        """Gives the newest step the loss that stands on a line of its own."""
        if self.states and self.states[-1:] == b"n":
            self._settle()
            self.columns["loss"][-1] = loss
            self.states[-1:] = state.encode()

    def series(self, writer: str, unit: str) -> StepSeries:
        """A copy; `where` is the writer, `unit` that of the tokens."""
        self._settle()
        copies = [array("d", self.columns[name]) for name in _COLUMNS]
        step, seconds, loss, tflops, tokens, time, line = copies
        return StepSeries(
            where=writer,
            step=step,
            seconds=seconds,
            loss=loss,
            loss_state=bytes(self.states),
            tflops=tflops,
            tokens_per_s=tokens,
            time=time,
            line=line,
            throughput_unit="" if all(map(math.isnan, tokens)) else unit,
            thinned=self.thinned,
        )


@dataclass
class StepColumnsRun:
    """A run as its steps come in; the fields are those of StepRun."""

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
            if self.first_nan_step is None:
                self.first_nan_step = step
        if not math.isfinite(seconds):
            return
        self.seconds_sum += seconds * weight
        self.seconds_count += weight
        if step >= self.first_step + WARM_UP:
            self.steady_sum += seconds * weight
            self.steady_count += weight
            self.steady_max = max(self.steady_max, seconds)

    def step_run(self) -> StepRun:
        """The same, frozen."""
        return StepRun(**vars(self))
