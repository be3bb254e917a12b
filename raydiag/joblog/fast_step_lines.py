"""Step lines in their format's usual layout, read without decoding and splitting each of them.

What stands before a step repeats itself, writer by writer: a line that was fully parsed once shows
whose it is, and the next ones that begin alike are read by the layout alone. For that no time may
stand on them. Both readings give the same.
"""

import re
from typing import NamedTuple

from raydiag.joblog.lines import TextWindow
from raydiag.joblog.log_line import JobLogLine, Prefix
from raydiag.joblog.step_formats import FORMATS
from raydiag.joblog.step_values import has_field, read_at_once
from raydiag.joblog.steps import StepTally

_FORM = next(form for form in FORMATS if form.layout)
_STEP = b"completed step: "  # what its layout begins with
_STEP_BYTES = 16  # of the number and a comma
_HEADS = 16384
_LINE = re.compile(rb"([^\r\n]{0,256}?)completed step: (\d{1,14}),[^\r\n]{0,4096}\n")


class _LineHead(NamedTuple):
    """What stands before a step."""

    prefix: Prefix
    writer: str
    says_more: bool  # has a field as step lines have


class FastStepLines:
    """Knows the writers of one file."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._heads: dict[bytes, _LineHead] = {}

    def forget(self) -> None:
        """Forgets the writers: by now more names of hosts are known."""
        self._heads.clear()

    def learn(self, line: JobLogLine, raw: bytes) -> None:
        """Takes the writer from a step line without a time that was fully parsed."""
        at = raw.find(_STEP)
        if at >= 0 and len(self._heads) < _HEADS:
            lead = line.text[: max(line.text.find(_STEP.decode()), 0)]
            self._heads[raw[:at]] = _LineHead(
                line.prefix, line.prefix.where, has_field(_FORM, lead)
            )

    def take(
        self,
        window: TextWindow,
        start: int,
        end: int,
        number: int,
        steps: StepTally,
        near_time: float | None,
    ) -> bool:
        """Reads one line, if it is such a line. False: it has to be fully parsed."""
        data = window.data
        at = data.find(_STEP, start, end)
        head = self._heads.get(data[start:at]) if at >= 0 else None
        if head is None:
            return False
        at_step = at + len(_STEP)
        digits, comma, _ = data[at_step : min(at_step + _STEP_BYTES, end)].partition(b",")
        if not comma or not digits.isdigit():
            return False
        step = int(digits)
        if steps.repeats(_FORM.id, head.writer, step, number):
            return True
        if head.says_more or (window.last and end == len(data)):  # the last word may be cut
            return False
        values = read_at_once(_FORM, data, at, end)
        return values is not None and steps.leads(
            _FORM, step, values, head.prefix, head.writer, number, near_time, self._file
        )

    def run(
        self, data: bytes, position: int, limit: int, number: int, steps: StepTally
    ) -> tuple[int, int]:
        """Takes the lines from `position` on that only repeat steps, as `take` would.

        Where, before `limit`, the first line starts that does not, and its number.
        """
        heads = self._heads
        while position < limit and (match := _LINE.match(data, position, limit)):
            before, digits = match.groups()
            head = heads.get(before)
            if head is None or not steps.repeats(_FORM.id, head.writer, int(digits), number):
                break
            position, number = match.end(), number + 1
        return position, number
