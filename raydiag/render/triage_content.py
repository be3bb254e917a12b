"""What a triage report says, row by row and sentence by sentence, for text and Markdown alike."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Optional

from raydiag.model import Evidence, Finding
from raydiag.render.layout import count
from raydiag.triage.verdict import JobStatus, TrainingProgress, Verdict


def whom(verdict: Verdict) -> str:
    """Task and host where it began; nothing when the log does not tell."""
    first = primary_finding(verdict)
    if first is None:
        return ""
    where = " on ".join(
        one for one in (f"task {first.task}" if first.task else "", first.host or "") if one
    )
    return f"  ({where})" if where else ""


def primary_finding(verdict: Verdict) -> Optional[Finding]:
    found = verdict.diagnosis.findings
    return found[0] if verdict.primary is not None and found else None


def place(item: Evidence) -> tuple[str, int]:
    """Sorts evidence as it stands in its files."""
    file, _, line = item.source.rpartition(":")
    return (file, int(line)) if line.isdigit() else (item.source, 0)


def secondary(verdict: Verdict) -> Sequence[Finding]:
    found = verdict.diagnosis.findings
    return found[1:] if verdict.primary is not None else found


def projection(verdict: Verdict) -> Iterator[tuple[str, str]]:
    """The rows of the projection; "n/a" where the log does not tell."""
    one = verdict.progress
    if one.last_step is None:
        return
    yield "Start", one.start or "n/a"
    first = one.last_step - (one.steps_this_run or 1) + 1
    yield (
        "Steps completed (this run)",
        f"{count(one.steps_this_run or 0, 'step')} (step {first} to {one.last_step})",
    )
    total = f"{one.steps_done}/{one.total_steps} ({one.percent:.1f} %)" if one.percent else ""
    yield "Overall progress", total or f"{one.steps_done} steps, of how many is not known"
    yield "Steady-state step time", _seconds(one.step_time_s)
    yield "Expected step by now", _expected(verdict)
    yield "Last periodic ckpt this run", _checkpoint(one)
    yield "Progress lost", _lost(verdict)
    yield (
        "Estimated time remaining",
        "none, it is done" if one.complete else span(one.time_remaining_s),
    )


def _expected(verdict: Verdict) -> str:
    one = verdict.progress
    if one.expected_step is not None and verdict.status is not JobStatus.COMPLETED:
        stalled = f"; no step for {span(one.stalled_s)}" if one.stalled_s is not None else ""
        return f"{one.expected_step} (last was {one.last_step}{stalled})"
    if verdict.primary == "hang" and one.unexplained_s is not None and one.step_time_s:
        more = int(one.unexplained_s / one.step_time_s)
        most = (one.last_step or 0) + more
        capped = min(most, one.total_steps - 1) if one.total_steps else most
        return f"up to {capped}: {span(one.unexplained_s)} of wall time are unexplained"
    return "n/a"


def _checkpoint(one: TrainingProgress) -> str:
    if one.last_checkpoint is not None:
        return f"step {one.last_checkpoint}"
    if one.checkpoint_period is None:
        return "none - no periodic checkpoints known"
    return f"none - did not reach a multiple of {one.checkpoint_period}"


def _lost(verdict: Verdict) -> str:
    one = verdict.progress
    if one.complete or verdict.status is JobStatus.COMPLETED:
        return "nothing"
    steps = one.progress_lost_steps
    if steps is None:
        return "n/a"
    time = f" ({span(one.progress_lost_s)})" if one.progress_lost_s is not None else ""
    would = "would be " if verdict.live else ""
    if one.last_checkpoint is None:
        return f"{would}all {count(steps, 'step')}{time} - no periodic checkpoint of this run"
    return f"{would}{count(steps, 'step')}{time} since step {one.last_checkpoint}"


def throughput(one: TrainingProgress) -> Iterator[tuple[str, str]]:
    speed = one.throughput
    if speed is None:
        return
    early, late = _range(speed.early_steps), _range(speed.late_steps)
    text = f"{speed.early:.4g} (steps {early}) -> {speed.late:.4g} (steps {late})"
    yield speed.unit, f"{text}, {_change(speed.change_percent)}"
    since = f" since step {speed.since_step}" if speed.since_step is not None else ""
    yield "Pattern", f"{speed.pattern}{since}"


def _change(percent: float) -> str:
    return f"{percent:+.0f} %" if abs(percent) >= 0.5 else "unchanged"


def _range(steps: tuple[int, int]) -> str:
    return f"{steps[0]}-{steps[1]}"


def start_up(verdict: Verdict) -> Iterator[str]:
    one = verdict.phase
    if one is None or one.name == "training":
        return
    span_ = f" for {span(one.seconds)}" if one.seconds is not None else ""
    normal = f"{span(one.normal_s)} is normal"
    yield f"Phase {one.number} of 7, {one.name}{span_}; up to {normal}."
    if one.late:
        yield one.advice


def attempts(verdict: Verdict) -> Iterator[str]:
    told = verdict.attempts
    if told is None:
        return
    for one in told.attempts:
        steps = f", steps {one.first_step}-{one.last_step}" if one.last_step is not None else ""
        saved = "reached a save" if one.reached_save else "reached no save"
        why = f" ({one.primary})" if one.primary else ""
        yield f"{one.index}: {one.status.value}{why}{steps}, {saved}: {one.log}"
    if told.held:
        yield "The job is requeued and held; it starts again when it is released."
    if told.requeues_left is not None:
        yield f"Automatic restarts left: {told.requeues_left}."
    if told.efficiency is not None:
        yield (
            f"Efficiency {100 * told.efficiency:.1f} %: time up to the last save of each attempt, "
            "of all wall time (raydiag's own definition)."
        )
    if told.downtime_s is not None:
        yield f"Downtime between attempts: {span(told.downtime_s)}."


def dashboards(verdict: Verdict) -> Iterator[str]:
    seen = verdict.dashboards
    if not seen:
        return
    if not verdict.live:
        where = seen.get("prometheus_dir") or (
            f"{verdict.resolved.job_dir}/prometheus" if verdict.resolved.job_dir else None
        )
        if where:
            yield f"The job is over and its dashboards are gone; its series are in {where}."
        return
    for tunnel in verdict.tunnels[:2]:
        yield tunnel.strip()
    ports = f"Ray {seen['ray']}, TensorBoard {seen['tensorboard']}, Prometheus {seen['prometheus']}"
    head = f" of {seen['head']}" if seen.get("head") else ""
    yield f"On the loopback{head}: {ports}. The tunnel binds these ports on your own machine."


def span(seconds: Optional[float]) -> str:
    """`48 s`, `49 min 0 s`, `14 h 37 min`; "n/a" for what is not known."""
    if seconds is None or not math.isfinite(seconds):
        return "n/a"
    if seconds < 60:
        return f"{seconds:.3g} s"
    whole = round(seconds)
    days, hours, minutes = whole // 86400, whole // 3600 % 24, whole // 60 % 60
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {whole % 60} s"


def _seconds(value: Optional[float]) -> str:
    return "n/a (too few steps)" if value is None else f"{value:.2f} s"
