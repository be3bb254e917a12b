"""The numbers that step lines print, kept within bounds: columns and sums."""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from raydiag.joblog.facts import StepSeries

if TYPE_CHECKING:
    Doubles = array[float]
else:
    Doubles = array  # before Python 3.12 only a checker of types knows array[float]
SERIES = 16384
HEAD, TAIL = 256, 4096
_UNSETTLED = 1024
_COLUMNS = ("step", "seconds", "loss", "tflops", "tokens", "time", "line")
_STATES = {state: state.encode() for state in "nfai"}


@dataclass
class StepColumns:
    """Columns that grow with the run until they are thinned in the middle."""

    columns: dict[str, Doubles] = field(
        default_factory=lambda: {name: array("d") for name in _COLUMNS}
    )
    newest: list[tuple[float, ...]] = field(default_factory=list)  # rows not yet in the columns
    states: bytearray = field(default_factory=bytearray)

    def append(self, values: tuple[float, ...], state: str) -> None:
        """One step: a value for each column, and the state of its loss."""
        self.newest.append(values)
        self.states += _STATES[state]
        if len(self.newest) >= _UNSETTLED:
            self.settle()
        if len(self.states) > SERIES:
            self.settle()
            for name, column in self.columns.items():
                self.columns[name] = column[:HEAD] + column[HEAD:-TAIL:2] + column[-TAIL:]
            states = self.states
            self.states = states[:HEAD] + states[HEAD:-TAIL:2] + states[-TAIL:]

    def settle(self) -> None:
        """Takes the newest rows into the columns: many at a time cost a third."""
        if self.newest:
            for name, column in zip(_COLUMNS, zip(*self.newest, strict=True), strict=True):
                self.columns[name].extend(column)
            self.newest.clear()

    def last_loss(self, loss: float, state: str) -> None:
        """Gives the newest step the loss that stands on a line of its own."""
        if self.states and self.states[-1:] == b"n":
            self.settle()
            self.columns["loss"][-1] = loss
            self.states[-1:] = state.encode()

    def series(self, writer: str, unit: str) -> StepSeries:
        """A copy; `where` is the writer, `unit` that of the tokens."""
        self.settle()
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
        )
