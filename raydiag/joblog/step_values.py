"""What step lines say beside their steps: read from each line, and kept within bounds.

A line is read by a search for each field, or all of it at once.
"""

import math
import re
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from raydiag.joblog.facts import StepSeries
from raydiag.joblog.numbers import whole_number
from raydiag.joblog.step_formats import JobStepFormat
from raydiag.step_formats import field_number, field_pattern, step_seconds

if TYPE_CHECKING:
    Doubles = array[float]
else:
    Doubles = array  # before Python 3.12 only a checker of types knows array[float]
SERIES = 16384
HEAD, TAIL = 256, 4096
_UNSETTLED = 1024
_SCALARS = ("grad_norm", "rate", "balance")
_COLUMNS = ("step", "seconds", "loss", *_SCALARS, "tflops", "tokens_per_s", "time", "line")
_STATES = {state: state.encode() for state in "nfaig"}
# Total, seconds, loss, its state, other scalars, TFLOP/s, tokens/s; NaN: not on the line.
# States: n no loss on the line; f finite; a nan; i infinite; g none, but a gradient norm of nan.
StepValues = tuple[int | None, float, float, str, tuple[float, ...], float, float]
_NO_SCALARS = (math.nan,) * len(_SCALARS)


def searched(form: JobStepFormat, match: re.Match[str], text: str) -> StepValues:
    """By the patterns of the format, behind the step where a line may say something else too."""
    start = 0 if form.says_only_step else match.start()
    total = None if form.id == "bar" else match.groupdict().get("total")
    loss = field_number(form.loss, text, start)
    return (
        whole_number(total),
        step_seconds(form, match, text, start),
        loss,
        _loss_state(form, text, start, loss),
        tuple(field_number(getattr(form, name), text, start) for name in _SCALARS),
        field_number(form.tflops, text, start),
        field_number(form.tokens, text, start),
    )


def read_at_once(form: JobStepFormat, data: bytes, start: int, end: int) -> StepValues | None:
    """The values of `data[start:end]` where it has the format's usual layout from end to end.

    The same as `searched` finds, given that no field stands before `start`.
    """
    match = form.layout.fullmatch(data, start, end) if form.layout else None
    if match is None:
        return None
    seconds, tflops, tokens, loss = map(float, match.groups())
    state = "f" if loss == loss else "a"  # hot: the layout holds no infinite loss
    return None, seconds, loss, state, _NO_SCALARS, tflops, tokens


def has_field(form: JobStepFormat, text: str) -> bool:
    """Whether a search for the format's fields finds one of them in `text`."""
    patterns = filter(None, (form.seconds, form.loss, form.tflops, form.tokens))
    return any(field_pattern(pattern).search(text) for pattern in patterns)


def printed_state(loss: float) -> str:
    """The state of a loss that was printed."""
    if math.isnan(loss):
        return "a"
    return "i" if math.isinf(loss) else "f"


def _loss_state(form: JobStepFormat, text: str, start: int, loss: float) -> str:
    if math.isnan(loss) and not (form.loss and field_pattern(form.loss).search(text, start)):
        # Megatron leaves a loss out that is not a number.
        return "g" if "grad norm: nan" in text else "n"
    return printed_state(loss)


# ---- columns and sums


@dataclass
class StepColumns:
    """Columns that grow with the run until they are thinned in the middle."""

    columns: dict[str, Doubles] = field(
        default_factory=lambda: {name: array("d") for name in _COLUMNS}
    )
    newest: list[tuple[float, ...]] = field(default_factory=list)  # rows not yet in the columns
    states: bytearray = field(default_factory=bytearray)

    def append(self, values: tuple[float, ...], state: str) -> None:
        """One step: a value for each column, and the state of its loss."""
        self.newest.append(values)
        self.states += _STATES[state]
        if len(self.newest) >= _UNSETTLED:
            self.settle()
        if len(self.states) > SERIES:
            self.settle()
            for name, column in self.columns.items():
                self.columns[name] = column[:HEAD] + column[HEAD:-TAIL:2] + column[-TAIL:]
            states = self.states
            self.states = states[:HEAD] + states[HEAD:-TAIL:2] + states[-TAIL:]

    def settle(self) -> None:
        """Takes the newest rows into the columns: many at a time cost a third."""
        if self.newest:
            for name, column in zip(_COLUMNS, zip(*self.newest, strict=True), strict=True):
                self.columns[name].extend(column)
            self.newest.clear()

    def last_loss(self, loss: float, state: str) -> None:
        """Gives the newest step the loss that stands on a line of its own."""
        if self.states and self.states[-1:] == b"n":
            self.settle()
            self.columns["loss"][-1] = loss
            self.states[-1:] = state.encode()

    def series(self, writer: str, unit: str) -> StepSeries:
        """A copy; `where` is the writer, `unit` that of the tokens."""
        self.settle()
        copies = {name: array("d", self.columns[name]) for name in _COLUMNS}
        return StepSeries(
            writer,
            **copies,
            loss_state=bytes(self.states),
            throughput_unit="" if all(map(math.isnan, copies["tokens_per_s"])) else unit,
        )
