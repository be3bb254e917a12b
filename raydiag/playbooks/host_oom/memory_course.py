"""How a host's memory went up to a moment: its level, when it left it, and in what pattern."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from raydiag.timeline import known_values
from raydiag.timeline.answers import ResultTable
from raydiag.timeline.context import SAVE, WRITE_BACK
from raydiag.timeline.deviations import Deviation, Level, ramp_start
from raydiag.timeline.queries import MEM_TOTAL, MEM_USED
from raydiag.timeline.run_timeline import RunTimeline
from raydiag.tsdb.series import Floats, Series

LEAK, SPIKE, CHECKPOINT, ALL_NODES = "leak", "spike", "checkpoint", "all-nodes"
NEAR_KILL_S = 300.0
_SLOW_S = 600.0  # from leaving its level to the end: a leak takes time
_TOGETHER = 0.8  # of all hosts
_RISE_SHARE = 0.1  # of the host's memory: a rise worth the name
_BACK_SHARE = 0.5  # of a spike that must go away again
_IN_SAVES = 0.8  # of the samples of earlier spikes
_PLATEAU = 6  # samples that make a level
_SPREAD = 3.0  # of them, in how much it may tilt
_AT_LEVEL, _ABOVE_LEVEL = 0.02, 0.1  # of a rise: still at the level; away from it
_LEVEL_S = 120.0  # that a level lasts which memory has risen to
_MIN_SAMPLES = 4
_MEANING = {
    LEAK: "a slow rise: objects, pipeline buffers or a growing compilation cache",
    SPIKE: "a sudden rise: a burst of data, or a recompilation",
    CHECKPOINT: "a save that needs about twice the model's size on the hosts that write",
    ALL_NODES: "all nodes at once: the data pipeline or a recompilation",
}


@dataclass(frozen=True)
class MemoryCourse:
    """How one host's memory went, up to a moment."""

    host: str
    left_level: float | None  # when it left its usual level for good
    peak: float  # bytes
    usual: float  # bytes
    uncertainty_s: float
    total: float | None  # bytes
    times: Floats
    values: Floats

    @property
    def share(self) -> float | None:
        """Of the host's memory, at the peak."""
        return self.peak / self.total if self.total else None

    @property
    def peak_time(self) -> float:
        """When memory was highest."""
        return float(self.times[int(np.argmax(self.values))])

    def is_slow(self, end: float) -> bool:
        """Whether it took long from leaving its level."""
        return self.left_level is not None and end - self.left_level >= _SLOW_S

    def description(self, pattern: str, kill: float) -> str:
        """For a person."""
        rise = f"{self.usual / 1e9:.0f} GB, then {self.peak / 1e9:.0f} GB"
        if self.total:
            rise += f" of {self.total / 1e9:.0f} GB"
        if self.left_level is not None:
            rise += f", {kill - self.left_level:.0f} s after it left its level"
        return f"{rise}: {_MEANING[pattern]}"


def memory_course(
    timeline: RunTimeline, metric: str, host: str, until: float
) -> MemoryCourse | None:
    """None without memory samples of the host before `until`."""
    table = _finest(timeline, metric, host)
    row = table.row(host, metric)
    if row is None:
        return None
    keep = (table.times <= until) & ~np.isnan(row)
    times, values = table.times[keep], row[keep]
    if times.size < _MIN_SAMPLES:
        return None
    # The kill frees memory before it is counted: what matters ends at the peak before it.
    late = np.flatnonzero(times >= until - NEAR_KILL_S)
    if late.size:
        end = int(late[int(np.argmax(values[late]))]) + 1
        times, values = times[:end], values[:end]
    total = timeline.capacities(MEM_TOTAL).get(host)
    usual, left_level = _left_level(Series({}, times, values), total)
    peak = float(values.max())
    return MemoryCourse(host, left_level, peak, usual, table.step_s, total, times, values)


def _finest(timeline: RunTimeline, metric: str, host: str) -> ResultTable:
    fine = timeline.table("memory-fine")
    row = fine.row(host, metric)
    has_samples = row is not None and not np.isnan(row).all()
    return fine if has_samples else timeline.table("memory")


