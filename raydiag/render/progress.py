"""How far a job came, how fast it is, and what a failure costs: rows of the projection."""

from collections.abc import Iterator

from raydiag.render.formats import count, filled, span
from raydiag.triage.verdict import JobStatus, TrainingProgress, Verdict

_UNKNOWN = "n/a"
_UNCHANGED_PERCENT = 0.5


def projection(verdict: Verdict) -> Iterator[tuple[str, str]]:
    """The rows of the projection; "n/a" where the log does not say."""
    progress = verdict.progress
    if progress.last_step is None:
        return
    remaining = "none, it is done" if progress.complete else span(progress.time_remaining_s)
    if not (verdict.live or progress.complete or progress.time_remaining_s is None):
        remaining += ", once it runs again"
    yield "Start", progress.start or _UNKNOWN
    yield "Steps completed (this run)", _steps_of_run(progress, progress.last_step)
    yield "Overall progress", _overall(progress)
    yield "Steady-state step time", _step_time(progress)
    yield "Expected step by now", _expected(verdict)
    yield "Last periodic ckpt this run", _checkpoint(progress)
    yield "Progress lost", _lost(verdict)
    yield "Estimated time remaining", remaining


def throughput(progress: TrainingProgress) -> Iterator[tuple[str, str]]:
    """Early and late throughput, and how it changed; nothing where the log does not say."""
    speed = progress.throughput
    if speed is None:
        return
    change = "unchanged"
    if abs(speed.change_percent) >= _UNCHANGED_PERCENT:
        change = f"{speed.change_percent:+.0f} %"
    early = f"{speed.early:.4g} (steps {_range(speed.early_steps)})"
    late = f"{speed.late:.4g} (steps {_range(speed.late_steps)})"
    yield speed.unit, f"{early} -> {late}, {change}"
    yield "Pattern", speed.pattern + filled(" since step {}", speed.since_step)


def _steps_of_run(progress: TrainingProgress, last_step: int) -> str:
    first = last_step - (progress.steps_this_run or 1) + 1
    return f"{count(progress.steps_this_run or 0, 'step')} (step {first} to {last_step})"


def _overall(progress: TrainingProgress) -> str:
    if progress.percent:
        return f"{progress.steps_done}/{progress.total_steps} ({progress.percent:.1f} %)"
    return f"{progress.steps_done} steps, the total is not known"


def _step_time(progress: TrainingProgress) -> str:
    if progress.step_time_s is None:
        return f"{_UNKNOWN} (too few steps)"
    return f"{progress.step_time_s:.2f} s"


def _expected(verdict: Verdict) -> str:
    progress = verdict.progress
    if progress.expected_step is not None and verdict.status is not JobStatus.COMPLETED:
        stalled = ""
        if progress.stalled_s is not None:
            stalled = f"; no step for {span(progress.stalled_s)}"
        return f"{progress.expected_step} (last was {progress.last_step}{stalled})"
    if verdict.primary == "hang" and progress.unexplained_s is not None and progress.step_time_s:
        step = (progress.last_step or 0) + int(progress.unexplained_s / progress.step_time_s)
        if progress.total_steps:
            step = min(step, progress.total_steps - 1)
        return f"up to {step}: {span(progress.unexplained_s)} of wall time are unexplained"
    return _UNKNOWN


def _checkpoint(progress: TrainingProgress) -> str:
    if progress.last_checkpoint is not None:
        return f"step {progress.last_checkpoint}"
    if progress.checkpoint_period is None:
        return "none - no periodic checkpoints known"
    return f"none - did not reach a multiple of {progress.checkpoint_period}"


def _lost(verdict: Verdict) -> str:
    progress = verdict.progress
    if progress.complete or verdict.status is JobStatus.COMPLETED:
        return "nothing"
    if progress.progress_lost_steps is None:
        return _UNKNOWN
    lost = count(progress.progress_lost_steps, "step")
    if progress.progress_lost_s is not None:
        lost += f" ({span(progress.progress_lost_s)})"
    would = "would be " if verdict.live else ""
    if progress.last_checkpoint is None:
        return f"{would}all {lost} - no periodic checkpoint of this run"
    return f"{would}{lost} since step {progress.last_checkpoint}"


def _range(steps: tuple[int, int]) -> str:
    return f"{steps[0]}-{steps[1]}"
