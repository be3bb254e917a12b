"""What a candidate line may be of interest for, judged by the line without its digits.

Lines of a log repeat themselves but for their numbers: what the tallies would look for in a line is
looked for once in each shape. It only rules out; each tally still decides on the line itself.
"""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NamedTuple

from raydiag.joblog import exits, header, kernel_lines, saves, stages, startup
from raydiag.joblog.step_formats import FORMATS, HF_ANCHOR, JobStepFormat

_DIGITS = b"0123456789"
_CONTROL = bytes(code for code in (*range(32), 127) if code != 9)
_CARET = b"^[["  # what a terminal escape looks like when it was printed
_CLOCK = b"::"  # what is left of 10:00:00
_SHAPES = 8192
_SHAPE_BYTES = 1024  # longer lines are searched each time


class Interest(NamedTuple):
    """What may find something in a line."""

    time: bool
    forms: tuple[JobStepFormat, ...]  # that it may be a step line of
    steps: bool  # whether it may say anything about steps
    header: bool
    stages: bool
    exits: bool
    saves: bool
    startup: bool
    kernel: bool


_ANY = Interest(True, FORMATS, True, True, True, True, True, True, True)


class Interests:
    """What each line is of interest for."""

    def __init__(self) -> None:
        parts = (header, stages, exits, saves, startup)
        of_kernel = chain(kernel_lines.ANCHORS, *(form.shapes for form in kernel_lines.FORMS))
        self._groups = [*(_shapes(part.ANCHORS) for part in parts), _shapes(of_kernel)]
        self._by_shape: dict[bytes, Interest] = {}

    def __call__(self, raw: bytes) -> Interest:
        shape = raw.translate(None, _DIGITS)
        interest = self._by_shape.get(shape)
        if interest is None:
            interest = self._interest(shape)
            if len(shape) <= _SHAPE_BYTES:
                if len(self._by_shape) >= _SHAPES:
                    self._by_shape.clear()
                self._by_shape[shape] = interest
        return interest

    def _interest(self, shape: bytes) -> Interest:
        if _CARET in shape or len(shape.translate(None, _CONTROL)) < len(shape):
            return _ANY  # what is matched later is the text without these
        forms = tuple(form for form in FORMATS if _may_be(form, shape))
        may_hold = (_holds(shape, anchors) for anchors in self._groups)
        return Interest(_CLOCK in shape, forms, bool(forms) or HF_ANCHOR in shape, *may_hold)


def _may_be(form: JobStepFormat, shape: bytes) -> bool:
    if not _holds(shape, form.anchor_bytes):
        return False
    # `re` knows more blanks, letters and digits in text than in bytes.
    return form.shape is None or not shape.isascii() or form.shape.search(shape) is not None


def _shapes(anchors: Iterable[bytes]) -> tuple[bytes, ...]:
    return tuple(dict.fromkeys(anchor.translate(None, _DIGITS) for anchor in anchors))


def _holds(shape: bytes, anchors: Sequence[bytes]) -> bool:
    return any(anchor in shape for anchor in anchors)
