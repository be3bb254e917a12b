"""What the end of a worker's log says: steps, errors, communicators that were initialized.

Pure functions over bytes. Most files lack most of the words, so a word is looked for in the whole
text once before any line is taken apart.

Source: step lines as in `step_formats`; NCCL and RCCL debug output (init.cc); markers of Ray
(ray_constants.LOG_PREFIX_*).
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Optional

from raydiag.masking import masked_line
from raydiag.step_formats import (
    STEP_FORMATS,
    StepFormat,
    bar_name,
    field_pattern,
    step_seconds,
    training_bar,
)

LINE_LIMIT = 300
MOST_LINES = 5
_SEARCHED_BYTES = 2000  # of a line
_ERROR_BYTES = 64 << 10  # looked through for errors, from the end
_WAVE_GAP_LINES = 20  # this many lines about other things end a wave of initializations
_LONGEST_STEP_S = 1e6  # a longer duration is no duration of a step

# Compiling a pattern costs more than most files do: `re` compiles them when they are first needed,
# and keeps them.
_MARKER = rb":(job_id|actor_name|task_name):([^\r\n]*)"
_ERROR_WORDS = (b"error", b"exception", b"traceback", b"killed", b"oom")
_ERROR = rb"(?i)\b(?:\w*error|\w*exception|traceback|killed|oom)\b"
_COMM = rb"\b[NR]CCL (?:WARN|INFO|ERROR)\b|\bncclCommInit|\bMSCCL\+\+"
_TIMESTAMP = rb"(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)"
_COLOUR = rb"\x1b\[[0-9;]{0,32}m"


@dataclass(frozen=True)
class LogEnd:
    """The end of one file; counts are of what was given, not of the whole file."""

    step_format: str = ""  # title of a StepFormat; "" when no step was seen
    step: Optional[int] = None  # the last one
    total_steps: Optional[int] = None  # as that line has it
    step_duration_s: Optional[float] = None  # as that line has it
    step_stride: Optional[int] = None  # steps from one such line to the next; None: seen once
    step_line: str = ""
    step_line_before: str = ""  # of the step before it
    step_stamp: Optional[float] = None  # that line's own time, Unix seconds
    step_is_last: bool = False  # nothing was written after that line
    buffered: bool = False  # ends in half a line
    errors: int = 0  # lines in the last 64 KiB with words such as error or killed
    error_lines: tuple[str, ...] = ()  # the last of them
    comm_warnings: int = 0  # of NCCL or RCCL
    comm_lines: tuple[str, ...] = ()  # the last lines of NCCL or RCCL
    comm_inits_started: int = 0
    comm_inits_completed: int = 0
    comm_init_waves: int = 0  # initializations with _WAVE_GAP_LINES other lines in between


def markers(text: bytes) -> list[tuple[str, str]]:
    """Ray's own lines that say whose output it is: ("actor_name", "Trainer"), in their order."""
    values = []
    for line in text.split(b"\n"):
        marker = re.match(_MARKER, line) if line.startswith(b":") else None
        if marker:
            value = marker[2].decode("utf-8", "replace").strip()
            values.append((marker[1].decode(), value[:100]))
    return values


def parse_end(text: bytes) -> LogEnd:
    """Everything that the end of a log says; whole lines, but for the last one.

    A worker is used for one task after the other: steps of an earlier one do not count.
    """
    end = _errors(text[-_ERROR_BYTES:], _communicators(text, LogEnd()))
    newest_task = text[text.rfind(b"\n:task_name:") + 1 :]
    end = _last_step(newest_task, end)
    ends_in_half_line = text[-1:] not in (b"", b"\n")
    return replace(end, buffered=ends_in_half_line and end.step_format != "progress bar")


def joined(ends: Sequence[LogEnd], best: LogEnd) -> LogEnd:
    """The counts of several files of a worker, with the steps of `best`."""
    error_lines: list[str] = []
    comm_lines: list[str] = []
    for end in ends:
        error_lines += end.error_lines
        comm_lines += end.comm_lines
    counts = ("errors", "comm_warnings", "comm_inits_started", "comm_inits_completed")
    totals = {name: sum(map(attrgetter(name), ends)) for name in counts}
    return replace(
        best,
        error_lines=tuple(error_lines[-MOST_LINES:]),
        comm_lines=tuple(comm_lines[-MOST_LINES:]),
        comm_init_waves=max(map(attrgetter("comm_init_waves"), ends)),
        **totals,
    )


def shown(line: bytes) -> str:
    """A line as evidence: its beginning, without what looks like a secret."""
    return masked_line(line[: 2 * LINE_LIMIT].decode("utf-8", "replace"))[:LINE_LIMIT]


def _shown_last(lines: Sequence[bytes]) -> tuple[str, ...]:
    return tuple(map(shown, lines[-MOST_LINES:]))


# ---- steps


