"""Playbook: did a host run out of memory, and how? A leak, a spike, a save, all nodes at once.

The kernel's own count of kills says that it happened; the memory series say how it came to it. A
spike while a checkpoint is saved is normal up to the host's limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

import numpy as np

from raydiag.model import Confidence, Evidence, Window
from raydiag.playbooks import onset
from raydiag.playbooks.context import SAVE, WRITE_BACK
from raydiag.playbooks.observations import ObservationRecorder, Report
from raydiag.playbooks.queries import (
    BLOCKED,
    DIRTY,
    IO_FULL,
    MEM_HOST,
    MEM_TOTAL,
    MEM_USED,
    VRAM_TOTAL,
    WRITEBACK,
)
from raydiag.playbooks.query_results import ResultTable
from raydiag.playbooks.spans import present
from raydiag.playbooks.timeline import RunTimeline, capacities
from raydiag.tsdb.series import Floats, Series

ID, TITLE, ANALYSIS = "host-oom", "Host out of memory", "oom"
QUESTIONS = (
    "memory",
    "memory-fine",
    "capacity",
    "oom-kills",
    "storage",
    "tasks",
    "gpu-vram",
    "alive",
)
FULL_SHARE = 0.97  # of the host's memory: at the limit
_RISE_SHARE = 0.1  # of the host's memory: a rise worth the name
_SLOW_S = 600.0  # from leaving its level to the end: a leak takes time
_TOGETHER = 0.8  # of all hosts
_BACK_SHARE = 0.5  # of a spike that must go away again
_NEAR_KILL_S = 300.0
_PLATEAU = 6  # samples that make a level
_AT_LEVEL, _SPIKE = 0.02, 0.1  # of a rise: still at the level; away from it
_LEVEL_S = 120.0  # that a level lasts which memory has risen to


@dataclass(frozen=True)
class Course:
    """How one host's memory went, up to a moment."""

    host: str
    left: Optional[float]  # when it left its usual level for good
    peak: float  # bytes
    usual: float  # bytes
    uncertainty_s: float
    total: Optional[float]  # bytes
    times: Floats
    values: Floats

    @property
    def share(self) -> Optional[float]:
        return self.peak / self.total if self.total else None


def run(scene: RunTimeline, record: ObservationRecorder) -> Report:
    """Kills first; without any, a peak at the limit is told and nothing more."""
    used = _metric(scene)
    kills = _kills(scene, record)
    if not used:
        record.row("memory", None, scene.answers.missing("memory"), question="memory")
    else:
        scope = "" if used == MEM_HOST else ", which in a container is the container's"
        record.row("memory", True, f"judged by {used}{scope}", question="memory")
    _limits(scene, record, used, kills)
    _pressure(scene, record, kills)
    verdict = "No host ran out of memory."
    for host, time in kills.items():
        verdict = _explain(scene, record, used, host, time, kills)
    if not kills and not used:
        verdict = "Undecided: no memory series."
    elif not kills and scene.job.primary == "oom-host":
        verdict = _from_log(scene, record, used)
    return Report(ID, TITLE, ANALYSIS, record.window, QUESTIONS, tuple(record.rows), verdict)


def _metric(scene: RunTimeline) -> str:
    """The host's own memory where Ray tells it apart from the container's."""
    metrics = {where.metric for where in scene.table("memory").where}
    return next((one for one in (MEM_HOST, MEM_USED) if one in metrics), "")


def _kills(scene: RunTimeline, record: ObservationRecorder) -> dict[str, float]:
    """First kill of each host in the window."""
    if not scene.context.discovery.has("hw_oom_kills_total"):
        record.row("oom-kills", None, "hw_oom_kills_total: metric absent", question="oom-kills")
        return {}
    table = scene.table("oom-kills")
    overlap = max(1.0, table.span_s / table.step_s) if table.step_s else 1.0
    kills: dict[str, float] = {}
    for where, row in table:
        found = present(table, row)
        if found:
            kills[where.host] = found[0].start
            count = max(1.0, float(np.nansum(row)) / overlap)
            text = f"the kernel killed {count:.0f} processes"
            record.row("oom-kills", True, text, [where.host], count, "kills", "oom-kills")
    if not kills:
        record.row("oom-kills", False, "the kernel killed nothing", question="oom-kills")
        record.rule_out("oom-host", "no host's kernel killed a process for memory")
    return kills


