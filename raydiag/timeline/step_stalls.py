"""When steps stopped for longer than any save or slow step explains."""

from dataclasses import dataclass

import numpy as np

from raydiag.model import Window
from raydiag.timeline.known_values import known, last_true
from raydiag.timeline.masked_tables import MaskedTables
from raydiag.timeline.power_levels import PowerLevels
from raydiag.timeline.queries import IO_FULL

BUSY_PERCENT = 80.0  # a kernel is there, whatever it does
_STALL_STEPS, _STALL_S = 10.0, 300.0
_STALL_SAVES, _STALL_SAVE_S = 3.0, 1800.0
_SAVE_UNSEEN_S = 480.0  # a save may take, where none was seen: what writing one usually takes
_SAVE_STEPS = 2.0  # times the usual step
_UNDATED_S = 1200.0  # of spinning, where no step says when they stopped: longer than compiling
_WAITING_PERCENT, _WAITING_SHARE = 50.0, 0.8  # I/O pressure, "full", through most of a stall
_SETTLE_S = 60.0  # until power and utilisation show what the collective does
_FINAL = ("completed",)
_HANGS = ("hang", "rccl-hang", "nccl-timeout")


@dataclass(frozen=True)
class StepStall:
    """Steps stopped; `end` is the end of the window, or the error that ended the job."""

    start: float  # the last completed step
    end: float
    step: int | None

    @property
    def settled(self) -> Window:
        """Without its beginning, in which GPUs still finish what they had."""
        return Window(min(self.start + _SETTLE_S, self.end), self.end)


def last_step(tables: MaskedTables) -> tuple[int | None, float | None]:
    """The newest step and when it ended, from series and log together."""
    job, in_series = tables.job, tables.training.last
    if in_series is None:
        return job.last_step, job.last_step_time
    step, time = in_series
    if job.last_step is None or job.last_step <= step:
        return step, time
    if job.last_step_time is not None and job.last_step_time > time:
        return job.last_step, job.last_step_time
    # The log got further than the bridge: what is missing took its usual time.
    step_s = job.step_time_s or tables.training.step_time_s or 0.0
    return job.last_step, min(time + (job.last_step - step) * step_s, tables.window.end)


def step_stall(tables: MaskedTables, levels: PowerLevels | None) -> StepStall | None:
    """The stall that lasts to the end of the window or of the job; None while steps go on."""
    step, time = last_step(tables)
    if tables.job.status in _FINAL or _is_last_of_job(tables, step):
        return None
    end = tables.window.end
    if tables.job.crash_time is not None:
        end = min(end, tables.job.crash_time)
    if time is None:
        return _undated_stall(tables, levels, end, step)
    if end - time <= _patience_s(tables, step, StepStall(time, end, step).settled):
        return None
    return StepStall(time, end, step)


def waiting_for_storage(tables: MaskedTables, window: Window) -> tuple[str, ...]:
    """Hosts whose tasks wait for storage through all of a window, and did not before."""
    table = tables.table("storage").pick(IO_FULL)
    before = table.medians(Window(tables.window.start, window.start))
    inside = table.between(window.start, window.end)
    waiting = []
    for subject, row in inside:
        values = known(row)
        waits = np.count_nonzero(values > _WAITING_PERCENT) >= _WAITING_SHARE * values.size
        if values.size > 1 and waits and before.get(subject.host, 0.0) < _WAITING_PERCENT / 2:
            waiting.append(subject.host)
    return tuple(waiting)


def next_step_s(tables: MaskedTables) -> float:
    """How long after the last step they may have stopped: a step, and a save where one came."""
    step_s = tables.training.step_time_s or tables.job.step_time_s or tables.context.resolution_s()
    if not _saves_next(tables, last_step(tables)[0]):
        return step_s
    longest = tables.job.longest_save_s or 0.0
    # A step of the usual length is no save that blocked: the first one is still to come.
    was_seen = longest > _SAVE_STEPS * step_s or tables.job.async_saves is True
    return step_s + (longest if was_seen else _SAVE_UNSEEN_S)


def _undated_stall(
    tables: MaskedTables, levels: PowerLevels | None, end: float, step: int | None
) -> StepStall | None:
    """Where no step is dated: GPUs that are busy and compute nothing, for long, to the end."""
    use = tables.table("gpu-utilisation").pick("max")
    power = tables.table("gpu-power").pick("max")
    if levels is None or not len(use) or not len(power):
        return None
    highest_watts = np.nan_to_num(power.values, nan=-np.inf).max(axis=0)
    watts = highest_watts[np.searchsorted(power.times, use.times).clip(0, power.times.size - 1)]
    busy = np.nan_to_num(use.values).max(axis=0) > BUSY_PERCENT
    spins = busy & (watts > 0) & (watts < levels.idle_watts)
    spins = spins[: int(np.searchsorted(use.times, end, side="right"))]
    if not spins.size or not spins[-1]:
        return None
    start = float(use.times[last_true(~spins) + 1])
    computed = bool((highest_watts[power.times < start] >= levels.active_watts).any())
    if end - start <= (_STALL_S if computed and step is not None else _UNDATED_S):
        return None
    return StepStall(start, end, step)


def _is_last_of_job(tables: MaskedTables, step: int | None) -> bool:
    total = tables.job.total_steps
    return step is not None and total is not None and step >= total - 1


def _saves_next(tables: MaskedTables, step: int | None) -> bool:
    rhythm = tables.job.save_rhythm
    return step is not None and rhythm is not None and rhythm.has(step + 1)


def _patience_s(tables: MaskedTables, step: int | None, since: Window) -> float:
    """How long no step is no stall yet."""
    job = tables.job
    step_s = tables.training.step_time_s or job.step_time_s or 0.0
    patience = max(_STALL_STEPS * step_s, _STALL_S)
    # Where triage has judged it a hang, by more than the time, a save is no excuse any more.
    if _saves_next(tables, step) and job.primary not in _HANGS:
        least = _SAVE_UNSEEN_S if waiting_for_storage(tables, since) else _STALL_SAVE_S
        return max(patience, _STALL_SAVES * (job.longest_save_s or 0.0), least)
    return patience
