"""Stages of the batch script and the summary that it ends with.

== Preflight BEGIN (timeout=900s) ==
== Preflight END (12s) ==
== ECC check TIMEOUT (300s/300s) ==
== Training FAILED (exit=1, 830s) ==
========================== JOB SUMMARY ==========================
  Wall:   1h 2m 3s
  Status: FAILED (exit 1) — Training FAILED (exit=1)
"""

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from raydiag.joblog.facts import StageEvent, Summary
from raydiag.joblog.line_context import LineContext
from raydiag.joblog.log_line import JobLogLine
from raydiag.joblog.numbers import each_in_seconds, seconds_of, whole_number

ANCHORS = (b"== ", b"JOB SUMMARY")
EVENTS, SUMMARIES = 256, 4096
_NAME = r"^== (?P<name>[A-Za-z][\w /-]{0,40}?) "
_STAGE = re.compile(_NAME + r"(?P<event>BEGIN|END|TIMEOUT|FAILED)\b(?: \((?P<details>[^)]*)\))?")
_OPENING = re.compile(_NAME + r"\((?P<details>timeout[ =]\d{1,9}s|no timeout)\)")
_EXIT = re.compile(r"exit=(\d{1,9})")
_SUMMARY = re.compile(r"^=+ JOB SUMMARY =+")
_FIELD = re.compile(r"^\s{1,8}(Wall|Status):(.*)")
_STATUS = re.compile(
    r"^([A-Z][A-Z_]+)?(?:\s*\(exit (\d{1,9})\))?(?:\s*(?:\u2014|\u2013|--?)\s*(.*))?$"
)
_BLOCK_LINES = 40


@dataclass
class StageTally:
    """Stage events and the last summary of one file."""

    events: list[StageEvent] = field(default_factory=list)
    summary: Summary | None = None
    summaries: int = 0

    def take(self, line: JobLogLine, view: LineContext) -> None:
        """One line that may be of a stage or open a summary."""
        if _SUMMARY.match(line.text):
            self.summaries += 1
            if self.summaries <= SUMMARIES:
                self.summary = _summary(line, view, self.summaries)
        elif match := _STAGE.match(line.text) or _OPENING.match(line.text):
            if len(self.events) >= EVENTS:
                del self.events[EVENTS // 2]
            self.events.append(_event(match, line))


def _event(match: re.Match[str], line: JobLogLine) -> StageEvent:
    event = (match.groupdict().get("event") or "BEGIN").lower()
    details = match["details"] or ""
    code = _EXIT.search(details)
    seconds = each_in_seconds(details)
    return StageEvent(
        name=match["name"],
        event=event,
        line=line.number,
        # `BEGIN (timeout=900s)`, `END (12s)`, `TIMEOUT (300s/300s)`
        elapsed_s=seconds[0] if seconds and event != "begin" else None,
        exit_code=int(code[1]) if code else None,
        time=line.near_time,
        raw=line.raw[:4096],
        file=line.file,
    )


class _Field(NamedTuple):
    line: int | None = None
    text: str = ""


def _summary(line: JobLogLine, view: LineContext, count: int) -> Summary:
    fields = _summary_fields(line, view)
    status = fields.get("Status", _Field())
    match = _STATUS.match(status.text)
    word, code, reason = match.groups() if match else (None, None, None)
    return Summary(
        line=line.number,
        file=line.file,
        word=word,
        exit_code=whole_number(code),
        reason=reason or "",
        status_line=status.line,
        status_text=status.text,
        wall_s=seconds_of(fields.get("Wall", _Field()).text),
        time=line.near_time,
        count=count,
    )


def _summary_fields(line: JobLogLine, view: LineContext) -> dict[str, _Field]:
    """The first of each name, up to the status, which is the last one."""
    fields: dict[str, _Field] = {}
    for number, text in view.writers_below(_BLOCK_LINES, line.prefix):
        if _SUMMARY.match(text):
            break
        if match := _FIELD.match(text):
            fields.setdefault(match[1], _Field(number, match[2].strip()))
        if "Status" in fields:
            break
    return fields
