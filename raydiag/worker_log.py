"""What the end of a worker's log says: steps, errors, set-ups of communicators.

Pure functions over bytes. Most files lack most of the words, so a word is looked for in the whole
text once before any line is taken apart.

Source: step lines as MaxText, Megatron-LM, DeepSpeed, torchtitan and tqdm print them; NCCL and RCCL
debug output (init.cc); markers of Ray (ray_constants.LOG_PREFIX_*).
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Optional

from raydiag.masking import masked_line

LINE_LIMIT = 300
MOST_LINES = 5
_ERROR_BYTES = 64 << 10  # looked through for errors, from the end
_WAVE_GAP_LINES = 20  # so many lines about other things end a wave of communicator set-ups

# Compiling a pattern costs more than most files do: `re` compiles them when they are first needed,
# and keeps them.
_MARKER = rb":(job_id|actor_name|task_name):([^\r\n]*)"
_ERROR_WORDS = (b"error", b"exception", b"traceback", b"killed", b"oom")
_ERROR = rb"(?i)\b(?:\w*error|\w*exception|traceback|killed|oom)\b"
_COMM = rb"\b[NR]CCL (?:WARN|INFO|ERROR)\b|\bncclCommInit|\bMSCCL\+\+"
_STAMP = rb"(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)"
_LONGEST_STEP_S = 1e6  # what says more means something else


@dataclass(frozen=True)
class StepFormat:
    name: str
    word: bytes  # is in every such line
    pattern: bytes  # groups step, total, seconds, ms, rate


# Each pattern wants something behind the number, so that a number that is half written is never
# taken for a smaller one. Numbers have 15 digits at most: what is longer is no step.
STEP_FORMATS = (
    StepFormat(
        "MaxText",
        b"completed step:",
        rb"completed step: (?P<step>\d{1,15}), seconds: (?P<seconds>\d+(?:\.\d+)?),",
    ),
    StepFormat(
        "Megatron",
        b"iteration ",
        (
            rb"\biteration +(?P<step>\d{1,15})/ *(?P<total>\d{1,15}) "
            rb"(?:.*elapsed time per iteration \(ms\): (?P<ms>\d+(?:\.\d+)?) )?"
        ),
    ),
    StepFormat(
        "DeepSpeed",
        b"] step=",
        rb"\[Rank \d+\] step=(?P<step>\d{1,15}), skipped=",
    ),
    StepFormat(
        "progress bar",
        b"%|",
        (
            rb"^(?:[Tt]rain(?:ing)?: *|[Ss]teps?: *)? *\d+%\|[^|]*\| *(?P<step>\d{1,15})/"
            rb"(?P<total>\d{1,15}) \[[^\],]*, *(?:(?P<seconds>\d+(?:\.\d+)?)s/it"
            rb"|(?P<rate>\d+(?:\.\d+)?)it/s|\?)"
        ),
    ),
    StepFormat(
        "step and loss",
        b"loss",
        (
            rb"^(?!.*(?:[Ee]val|[Vv]alid)).*(?:\b|\[\d+m)(?:global_)?[Ss]tep[ :=]{1,3}"
            rb"(?P<step>\d{1,15})(?:/(?P<total>\d{1,15}))?[^\d.].*loss\b"
        ),
    ),
)


@dataclass(frozen=True)
class LogEnd:
    """The end of one file; counts are of what was given, not of the whole file."""

    step_format: str = ""  # name of a StepFormat; "" when no step was seen
    step: Optional[int] = None  # the last one
    total_steps: Optional[int] = None  # as that line has it
    step_duration_s: Optional[float] = None  # as that line has it
    step_stride: Optional[int] = None  # steps from one such line to the next; None: seen once
    step_line: str = ""
    step_stamp: Optional[float] = None  # that line's own time, Unix seconds
    step_is_last: bool = False  # nothing was written after that line
    buffered: bool = False  # ends in half a line
    errors: int = 0  # lines in the last 64 KiB with words such as error or killed
    error_lines: tuple[str, ...] = ()  # the last of them
    comm_warnings: int = 0  # of NCCL or RCCL
    comm_lines: tuple[str, ...] = ()  # the last lines of NCCL or RCCL
    comm_inits_started: int = 0
    comm_inits_completed: int = 0
    comm_init_waves: int = 0  # set-ups with at least _WAVE_GAP_LINES other lines in between


def markers(text: bytes) -> list[tuple[str, str]]:
    """Ray's own lines that say whose output it is: ("actor_name", "Trainer"), in their order."""
    found = (re.match(_MARKER, line) for line in text.split(b"\n") if line.startswith(b":"))
    return [(m[1].decode(), m[2].decode("utf-8", "replace").strip()[:100]) for m in found if m]


