"""Lines of the kernel log that stand in a job's log: after a wrapper's `dmesg`, from a journal.

Only their form is known here: a stamp of the kernel, or `kernel:` behind a date. What they say is
the judge's matter. Source: dmesg(1), journalctl(1), Documentation/ABI/testing/dev-kmsg
"""

import re
from dataclasses import dataclass, field
from operator import attrgetter

from raydiag.joblog.facts import LoggedKernelLine
from raydiag.joblog.line_selection import LineForm
from raydiag.joblog.log_line import JobLogLine

# How such lines are found fast. A shape is what is left of the form in a line without digits.
FORMS = (
    LineForm(rb"\[ {0,8}\d{1,9}\.\d{6}\]", (b".]",)),
    LineForm(rb":\d\d:\d\d \d{4}\] ", (b":: ] ",)),
    LineForm(rb":\d\d,\d{6}[+-]\d\d:?\d\d ", (b":,+", b":,-")),
)
ANCHORS = (b"kernel: ", b"kern  :", b",-;")
_DATE = r"(?:[A-Z][a-z]{2} [ \d]\d|\d{4}-\d\d-\d\d)[T ]\d\d:\d\d:\d\d[^\s,]{0,16} "
_LEVEL = r"(?:DEBUG|INFO|NOTICE|WARN(?:ING)?|ERROR|CRITICAL|FATAL|TRACE) "  # of a logger "kernel"
_BEGINS = re.compile(
    rf"(?:^|(?<=[\s:|>]))(?:{_DATE}(?:(?!{_LEVEL})(?P<host>[A-Za-z0-9][\w.-]{{0,62}}) )?kernel: "
    r"|(?:kern {1,2}:\w{3,6} {0,3}: ?)?"
    r"(?:\[ {0,8}\d{1,9}\.\d{6}\] ?|\[\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4}\] )\S"
    r"|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d,\d{6}[+-]\d\d:?\d\d \S)"
    r"|^(?:kernel: |\d{1,4},\d{1,20},\d{1,20},-;|kern {1,2}:\w{3,6} {0,3}: )"
)
_SAYS_KERNEL = "kernel: "
_REACH = 256  # characters before which it begins
_TEXT = 1024  # characters that are kept: LOG_LINE_MAX of the kernel
_FIRST, _OF_SHAPE, _LINES = 512, 3, 2048  # lines kept of any, then of those alike, and of all
_DIGITS = re.compile(r"\d+")


@dataclass
class KernelTally:
    """The kernel lines of one file: the first ones, then a few of each form and its newest."""

    lines: list[LoggedKernelLine] = field(default_factory=list)
    alike: dict[str, int] = field(default_factory=dict)  # line without digits -> how many
    newest: dict[str, LoggedKernelLine] = field(default_factory=dict)  # beyond those
    is_jobs_stamp: bool = False  # the job's own lines begin like the kernel's

    def part(self, text: str, may_be_step: bool) -> re.Match[str] | None:
        """The kernel's part of a line; None without one, or where the job stamps lines so."""
        beginning = begins(text)
        if beginning is None or _SAYS_KERNEL in beginning[0]:
            return beginning
        self.is_jobs_stamp = self.is_jobs_stamp or may_be_step
        return None if self.is_jobs_stamp else beginning

    def take(self, line: JobLogLine, part: re.Match[str], last_step: int | None) -> None:
        """One line with its kernel's part."""
        prefix = line.prefix
        logged = LoggedKernelLine(
            file=line.file,
            line=line.number,
            text=part.string[part.start() :][:_TEXT],
            raw=line.raw[:_TEXT],
            where=prefix.where,
            task=prefix.task,
            rank=prefix.rank,
            host=part["host"] or prefix.host,
            near_time=line.near_time,
            last_step=last_step,
        )
        self._keep(logged)

    def _keep(self, logged: LoggedKernelLine) -> None:
        shape = _DIGITS.sub("", logged.text)
        count = self.alike.get(shape, 0)
        if count or len(self.alike) < _LINES:
            self.alike[shape] = count + 1
        is_wanted = len(self.lines) < _FIRST or count < _OF_SHAPE
        if is_wanted and len(self.lines) < _LINES:
            self.lines.append(logged)
        elif shape in self.alike:
            self.newest[shape] = logged

    def in_order(self) -> list[LoggedKernelLine]:
        """The lines that are kept, as they stand in the log."""
        return sorted([*self.lines, *self.newest.values()], key=attrgetter("line"))


def begins(text: str) -> re.Match[str] | None:
    """Where a line's kernel part begins, with its `host` if it names one; None without any."""
    return _BEGINS.search(text, 0, _REACH)
