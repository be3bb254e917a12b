"""Training progress as logs show it: steps, checkpoint saves and restores."""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass
from typing import Optional

WARM_UP = 5  # steps


@dataclass(frozen=True)
class StepSeries:
    """Step lines of one writer in file order: parallel arrays of doubles, NaN where not printed.

    Beyond 16384 entries the middle is thinned; the first 256 and the last 4096 are always there.
    `loss_state` keeps a printed nan or inf apart from a loss that was not printed.
    """

    where: str
    step: array[float]
    seconds: array[float]  # of one step, as printed or from the rate; NaN: only `time` can tell
    loss: array[float]
    loss_state: bytes  # one a step: n none, f finite, a nan, i inf
    tflops: array[float]  # per device
    tokens_per_s: array[float]  # per device where the line says so, see `throughput_unit`
    time: array[float]
    line: array[float]
    throughput_unit: str = ""  # "tokens/s/device", "samples/s", "tokens/s"; "" without


@dataclass
class StepRun:
    """Steps that follow each other upwards in one writer's lines; a jump back opens the next."""

    first_step: int
    last_step: int
    first_line: int
    last_line: int
    first_time: Optional[float]  # printed on the line itself
    last_time: Optional[float]
    steps: int = 0  # different steps seen
    seconds_sum: float = 0.0  # of all its lines that print seconds
    seconds_count: int = 0
    steady_sum: float = 0.0  # without warm-up: steps first_step+5 and later
    steady_count: int = 0
    file: str = ""

    def add_up(self, step: int, seconds: float, weight: int) -> None:
        """Adds a step's seconds, for `weight` steps."""
        if not math.isfinite(seconds):
            return
        self.seconds_sum += seconds * weight
        self.seconds_count += weight
        if step >= self.first_step + WARM_UP:
            self.steady_sum += seconds * weight
            self.steady_count += weight


@dataclass
class WriterProgress:
    """How far one writer has come."""

    where: str
    task: Optional[int]
    rank: Optional[int]
    host: Optional[str]
    last_step: int
    run: int = 0  # index of the run that it is in


@dataclass(frozen=True)
class LoggedSteps:
    """Training progress by the step lines of one format."""

    format: str  # id in the table of formats; huggingface: a bar with that trainer's losses
    zero_based: bool  # the first step is 0, so that T steps end at T-1
    counts_done: bool  # the number is of completed steps (n/m bars): T steps end at T
    total: Optional[int]  # as the step line says ("120/ 5000"); None where it does not
    series: StepSeries
    runs: tuple[StepRun, ...]  # of the reference writer, oldest first; the last 64
    runs_total: int
    writers: tuple[WriterProgress, ...]  # bounded; by task
    first_step: int
    last_step: int  # the newest of any writer in the current run
    last_line: int
    last_time: Optional[float]  # printed on that line
    last_near_time: Optional[float]  # newest time printed at or above it
    last_next_time: Optional[float]  # oldest time printed below it: an upper bound
    file: str
    regular: bool = True  # False: a bar that may count anything (downloads, shards), not training


@dataclass(frozen=True)
class LoggedSave:
    """A checkpoint save, as one line or several report it."""

    step: Optional[int]
    event: str  # started, finished, failed
    seconds: Optional[float]
    line: int
    time: Optional[float]
    near_time: Optional[float]
    file: str = ""


@dataclass(frozen=True)
class Restore:
    """What the job says it started from."""

    step: Optional[int]  # None: it found none and starts afresh
    line: int
