"""Checkpoints: saves that began, ended or failed, and what a run was restored from.

Source: the messages of MaxText and Orbax, Megatron-LM with and without NVRx, TorchTitan, TorchSpec,
DeepSpeed, the Hugging Face Trainer, NeMo and Lightning, nanoGPT.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from raydiag.joblog.log_line import JobLogLine
from raydiag.joblog.numbers import decimal_number, whole_number
from raydiag.joblog.step_facts import LoggedSave, Restore


@dataclass(frozen=True)
class SavePattern:
    """One message; the groups `step` and `seconds` where it has them."""

    id: str
    event: str  # started, finished, failed
    anchor: str  # literal part of every such message
    pattern: re.Pattern[str]


_N = r"(?P<step>\d{1,15})"
_S = r"(?P<seconds>\d{1,9}(?:\.\d{1,9})?)"
_PATH = ".{0,1000}"
# id, event, anchor, pattern; the first row that matches a line wins
# fmt: off
_ROWS = (
    ("nvrx", "finished", "SAVE_CHECKPOINT:", rf"iteration:\s*{_N}, ckpt saving takes {_S} sec"),
    ("nvrx", "finished", "SAVE_CHECKPOINT:",
     r"iteration:.{0,200}, ckpt saving takes .{0,40} seconds"),
    ("megatron-timer", "finished", "save-checkpoint", r"\bsave-checkpoint\b"),
    ("saved-to", "finished", "Saved checkpoint to", rf"Saved checkpoint to(?:.*\D{_N})?"),
    ("maxtext", "finished", "aved a checkpoint at step", rf"aved a checkpoint at step {_N}"),
    ("step", "started", "aving checkpoint at step", rf"aving checkpoint at step {_N}"),
    ("megatron", "started", "aving checkpoint at iteration", rf"at iteration\s+{_N} to"),
    ("megatron", "finished", "successfully saved checkpoint from iteration",
     rf"from iteration\s+{_N}\b"),
    ("torchtitan", "finished", "inished saving the checkpoint",
     rf"inished saving the checkpoint.{{0,400}} in {_S} seconds"),
    ("torchtitan", "started", "Saving the checkpoint", r"Saving the checkpoint\b"),
    ("deepspeed", "finished", "[Torch] Checkpoint", rf"global_step{_N} is ready now"),
    ("huggingface", "started", "Saving model checkpoint to", rf"checkpoint-{_N}\b"),
    ("nemo", "finished", "sync checkpoint save for step", rf"for step {_N} .{{0,400}}finalized"),
    ("orbax", "finished", "inished async_save", rf"inished async_save{_PATH}?/{_N}\b"),
    ("nanogpt", "started", "saving checkpoint to ", r"^saving checkpoint to \S+$"),
    ("failed", "failed", "Checkpointing failed", r"Checkpointing failed"),
    ("failed", "failed", "ailed to save checkpoint", r"ailed to save checkpoint"),
)
# fmt: on
PATTERNS = tuple(
    SavePattern(id_, event, anchor, re.compile(pattern)) for id_, event, anchor, pattern in _ROWS
)
_RESTORES = {
    "No existing checkpoints found": re.compile(r"No existing checkpoints found"),
    "restoring from this run's": re.compile(rf"restoring from this run's directory step {_N}"),
    "successfully loaded checkpoint": re.compile(rf"loaded checkpoint {_PATH}at iteration {_N}"),
    "Continuing training from global": re.compile(rf"training from global step {_N}"),
    "oading the checkpoint from": re.compile(rf"oading the checkpoint from {_PATH}step-{_N}"),
}
_LITERALS = dict.fromkeys([*(row.anchor for row in PATTERNS), *_RESTORES])
ANCHORS = tuple(map(str.encode, _LITERALS))
FIRST, LAST = 64, 192


@dataclass
class SaveTally:
    """The first and the last saves of one file."""

    saves: list[LoggedSave] = field(default_factory=list)
    restores: list[Restore] = field(default_factory=list)

    def take(self, line: JobLogLine, extra: Sequence[SavePattern] = ()) -> None:
        """One line that may be of a save or a restore; `extra` are patterns of this site."""
        text = line.text
        for row in (*PATTERNS, *extra):
            if row.anchor in text and (match := row.pattern.search(text)):
                self._add(row, match, line)
                return
        for anchor, pattern in _RESTORES.items():
            if anchor in text and (match := pattern.search(text)):
                self._restore(match, line)
                return

    def _add(self, row: SavePattern, match: re.Match[str], line: JobLogLine) -> None:
        groups = match.groupdict()
        if len(self.saves) >= FIRST + LAST:
            del self.saves[FIRST]
        self.saves.append(
            LoggedSave(
                step=whole_number(groups.get("step")),
                event=row.event,
                seconds=decimal_number(groups.get("seconds")),
                line=line.number,
                time=line.time,
                near_time=line.near_time,
                file=line.file,
            )
        )

    def _restore(self, match: re.Match[str], line: JobLogLine) -> None:
        if len(self.restores) < FIRST:
            step = whole_number(match.groupdict().get("step"))
            self.restores.append(Restore(step, line.number))