def _left_level(series: Series, total: float | None) -> tuple[float, float | None]:
    """The last level that held before the peak, and when memory left it.

    A first save may leave memory on a new level for good, so the early level is no measure.
    """
    fresh = np.concatenate([[True], np.diff(series.values) != 0])  # Ray repeats old values
    times, values = series.times[fresh], series.values[fresh]
    if values.size <= _PLATEAU:
        return float(np.median(values)), None
    highest = float(values.max())
    min_rise = _RISE_SHARE * (total or highest)
    noise = known_values.robust_noise(values)
    flat = max(4.0 * noise, 0.002 * highest)
    for end in range(values.size, _PLATEAU - 1, -1):
        plateau = values[end - _PLATEAU : end]
        if not _is_flat(plateau, flat):
            continue
        level = float(np.median(plateau))
        if _is_stair(times[:end], values[:end], level, max(flat, 0.5 * min_rise), min_rise):
            continue
        if float(values[-1]) - level < min_rise or end == values.size:
            return level, None
        end += _spikes_before_rise(values[end:], level, flat)
        rise = Deviation(float(times[end]), Level(level, noise))
        return level, max(ramp_start(Series({}, times, values), rise), float(times[end - 1]))
    return float(values[0]), float(times[0])


def _is_flat(plateau: Floats, tolerance: float) -> bool:
    """By both halves; a save on the way up may make them equal, and is no level either."""
    half = plateau.size // 2
    tilt = abs(float(np.mean(plateau[-half:]) - np.mean(plateau[:half])))
    return tilt <= tolerance and float(np.ptp(plateau)) <= _SPREAD * tolerance


def _is_stair(times: Floats, values: Floats, level: float, near: float, min_rise: float) -> bool:
    """A short rest on the way up, well above what was usual before: no level of its own."""
    away = np.flatnonzero(np.abs(values - level) > near)
    start = int(away.max(initial=-1)) + 1
    if not _PLATEAU <= start < times.size or times[-1] - times[start] >= _LEVEL_S:
        return False
    return level - float(np.median(values[:start])) > min_rise


def _spikes_before_rise(values: Floats, level: float, flat: float) -> int:
    """How many samples at the start of a rise are spikes that went away again, as saves make."""
    rise = float(values[-1]) - level
    back = np.flatnonzero(values <= level + max(2.0 * flat, _AT_LEVEL * rise))
    if not back.size:
        return 0
    last_back = int(back[-1])
    highest = known_values.highest(values[:last_back])
    spiked = highest is not None and highest > level + _ABOVE_LEVEL * rise
    return last_back + 1 if spiked else 0


def pattern(
    timeline: RunTimeline, course: MemoryCourse, kill: float, other_hosts: Sequence[MemoryCourse]
) -> str:
    """LEAK, SPIKE, CHECKPOINT or ALL_NODES."""
    if course.left_level is None:
        return CHECKPOINT if _in_save(timeline, kill, course.host) else SPIKE
    if len(other_hosts) >= 2 and _rose_together(course.left_level, other_hosts):
        return ALL_NODES
    slow = course.is_slow(kill)  # a leak may begin in a save by chance
    begins_in_save = _in_save(timeline, course.left_level, course.host)
    if (begins_in_save and not slow) or rises_with_saves(timeline, course):
        return CHECKPOINT
    return LEAK if slow else SPIKE


def _rose_together(left_level: float, other_hosts: Sequence[MemoryCourse]) -> bool:
    near = 1
    for course in other_hosts:
        if course.left_level is not None:
            near += abs(course.left_level - left_level) <= NEAR_KILL_S
    return near >= _TOGETHER * (len(other_hosts) + 1)


def _in_save(timeline: RunTimeline, time: float, host: str) -> bool:
    """A rise that begins with a save belongs to it, also when its mask begins a sample later."""
    times = np.array([time, time + 2 * timeline.context.resolution_s()])
    return not timeline.context.judged(times, host, MEM_USED, SAVE, WRITE_BACK).all()


def rises_with_saves(timeline: RunTimeline, course: MemoryCourse) -> bool:
    """Earlier spikes that went away again, all of them in saves."""
    if course.left_level is None:
        return False
    level = course.usual + _BACK_SHARE * (course.peak - course.usual)
    high = (course.values > level) & (course.times < course.left_level)
    if not high.any():
        return False
    in_saves = ~timeline.context.judged(course.times, course.host, MEM_USED, SAVE, WRITE_BACK)
    return bool((high & in_saves).sum() >= _IN_SAVES * high.sum())