def _memory(scene: RunTimeline, used: str, host: str) -> tuple[ResultTable, Optional[Floats]]:
    for question in ("memory-fine", "memory"):
        table = scene.table(question)
        row = table.row(host, used)
        if row is not None and not np.isnan(row).all():
            return table, row
    return scene.table("memory"), None


def course(scene: RunTimeline, used: str, host: str, until: float) -> Optional[Course]:
    """None without memory samples of the host before `until`."""
    table, row = _memory(scene, used, host)
    if row is None:
        return None
    keep = (table.times <= until) & ~np.isnan(row)
    times, values = table.times[keep], row[keep]
    if times.size < 4:
        return None
    # The kill frees memory before it is counted: what matters ends at the peak before it.
    late = np.flatnonzero(times >= until - _NEAR_KILL_S)
    if late.size:
        end = int(late[int(np.argmax(values[late]))]) + 1
        times, values = times[:end], values[:end]
    total = capacities(scene, MEM_TOTAL).get(host)
    usual, left = _left(Series({}, times, values), total)
    return Course(host, left, float(values.max()), usual, table.step_s, total, times, values)


def _left(series: Series, total: Optional[float]) -> tuple[float, Optional[float]]:
    """The last level that held before the peak, and when memory left it.

    A first save may leave memory on a new level for good, so the early level is no measure.
    """
    fresh = np.concatenate([[True], np.diff(series.values) != 0])  # Ray repeats old values
    times, values = series.times[fresh], series.values[fresh]
    least = _RISE_SHARE * total if total else 0.1 * float(values.max())
    if values.size <= _PLATEAU:
        return float(np.median(values)), None
    steps = np.diff(values)
    noise = 1.05 * float(np.median(np.abs(steps - np.median(steps))))
    flat = max(4.0 * noise, 0.002 * float(values.max()))
    half = _PLATEAU // 2
    for end in range(values.size, _PLATEAU - 1, -1):
        part = values[end - _PLATEAU : end]
        if abs(float(np.mean(part[-half:]) - np.mean(part[:half]))) > flat:
            continue
        level = float(np.median(part))
        if _is_stair(times[:end], values[:end], level, max(flat, 0.5 * least), least):
            continue
        if float(values[-1]) - level < least or end == values.size:
            return level, None
        end += _gone_again(values[end:], level, flat)
        usual = onset.Level(level, noise, _PLATEAU)
        rise = onset.Deviation(
            float(times[end]), 0.0, float(values[end]), usual, None, values.size - end
        )
        return level, max(onset.ramp_start(Series({}, times, values), rise), float(times[end - 1]))
    return float(values[0]), float(times[0])


def _gone_again(values: Floats, level: float, flat: float) -> int:
    """How many samples at the start of a rise are spikes that went away again, as saves make."""
    rise = float(values[-1]) - level
    back = np.flatnonzero(values <= level + max(2.0 * flat, _AT_LEVEL * rise))
    before = values[: int(back[-1])] if back.size else values[:0]
    spiked = before.size and float(before.max()) > level + _SPIKE * rise
    return int(back[-1]) + 1 if spiked else 0


def _is_stair(times: Floats, values: Floats, level: float, near: float, least: float) -> bool:
    """A short rest on the way up, well above what was usual before: no level of its own."""
    away = np.flatnonzero(np.abs(values - level) > near)
    start = int(away[-1]) + 1 if away.size else 0
    if start < _PLATEAU or times[-1] - times[start] >= _LEVEL_S:
        return False
    return level - float(np.median(values[:start])) > least


