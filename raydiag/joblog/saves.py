"""Checkpoints: saves that began, ended or failed, and what a run was restored from.

Source: the messages of MaxText and Orbax, Megatron-LM with and without NVRx, TorchTitan, TorchSpec,
DeepSpeed, the Hugging Face Trainer, NeMo and Lightning, nanoGPT.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Optional

from raydiag.joblog.log_line import JobLogLine
from raydiag.joblog.step_facts import LoggedSave, Restore


@dataclass(frozen=True)
class SavePattern:
    """One message; the groups `step` and `seconds` where it has them."""

    id: str
    event: str  # started, finished, failed
    anchor: str  # literal part of every such message
    pattern: re.Pattern[str]


def _row(id_: str, event: str, anchor: str, pattern: str) -> SavePattern:
    return SavePattern(id_, event, anchor, re.compile(pattern))


_N = r"(?P<step>\d{1,15})"
_S = r"(?P<seconds>\d+(?:\.\d+)?)"
PATTERNS: tuple[SavePattern, ...] = (
    _row("nvrx", "finished", "SAVE_CHECKPOINT:", rf"iteration:\s*{_N}, ckpt saving takes {_S} sec"),
    _row("nvrx", "finished", "SAVE_CHECKPOINT:", r"iteration:.*, ckpt saving takes .* seconds"),
    _row("megatron-timer", "finished", "save-checkpoint", r"\bsave-checkpoint\b"),
    _row("saved-to", "finished", "Saved checkpoint to", rf"Saved checkpoint to(?:.*\D{_N})?"),
    _row("maxtext", "finished", "aved a checkpoint at step", rf"aved a checkpoint at step {_N}"),
    _row("step", "started", "aving checkpoint at step", rf"aving checkpoint at step {_N}"),
    _row("megatron", "started", "aving checkpoint at iteration", rf"at iteration\s+{_N} to"),
    _row(
        "megatron",
        "finished",
        "successfully saved checkpoint from iteration",
        rf"from iteration\s+{_N}\b",
    ),
    _row(
        "torchtitan",
        "finished",
        "inished saving the checkpoint",
        rf"inished saving the checkpoint.* in {_S} seconds",
    ),
    _row("torchtitan", "started", "Saving the checkpoint", r"Saving the checkpoint\b"),
    _row("deepspeed", "finished", "[Torch] Checkpoint", rf"global_step{_N} is ready now"),
    _row("huggingface", "started", "Saving model checkpoint to", rf"checkpoint-{_N}\b"),
    _row("nemo", "finished", "sync checkpoint save for step", rf"for step {_N} .*finalized"),
    _row("orbax", "finished", "inished async_save", rf"inished async_save.*?/{_N}\b"),
    _row("nanogpt", "started", "saving checkpoint to ", r"^saving checkpoint to \S+$"),
    _row("failed", "failed", "Checkpointing failed", r"Checkpointing failed"),
    _row("failed", "failed", "ailed to save checkpoint", r"ailed to save checkpoint"),
)
_RESTORES = (
    ("No existing checkpoints found", re.compile(r"No existing checkpoints found")),
    ("restoring from this run's", re.compile(rf"restoring from this run's directory step {_N}")),
    ("successfully loaded checkpoint", re.compile(rf"loaded checkpoint .*at iteration {_N}")),
    ("Continuing training from global", re.compile(rf"training from global step {_N}")),
    ("oading the checkpoint from", re.compile(rf"oading the checkpoint from .*step-{_N}")),
)
ANCHORS = tuple(
    dict.fromkeys([p.anchor.encode() for p in PATTERNS] + [a.encode() for a, _ in _RESTORES])
)
FIRST, LAST = 64, 192


@dataclass
class SaveTally:
    """The first and the last saves of one file. `extra` are patterns of this site."""

    saves: list[LoggedSave] = field(default_factory=list)
    total: int = 0
    restores: list[Restore] = field(default_factory=list)

    def take(self, line: JobLogLine, extra: Sequence[SavePattern] = ()) -> None:
        text = line.text
        for row in (*PATTERNS, *extra):
            if row.anchor in text and (found := row.pattern.search(text)):
                self._add(row, found, line)
                return
        for anchor, pattern in _RESTORES:
            if anchor in text and (found := pattern.search(text)):
                self._restore(found, line)
                return

    def _add(self, row: SavePattern, found: re.Match[str], line: JobLogLine) -> None:
        groups = found.groupdict()
        step, seconds = groups.get("step"), groups.get("seconds")
        self.total += 1
        if len(self.saves) >= FIRST + LAST:
            del self.saves[FIRST]
        self.saves.append(
            LoggedSave(
                step=int(step) if step else None,
                event=row.event,
                seconds=float(seconds) if seconds else None,
                line=line.number,
                where=line.prefix.where,
                time=line.time,
                near_time=line.near_time,
                pattern=row.id,
                raw=line.raw[:4096],
                file=line.file,
            )
        )

    def _restore(self, found: re.Match[str], line: JobLogLine) -> None:
        step: Optional[str] = found.groupdict().get("step")
        if len(self.restores) < FIRST:
            self.restores.append(
                Restore(
                    int(step) if step else None, line.number, line.file, line.raw[:4096], line.time
                )
            )
