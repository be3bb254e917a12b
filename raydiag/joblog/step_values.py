"""What one step line says beside its step: by a search for each field, or all of it at once."""

from __future__ import annotations

import math
import re
from typing import Optional

from raydiag.joblog.step_formats import JobStepFormat
from raydiag.step_formats import field_number, field_pattern, step_seconds

# Total, seconds, loss, state of the loss, TFLOP/s, tokens/s; NaN where a line does not have it.
# States: n no loss on the line; f finite; a nan; i infinite.
StepValues = tuple[Optional[int], float, float, str, float, float]


def searched(form: JobStepFormat, match: re.Match[str], text: str) -> StepValues:
    """By the patterns of the format, behind the step where a line may say something else too."""
    start = 0 if form.says_only_step else match.start()
    total = None if form.id == "bar" else match.groupdict().get("total")
    loss = field_number(form.loss, text, start)
    return (
        int(total) if total else None,
        step_seconds(form, match, text, start),
        loss,
        _loss_state(form, text, start, loss),
        field_number(form.tflops, text, start),
        field_number(form.tokens, text, start),
    )


def read_at_once(form: JobStepFormat, data: bytes, start: int, end: int) -> Optional[StepValues]:
    """The values of `data[start:end]` where it has the format's usual layout from end to end.

    The same as `searched` finds, given that no field stands before `start`.
    """
    match = form.layout.fullmatch(data, start, end) if form.layout else None
    if match is None:
        return None
    seconds, tflops, tokens, loss = map(float, match.groups())
    state = "f" if loss == loss else "a"  # hot: the layout holds no infinite loss
    return None, seconds, loss, state, tflops, tokens


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
        return "n"
    return printed_state(loss)
