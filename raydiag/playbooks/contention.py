"""The checklist for training that got slower: every source is looked at, also after a hit.

Sources add up, so the first one found is not the last one looked for. Each is compared between the
time when training was slow, or the whole run, and what is usual for the same host.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

import numpy as np

from raydiag.model import Confidence, Evidence, Severity, Window
from raydiag.playbooks import storage, write_back
from raydiag.playbooks.context import BEFORE_JOB, GHOST, WARM_UP
from raydiag.playbooks.observations import ObservationRecorder
from raydiag.playbooks.queries import (
    BLOCKED,
    DIRTY,
    IO_FULL,
    IO_SOME,
    PROCESSES,
    RUNNING,
    WRITEBACK,
)
from raydiag.playbooks.spans import Span, held, present
from raydiag.playbooks.timeline import RunTimeline, departure, medians, middle

QUESTIONS = (
    "tasks",
    "context-switches",
    "cpu",
    "driver",
    "tcp-retransmits",
    "tcp-errors",
    "rdma-retransmits",
    "rdma-timeouts",
    "rdma-cnp",
    "storage",
    "storage-fine",
    "memory",
    "oom-kills",
    "gpu-temperature",
    "gpu-clock",
    "gpu-power",
    "gpu-errors",
    "gpu-corrected",
)
_CPU_FACTOR, _CPU_TASKS = 1.5, 16.0  # more running tasks than usual
_CPU_PERCENT, _CPU_MORE = 85.0, 20.0
_MORE = 1.2  # times what is usual, for a row to hold
_NAMED = 8


@dataclass(frozen=True)
class Slow:
    """When throughput was low, and by how much (%, negative)."""

    start: float
    end: float
    change: float


def check(scene: RunTimeline, record: ObservationRecorder, slow: Optional[Slow]) -> None:
    """One row for each metric of the list; findings for storage, CPU and foreign processes."""
    unjudged = write_back.unjudged(scene.context, scene.trained)
    if unjudged is not None:
        storage.hidden(scene, record, unjudged)
    storage.stalls(scene, record, unjudged is not None)
    _cpu(scene, record, slow, unjudged is not None)
    _neighbours(scene, record)
    _straggler(scene, record, slow)
    for group, question, metric in _LIST:
        _compare(scene, record, group, question, metric, slow)
    for group, question in _COUNTED:
        table = scene.table(question)
        hosts = sorted({where.host for where, row in table if present(table, row)})
        why = scene.missing(question)
        text = why or (f"counted on {len(hosts)} hosts" if hosts else "nothing counted")
        record.row(
            f"checklist-{group}", None if why else bool(hosts), text, hosts, question=question
        )
    _training(scene, record, slow)


_LIST = (
    ("cpu", "tasks", RUNNING),
    ("cpu", "tasks", BLOCKED),
    ("cpu", "context-switches", None),
    ("cpu", "cpu", None),
    ("cpu", "driver", PROCESSES),
    ("tcp", "tcp-retransmits", None),
    ("rdma", "rdma-retransmits", None),
    ("rdma", "rdma-timeouts", None),
    ("rdma", "rdma-cnp", None),
    ("storage", "storage", IO_FULL),
    ("storage", "storage", IO_SOME),
    ("storage", "storage", DIRTY),
    ("storage", "storage", WRITEBACK),
    ("memory", "memory", None),
    ("thermal", "gpu-temperature", "max"),
    ("thermal", "gpu-clock", "min"),
    ("thermal", "gpu-power", "avg"),
)
_COUNTED = (
    ("tcp", "tcp-errors"),
    ("memory", "oom-kills"),
    ("hardware", "gpu-errors"),
    ("hardware", "gpu-corrected"),
)


def _compare(
    scene: RunTimeline,
    record: ObservationRecorder,
    group: str,
    question: str,
    metric: Optional[str],
    slow: Optional[Slow],
) -> None:
    """The hosts that changed most when training was slow."""
    name = metric if metric and metric.startswith("hw_") else question
    why = scene.answers.missing(question)
    table = scene.steady(question).pick(metric)
    if why or not len(table):
        record.row(
            f"checklist-{group}", None, f"{name}: {why or 'metric absent'}", question=question
        )
        return
    if slow is None:
        highest = np.nanmax(table.values) if not np.isnan(table.values).all() else np.nan
        text = f"{name}: training was not slower, highest {highest:.4g}"
        record.row(f"checklist-{group}", False, text, question=question)
        return
    then = medians(table, Window(slow.start, slow.end))
    before = medians(table, Window(scene.window.start, slow.start - table.step_s))
    changes = {host: (value, before[host]) for host, value in then.items() if host in before}
    falls = metric in ("min", "avg")
    odd = [host for host, (now, was) in changes.items() if _changed(now, was, falls)]
    if not odd:
        record.row(f"checklist-{group}", False, f"{name}: as before", question=question)
        return
    worst = max(odd, key=lambda host: abs(changes[host][0] - changes[host][1]))
    now, was = changes[worst]
    text = f"{name}: {was:.4g} before, {now:.4g} while slow on {worst}"
    record.row(f"checklist-{group}", True, text, sorted(odd), now, question=question)


def _changed(now: float, was: float, falls: bool) -> bool:
    if falls:
        return now < was / _MORE
    return now > _MORE * was and now - was > 1e-9


def _training(scene: RunTimeline, record: ObservationRecorder, slow: Optional[Slow]) -> None:
    """Did training's own numbers change with it?"""
    from raydiag.playbooks.training import BALANCE, GRAD, LOSS

    for metric in (BALANCE, GRAD, LOSS):
        series = scene.training.series(metric)
        if series is None or slow is None or not len(series):
            text = f"{metric}: " + (
                "metric absent" if series is None else "training was not slower"
            )
            record.row("checklist-training", None if series is None else False, text)
            continue
        before = middle(series.values[series.times < slow.start])
        then = middle(series.values[(series.times >= slow.start) & (series.times <= slow.end)])
        known = before is not None and then is not None
        holds = known and _changed(then or 0.0, before or 0.0, False)
        text = f"{metric}: {before or 0:.4g} before, {then or 0:.4g} while slow"
        record.row("checklist-training", holds if known else None, text, value=then)