@dataclass(frozen=True)
class _StepLine:
    form: StepFormat
    step: int
    total: Optional[int]
    duration_s: Optional[float]
    line: bytes
    is_last: bool


def _last_step(text: bytes, end: LogEnd) -> LogEnd:
    """With the last step line, and the distance to the one of its format before."""
    step_lines = _step_lines_backwards(text)
    last = next(step_lines, None)
    if last is None:
        return end
    others = (line for line in step_lines if line.form is last.form and line.step != last.step)
    previous = next(others, None)
    return replace(
        end,
        step_format=last.form.title,
        step=last.step,
        total_steps=last.total,
        step_duration_s=last.duration_s,
        step_stride=abs(last.step - previous.step) if previous else None,
        step_line=shown(last.line),
        step_line_before=shown(previous.line) if previous else "",
        step_stamp=_timestamp_s(last.line),
        step_is_last=last.is_last,
    )


def _step_lines_backwards(text: bytes) -> Iterator[_StepLine]:
    forms = _formats_in(text, STEP_FORMATS)
    if not forms:
        return
    is_last = True
    for line in reversed(text.replace(b"\r", b"\n").split(b"\n")):
        for form in _formats_in(line, forms):
            step_line = _parse_step_line(form, line, is_last)
            if step_line:
                yield step_line
                break
        is_last = is_last and not line


def _formats_in(text: bytes, forms: Sequence[StepFormat]) -> list[StepFormat]:
    """Those whose lines a text may hold."""
    return [form for form in forms if _holds(text, form.anchor_bytes)]


def _holds(text: bytes, words: Sequence[bytes]) -> bool:
    return any(word in text for word in words)


def _parse_step_line(form: StepFormat, line: bytes, is_last: bool) -> Optional[_StepLine]:
    """None for other lines, and where the log may end within a number of this one."""
    text = re.sub(_COLOUR, b"", line[:_SEARCHED_BYTES]).decode("utf-8", "replace")
    match = form.pattern.search(text)
    if not match or match.end() == len(text):
        return None
    if form.id == "bar" and not _counts_steps(bar_name(text, match.start())):
        return None
    if form.seconds:
        seconds = field_pattern(form.seconds).search(text)
        if not seconds or seconds.end() == len(text):
            return None
    duration_s = step_seconds(form, match, text)
    total = match.groupdict().get("total")
    return _StepLine(
        form,
        int(match["step"]),
        int(total) if total else None,
        duration_s if 0 < duration_s <= _LONGEST_STEP_S else None,
        line,
        is_last,
    )


def _counts_steps(name: str) -> bool:
    """Whether a bar counts steps of the whole training: the steps of an epoch begin again."""
    named = training_bar(name)
    return not name or (named is not None and named["epoch"] is None)


def _timestamp_s(line: bytes) -> Optional[float]:
    """The line's own time, which logs give in the node's local time; None when it has none."""
    match = re.search(_TIMESTAMP, line[:200])
    if not match:
        return None
    year, month, day, hour, minute, second = map(int, match.groups())
    try:
        return time.mktime((year, month, day, hour, minute, second, 0, 0, -1))
    except (OverflowError, ValueError):
        return None


# ---- errors and communicators


def _errors(text: bytes, end: LogEnd) -> LogEnd:
    lower = text.lower()
    if not _holds(lower, _ERROR_WORDS):
        return end
    lines = []
    for line, lower_line in zip(text.split(b"\n"), lower.split(b"\n")):
        if _holds(lower_line, _ERROR_WORDS) and re.search(_ERROR, line[:_SEARCHED_BYTES]):
            lines.append(line)
    return replace(end, errors=len(lines), error_lines=_shown_last(lines))


def _communicators(text: bytes, end: LogEnd) -> LogEnd:
    """Each initialization has a start and an end; MSCCL++ warns once in each."""
    if b"CCL" not in text and b"ncclCommInit" not in text:
        return end
    lines: list[bytes] = []
    warnings = started = completed = waves = 0
    other_lines = _WAVE_GAP_LINES
    for line in text.split(b"\n"):
        if not _is_of_communicator(line):
            other_lines += 1
            continue
        lines.append(line)
        warnings += b"CCL WARN" in line
        completes = b"Init COMPLETE" in line
        starts = b"Init START" in line or b"CCL WARN MSCCL++" in line
        started += starts
        completed += completes
        if starts or completes:
            waves += other_lines >= _WAVE_GAP_LINES
            other_lines = 0
    return replace(
        end,
        comm_warnings=warnings,
        comm_lines=_shown_last(lines),
        comm_inits_started=started,
        comm_inits_completed=completed,
        comm_init_waves=waves,
    )


def _is_of_communicator(line: bytes) -> bool:
    if b"CCL" not in line and b"ncclComm" not in line:
        return False
    return re.search(_COMM, line[:_SEARCHED_BYTES]) is not None
