"""What is known of a run besides its series: the job, its hosts, and what to leave out.

Filled by whoever has judged the job's log and looked at the Prometheus data, so that a playbook
needs neither. Times are Unix seconds UTC, None where nothing tells.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from raydiag.model import Window
from raydiag.timeline.rhythm import Rhythm
from raydiag.tsdb.discovery_types import Discovery
from raydiag.tsdb.series import Floats

SAVE, WRITE_BACK, WARM_UP, GHOST, FILL = "save", "write-back", "warm-up", "ghost", "fill"
AFTER_HANG, BEFORE_JOB = "after-hang", "before-job"
LOADED = (SAVE, WRITE_BACK, WARM_UP, BEFORE_JOB)  # storage is busy then, and that is normal
# GPUs and steps go on at full speed while a save is written back.
_UNFELT = {WRITE_BACK: ("hw_gpu_", "ray_node_gpus", "tb_")}


@dataclass(frozen=True)
class SaveWindow:
    """A checkpoint save as the job's log tells of it."""

    step: int | None
    start: float | None = None
    end: float | None = None
    failed: bool = False


@dataclass(frozen=True)
class TrainingJob:
    """What triage says about the job, as plain values."""

    status: str = "unknown"  # completed, failed, cancelled, running, hanging, unknown
    primary: str | None = None  # failure class; None for a job that completed or runs
    cascade: tuple[str, ...] = ()
    start: float | None = None
    end: float | None = None  # None: it still runs, or nobody knows
    first_step: int | None = None
    last_step: int | None = None
    total_steps: int | None = None
    last_step_time: float | None = None  # as the log prints it
    step_time_s: float | None = None
    longest_save_s: float | None = None
    crash_time: float | None = None  # of the error that ended it
    heartbeat_timeout_s: float | None = None
    accused: tuple[str, ...] = ()  # hosts that the log blames
    coordinator: str | None = None  # host of task 0
    checkpoint_period: int | None = None  # None: no saves are known to happen
    save_offset: int = 0  # of the steps that save, from multiples of the period
    async_saves: bool | None = None
    saves: tuple[SaveWindow, ...] = ()
    config: Mapping[str, str] = field(default_factory=dict)  # key=value as the job was started

    @property
    def save_rhythm(self) -> Rhythm | None:
        """Which steps save; None where no saves are known to happen."""
        return Rhythm(self.checkpoint_period, self.save_offset) if self.checkpoint_period else None


@dataclass(frozen=True)
class Mask:
    """A stretch of time that is not to be judged, and why."""

    kind: str  # one of the constants above
    start: float
    end: float  # inclusive
    host: str | None = None  # None: on every host
    prefix: str = ""  # of the metrics that it covers, as in "hw_"; "": all


@dataclass(frozen=True)
class Context:
    """Everything besides the series themselves."""

    job: TrainingJob
    window: Window  # of the job, and of every query; `now` or the job's end is its end
    now: float
    discovery: Discovery
    hosts: tuple[str, ...]  # of the job, whether they have series or not
    gpu_model: str | None = None  # given from outside; else what Ray's series say
    masks: tuple[Mask, ...] = ()
    trained: Window | None = None  # first to last step, where no series of steps says so

    def resolution_s(self, prefix: str = "hw_") -> float:
        """Usual distance of two samples of the finest family; 15 s where it is not known."""
        resolutions = (
            family.resolution_s
            for family in self.discovery.families
            if family.prefix.startswith(prefix) and family.resolution_s
        )
        return min(resolutions, default=15.0)

    def judged(
        self, times: Floats, host: str = "", metric: str = "", *kinds: str, lag_s: float = 0.0
    ) -> NDArray[np.bool_]:
        """Flags, one a time: False where a mask of one of the kinds (default: any) covers it.

        `lag_s`: how long before its time a value looks back, as a rate does.
        """
        keep = np.ones(times.size, dtype=np.bool_)
        for mask in self.masks:
            if kinds and mask.kind not in kinds:
                continue
            if mask.host not in (None, host) or not metric.startswith(mask.prefix):
                continue
            if metric.startswith(_UNFELT.get(mask.kind, ())):
                continue
            keep &= (times < mask.start) | (times - lag_s > mask.end)
        return keep
