"""What a job's log is searched for in step lines, besides the step: one row for each format.

`raydiag/step_formats.py` knows a step line by its step and seconds. Every other field is looked for
by itself, because lines leave some out.
Source: the print or log call of each framework, named there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from itertools import chain
from operator import attrgetter
from typing import Any, Optional

from raydiag.step_formats import NUMBER, STEP_FORMATS, StepFormat


@dataclass(frozen=True)
class JobStepFormat(StepFormat):
    """One format of step line, with all that its lines may say."""

    zero_based: bool = False  # the first step is 0
    counts_done: bool = True  # `step` steps are complete when it is printed: T steps end at T
    loss: str = r"\bloss['\"]?[=:]\s*['\"]?"  # pattern in front of the number, as all of these
    tflops: str = ""
    tokens: str = ""
    unit: str = ""  # of `tokens`
    regular: bool = True  # False: a bar that may count anything
    says_only_step: bool = True  # False: the line may say something else as well
    shape: Optional[re.Pattern[bytes]] = None  # found in each of its lines without their digits
    # A whole line from the step on, as most print it: step, seconds, tflops, tokens, loss. What it
    # matches has no other field, nothing that could be a time, and no part of a prefix.
    layout: Optional[re.Pattern[bytes]] = None


_FROM_ZERO = {"zero_based": True, "counts_done": False}
_FIELDS: dict[str, dict[str, Any]] = {
    "maxtext": {
        **_FROM_ZERO,
        "tflops": r"TFLOP/s/device: ",
        "tokens": r"Tokens/s/device: ",
        "unit": "tokens/s/device",
        "layout": re.compile(
            rb"completed step: \d{1,15}, seconds: (\d+\.\d+), TFLOP/s/device: (\d+\.\d+), "
            rb"(?:MFU: \d+\.\d+%, )?Tokens/s/device: (\d+\.\d+), total_weights: \d+, "
            rb"loss: (\d+\.\d+|nan)"
        ),
    },
    "megatron": {
        "loss": r"\b(?:lm )?loss: ",
        "tflops": r"(?:throughput per GPU \(TFLOP/s/GPU\)|TFLOPs): ",
        "tokens": r"tokens[-/ ]per[-/ ]sec(?:ond)?(?:[-/ ]per[-/ ]gpu)?[^:|]{0,24}: ",
        "unit": "tokens/s",
    },
    "nemo": {
        **_FROM_ZERO,
        "loss": r"\breduced_train_loss[:=]\s*",
        "shape": re.compile(rb"global_step[:=]"),
    },
    "deepspeed-pipe": {
        "tokens": r"samples/sec: ",
        "unit": "samples/s",
    },
    "deepspeed": {},
    "torchtitan": {
        "loss": r"\bloss:\s+",
        "tflops": r"\btflops: ",
        "tokens": r"\b[tw]ps: ",
        "unit": "tokens/s/device",
    },
    "torchspec": {
        "loss": r"\bloss=",
        "tokens": r"\bthru=",
        "unit": "samples/s",
        "says_only_step": False,
    },
    "nanogpt": {**_FROM_ZERO, "loss": r"\bloss "},
    "modded-nanogpt": {"loss": r"\btrain_loss:"},
    "llm.c": {**_FROM_ZERO, "loss": r"\btrl:"},
    "nanogpt-bar": {
        **_FROM_ZERO,
        "loss": r"\bloss:? ",
        "tokens": r"\btok/sec: ",
        "unit": "tokens/s",
    },
    "composer": {},
    "fairseq": {
        "loss": r"\bloss\"?[:=] ?\"?",
        "tokens": r"\bwps\"?[:=] ?\"?",
        "unit": "tokens/s",
    },
    "bar": {"loss": r"\bloss=", "regular": False, "says_only_step": False},
    "generic": {
        "loss": r"\b(?:[Tt]rain[_ ])?(?:loss|Loss|LOSS)\b['\"]?\s*(?:[=:]\s*)?",
        "says_only_step": False,
        "shape": re.compile(
            rb"(?:step|iter|iteration)\b['\"]?\s*(?:[=:#]\s*)?(?:\[\s*)?(?:(?:/|of)\s*)?\]?"
            rb"[\s,:|;)\]].{0,200}?\b(?:train[_ ])?loss\b",
            re.IGNORECASE,
        ),
    },
}


def _with_fields(row: StepFormat) -> JobStepFormat:
    shared = {item.name: getattr(row, item.name) for item in fields(StepFormat)}
    return JobStepFormat(**shared, **_FIELDS[row.id])


FORMATS: tuple[JobStepFormat, ...] = tuple(map(_with_fields, STEP_FORMATS))

# {'loss': 2.1, 'grad_norm': 0.4, 'learning_rate': 5e-05, 'epoch': 0.02} of the Hugging Face Trainer
HF_ANCHOR = b"{'loss':"
HF_LOSS = re.compile(r"\{'loss': '?(?P<loss>" + NUMBER + r")")

_FORMAT_ANCHORS = dict.fromkeys(chain.from_iterable(map(attrgetter("anchor_bytes"), FORMATS)))
ANCHORS = (*_FORMAT_ANCHORS, HF_ANCHOR)
