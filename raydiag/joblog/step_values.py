"""What one step line says beside its step: by a search for each field, or all of it at once."""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import Optional

from raydiag.joblog.step_formats import NUMBER, JobStepFormat

# Total, seconds, loss, state of the loss, TFLOP/s, tokens/s; NaN where a line does not have it.
# States: n no loss on the line; f finite; a nan; i infinite.
StepValues = tuple[Optional[int], float, float, str, float, float]


def searched(form: JobStepFormat, found: re.Match[str], text: str) -> StepValues:
    """By the patterns of the form, behind the step where a line may say something else too."""
    start = 0 if form.whole else found.start()
    groups = found.groupdict()
    seconds = _number(form.seconds, text, start) * form.scale
    if groups.get("rate") and groups.get("unit"):
        rate = float(groups["rate"]) if groups["rate"].count(".") < 2 else math.nan
        seconds = rate if groups["unit"] == "s/it" else 1.0 / rate if rate else math.nan
    loss = _number(form.loss, text, start)
    return (
        int(groups["total"]) if groups.get("total") and form.id != "bar" else None,
        seconds,
        loss,
        _state(form.loss, text, start, loss),
        _number(form.tflops, text, start),
        _number(form.tokens, text, start),
    )


def read_at_once(form: JobStepFormat, data: bytes, start: int, end: int) -> Optional[StepValues]:
    """The values of `data[start:end]` where it has the form's usual layout from end to end.

    The same as `searched` finds, given that no field stands before `start`.
    """
    found = form.layout.fullmatch(data, start, end) if form.layout else None
    if found is None:
        return None
    seconds, tflops, tokens, loss = found.groups()
    value = float(loss)
    state = "f" if value == value else "a"
    return None, float(seconds), value, state, float(tflops), float(tokens)


def has_field(form: JobStepFormat, text: str) -> bool:
    """Whether a search for the form's fields finds one of them in `text`."""
    patterns = (form.seconds, form.loss, form.tflops, form.tokens)
    return any(pattern and _field(pattern).search(text) for pattern in patterns)


@lru_cache(maxsize=256)
def _field(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern + "(" + NUMBER + ")(?![A-Za-z0-9])")


def _number(pattern: str, text: str, start: int) -> float:
    """NaN where the field is not there, and where it is printed as nan."""
    found = _field(pattern).search(text, start) if pattern else None
    if not found:
        return math.nan
    try:
        return float(found[1].replace(",", ""))
    except ValueError:
        return math.nan


def _state(pattern: str, text: str, start: int, loss: float) -> str:
    if loss == loss:
        return "i" if math.isinf(loss) else "f"
    return "a" if pattern and _field(pattern).search(text, start) else "n"
