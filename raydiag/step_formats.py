"""Step lines of training frameworks: how to know one, its step, and how long the step took.

The one table of them, for the ends of workers' logs on the nodes and for logs of jobs
(`joblog/step_formats.py` adds what only a whole log is searched for). The first row that matches a
line wins. No pattern takes more than linear time, whatever a line holds.

Source: the print or log call of each framework, named in the row's comment.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Optional

NUMBER = r"[-+]?(?:\d[\d,]*(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+|nan|NaN|NAN|inf|Inf|INF|[Ii]nfinity)"
_STEP = r"(?P<step>\d{1,15})"  # a longer number is no step
_OF_TOTAL = _STEP + r"/(?P<total>\d{1,15})"
_BAR = (
    r"\d{1,3}%\|[^|]{0,200}\|\s*" + _OF_TOTAL + r"\s*"
    r"\[(?:\d+ days?, )?(?P<elapsed>[\d:]{1,24})<[^,\]]{0,24},"
    r"\s*(?P<rate>[\d.]{1,32})?\??(?P<unit>s/it|it/s)?"
)


@dataclass(frozen=True)
class StepFormat:
    """How one framework says that a step is done."""

    id: str
    title: str  # as people know it
    anchors: tuple[str, ...]  # every line of the format contains one of them
    source: str  # pattern with the group `step`; perhaps total, rate, unit
    seconds: str = ""  # pattern in front of a step's duration
    scale: float = 1.0  # from that number to seconds
    flags: int = 0  # of the pattern

    @cached_property
    def anchor_bytes(self) -> tuple[bytes, ...]:
        """The anchors as they stand in a log."""
        return tuple(map(str.encode, self.anchors))

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Compiled when it is first needed: that costs more than reading most workers' logs."""
        return re.compile(self.source, self.flags)


# fmt: off
STEP_FORMATS = (
    # MaxText, max_logging.log in metric_logger.py
    StepFormat("maxtext", "MaxText", ("completed step:",), "completed step: " + _STEP + r"(?!\d)",
               r"\bseconds: "),
    # Megatron-LM and Megatron-DeepSpeed, training_log in training.py
    StepFormat("megatron", "Megatron", ("elapsed time per iteration (",),
               r"\biteration\s+" + _STEP + r"/\s*(?P<total>\d{1,15}) \|",
               r"elapsed time per iteration \(ms\): ", 0.001),
    # NeMo 2, its own progress printer
    StepFormat("nemo", "NeMo", ("reduced_train_loss",),
               r"\bglobal_step[:=]\s*" + _STEP + r"(?!\d)", r"train_step_timing in s[:=]\s*"),
    # DeepSpeed PipelineEngine
    StepFormat("deepspeed-pipe", "DeepSpeed", ("iter time (s):",),
               r"\bsteps: " + _STEP + " loss:", r"iter time \(s\): "),
    # DeepSpeed engine, _report_progress
    StepFormat("deepspeed", "DeepSpeed", (", skipped=",), r"\bstep=" + _STEP + ", skipped="),
    # TorchTitan, metrics.py; colour codes stand between the words
    StepFormat("torchtitan", "TorchTitan", ("tps: ", "wps: "),
               r"(?<!validate )\bstep:\s+" + _STEP + r"\s+loss:"),
    # TorchSpec, controller/loop.py
    StepFormat("torchspec", "progress bar", ("Training:",), r"\bTraining:\s+" + _BAR),
    # nanoGPT, train.py
    StepFormat("nanogpt", "nanoGPT", ("ms, mfu",), r"\biter " + _STEP + ": loss ",
               r"\btime ", 0.001),
    # modded-nanogpt
    StepFormat("modded-nanogpt", "modded-nanogpt", ("step_avg:",),
               r"\bstep:" + _OF_TOTAL + " train_loss:", r"\bstep_avg:", 0.001),
    # llm.c, main.log
    StepFormat("llm.c", "llm.c", (" trl:",), "^s:" + _STEP + " trl:"),
    # build-nanogpt and llm.c on the terminal
    StepFormat("nanogpt-bar", "build-nanogpt", ("tok/s",),
               r"\bstep\s+" + _STEP + r"(?:/(?P<total>\d{1,15}))? \| (?:train )?loss:? ",
               r"\bdt: ", 0.001),
    # Composer and LLM Foundry console logger
    StepFormat("composer", "Composer", ("[batch=",), r"\[batch=" + _OF_TOTAL + r"\]"),
    # fairseq and metaseq, json log format
    StepFormat("fairseq", "fairseq", ('"num_updates":', "num_updates="),
               r"\bnum_updates\"?[:=] ?\"?" + _STEP + r"(?!\d)"),
    # verl, utils/logger; step:0 is a validation
    StepFormat("verl", "verl", (" - actor/", " - critic/", " - timing_s/"),
               "^step:" + _STEP + " - (?!val)", r"\btiming_s/step:"),
    # Lightning and tqdm: the name in front says what the bar counts
    StepFormat("bar", "progress bar", ("it/s", "s/it"), r"(?<!\S)" + _BAR),
    # home-made loops: "step 120/1000 loss 2.31", "Iteration: 7, Loss = 0.3"
    StepFormat("generic", "step and loss", ("loss", "Loss", "LOSS"),
               r"(?:^|[\s\[|,({'\"])(?<!val )(?<!eval )(?<!validate )(?<!validation )(?<!test )"
               r"(?:global[_ ])?(?:step|iter|iteration)\b['\"]?\s*(?:[=:#]\s*)?\[?"
               r"(?P<step>\d{1,12})\b(?:\s*(?:/|of)\s*(?P<total>\d{1,12})\b)?\]?[\s,:|;)\]]"
               r".{0,200}?\b(?:train[_ ])?loss\b['\"]?\s*(?:[=:]\s*)?['\"]?[-+]?(?:\.?\d|nan|inf)",
               flags=re.IGNORECASE),
)
# fmt: on

