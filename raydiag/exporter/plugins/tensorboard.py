"""Scalars that training writes for TensorBoard, as tb_* series of the node that writes them.

Every scalar is a series: "learning/loss" becomes tb_learning_loss. All series of a step bear the
time at which training wrote it. What is handed out when:

- One step a cycle, the oldest first, because a scrape takes one sample of a series. Files grow in
  blocks, every two minutes or so: in between the bridge catches up. It stays behind for as long as
  it must, so that no step is lost, also after a restart of the exporter.
- Two things alone make it leave steps out, and it says how many: Prometheus takes no samples that
  are older than an hour, so steps over 50 minutes old are dropped; and where steps come faster than
  cycles, it leaves out what is over 10 minutes old, because it would fall behind for ever. The file
  still has them. Of a file that is first seen, the last 4 MiB count.
- With nothing new for 150 s, the last step is repeated every 150 s of time, marked by
  tb_metrics_plugin_staleness_fill 1. A repetition is 130 s old when it is handed out: steps of that
  time may still wait in the writer, and Prometheus refuses what is older than the newest sample. A
  step that comes even later is stamped one millisecond after the repetition.

Files count when their name bears this host's name, and when they were created since the start of
the job (RAYDIAG_JOB_START or SLURM_JOB_START_TIME, Unix seconds). Without such a time the newest
file counts, and each that is created later. The exporter's interval should be no shorter than the
interval between scrapes, or a step may pass unseen.

Source: RAYDIAG_TENSORBOARD_DIR/**/events.out.tfevents.<created>.<host>*, see `event_file`
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from typing import Any, Optional

from raydiag.errors import NoData, ReadError
from raydiag.exporter import event_paths, event_steps
from raydiag.exporter.event_steps import Part, Step
from raydiag.exporter.plugins import Collected, Sample, State, plugin
from raydiag.host import Host, as_read_error
from raydiag.model import Status, Unread

# Of the exporter's environment, which readers inherit.
DIRECTORY = "RAYDIAG_TENSORBOARD_DIR"

_STEP, _FILL = "tb_step", "tb_metrics_plugin_staleness_fill"
_FILL_S, _WRITER_S = 150.0, 130.0
_REFUSED_S, _LATE_S = 3000.0, 600.0
_FEWEST_FOR_PACE = 4
_TAILS_BYTES = (256 << 10, 1 << 20, 4 << 20)
_MOST_FILES = 16
_MOST_PARTS = 64  # of 32 KiB and more, read in one cycle while steps are left out


class _Cycle:
    """How far cycles lie apart; a single long one means little."""

    def __init__(self) -> None:
        self.length_s = 10.0
        self._last: Optional[float] = None

    def passed(self, now: float) -> None:
        """Another cycle has begun at that time (monotonic)."""
        if self._last is not None:
            self.length_s = 0.8 * self.length_s + 0.2 * min(60.0, max(1.0, now - self._last))
        self._last = now


_cycle = _Cycle()


@plugin(timeout_s=3.0, keeps_state=True)
def collect(host: Host, state: Mapping[str, Any]) -> Collected:
    """The series of one step, the same ones until the next step. Raises NoData on other nodes."""
    directory = os.environ.get(DIRECTORY, "")
    if not directory:
        raise NoData("no directory of TensorBoard files was given (--tensorboard-dir)")
    if os.environ.get("NODE_RANK", "0") not in ("", "0"):
        raise NoData("only the node of rank 0 writes TensorBoard files")
    try:
        bridge = _Bridge(host, directory, state, time.time())
    except (TypeError, ValueError, AttributeError):  # what was kept is damaged
        bridge = _Bridge(host, directory, {}, time.time())
    _cycle.passed(time.monotonic())
    bridge.run()
    yield from bridge.unread
    yield State(bridge.state())
    if not bridge.shown:
        raise NoData(f"{directory}: no step that is new enough yet")
    step, values = bridge.shown
    stamps = {_STEP: float(step), _FILL: bridge.fill}
    for name, value in {**values, **stamps}.items():
        yield Sample(name, {}, value, bridge.stamp_ms)


class _Bridge:
    """One cycle: from where the last one ended to the step that is shown now."""

    def __init__(self, host: Host, directory: str, state: Mapping[str, Any], now: float) -> None:
        saved = state if state.get("directory") == directory else {}
        self.host, self.directory, self.now = host, directory, now
        self.job_start = event_paths.job_start()
        since = saved.get("since")
        self.since: Optional[float] = None if since is None else float(since)
        offsets = saved.get("offsets", {})
        self.offsets = {path: max(0, int(offset)) for path, offset in offsets.items()}
        self.stamp_ms = int(saved.get("stamp_ms", 0))
        self.fill = float(saved.get("fill", 0))
        self.exporter = saved.get("exporter")  # pid of the one that showed it
        self.shown: Optional[tuple[int, dict[str, float]]] = None
        if saved.get("shown"):
            number, values = saved["shown"]
            self.shown = (int(number), {name: float(value) for name, value in values.items()})
        self.unread: list[Unread] = []
        self.left_out: dict[str, int] = {}

    def state(self) -> dict[str, Any]:
        """What the next cycle, or the next exporter, goes on from."""
        # As text for JSON's sake: it has no NaN, and a value may be one.
        last_shown = self.shown and [self.shown[0], {n: str(v) for n, v in self.shown[1].items()}]
        return {
            "directory": self.directory,
            "since": self.since,
            "offsets": self.offsets,
            "stamp_ms": self.stamp_ms,
            "fill": self.fill,
            "shown": last_shown,
            "exporter": os.getppid(),
        }

    def run(self) -> None:
        """Read what is new, and choose the step to show."""
        paths = self._paths()
        new = [path for path in paths if path not in self.offsets]
        self.offsets = {path: self.offsets[path] for path in paths if path in self.offsets}
        with contextlib.ExitStack() as stack:
            opened = {}
            for path in paths:
                try:
                    fd = self.host.open(path)
                    stack.callback(os.close, fd)
                    if path in new:
                        self.offsets[path] = self._beginning(fd)
                    elif os.fstat(fd).st_size < self.offsets[path]:
                        self.offsets[path] = 0  # it was cut, and is written anew
                    opened[path] = fd
                except (OSError, ReadError) as error:
                    refused = as_read_error(error, path) if isinstance(error, OSError) else error
                    self.unread.append(Unread(path, refused.status, str(refused)))
            # What was shown when the exporter ended may not have been scraped: once more.
            if not self.shown or self.exporter == os.getppid():
                self._choose(opened, set(new))
        for path, count in self.left_out.items():
            text = f"{count} steps were too old to be handed out; the file has them"
            self.unread.append(Unread(path, Status.ERROR, text))

    def _beginning(self, fd: int) -> int:
        """Where to begin in a file that is new to us: no farther back than is of use."""
        offset = 0
        for most_bytes in _TAILS_BYTES:
            offset = event_steps.tail(fd, most_bytes)
            steps = event_steps.read(fd, offset, self.now).steps
            if steps and self.now - steps[0].time > _REFUSED_S:
                break
        return offset

    def _choose(self, opened: Mapping[str, int], new: set[str]) -> None:
        """The oldest step that may be handed out; without any, a repetition if one is due."""
        parts = {path: self._part(path, fd) for path, fd in opened.items()}
        for _ in range(_MOST_PARTS):
            heads = [(part.steps[0].time, path) for path, part in parts.items() if part.steps]
            if not heads:
                self._repeat()
                return
            _, path = min(heads)
            steps_kept = self._without_the_late(path, parts[path], path in new)
            if steps_kept:
                self._hand_out(path, steps_kept)
                return
            parts[path] = self._part(path, opened[path])

    def _part(self, path: str, fd: int) -> Part:
        part = event_steps.read(fd, self.offsets[path], self.now)
        self.offsets[path] = part.start
        if part.damaged:
            text = f"{part.damaged} damaged places were passed over"
            self.unread.append(Unread(path, Status.ERROR, text))
        return part

    def _without_the_late(self, path: str, part: Part, is_new: bool) -> Optional[Step]:
        """The first step that is not too late; what is, counts as left out unless it is history."""
        limit_s = _LATE_S if self._is_hopeless(part) else _REFUSED_S
        for step in part.steps:
            if -_LATE_S <= self.now - step.time <= limit_s:  # Prometheus refuses the future, too
                return step
            self.offsets[path] = step.end
            if not is_new and self.stamp_ms:
                self.left_out[path] = self.left_out.get(path, 0) + 1
            if self.shown or self.job_start is not None:
                self.shown = (step.number, step.values)  # what a repetition shall show
        return None

    def _is_hopeless(self, part: Part) -> bool:
        """Whether steps come faster than they can be handed out."""
        if len(part.steps) < _FEWEST_FOR_PACE:
            return False
        spread_s = part.steps[-1].time - part.steps[0].time
        return spread_s / (len(part.steps) - 1) < _cycle.length_s

    def _hand_out(self, path: str, step: Step) -> None:
        self.offsets[path] = step.end
        self.shown = (step.number, step.values)
        self.stamp_ms = max(int(step.time * 1000), self.stamp_ms + 1)
        self.fill = 0.0

    def _repeat(self) -> None:
        newest_ms = int((self.now - _WRITER_S) * 1000)
        fills = (newest_ms - self.stamp_ms) // int(_FILL_S * 1000)
        if self.shown and fills > 0:
            self.stamp_ms += fills * int(_FILL_S * 1000)
            self.fill = 1.0

    def _paths(self) -> list[str]:
        """Event files of this host and job, oldest first. Raises NoData without the directory."""
        paths = event_paths.listed(self.host, self.directory)
        if self.job_start is not None:
            self.since = self.job_start
        elif self.since is None and paths:
            self.since = max(paths.values())
        since = int(self.since or 0)
        ours = [(created, path) for path, created in paths.items() if created >= since]
        return [path for _, path in sorted(ours)[-_MOST_FILES:]]
