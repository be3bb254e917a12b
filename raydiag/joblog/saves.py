"""Checkpoints: saves that began, ended or failed, loads, and what a run was restored from.

Source: the messages of MaxText and Orbax, Megatron-LM with and without NVRx, TorchTitan, TorchSpec,
DeepSpeed, the Hugging Face Trainer, NeMo and Lightning, nanoGPT.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from raydiag.joblog.facts import LoadedCheckpoint, LoggedSave, Restore
from raydiag.joblog.log_line import JobLogLine
from raydiag.joblog.numbers import decimal_number, whole_number
from raydiag.joblog.tables import anchors_of, line_patterns

_ROWS = line_patterns("saves")
ANCHORS = anchors_of(_ROWS)
FIRST, LAST = 64, 192
_TOGETHER = 4096  # lines between two ranks' words on one load


@dataclass
class SaveTally:
    """The first and the last saves of one file."""

    saves: list[LoggedSave] = field(default_factory=list)
    restores: list[Restore] = field(default_factory=list)
    loads: list[LoadedCheckpoint] = field(default_factory=list)

    def take(self, line: JobLogLine) -> None:
        """One line that may be of a save or a restore."""
        for row in _ROWS:
            if match := row.search(line.text):
                self._add(row.event, match.groupdict(), line)
                return

    def _add(self, event: str, groups: Mapping[str, str], line: JobLogLine) -> None:
        step = whole_number(groups.get("step"))
        if event == "loaded":
            self._add_load(decimal_number(groups.get("seconds")), line)
            return
        if event == "restored":
            if len(self.restores) < FIRST:
                self.restores.append(Restore(step, line.number))
            return
        if len(self.saves) >= FIRST + LAST:
            del self.saves[FIRST]
        self.saves.append(
            LoggedSave(
                step=step,
                event=event,
                seconds=decimal_number(groups.get("seconds")),
                line=line.number,
                time=line.time,
                near_time=line.near_time,
                file=line.file,
            )
        )

    def _add_load(self, seconds: float | None, line: JobLogLine) -> None:
        """Of the ranks that load a checkpoint together the slowest counts."""
        if seconds is None:
            return
        if self.loads and line.number - self.loads[-1].line <= _TOGETHER:
            slowest_s = max(seconds, self.loads[-1].seconds)
            self.loads[-1] = LoadedCheckpoint(slowest_s, line.number)
        elif len(self.loads) < FIRST:
            self.loads.append(LoadedCheckpoint(seconds, line.number))
