"""Training progress: every step line of a log, summed up as it streams by.

The series follows the leading edge: the first line of each new step, whoever prints it, so that a
step that every task repeats counts once. A writer whose own steps jump back opens a new run.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import NamedTuple

from raydiag.joblog.facts import LoggedSteps, StepRun, WriterProgress
from raydiag.joblog.log_line import JobLogLine, Prefix
from raydiag.joblog.step_formats import FORMATS, HF_LOSS, JobStepFormat
from raydiag.joblog.step_values import StepColumns, StepValues, printed_state, searched
from raydiag.step_formats import bar_name, training_bar

RUNS = 64
WRITERS = 16384
PROGRESSES = 24
_BAR_LOSS = re.compile(r"[^\]]{0,200}\bloss=")
_SMOOTHED = 10  # the speed on a bar holds the first step for so many; the time on it does not,
# Its step lines have none: the trainer's own line follows them.
_WITHOUT_LOSS, _OF_TRAINING = "deepspeed", "'learning_rate':"
_COARSE_S = 10.0  # but is in whole seconds: for shorter steps they are right in the mean only
_LAG = 8  # ranks without prefixes share one `where`: a slow one is no restart
_FORMATS = {form.id: form for form in FORMATS}
_ORDER = {form_id: index for index, form_id in enumerate(_FORMATS)}


@dataclass
class StepProgress:
    """Step lines of one form (of bars: and one length) in one file."""

    format: str
    total: int | None = None
    reference: str = ""
    series: StepColumns = field(default_factory=StepColumns)
    runs: list[StepRun] = field(default_factory=list)
    runs_total: int = 0
    writers: dict[str, WriterProgress] = field(default_factory=dict)
    near_time: float | None = None
    next_time: float | None = None
    elapsed_s: float | None = None  # as the bar says
    named: bool = False  # a bar whose name says that it is of training
    file: str = ""  # of the newest step

    def counts(
        self, step: int, prefix: Prefix, writer_name: str, number: int, time: float | None
    ) -> bool:
        """Counts a line of `step`; False where an earlier line was of that step."""
        writer = self.writers.get(writer_name)
        if not self.runs or self._restarted(step, prefix, writer_name, writer):
            self._open(step, writer_name, number, time)
        run = self.runs_total - 1
        if writer is not None:
            if run > writer.run and step < writer.last_step:
                writer.run = run
            writer.last_step = step
        elif len(self.writers) < WRITERS:
            named = writer_name, prefix.task, prefix.rank, prefix.host
            self.writers[writer_name] = WriterProgress(*named, step, run)
        newest = self.runs[-1]
        return step > newest.last_step or not newest.steps

    def likelihood(self) -> tuple[bool, int]:
        """Which bar counts steps of training: one whose name says so, else the longest."""
        return self.named, sum(map(attrgetter("steps"), self.runs))

    def _restarted(
        self, step: int, prefix: Prefix, writer_name: str, writer: WriterProgress | None
    ) -> bool:
        """Whether a line shows that the job went back and runs again."""
        if writer is None:  # a restarted actor has a new process id
            return prefix.pid is not None and step < self.runs[-1].last_step - _LAG
        if step >= writer.last_step or writer.run < self.runs_total - 1:
            return False  # another writer may have shown this restart before
        return bool(writer_name) or step < self.runs[-1].last_step - _LAG

    def _open(self, step: int, writer_name: str, number: int, time: float | None) -> None:
        self.runs.append(StepRun(step, step, number, number, time, time))
        self.runs_total += 1
        if len(self.runs) > RUNS:
            del self.runs[0]
        if not self.reference:
            self.reference = writer_name

    def advance(
        self,
        step: int,
        values: StepValues,
        number: int,
        time: float | None,
        near_time: float | None,
        file: str,
        elapsed_s: float | None = None,
    ) -> None:
        """Takes the values of a step that is the newest of its run."""
        total, seconds, loss, state, scalars, tflops, tokens = values
        run = self.runs[-1]
        if total is not None:
            self.total = total
        steps = step - run.last_step if run.steps else 1
        is_smoothed = elapsed_s is not None and 0 < run.steps < _SMOOTHED
        if is_smoothed:
            seconds = _seconds_between(self.elapsed_s, elapsed_s, steps)
        elif seconds != seconds and run.steps:
            seconds = _seconds_between(run.last_time, time, steps)
        self.elapsed_s = elapsed_s
        run.add_up(step, seconds, 1 if self.format == "maxtext" else steps)
        stamp = time
        if abs(_seconds_between(self.near_time, near_time, steps) - seconds) < seconds / 2:
            stamp = time or near_time  # the lines beside steps go on as steps do
        if is_smoothed and seconds < _COARSE_S:
            seconds = math.nan
        columns = (step, seconds, loss, *scalars, tflops, tokens, stamp or math.nan, number)
        self.series.append(columns, state)
        run.steps += 1
        run.last_step, run.last_line, run.last_time = step, number, time
        run.file = self.file = file
        self.near_time, self.next_time = near_time, None

    def logged(self, regular: bool) -> LoggedSteps:
        """What all its lines say."""
        form = _FORMATS[self.format]
        run = self.runs[-1]
        from_zero = self.format == "generic" and any(run.first_step == 0 for run in self.runs)
        return LoggedSteps(
            format=self.format,
            zero_based=form.zero_based or from_zero,
            counts_done=form.counts_done and not from_zero,
            total=self.total,
            series=self.series.series(self.reference, form.unit),
            runs=tuple(map(replace, self.runs)),
            runs_total=self.runs_total,
            writers=tuple(sorted(map(replace, self.writers.values()), key=_writer_order)),
            last_step=run.last_step,
            last_line=run.last_line,
            last_time=run.last_time,
            last_near_time=self.near_time,
            last_next_time=self.next_time,
            file=self.file,
            regular=regular,
        )


def _seconds_between(start: float | None, end: float | None, steps: int) -> float:
    """Of one of the steps that lie between two times; NaN where one is not known."""
    if start is None or end is None or end < start:
        return math.nan
    return (end - start) / steps


def _writer_order(writer: WriterProgress) -> tuple[int, int, str]:
    for number in (writer.rank, writer.task):
        if number is not None:
            return 0, number, ""
    return 1, 0, writer.where


def _elapsed_s(match: re.Match[str]) -> float | None:
    """Since the bar began; None for what is no bar."""
    parts = re.findall(r"\d+", match.groupdict().get("elapsed") or "")
    return sum(int(part) * 60**power for power, part in enumerate(reversed(parts))) or None


class _Bar(NamedTuple):
    key: str  # bars of one key count the same steps
    step: int
    total: int | None
    named: bool  # its name says that it is of training, or its loss


def _read_bar(match: re.Match[str], step: int) -> _Bar | None:
    """None for a bar whose name says that it counts something else."""
    name = bar_name(match.string, match.start())
    counted = training_bar(name)
    total = int(match["total"])
    if counted is None and name:
        return None
    if counted is not None and counted["epoch"]:
        return _Bar(f"bar epochs {total}", int(counted["epoch"]) * total + step, None, named=True)
    named = counted is not None or _BAR_LOSS.match(match.string, match.end()) is not None
    return _Bar(f"bar {total} {named}", step, total, named)


@dataclass
class StepTally:
    """All step lines of one file."""

    progresses: dict[str, StepProgress] = field(default_factory=dict)
    hf_losses: int = 0
    step_lines: int = 0
    newest: int | None = None

    def take(self, line: JobLogLine, forms: Sequence[JobStepFormat] = FORMATS) -> bool:
        """Whether it is a step line and nothing else; a bar may have an error glued to it.

        `forms`: those that it may be of.
        """
        text = line.whole_words
        for form in forms:
            for anchor in form.anchors:
                if anchor in text:
                    match = form.pattern.search(text)
                    if match and self._step(form, match, line):
                        return form.says_only_step
                    break
        if "{'loss':" in text:
            self._hugging_face(text)
        return False

    def _step(self, form: JobStepFormat, match: re.Match[str], line: JobLogLine) -> bool:
        step = int(match["step"])
        key, total, named = form.id, None, False
        if form.id == "bar":
            bar = _read_bar(match, step)
            if bar is None:
                return False
            key, step, total, named = bar
        progress = self.progresses.get(key)
        if progress is None:
            if len(self.progresses) >= PROGRESSES:
                return True
            progress = self.progresses[key] = StepProgress(form.id, total=total, named=named)
        time = self._time_of(step) if line.time is None else line.time
        if progress.counts(step, line.prefix, line.prefix.where, line.number, time):
            values, elapsed_s = searched(form, match, line.whole_words), _elapsed_s(match)
            progress.advance(step, values, line.number, time, line.near_time, line.file, elapsed_s)
        if form.regular or named:
            self.step_lines += 1
            self.newest = progress.runs[-1].last_step
        return True

    def _time_of(self, step: int) -> float | None:
        """The time on the newest line of this step in any form, as DeepSpeed prints two."""
        for progress in self._moving():
            if progress.runs[-1].last_step == step and _FORMATS[progress.format].regular:
                return progress.runs[-1].last_time
        return None

    def leads(
        self,
        form: JobStepFormat,
        step: int,
        values: StepValues,
        prefix: Prefix,
        writer_name: str,
        number: int,
        near_time: float | None,
        file: str,
    ) -> bool:
        """Takes a line of a regular format, read by its layout; False before the first one."""
        progress = self.progresses.get(form.id)
        if progress is None:
            return False
        time = self._time_of(step)
        if progress.counts(step, prefix, writer_name, number, time):
            progress.advance(step, values, number, time, near_time, file)
        self.step_lines += 1
        self.newest = progress.runs[-1].last_step
        return True

    def repeats(self, form: str, writer_name: str, step: int, number: int) -> bool:
        """Counts a line of a step that another writer has reached; False if it is not one.

        The fast path for jobs of a thousand tasks: nothing else of such a line is of interest.
        """
        progress = self.progresses.get(form)
        writer = progress.writers.get(writer_name) if progress else None
        if progress is None or writer is None or writer.run != progress.runs_total - 1:
            return False
        if not writer.last_step < step <= progress.runs[-1].last_step:
            return False
        writer.last_step = step
        self.step_lines += 1
        self.newest = progress.runs[-1].last_step
        return True

    def _hugging_face(self, text: str) -> None:
        if match := HF_LOSS.search(text):
            self.hf_losses += 1
            loss = float(match["loss"].replace(",", ""))
            bar = self._bar()
            progress = bar or self.progresses.get(_WITHOUT_LOSS)
            # Below another form's lines only what a trainer prints of a training step.
            if progress is not None and progress.runs and (bar or _OF_TRAINING in text):
                progress.series.last_loss(loss, printed_state(loss))

    def see_time(self, time: float, file: str, number: int) -> None:
        """A time that stands below the newest step line bounds it from above."""
        for progress in self._moving():
            is_above = progress.file == file and number < progress.runs[-1].last_line
            if progress.next_time is None and not is_above:
                progress.next_time = time

    def settle(self) -> None:
        """Puts all numbers into the columns."""
        for progress in self.progresses.values():
            progress.series.settle()

    def _bar(self) -> StepProgress | None:
        """The likeliest bar of training: one that says so, else the longest that moves."""
        bars = [progress for progress in self._moving() if progress.format == "bar"]
        return max(bars, key=StepProgress.likelihood, default=None)

    def _moving(self) -> Iterator[StepProgress]:
        return (progress for progress in self.progresses.values() if progress.runs)

    def logged(self) -> LoggedSteps | None:
        """Progress in the first format of the table that has any; a nameless bar comes last."""
        candidates = [progress for progress in self._moving() if progress.format != "bar"]
        bar = self._bar()
        counts_training = bar is not None and (bar.named or self.hf_losses > 0)
        if bar is not None and (counts_training or not candidates):
            candidates.append(bar)
        if not candidates:
            return None
        best = min(candidates, key=lambda progress: _ORDER[progress.format])
        logged = best.logged(_FORMATS[best.format].regular or counts_training)
        if best is bar and self.hf_losses:
            return replace(logged, format="huggingface")
        return logged
