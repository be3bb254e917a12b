"""Stages of the batch script and the summary that it ends with.

== Preflight BEGIN (timeout=900s) ==
== Preflight END (12s) ==
== ECC check TIMEOUT (300s/300s) ==
== Training FAILED (exit=1, 830s) ==
========================== JOB SUMMARY ==========================
  Wall:   1h 2m 3s
  Status: FAILED (exit 1) — Training FAILED (exit=1)
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Optional

from raydiag.joblog.facts import JobLogLine, StageEvent, Summary
from raydiag.joblog.line_context import LineContext

ANCHORS = (b"== ", b"JOB SUMMARY")
EVENTS, SUMMARIES = 256, 4096
_STAGE = re.compile(
    r"^== (?P<name>[A-Za-z][\w /-]{0,40}?) (?P<event>BEGIN|END|TIMEOUT|FAILED)\b"
    r"(?: \((?P<inside>[^)]*)\))?"
)
_OPENING = re.compile(
    r"^== (?P<name>[A-Za-z][\w /-]{0,40}?) \((?P<inside>timeout[ =]\d+s|no timeout)\)"
)
_SECONDS = re.compile(r"(\d+(?:\.\d+)?)s")
_EXIT = re.compile(r"exit=(\d+)")
_SUMMARY = re.compile(r"^=+ JOB SUMMARY =+")
_FIELD = re.compile(r"^\s{1,8}(Job|Model|Nodes|Wall|Status):\s*(.*?)\s*$")
_STATUS = re.compile(r"^([A-Z][A-Z_]+)?(?:\s*\(exit (\d+)\))?(?:\s*(?:\u2014|\u2013|--?)\s*(.*))?$")
_WALL = re.compile(r"(\d+)\s*([dhms])")
_UNITS_S = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_BLOCK_LINES = 40


@dataclass
class StageTally:
    """Stage events and the last summary of one file."""

    events: list[StageEvent] = field(default_factory=list)
    summary: Optional[Summary] = None
    summaries: int = 0

    def take(self, line: JobLogLine, view: LineContext) -> None:
        text = line.text
        if _SUMMARY.match(text):
            self.summaries += 1
            if self.summaries <= SUMMARIES:
                self.summary = _summary(line, view, self.summaries)
        elif found := _STAGE.match(text) or _OPENING.match(text):
            if len(self.events) >= EVENTS:
                del self.events[EVENTS // 2]
            self.events.append(_event(found, line))


def _event(found: re.Match[str], line: JobLogLine) -> StageEvent:
    event = (found.groupdict().get("event") or "BEGIN").lower()
    inside = found["inside"] or ""
    seconds = [float(number) for number in _SECONDS.findall(inside)]
    code = _EXIT.search(inside)
    limit = None
    if event == "begin":
        limit, seconds = (seconds[0] if seconds else None), []
    elif event == "timeout" and len(seconds) > 1:
        limit = seconds[1]
    return StageEvent(
        name=found["name"],
        event=event,
        line=line.number,
        elapsed_s=seconds[0] if seconds else None,
        limit_s=limit,
        exit_code=int(code[1]) if code else None,
        time=line.near_time,
        raw=line.raw[:4096],
        file=line.file,
    )


def _summary(line: JobLogLine, view: LineContext, count: int) -> Summary:
    fields: dict[str, tuple[int, str]] = {}
    for number, text in view.writers_below(_BLOCK_LINES, line.prefix):
        if _SUMMARY.match(text):
            break
        if (found := _FIELD.match(text)) and found[1] not in fields:
            fields[found[1]] = (number, found[2])
        if "Status" in fields:
            break
    status_line, status = fields.get("Status", (None, ""))
    found = _STATUS.match(status) if status else None
    job = re.match(r"(\S+)(?:\s+\((.*)\))?", fields.get("Job", (0, ""))[1])
    return Summary(
        line=line.number,
        file=line.file,
        word=found[1] if found else None,
        exit_code=int(found[2]) if found and found[2] else None,
        reason=(found[3] or "") if found else "",
        status_line=status_line,
        status_text=status,
        job_id=job[1] if job else None,
        job_name=job[2] if job else None,
        model=fields.get("Model", (0, ""))[1] or None,
        nodes=fields.get("Nodes", (0, ""))[1] or None,
        wall_s=_wall(fields.get("Wall", (0, ""))[1]),
        time=line.near_time,
        count=count,
    )


def _wall(text: str) -> Optional[float]:
    """`1h 2m 3s`, `2m 3s`, `3s`."""
    parts = _WALL.findall(text)
    return sum(int(number) * _UNITS_S[unit] for number, unit in parts) if parts else None