def parse_end(text: bytes) -> LogEnd:
    """Everything that the end of a log says; whole lines, but for the last one.

    A worker is used for one task after the other: steps of an earlier one do not count.
    """
    end = _errors(text[-_ERROR_BYTES:], _communicators(text, LogEnd()))
    at = text.rfind(b"\n:task_name:")
    end = _last_step(text if at < 0 else text[at + 1 :], end)
    half = text[-1:] not in (b"", b"\n") and end.step_format != "progress bar"
    return replace(end, buffered=half)


def joined(ends: Sequence[LogEnd], best: LogEnd) -> LogEnd:
    """The counts of several files of a worker, with the steps of `best`."""
    return replace(
        best,
        errors=sum(end.errors for end in ends),
        error_lines=tuple(line for end in ends for line in end.error_lines)[-MOST_LINES:],
        comm_warnings=sum(end.comm_warnings for end in ends),
        comm_lines=tuple(line for end in ends for line in end.comm_lines)[-MOST_LINES:],
        comm_inits_started=sum(end.comm_inits_started for end in ends),
        comm_inits_completed=sum(end.comm_inits_completed for end in ends),
        comm_init_waves=max(end.comm_init_waves for end in ends),
    )


def shown(line: bytes) -> str:
    """A line as evidence: its beginning, without what looks like a secret."""
    return masked_line(line[: 2 * LINE_LIMIT].decode("utf-8", "replace"))[:LINE_LIMIT]


def _last_step(text: bytes, end: LogEnd) -> LogEnd:
    formats = [form for form in STEP_FORMATS if form.word in text]
    if not formats:
        return end
    later = False
    for line in reversed(text.replace(b"\r", b"\n").split(b"\n")):
        for form in formats:
            match = re.search(form.pattern, line[:2000]) if form.word in line else None
            if not match:
                continue
            found = match.groupdict()
            if end.step is not None:  # the one before the last
                return replace(end, step_stride=max(1, abs(end.step - int(found["step"]))))
            end = replace(
                end,
                step_format=form.name,
                step=int(found["step"]),
                total_steps=int(found["total"]) if found.get("total") else None,
                step_duration_s=_duration_s(found),
                step_line=shown(line),
                step_stamp=_stamp_s(line),
                step_is_last=not later,
            )
            formats = [form]
            break
        later = later or bool(line)
    return end


def _duration_s(found: dict[str, bytes]) -> Optional[float]:
    if found.get("seconds"):
        duration_s = float(found["seconds"])
    elif found.get("ms"):
        duration_s = float(found["ms"]) / 1000
    else:
        rate = float(found.get("rate") or 0)
        duration_s = 1 / rate if rate else 0.0
    return duration_s if 0 < duration_s <= _LONGEST_STEP_S else None


def _stamp_s(line: bytes) -> Optional[float]:
    """The line's own time, which logs give in the node's local time; None when it has none."""
    match = re.search(_STAMP, line[:200])
    if not match:
        return None
    year, month, day, hour, minute, second = (int(part) for part in match.groups())
    try:
        return time.mktime((year, month, day, hour, minute, second, 0, 0, -1))
    except (OverflowError, ValueError):
        return None


def _errors(text: bytes, end: LogEnd) -> LogEnd:
    lower = text.lower()
    words = [word for word in _ERROR_WORDS if word in lower]
    if not words:
        return end
    bad = [
        line
        for line, low in zip(text.split(b"\n"), lower.split(b"\n"))
        if any(word in low for word in words) and re.search(_ERROR, line[:2000])
    ]
    return replace(
        end, errors=len(bad), error_lines=tuple(shown(line) for line in bad[-MOST_LINES:])
    )


def _communicators(text: bytes, end: LogEnd) -> LogEnd:
    """Each set-up has a start and an end; MSCCL++ warns once in each."""
    if b"CCL" not in text and b"ncclCommInit" not in text:
        return end
    comm: list[bytes] = []
    warnings = started = completed = waves = 0
    others = _WAVE_GAP_LINES
    for line in text.split(b"\n"):
        if (b"CCL" not in line and b"ncclComm" not in line) or not re.search(_COMM, line[:2000]):
            others += 1
            continue
        comm.append(line)
        warnings += b"CCL WARN" in line
        completes = b"Init COMPLETE" in line
        starts = b"Init START" in line or b"CCL WARN MSCCL++" in line
        started += starts
        completed += completes
        if starts or completes:
            waves += others >= _WAVE_GAP_LINES
            others = 0
    return replace(
        end,
        comm_warnings=warnings,
        comm_lines=tuple(shown(line) for line in comm[-MOST_LINES:]),
        comm_inits_started=started,
        comm_inits_completed=completed,
        comm_init_waves=waves,
    )
