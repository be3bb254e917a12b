"""The forms of step lines, one row each: what a framework prints when a step is done.

A row's pattern finds the step (and the total, where the line has it); every other field is looked
for by itself, because lines leave some out. The first row that matches a line wins.
Source: the print or log call of each framework, named in the row's comment.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Optional

NUMBER = r"[-+]?(?:\d[\d,]*\.?\d*(?:[eE][-+]?\d+)?|\.\d+|nan|NaN|NAN|inf|Inf|INF|[Ii]nfinity)"


@dataclass(frozen=True)
class JobStepFormat:
    """One form of step line."""

    id: str
    framework: str
    anchors: tuple[bytes, ...]  # every line of the form contains one of them, byte for byte
    pattern: re.Pattern[str]  # groups: step; perhaps total, desc, rate, unit
    zero_based: bool = False  # the first step is 0
    counts_done: bool = True  # `step` steps are complete when it is printed: T steps end at T
    seconds: str = ""  # pattern in front of the number
    scale: float = 1.0  # of that number to seconds
    loss: str = r"\bloss['\"]?[=:]\s*['\"]?"
    tflops: str = ""
    tokens: str = ""
    unit: str = ""  # of `tokens`
    regular: bool = True  # False: a bar that may count anything
    whole: bool = True  # False: the line may say something else as well
    shape: Optional[re.Pattern[bytes]] = None  # found in each of its lines without their digits
    # A whole line from the step on, as most print it: step, seconds, tflops, tokens, loss. What it
    # matches has no other field, nothing that could be a time, and no part of a prefix.
    layout: Optional[re.Pattern[bytes]] = None

    @cached_property
    def words(self) -> tuple[str, ...]:
        """The anchors as text."""
        return tuple(anchor.decode() for anchor in self.anchors)


_COUNT = (
    r"\d{1,3}%\|[^|]{0,200}\|\s*(?P<step>\d+)/(?P<total>\d+)\s*"
    r"\[(?:\d+ days?, )?[\d:]+<[^,\]]{0,24},\s*(?P<rate>[\d.]+)?\??(?P<unit>s/it|it/s)?"
)

FORMATS: tuple[JobStepFormat, ...] = (
    JobStepFormat(  # MaxText, max_logging.log in metric_logger.py
        "maxtext",
        "maxtext",
        (b"completed step:",),
        re.compile(r"completed step: (?P<step>\d+)"),
        zero_based=True,
        counts_done=False,
        seconds=r"\bseconds: ",
        tflops=r"TFLOP/s/device: ",
        tokens=r"Tokens/s/device: ",
        unit="tokens/s/device",
        layout=re.compile(
            rb"completed step: \d{1,15}, seconds: (\d+\.\d+), TFLOP/s/device: (\d+\.\d+), "
            rb"(?:MFU: \d+\.\d+%, )?Tokens/s/device: (\d+\.\d+), total_weights: \d+, "
            rb"loss: (\d+\.\d+|nan)"
        ),
    ),
    JobStepFormat(  # Megatron-LM and Megatron-DeepSpeed, training_log in training.py
        "megatron",
        "megatron",
        (b"elapsed time per iteration (",),
        re.compile(r"\biteration\s+(?P<step>\d+)/\s*(?P<total>\d+) \|"),
        seconds=r"elapsed time per iteration \(ms\): ",
        scale=0.001,
        loss=r"\b(?:lm )?loss: ",
        tflops=r"(?:throughput per GPU \(TFLOP/s/GPU\)|TFLOPs): ",
        tokens=r"tokens[-/ ]per[-/ ]sec(?:ond)?(?:[-/ ]per[-/ ]gpu)?[^:|]{0,24}: ",
        unit="tokens/s",
    ),
    JobStepFormat(  # NeMo 2, its own progress printer
        "nemo",
        "nemo",
        (b"reduced_train_loss",),
        re.compile(r"\bglobal_step[:=]\s*(?P<step>\d+)"),
        zero_based=True,
        counts_done=False,
        seconds=r"train_step_timing in s[:=]\s*",
        loss=r"\breduced_train_loss[:=]\s*",
        shape=re.compile(rb"global_step[:=]"),
    ),
    JobStepFormat(  # DeepSpeed PipelineEngine
        "deepspeed-pipe",
        "deepspeed",
        (b"iter time (s):",),
        re.compile(r"\bsteps: (?P<step>\d+) loss:"),
        seconds=r"iter time \(s\): ",
        tokens=r"samples/sec: ",
        unit="samples/s",
    ),
    JobStepFormat(  # DeepSpeed engine, _report_progress
        "deepspeed",
        "deepspeed",
        (b", skipped=",),
        re.compile(r"\bstep=(?P<step>\d+), skipped="),
    ),
    JobStepFormat(  # TorchTitan, metrics.py; colour codes stand between the words
        "torchtitan",
        "torchtitan",
        (b"tps: ", b"wps: "),
        re.compile(r"(?<!validate )\bstep:\s+(?P<step>\d+)\s+loss:"),
        loss=r"\bloss:\s+",
        tflops=r"\btflops: ",
        tokens=r"\b[tw]ps: ",
        unit="tokens/s/device",
    ),
    JobStepFormat(  # TorchSpec, controller/loop.py
        "torchspec",
        "torchspec",
        (b"Training:",),
        re.compile(r"\bTraining:\s+" + _COUNT),
        loss=r"\bloss=",
        tokens=r"\bthru=",
        unit="samples/s",
        whole=False,
    ),
    JobStepFormat(  # nanoGPT, train.py
        "nanogpt",
        "nanogpt",
        (b"ms, mfu",),
        re.compile(r"\biter (?P<step>\d+): loss "),
        zero_based=True,
        counts_done=False,
        seconds=r"\btime ",
        scale=0.001,
        loss=r"\bloss ",
    ),
    JobStepFormat(  # modded-nanogpt
        "modded-nanogpt",
        "nanogpt",
        (b"step_avg:",),
        re.compile(r"\bstep:(?P<step>\d+)/(?P<total>\d+) train_loss:"),
        seconds=r"\bstep_avg:",
        scale=0.001,
        loss=r"\btrain_loss:",
    ),
    JobStepFormat(  # llm.c, main.log
        "llm.c",
        "llm.c",
        (b" trl:",),
        re.compile(r"^s:(?P<step>\d+) trl:"),
        zero_based=True,
        counts_done=False,
        loss=r"\btrl:",
    ),
    JobStepFormat(  # build-nanogpt and llm.c on the terminal
        "nanogpt-bar",
        "nanogpt",
        (b"tok/s",),
        re.compile(r"\bstep\s+(?P<step>\d+)(?:/(?P<total>\d+))? \| (?:train )?loss:? "),
        zero_based=True,
        counts_done=False,
        seconds=r"\bdt: ",
        scale=0.001,
        loss=r"\bloss:? ",
        tokens=r"\btok/sec: ",
        unit="tokens/s",
    ),
    JobStepFormat(  # Composer and LLM Foundry console logger
        "composer",
        "composer",
        (b"[batch=",),
        re.compile(r"\[batch=(?P<step>\d+)/(?P<total>\d+)\]"),
    ),
    JobStepFormat(  # fairseq and metaseq, json log format
        "fairseq",
        "fairseq",
        (b'"num_updates":', b"num_updates="),
        re.compile(r"\bnum_updates\"?[:=] ?\"?(?P<step>\d+)"),
        loss=r"\bloss\"?[:=] ?\"?",
        tokens=r"\bwps\"?[:=] ?\"?",
        unit="tokens/s",
    ),
    JobStepFormat(  # Lightning and tqdm: the name in front says what the bar counts
        "bar",
        "",
        (b"it/s", b"s/it"),
        re.compile(r"(?:^|\s)(?:(?P<desc>[^|%\r]{0,80}?):?\s+)?" + _COUNT),
        loss=r"\bloss=",
        regular=False,
        whole=False,
    ),
    JobStepFormat(  # home-made loops: "step 120/1000 loss 2.31", "Iteration: 7, Loss = 0.3"
        "generic",
        "",
        (b"loss", b"Loss", b"LOSS"),
        re.compile(
            r"(?:^|[\s\[|,({'\"])(?<!val )(?<!eval )(?<!validate )(?<!validation )(?<!test )"
            r"(?:global[_ ])?(?:step|iter|iteration)\b['\"]?\s*[=:#]?\s*\[?"
            r"(?P<step>\d{1,12})\b(?:\s*(?:/|of)\s*(?P<total>\d{1,12})\b)?\]?[\s,:|;)\]]"
            r".{0,200}?\b(?:train[_ ])?loss\b['\"]?\s*[=:]?\s*['\"]?[-+]?(?:\.?\d|nan|inf)",
            re.IGNORECASE,
        ),
        loss=r"\b(?:[Tt]rain[_ ])?(?:loss|Loss|LOSS)\b['\"]?\s*[=:]?\s*",
        whole=False,
        shape=re.compile(
            rb"(?:step|iter|iteration)\b['\"]?\s*[=:#]?\s*\[?(?:\s*(?:/|of)\s*)?\]?[\s,:|;)\]]"
            rb".{0,200}?\b(?:train[_ ])?loss\b",
            re.IGNORECASE,
        ),
    ),
)

# A bar named like this counts steps of training; any other counts downloads, shards, samples.
TRAINING_BAR = re.compile(
    r"^(?:train(?:ing)?(?: (?:steps?|epochs?|progress))?|epochs? \d+(?:/\d+)?|steps?"
    r"|iter(?:ation)?s?)$",
    re.IGNORECASE,
)

# {'loss': 2.1, 'grad_norm': 0.4, 'learning_rate': 5e-05, 'epoch': 0.02} of the Hugging Face Trainer
HF_ANCHOR = b"{'loss':"
HF_LOSS = re.compile(r"\{'loss': '?(?P<loss>" + NUMBER + r")")

ANCHORS = tuple(dict.fromkeys([a for form in FORMATS for a in form.anchors] + [HF_ANCHOR]))
