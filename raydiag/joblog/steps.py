"""Training progress: every step line of a log, boiled down as it streams by.

The series follows the leading edge: the first line of each new step, whoever prints it, so that a
step that every task repeats counts once. A writer whose own steps jump back opens a new run.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Optional

from raydiag.joblog.log_line import JobLogLine, Prefix
from raydiag.joblog.step_facts import LoggedSteps, WriterProgress
from raydiag.joblog.step_formats import (
    FORMATS,
    HF_LOSS,
    JobStepFormat,
)
from raydiag.joblog.step_series import StepColumns, StepColumnsRun
from raydiag.joblog.step_values import StepValues, searched
from raydiag.step_formats import bar_name, training_bar

RUNS = 64
WRITERS = 16384
PROGRESSES = 24
_LAG = 8  # ranks without prefixes share one `where`: a slow one is no restart
_FORMATS = {form.id: form for form in FORMATS}


@dataclass
class Writer:
    task: Optional[int]
    rank: Optional[int]
    host: Optional[str]
    first_step: int
    last_step: int
    last_line: int
    last_time: Optional[float]
    lines: int
    run: int  # index of the run that it is in


@dataclass
class StepProgress:
    """Step lines of one form (of bars: and one length) in one file."""

    format: str
    total: Optional[int] = None
    reference: str = ""
    series: StepColumns = field(default_factory=StepColumns)
    runs: list[StepColumnsRun] = field(default_factory=list)
    runs_total: int = 0
    writers: dict[str, Writer] = field(default_factory=dict)
    writers_total: int = 0
    lines: int = 0
    repeats: int = 0  # lines of a step that another line has told already
    near_time: Optional[float] = None
    next_time: Optional[float] = None
    named: bool = False  # a bar that says that it is of training
    file: str = ""  # of the newest step

    def counts(
        self, step: int, prefix: Prefix, where: str, number: int, time: Optional[float]
    ) -> bool:
        """Notes a line of `step`; False where another line has told that step already."""
        self.lines += 1
        writer = self.writers.get(where)
        if not self.runs or self._restarted(step, prefix, where, writer):
            self._open(step, where, number, time)
        if writer is None:
            self._know(step, prefix, where, number, time)
        else:
            run = self.runs_total - 1
            if run > writer.run and step < writer.last_step:
                writer.first_step, writer.run = step, run
            writer.last_step, writer.last_line, writer.last_time = step, number, time
            writer.lines += 1
        newest = self.runs[-1]
        if step <= newest.last_step and newest.steps:
            self.repeats += 1
            return False
        return True

    def _restarted(self, step: int, prefix: Prefix, where: str, writer: Optional[Writer]) -> bool:
        """Whether a line shows that the job went back and runs again."""
        if writer is None:  # a restarted actor has a new process id
            return prefix.pid is not None and step < self.runs[-1].last_step - _LAG
        if step >= writer.last_step:
            return False
        if writer.run < self.runs_total - 1:
            return False  # others have told of this restart before
        if where:
            return True
        return step < self.runs[-1].last_step - _LAG

    def _open(self, step: int, where: str, number: int, time: Optional[float]) -> None:
        self.runs.append(StepColumnsRun(step, step, number, number, time, time))
        self.runs_total += 1
        if len(self.runs) > RUNS:
            del self.runs[0]
        if not self.reference:
            self.reference = where

    def _know(
        self, step: int, prefix: Prefix, where: str, number: int, time: Optional[float]
    ) -> None:
        self.writers_total += 1
        if len(self.writers) < WRITERS:
            run = self.runs_total - 1
            self.writers[where] = Writer(
                prefix.task, prefix.rank, prefix.host, step, step, number, time, 1, run
            )

    def advance(
        self,
        step: int,
        values: StepValues,
        number: int,
        time: Optional[float],
        near_time: Optional[float],
        file: str,
    ) -> None:
        """Takes the values of a step that is the newest of its run."""
        total, seconds, loss, state, tflops, tokens = values
        run = self.runs[-1]
        if total is not None:
            self.total = total
        behind = step - run.last_step if run.steps else 1
        if seconds != seconds and run.steps and time is not None and run.last_time is not None:
            apart = (time - run.last_time) / behind
            seconds = apart if apart >= 0 else math.nan
        run.add_up(step, seconds, 1 if self.format == "maxtext" else behind, state)
        stamp = math.nan if time is None else time
        self.series.append((step, seconds, loss, tflops, tokens, stamp, number), state)
        run.steps += 1
        run.last_step, run.last_line, run.last_time = step, number, time
        run.file = self.file = file
        self.near_time, self.next_time = near_time, None

    def told(self, framework: str, regular: bool) -> LoggedSteps:
        form = _FORMATS[self.format]
        run = self.runs[-1]
        writers = [
            WriterProgress(
                where, w.task, w.rank, w.host, w.first_step, w.last_step, w.last_line, w.last_time,
                w.lines,
            )
            for where, w in self.writers.items()
        ]  # fmt: skip
        return LoggedSteps(
            format=self.format,
            framework=framework,
            zero_based=form.zero_based or (self.format == "generic" and self._from_zero()),
            counts_done=form.counts_done and not (self.format == "generic" and self._from_zero()),
            total=self.total,
            series=self.series.told(self.reference, form.unit),
            runs=tuple(one.told() for one in self.runs),
            runs_total=self.runs_total,
            writers=tuple(sorted(writers, key=_writer_order)),
            writers_total=self.writers_total,
            lines=self.lines,
            first_step=run.first_step,
            last_step=run.last_step,
            last_line=run.last_line,
            last_time=run.last_time,
            last_near_time=self.near_time,
            last_next_time=self.next_time,
            file=self.file,
            regular=regular,
        )

    def _from_zero(self) -> bool:
        return any(run.first_step == 0 for run in self.runs)


def _writer_order(writer: WriterProgress) -> tuple[int, int, str]:
    number = writer.rank if writer.rank is not None else writer.task
    return (0, number, "") if number is not None else (1, 0, writer.where)


@dataclass
class StepTally:
    """All step lines of one file."""

    progresses: dict[str, StepProgress] = field(default_factory=dict)
    hf_losses: int = 0
    seen: int = 0
    newest: Optional[int] = None

    def take(self, line: JobLogLine, forms: Sequence[JobStepFormat] = FORMATS) -> bool:
        """Whether it is a step line and nothing else; a bar may have an error glued to it.

        `forms`: those that it may be of.
        """
        text = line.whole_words
        for form in forms:
            for anchor in form.anchors:
                if anchor in text:
                    found = form.pattern.search(text)
                    if found and self._step(form, found, line):
                        return form.whole
                    break
        if "{'loss':" in text:
            self._hugging_face(text)
        return False

    def _step(self, form: JobStepFormat, found: re.Match[str], line: JobLogLine) -> bool:
        step = int(found["step"])
        key, named = form.id, False
        if form.id == "bar":
            name = bar_name(found.string, found.start())
            counted = training_bar(name)
            if name and not counted:
                return False
            named = bool(name)
            total = int(found["total"])
            key = f"bar {total} {named}"
            if counted and counted["epoch"]:
                step, key = int(counted["epoch"]) * total + step, f"bar epochs {total}"
        progress = self.progresses.get(key)
        if progress is None:
            if len(self.progresses) >= PROGRESSES:
                return True
            progress = self.progresses[key] = StepProgress(form.id, named=named)
            if form.id == "bar" and "epochs" not in key:
                progress.total = total
        if progress.counts(step, line.prefix, line.prefix.where, line.number, line.time):
            values = searched(form, found, line.whole_words)
            progress.advance(step, values, line.number, line.time, line.near_time, line.file)
        if form.regular or named:
            self.seen += 1
            self.newest = progress.runs[-1].last_step
        return True

    def leads(
        self,
        form: JobStepFormat,
        step: int,
        values: StepValues,
        prefix: Prefix,
        where: str,
        number: int,
        near_time: Optional[float],
        file: str,
    ) -> bool:
        """Takes a line of a regular form, read the short way; False before the form's first."""
        progress = self.progresses.get(form.id)
        if progress is None:
            return False
        if progress.counts(step, prefix, where, number, None):
            progress.advance(step, values, number, None, near_time, file)
        self.seen += 1
        self.newest = progress.runs[-1].last_step
        return True

    def repeats(self, form: str, where: str, step: int, number: int) -> bool:
        """Notes a step that another writer of the form has told already; False if it is not one.

        The short way for jobs of a thousand tasks: nothing else of such a line is of interest.
        """
        progress = self.progresses.get(form)
        writer = progress.writers.get(where) if progress else None
        if progress is None or writer is None or writer.run != progress.runs_total - 1:
            return False
        if not writer.last_step < step <= progress.runs[-1].last_step:
            return False
        writer.last_step, writer.last_line = step, number
        writer.last_time = None
        writer.lines += 1
        progress.lines += 1
        progress.repeats += 1
        self.seen += 1
        return True

    def _hugging_face(self, text: str) -> None:
        found = HF_LOSS.search(text)
        if not found:
            return
        self.hf_losses += 1
        loss = float(found["loss"].replace(",", ""))
        state = "a" if math.isnan(loss) else "i" if math.isinf(loss) else "f"
        best = self._bar()
        if best and best.runs:
            best.series.last_loss(loss, state)
            if state in "ai":
                run = best.runs[-1]
                run.nan_losses += 1
                run.first_nan_step = run.first_nan_step or run.last_step

    def see_time(self, time: float) -> None:
        """A time that stands below the newest step line bounds it from above."""
        for progress in self.progresses.values():
            if progress.next_time is None:
                progress.next_time = time

    def _bar(self) -> Optional[StepProgress]:
        """The likeliest bar of training: one that says so, else the longest that moves."""
        bars = [p for p in self.progresses.values() if p.format == "bar" and p.runs]
        return max(bars, key=lambda p: (p.named, sum(r.steps for r in p.runs)), default=None)

    def told(self) -> Optional[LoggedSteps]:
        """Progress in the first form of the table that has any; a nameless bar comes last."""
        order = {form.id: place for place, form in enumerate(FORMATS)}
        found = [p for p in self.progresses.values() if p.runs and p.format != "bar"]
        bar = self._bar()
        counts_training = bar is not None and (bar.named or self.hf_losses > 0)
        if bar is not None and (counts_training or not found):
            found.append(bar)
        if not found:
            return None
        best = min(found, key=lambda p: order[p.format])
        framework = _FORMATS[best.format].framework
        if best is bar and self.hf_losses:
            framework = "huggingface"
        return best.told(framework, _FORMATS[best.format].regular or counts_training)