def pattern(scene: RunTimeline, own: Course, kill: float, others: list[Course]) -> str:
    """leak, spike, checkpoint or all-nodes."""
    risen = [one for one in others if one.left is not None]
    everyone = len(risen) + 1 >= _TOGETHER * (len(others) + 1) and len(others) >= 2
    if own.left is None:
        return "checkpoint" if _in_save(scene, kill, own.host) else "spike"
    near = [
        one for one in risen if one.left is not None and abs(one.left - own.left) <= _NEAR_KILL_S
    ]
    if everyone and len(near) + 1 >= _TOGETHER * (len(others) + 1):
        return "all-nodes"
    slow = kill - own.left >= _SLOW_S  # a leak may begin in a save by chance
    if (_in_save(scene, own.left, own.host) and not slow) or _repeats(scene, own):
        return "checkpoint"
    return "leak" if slow else "spike"


def _in_save(scene: RunTimeline, time: float, host: str) -> bool:
    """A rise that begins with a save belongs to it, also when its mask begins a sample later."""
    step = 2 * scene.context.resolution_s()
    return not scene.context.judged(
        np.array([time, time + step]), host, MEM_USED, SAVE, WRITE_BACK
    ).all()


def _repeats(scene: RunTimeline, own: Course) -> bool:
    """Earlier spikes that went away again, all of them in saves."""
    assert own.left is not None
    level = own.usual + _BACK_SHARE * (own.peak - own.usual)
    high = (own.values > level) & (own.times < own.left)
    if not high.any():
        return False
    saved = ~scene.context.judged(own.times, own.host, MEM_USED, SAVE, WRITE_BACK)
    return bool((high & saved).sum() >= 0.8 * high.sum())


def _explain(
    scene: RunTimeline,
    record: ObservationRecorder,
    used: str,
    host: str,
    kill: float,
    kills: dict[str, float],
) -> str:
    """One finding for each host whose kernel killed something."""
    table = scene.table("oom-kills")
    own = course(scene, used, host, kill) if used else None
    sources = [
        Evidence(scene.answers.promql("oom-kills"), "the kernel killed a process", 1.0, kill)
    ]
    if own is None:
        record.observe(
            "oom-kills",
            "oom-host",
            sources,
            host,
            kill,
            Confidence.LIKELY,
            uncertainty_s=table.step_s,
            facts={"kill_time": kill},
        )
        return f"{host} ran out of memory; nothing says how."
    others = [
        one
        for other in scene.context.hosts
        if other != host
        for one in [course(scene, used, other, kill)]
        if one is not None
    ]
    kind = pattern(scene, own, kill, others)
    text = _told(own, kind, kill)
    record.row(f"pattern-{kind}", True, text, [host], own.peak, "bytes", "memory")
    record.row("reproducible", *_again(scene, own), [host], question="memory")
    sources.append(Evidence(scene.answers.promql("memory"), text, own.peak, own.left or kill))
    record.observe(
        f"pattern-{kind}",
        "oom-host",
        sources,
        host,
        _began(own, others, kind, kill),
        Confidence.CONFIRMED,
        explanation=text,
        uncertainty_s=own.uncertainty_s,
        facts={"pattern": kind, "kill_time": kill},
    )
    return f"{host} ran out of memory ({kind})."


