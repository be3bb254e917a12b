"""Signature matches and Python tracebacks with what stands around them."""

import os
import re
from dataclasses import dataclass, field, replace
from operator import attrgetter

from raydiag.joblog.facts import Match, Traceback
from raydiag.joblog.line_context import LineContext
from raydiag.joblog.log_line import Classify, Hit, JobLogLine

ANCHORS = (b"Traceback (most recent call last)",)
OPENING = "Traceback (most recent call last)"
ROW_MATCHES, WRITER_MATCHES, MATCHES = 128, 3, 4096
TRACEBACKS, EXAMINED = 256, 512
TRACEBACK_LINES = 400
CONTEXT_BEFORE, CONTEXT_AFTER, CONTEXT_CHARS = 2, 4, 512
RAW_CHARS = 4096
# A class: with its module, or with a capital; `return` and `else:` are lines of code.
_EXCEPTION = re.compile(
    r"^(?:[A-Za-z_]\w{0,100}\.[\w.]{1,200}|_?[A-Z]\w{0,100})"
    r"(?:[\[(][\w., ]{0,64}[\])])?(?::.*|\s*$)"
)
_FRAME = re.compile(r'^\s*File "([^"]{1,1024})", line \d+')
# What Ray prints below the line that says that an actor died: whose end it is, not who tells it.
_DEAD_ACTOR = re.compile(r"^\s*(class_name|pid|ip): (\S{1,64})")
_DEAD_ACTOR_LINES = 8


@dataclass
class MatchTally:
    """Matches of one file: of each row and writer the first ones and the newest."""

    kept: dict[str, int] = field(default_factory=dict)  # row, and row and writer -> matches
    matches: list[Match] = field(default_factory=list)
    newest: dict[str, Match] = field(default_factory=dict)  # row and writer -> newest beyond those
    tracebacks: list[Traceback] = field(default_factory=list)
    examined: int = 0  # tracebacks

    def take(
        self, line: JobLogLine, view: LineContext, classify: Classify, last_step: int | None
    ) -> None:
        """One candidate line; `last_step` is the newest step above it."""
        traceback = self._traceback(line, view) if OPENING in line.text else None
        hits = classify(line)
        # A harmless line is harmless whatever else it reads like.
        for hit in [hit for hit in hits if hit.role == "harmless"] or hits:
            self._add(_match(hit, line, view.offset, traceback, last_step), line, view)

    def _add(self, match: Match, line: JobLogLine, view: LineContext) -> None:
        key = f"{match.row} {match.where}"
        of_row, of_writer = self.kept.get(match.row, 0), self.kept.get(key, 0)
        if of_writer < WRITER_MATCHES and of_row < ROW_MATCHES and len(self.matches) < MATCHES:
            self.kept[match.row], self.kept[key] = of_row + 1, of_writer + 1
            groups = {**match.groups, **_dead_actor(line, view)}
            self.matches.append(_with_context(replace(match, groups=groups), view))
            return
        if key not in self.newest and len(self.newest) >= ROW_MATCHES:
            key = match.row
        self.newest[key] = match

    def _traceback(self, line: JobLogLine, view: LineContext) -> Traceback | None:
        self.examined += 1
        if self.examined > EXAMINED:
            return None
        traceback = read_traceback(line, view)
        printed = {(earlier.where, earlier.exception) for earlier in self.tracebacks}
        is_new = (traceback.where, traceback.exception) not in printed
        if is_new and len(self.tracebacks) < TRACEBACKS:
            self.tracebacks.append(traceback)
        return traceback

    def in_order(self) -> list[Match]:
        """The matches that are kept, by line."""
        matches = [*self.matches, *self.newest.values()]
        return sorted(matches, key=attrgetter("line", "offset"))


def _dead_actor(line: JobLogLine, view: LineContext) -> dict[str, str]:
    """Process and address of the actor whose death the lines below describe."""
    if "Actor" not in line.text:
        return {}
    fields: dict[str, str] = {}
    for _, text in view.writers_below(_DEAD_ACTOR_LINES, line.prefix):
        row = _DEAD_ACTOR.match(text)
        if not fields and (row is None or row[1] != "class_name"):
            return {}
        if row:
            fields[row[1]] = row[2]
    fields.pop("class_name", None)
    return fields


def _match(
    hit: Hit, line: JobLogLine, offset: int, traceback: Traceback | None, last_step: int | None
) -> Match:
    prefix = line.prefix
    return Match(
        **vars(hit),
        file=line.file,
        line=line.number,
        where=prefix.where,
        task=prefix.task,
        rank=prefix.rank,
        host=prefix.host,
        actor=prefix.actor,
        pid=prefix.pid,
        ip=prefix.ip,
        time=line.time,
        near_time=line.near_time,
        text=line.text[:RAW_CHARS],
        raw=line.raw[:RAW_CHARS],
        before=(),
        after=(),
        exception=traceback.exception if traceback else None,
        frame=traceback.frame if traceback else "",
        last_step=last_step,
        offset=offset,
    )


def _with_context(match: Match, view: LineContext) -> Match:
    before = tuple(text[:CONTEXT_CHARS] for text in view.above(CONTEXT_BEFORE))
    after = tuple(text[:CONTEXT_CHARS] for _, text in view.below(CONTEXT_AFTER))
    return replace(match, before=before, after=after)


def read_traceback(line: JobLogLine, view: LineContext) -> Traceback:
    """The traceback that opens on this line, by the lines of the same writer below it."""
    header, _, _ = line.text.partition(OPENING)
    lead: str | None = None
    frame, exception, end = "", "", line.number
    for number, text in view.writers_below(TRACEBACK_LINES, line.prefix):
        if lead is None:
            lead = os.path.commonprefix([header, text])  # noqa: RUF071 (no paths)
        text = _without(lead, text)
        end = number
        opened = _FRAME.match(text)
        if opened:
            frame = opened[1]
        elif frame and text[:1] not in (" ", "\t", "") and _EXCEPTION.match(text):
            # Ranks without prefixes print theirs at once: it is the first of them that is complete.
            exception = text[:RAW_CHARS]
            break
    where = line.prefix.where
    return Traceback(line.number, end, where, exception, line.time, line.file, frame)


def _without(header: str, text: str) -> str:
    """Loggers repeat their header before each line of a traceback."""
    if text.startswith(header):
        return text[len(header) :]
    return text.removeprefix(header.rstrip())
