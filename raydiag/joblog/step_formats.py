"""What a job's log is searched for in step lines, besides the step: one row for each format.

`raydiag/step_formats.py` knows a step line by its step and seconds. Every other field is looked for
by itself, because lines leave some out.
Source: the print or log call of each framework, named there.
"""

import re
from dataclasses import dataclass, fields
from itertools import chain
from operator import attrgetter
from typing import Any

from raydiag.joblog.tables import table
from raydiag.step_formats import NUMBER, STEP_FORMATS, StepFormat


@dataclass(frozen=True)
class JobStepFormat(StepFormat):
    """One format of step line, with all that its lines may say."""

    zero_based: bool = False  # the first step is 0
    counts_done: bool = True  # `step` steps are complete when it is printed: T steps end at T
    loss: str = r"\bloss['\"]?[=:]\s*['\"]?"  # pattern in front of the number, as all of these
    grad_norm: str = r"\b[Gg]rad[ _]norm['\"]?[=:]\s*['\"]?"
    rate: str = r"\b(?:lr|learning[ _]rate)['\"]?[=:]\s*['\"\[]?"
    balance: str = r"\b(?:load[ _]balancing|moe_(?:lb|aux))[ _]loss['\"]?[=:]\s*['\"]?"
    tflops: str = ""
    tokens: str = ""
    unit: str = ""  # of `tokens`
    regular: bool = True  # False: a bar that may count anything
    says_only_step: bool = True  # False: the line may say something else as well
    shape: re.Pattern[bytes] | None = None  # found in each of its lines without their digits
    # A whole line from the step on, as most print it: step, seconds, tflops, tokens, loss. What it
    # matches has no other field, nothing that could be a time, and no part of a prefix.
    layout: re.Pattern[bytes] | None = None


def _with_fields(row: StepFormat) -> JobStepFormat:
    """A row with what `lines.yaml` says of it; patterns of bytes are compiled."""
    values: dict[str, Any] = {item.name: getattr(row, item.name) for item in fields(StepFormat)}
    values.update(table("step_formats")[row.id])
    for name in _OF_BYTES & values.keys():
        values[name] = re.compile(values[name].encode())
    return JobStepFormat(**values)


_OF_BYTES = {"shape", "layout"}
FORMATS: tuple[JobStepFormat, ...] = tuple(map(_with_fields, STEP_FORMATS))

# {'loss': 2.1, 'grad_norm': 0.4, 'learning_rate': 5e-05, 'epoch': 0.02} of the Hugging Face Trainer
HF_ANCHOR = b"{'loss':"
HF_LOSS = re.compile(r"\{'loss': '?(?P<loss>" + NUMBER + r")")

_FORMAT_ANCHORS = dict.fromkeys(chain.from_iterable(map(attrgetter("anchor_bytes"), FORMATS)))
ANCHORS = (*_FORMAT_ANCHORS, HF_ANCHOR)
