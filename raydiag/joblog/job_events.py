"""Event files of training jobs: starts, loaded and saved checkpoints, ends; a JSON object a line.

{"event_type": "job_started", "node_rank": 3, "timestamp": "2026-03-02T06:08:30.1", "job_name": "j"}
{"event_type": "checkpoint_saved", "step": 60, "timestamp": 1772432103.1, "job_name": "j"}

Source: AI-Hypercomputer's resiliency library, goodput measurement.
"""

import math
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from raydiag import untrusted
from raydiag.errors import CannotRun

KINDS = ("job_started", "checkpoint_loaded", "checkpoint_saved", "job_terminated")
_LIMIT_BYTES = 1 << 30
_LONGEST_LINE = 1 << 16


@dataclass(frozen=True)
class JobEvent:
    """Something that happened to a job."""

    kind: str  # one of KINDS
    time: float  # Unix seconds UTC; a time without a zone is UTC
    step: int | None  # of a checkpoint


@dataclass(frozen=True)
class JobEvents:
    """One job's events by time, and the lines that are none."""

    path: str
    job_name: str | None
    events: tuple[JobEvent, ...]
    skipped_lines: int


def read_job_events(path: str) -> list[JobEvents]:
    """The events of each job of the file, by name. Raises CannotRun for a file without any."""
    events: dict[str | None, list[JobEvent]] = {}
    skipped = 0
    try:
        with open(path, encoding="utf-8", errors="replace", opener=untrusted.regular) as file:
            read = 0
            while line := file.readline(_LONGEST_LINE):
                read += len(line)
                if read > _LIMIT_BYTES:
                    raise CannotRun(f"{path}: more than {_LIMIT_BYTES >> 30} GiB of events")
                event = _event(line)
                if event is not None:
                    events.setdefault(event[0], []).append(event[1])
                elif line.strip():
                    skipped += 1
    except OSError as error:
        raise CannotRun(f"{path}: {error.strerror}") from None
    if not events:
        kinds = ", ".join(KINDS)
        raise CannotRun(f"{path}: no line is a JSON object whose event_type is one of {kinds}")
    jobs = []
    for name, of_job in sorted(events.items(), key=lambda item: item[0] or ""):
        ordered = tuple(sorted(of_job, key=lambda event: event.time))
        jobs.append(JobEvents(path, name, ordered, skipped))
    return jobs


def _event(line: str) -> tuple[str | None, JobEvent] | None:
    """Job name and event; None for a line that is none."""
    try:
        fields = untrusted.parsed(line, _LONGEST_LINE)
    except ValueError:
        return None
    if type(fields) is not dict or fields.get("event_type") not in KINDS:
        return None
    time, step = _time(fields.get("timestamp")), fields.get("step")
    if time is None or not _is_step(step):
        return None
    is_of_checkpoint = fields["event_type"].startswith("checkpoint")
    if is_of_checkpoint != (step is not None):
        return None
    name = fields.get("job_name")
    event = JobEvent(fields["event_type"], time, None if step is None else int(step))
    return (name if type(name) is str else None), event


def _is_step(value: Any) -> bool:
    """Also 60.0, as some libraries write it."""
    if value is None:
        return True
    return type(value) in (int, float) and 0 <= value < 1e15 and value == int(value)


def _time(value: Any) -> float | None:
    """Unix seconds of a number or of ISO 8601; None for what is no time."""
    if type(value) in (int, float):
        return float(value) if math.isfinite(value) else None
    if type(value) is not str:
        return None
    try:
        moment = datetime.fromisoformat(value.replace("Z", "+00:00"))
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    return moment.timestamp()