# ---- what becomes a finding


def _cpu(
    scene: RunTimeline, record: ObservationRecorder, slow: Optional[Slow], hidden: bool
) -> None:
    """More tasks than usual in steady training; a constant tax shows in a comparison only."""
    table = scene.steady("tasks").pick(RUNNING)
    if not len(table):
        record.row("cpu-contention", None, f"{RUNNING}: metric absent", question="tasks")
        return
    overall = middle(table.values.ravel())
    percent = scene.steady("cpu")
    hits: dict[str, tuple[Span, float]] = {}
    for where, row in table:
        usual = min(filter(None, (middle(row[: max(4, row.size // 3)]), overall)), default=None)
        if usual is None:
            continue
        long = held(table, row, max(_CPU_FACTOR * usual, usual + _CPU_TASKS))
        if long:
            hits[where.host] = (long[0], usual)
    for host, (span, usual) in list(hits.items())[:_NAMED]:
        load = medians(percent.pick(hosts=[host]), Window(span.start, span.end)).get(host)
        text = f"{span.peak:.0f} running tasks where {usual:.0f} are usual"
        text += f", CPU at {load:.0f} %" if load is not None else ""
        record.row("cpu-contention", True, text, [host], span.peak, "tasks", "tasks")
        paid = slow is not None and span.start <= slow.end and span.end >= slow.start
        record.observe(
            "cpu-contention",
            "cpu-contention",
            [Evidence(scene.answers.promql("tasks"), text, span.peak, span.peak_time)],
            host,
            _begun(scene, host, span, usual),
            Confidence.LIKELY if paid else Confidence.POSSIBLE,
            None if paid else Severity.INFO,
            until=span.end,
            recovered=scene.over(span),
            uncertainty_s=table.step_s,
        )
    if not hits and hidden:
        record.row("cpu-contention", None, "next to no time outside saves", question="tasks")
    elif not hits:
        record.row("cpu-contention", False, "as many running tasks as usual", question="tasks")
        record.rule_out("cpu-contention", "the number of running tasks is steady on every host")


def _begun(scene: RunTimeline, host: str, span: Span, usual: float) -> float:
    """When its tasks became more, also when a save hid that."""
    table = scene.table("tasks").pick(RUNNING, [host])
    least = max((_CPU_FACTOR - 1) * usual, _CPU_TASKS)
    outside = (GHOST, WARM_UP, BEFORE_JOB)
    for _, row in table:
        return departure(scene, table, row, host, span.start, least, 1, outside)
    return span.start


def _neighbours(scene: RunTimeline, record: ObservationRecorder) -> None:
    """Processes on the GPUs that came on top of the job's own."""
    table = scene.steady("driver").pick(PROCESSES)
    if not len(table):
        record.row("neighbours", None, f"{PROCESSES}: metric absent", question="driver")
        return
    hits = 0
    for where, row in table:
        usual = middle(row[: max(4, row.size // 3)])
        long = held(table, row, usual) if usual else []
        if not long or hits >= _NAMED:
            continue
        hits += 1
        text = f"{long[0].peak:.0f} processes on its GPUs where the job has {usual:.0f}"
        record.row("neighbours", True, text, [where.host], long[0].peak, "processes", "driver")
        record.observe(
            "neighbours",
            "noisy-neighbour",
            [Evidence(scene.answers.promql("driver"), text, long[0].peak, long[0].start)],
            where.host,
            long[0].start,
            Confidence.POSSIBLE,
            until=long[0].end,
            recovered=not long[0].open,
            uncertainty_s=table.step_s,
        )
    if not hits:
        record.row("neighbours", False, "no process came on top of the job's", question="driver")


def _straggler(scene: RunTimeline, record: ObservationRecorder, slow: Optional[Slow]) -> None:
    """One host whose GPUs draw much less than the others' from about when training got slower.

    The others wait for it at each step, which costs them power as well, but less.
    """
    table = scene.steady("gpu-power").pick("avg")
    if slow is None or len(table.hosts) < 3:
        return
    then = medians(table, Window(slow.start, slow.end))
    before = medians(table, Window(scene.window.start, slow.start - table.step_s))
    ratios = {host: then[host] / before[host] for host in then if before.get(host)}
    if len(ratios) < 3:
        return
    usual = float(np.median(list(ratios.values())))
    odd = [host for host, ratio in ratios.items() if abs(ratio - usual) > 0.1 * usual]
    if not odd or len(odd) * 3 > len(ratios):
        record.row("straggler", False, "power changed alike on all hosts", question="gpu-power")
        return
    for host in odd:
        text = f"power changed to {100 * ratios[host]:.0f} % there, {100 * usual:.0f} % elsewhere"
        record.row("straggler", True, text, [host], then[host], "W", "gpu-power")
        record.observe(
            "straggler",
            "straggler",
            [Evidence(scene.answers.promql("gpu-power"), text, then[host], slow.start)],
            host,
            slow.start,
            Confidence.POSSIBLE,
            until=slow.end,
            uncertainty_s=max(table.step_s, scene.training.step_time_s or 0.0),
        )