def _began(own: Course, others: list[Course], kind: str, kill: float) -> float:
    """When memory left its level. Where that is on all nodes at once, when it usually did: some of
    them may have been in a save before."""
    if own.left is None:
        return kill
    if kind != "all-nodes":
        return own.left
    all_left = sorted(one.left for one in (own, *others) if one.left is not None)
    return all_left[len(all_left) // 2]


_MEANING = {
    "leak": "a slow rise: objects, pipeline buffers or a growing compilation cache",
    "spike": "a sudden rise: a burst of data, or a recompilation",
    "checkpoint": "a save that needs about twice the model's size on the hosts that write",
    "all-nodes": "all nodes at once: the data pipeline or a recompilation",
}


def _told(own: Course, kind: str, kill: float) -> str:
    share = f" of {own.total / 1e9:.0f} GB" if own.total else ""
    since = f", {kill - own.left:.0f} s after it left its level" if own.left is not None else ""
    return f"{own.usual / 1e9:.0f} GB, then {own.peak / 1e9:.0f} GB{share}{since}: {_MEANING[kind]}"


def _again(scene: RunTimeline, own: Course) -> tuple[bool, str]:
    if own.left is not None and _repeats(scene, own):
        return True, "memory rises with each save"
    slow = own.left is not None and own.times[-1] - own.left >= _SLOW_S
    if slow:
        return True, "memory grows step by step"
    return False, "seen once"


def _from_log(scene: RunTimeline, record: ObservationRecorder, used: str) -> str:
    """The log says so and no kernel's count does: the hosts at their limit are the likely ones."""
    end = scene.job.crash_time or scene.window.end
    near = Window(end - _NEAR_KILL_S, end)
    found = []
    for host in scene.context.hosts:
        own = course(scene, used, host, end)
        full = own is not None and own.share is not None and own.share > FULL_SHARE
        late = own is not None and own.times[int(np.argmax(own.values))] >= near.start
        if own is None or not full or not late:
            continue
        found.append(host)
        others: list[Course] = []
        kind = pattern(scene, own, end, others)
        text = _told(own, kind, end)
        record.row(f"pattern-{kind}", True, text, [host], own.peak, "bytes", "memory")
        record.observe(
            f"pattern-{kind}",
            "oom-host",
            [Evidence(scene.answers.promql("memory"), text, own.peak, own.left)],
            host,
            own.left if own.left is not None else end,
            Confidence.LIKELY,
            explanation=text,
            uncertainty_s=own.uncertainty_s,
            facts={"pattern": kind, "kill_time": end},
        )
    return (
        f"At their limit when it ended: {', '.join(found)}." if found else "No host at its limit."
    )


def _limits(
    scene: RunTimeline, record: ObservationRecorder, used: str, kills: dict[str, float]
) -> None:
    """Peaks at the limit without a kill: close, and no more than that."""
    totals = capacities(scene, MEM_TOTAL)
    if used and not totals:
        record.row("limit", None, f"{MEM_TOTAL}: metric absent", question="capacity")
        return
    table = scene.table("memory").pick(used)
    full = []
    for where, row in table:
        total = totals.get(where.host)
        peak = float(np.nanmax(row)) if not np.isnan(row).all() else 0.0
        if total and peak > FULL_SHARE * total and where.host not in kills:
            full.append(where.host)
            text = (
                f"{100 * peak / total:.0f} % of the host's memory at its peak, and nothing killed"
            )
            record.row("limit", True, text, [where.host], peak, "bytes", "memory")
    if used and not full and not kills:
        record.row("limit", False, "no host came near its limit", question="memory")


def _pressure(scene: RunTimeline, record: ObservationRecorder, kills: dict[str, float]) -> None:
    """What storage and GPUs did when the kernel killed."""
    for host, kill in kills.items():
        for question, metric, unit in (
            ("storage", DIRTY, "bytes"),
            ("storage", WRITEBACK, "bytes"),
            ("storage", IO_FULL, "%"),
            ("tasks", BLOCKED, "tasks"),
        ):
            table = scene.table(question).pick(metric, [host]).between(kill - _NEAR_KILL_S, kill)
            for _, row in table:
                if not np.isnan(row).all():
                    peak = float(np.nanmax(row))
                    record.row("beside", True, f"{metric} before the kill", [host], peak, unit)
        total = capacities(scene, VRAM_TOTAL).get(host)
        vram = scene.table("gpu-vram").pick(hosts=[host]).between(kill - _NEAR_KILL_S, kill)
        for _, row in vram:
            if total and not np.isnan(row).all():
                share = 100 * float(np.nanmax(row)) / total
                record.row(
                    "beside", True, "GPU memory before the kill", [host], share, "%", "gpu-vram"
                )