# A bar named like this counts steps of training; any other counts downloads, shards, samples.
_TRAINING_BAR = re.compile(
    r"^(?:train(?:ing)?(?: (?:steps?|epochs?|progress))?|epochs? (?P<epoch>\d{1,9})(?:/\d{1,9})?"
    r"|steps?|iter(?:ation)?s?)$",
    re.IGNORECASE,
)
_BAR_NAME_CHARS = 80


def bar_name(text: str, start: int) -> str:
    """What stands in front of a progress bar that begins at `start`: its name, `Training`."""
    before = text[max(0, start - _BAR_NAME_CHARS) : start]
    end_of_other_bar = max(before.rfind(sign) for sign in "|%\r")
    return before[end_of_other_bar + 1 :].rstrip().removesuffix(":").strip()


def training_bar(name: str) -> Optional[re.Match[str]]:
    """A match if a bar of this name counts steps of training; its group `epoch` may be None."""
    return _TRAINING_BAR.match(name)


# Home-made loops: "step_time=10.7s", "dt: 512 ms", "13.9 s/it".
_LOOP_SECONDS = re.compile(
    r"(?:\b(?:step|iter(?:ation)?)[_ ]?(?:time|seconds)['\"]?|\bdt['\"]?(?=\s?[=:]))\s?[=:]?\s?"
    r"(?P<time>\d{1,9}(?:\.\d{1,9})?)\s?(?P<scale>ms)?"
    r"|(?<![\w.])(?P<rate>\d{1,9}(?:\.\d{1,9})?)\s?(?P<unit>s/it|it/s|s/step|steps/s|ms/step)\b"
)
_UNITS_S = {"s/it": 1.0, "s/step": 1.0, "ms/step": 0.001}  # any other is a rate


def step_seconds(form: StepFormat, match: re.Match[str], text: str, start: int = 0) -> float:
    """How long the step of a line took, by its rate or by a field after `start`; NaN without."""
    groups = match.groupdict()
    if groups.get("rate") and groups.get("unit"):
        return _seconds_of_rate(groups)
    if form.id == "generic":
        return _seconds_of_loop(text)
    return field_number(form.seconds, text, start) * form.scale


def _seconds_of_loop(text: str) -> float:
    match = _LOOP_SECONDS.search(text)
    if match is None:
        return math.nan
    if match["rate"]:
        return _seconds_of_rate(match.groupdict())
    return float(match["time"]) * (0.001 if match["scale"] else 1.0)


def _seconds_of_rate(groups: Mapping[str, str]) -> float:
    rate = float(groups["rate"]) if groups["rate"].count(".") < 2 else math.nan
    if groups["unit"] in _UNITS_S:
        return rate * _UNITS_S[groups["unit"]]
    return 1.0 / rate if rate else math.nan


@lru_cache(maxsize=256)
def field_pattern(pattern: str) -> re.Pattern[str]:
    """A field by what stands in front of its number, which is group 1."""
    return re.compile(pattern + "(" + NUMBER + ")(?![A-Za-z0-9])")


def field_number(pattern: str, text: str, start: int = 0) -> float:
    """NaN where the field is not there, and where it is printed as nan."""
    match = pattern and field_pattern(pattern).search(text, start)
    if not match:
        return math.nan
    try:
        return float(match[1].replace(",", ""))
    except ValueError:
        return math.nan
