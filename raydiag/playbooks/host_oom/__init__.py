"""Playbook: did a host run out of memory, and how? A leak, a spike, a save, all nodes at once.

The kernel's own count of kills says that it happened; the memory series say how it came to it. A
spike while a checkpoint is saved is normal up to the host's limit.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from raydiag.model import Confidence
from raydiag.playbooks.host_oom.memory_course import (
    ALL_NODES,
    LEAK,
    NEAR_KILL_S,
    MemoryCourse,
    memory_course,
    pattern,
    rises_with_saves,
)
from raydiag.playbooks.registry import playbook
from raydiag.playbooks.report_writer import Period, ReportWriter
from raydiag.timeline import follow_up, known_values
from raydiag.timeline.queries import (
    BLOCKED,
    DIRTY,
    IO_FULL,
    MEM_HOST,
    MEM_TOTAL,
    MEM_USED,
    OOM_KILLS,
    RAY_HOST,
    VRAM_TOTAL,
    WRITEBACK,
    gauges,
)
from raydiag.timeline.run_timeline import RunTimeline
from raydiag.timeline.threshold_spans import first_spans
from raydiag.tsdb.series import Query

FULL_SHARE = 0.97  # of the host's memory: at the limit
_SOON_FULL_S = 1800.0  # a host whose memory is full by then
_BESIDE_A_KILL = (
    ("storage", DIRTY, "bytes"),
    ("storage", WRITEBACK, "bytes"),
    ("storage", IO_FULL, "%"),
    ("tasks", BLOCKED, "tasks"),
)


def fine_memory(timeline: RunTimeline) -> Iterator[Query]:
    """Memory at full resolution, where the first look was coarser."""
    context, kills = timeline.context, _kill_times(timeline)
    if not kills or timeline.table("memory").step_s <= context.resolution_s():
        return
    hosts = follow_up.first_hosts(kills)
    promql = gauges((MEM_USED, MEM_HOST), RAY_HOST, "max", "$match")
    first = min(kills.values())
    yield from follow_up.fine_query(context, "memory-fine", promql, hosts, 2, first, ray=True)


@playbook("host-oom", fine_memory)
def host_oom(timeline: RunTimeline, report: ReportWriter) -> str:
    """Kills first; without any, a peak at the limit is reported and nothing more."""
    metric = _metric(timeline)
    kills = _report_kills(timeline, report)
    if metric:
        text = f"judged by {metric}"
        if metric != MEM_HOST:
            text += ", which in a container is the container's"
        report.row("memory", True, text)
    else:
        report.row("memory", None, timeline.answers.missing("memory"))
    judge = _MemoryJudge(timeline, report, metric)
    if metric:
        judge.report_limits(kills)
    for host, kill in kills.items():
        _report_pressure(timeline, report, host, kill)
    if kills:
        return [judge.explain_kill(host, kill) for host, kill in kills.items()][-1]
    if not metric:
        return "Undecided: no memory series."
    if timeline.job.primary == "oom-host":
        return judge.explain_without_kill()
    return "No host ran out of memory."


def _metric(timeline: RunTimeline) -> str:
    """The host's own memory where Ray tells it apart from the container's; "" for neither."""
    metrics = timeline.table("memory").metrics
    return next(filter(metrics.__contains__, (MEM_HOST, MEM_USED)), "")


def _kill_times(timeline: RunTimeline) -> dict[str, float]:
    """First kill of each host in the window."""
    kills = first_spans(timeline.table("oom-kills"))
    return {subject.host: span.start for subject, span in kills}


def _report_kills(timeline: RunTimeline, report: ReportWriter) -> Mapping[str, float]:
    if not timeline.context.discovery.has(OOM_KILLS):
        report.row("oom-kills", None, f"{OOM_KILLS}: metric absent")
        return {}
    table, kills = timeline.table("oom-kills"), _kill_times(timeline)
    for subject, row in table:
        if subject.host in kills:
            count = max(1.0, float(np.nansum(row)) / table.overlap)
            text = f"the kernel killed {count:.0f} processes"
            report.row("oom-kills", True, text, [subject.host], count)
    if not kills:
        report.row("oom-kills", False, "the kernel killed nothing")
        report.rule_out("oom-host", "no host's kernel killed a process for memory")
    return kills


@dataclass(frozen=True)
class _MemoryJudge:
    """Memory of all hosts, by one metric."""

    timeline: RunTimeline
    report: ReportWriter
    metric: str

    def explain_kill(self, host: str, kill: float) -> str:
        """A finding for a host whose kernel killed something."""
        killed = self.report.evidence("oom-kills", "the kernel killed a process", 1.0, kill)
        course = self._course(host, kill)
        if course is None:
            self.report.observe(
                "oom-kills",
                [killed],
                host=host,
                period=Period(kill, uncertainty_s=self.timeline.table("oom-kills").step_s),
                facts={"kill_time": kill},
            )
            return f"{host} ran out of memory; no series shows how."
        other_hosts = list(self._courses_of_others(host, kill))
        kind = pattern(self.timeline, course, kill, other_hosts)
        text = course.description(kind, kill)
        memory = self.report.evidence("memory", text, course.peak, course.left_level or kill)
        onset = _onset(course, other_hosts, kind, kill)
        self.report.finding(
            f"pattern-{kind}",
            text,
            value=course.peak,
            evidence=[killed, memory],
            host=host,
            period=Period(onset, uncertainty_s=course.uncertainty_s),
            confidence=Confidence.CONFIRMED,
            explanation=text,
            facts={"pattern": kind, "kill_time": kill},
        )
        recurs, meaning = _recurrence(self.timeline, course)
        self.report.row("reproducible", recurs, meaning, [host])
        return f"{host} ran out of memory ({kind})."

    def explain_without_kill(self) -> str:
        """The log says so and no kernel's count does: the hosts at their limit are likely."""
        end = self.timeline.job.crash_time or self.timeline.window.end
        full = [course for course in self._courses(end) if _is_full_at(course, end)]
        for course in full:
            self._observe_full(course, end)
        if not full:
            return "No host was at its limit."
        return f"At their limit when it ended: {', '.join(course.host for course in full)}."

    def _observe_full(self, course: MemoryCourse, end: float) -> None:
        kind = pattern(self.timeline, course, end, ())
        text = course.description(kind, end)
        onset = end if course.left_level is None else course.left_level
        self.report.finding(
            f"pattern-{kind}",
            text,
            value=course.peak,
            evidence=[self.report.evidence("memory", text, course.peak, course.left_level)],
            host=course.host,
            period=Period(onset, uncertainty_s=course.uncertainty_s),
            explanation=text,
            facts={"pattern": kind, "kill_time": end},
        )

    def report_limits(self, kills: Mapping[str, float]) -> None:
        """Peaks at the limit without a kill: close, and no more than that."""
        totals = self.timeline.capacities(MEM_TOTAL)
        if not totals:
            self.report.row("limit", None, f"{MEM_TOTAL}: metric absent", query="capacity")
            return
        near_limit = False
        for subject, row in self.timeline.table("memory").pick(self.metric):
            total, peak = totals.get(subject.host), known_values.highest(row) or 0.0
            if total and peak > FULL_SHARE * total and subject.host not in kills:
                near_limit = True
                percent = 100 * peak / total
                text = f"{percent:.0f} % of the host's memory at its peak, and nothing killed"
                self.report.row("limit", True, text, [subject.host], peak)
            if total and subject.host not in kills:
                self._report_growth(subject.host, total)
        if not near_limit and not kills:
            self.report.row("limit", False, "no host came near its limit")

    def _report_growth(self, host: str, total: float) -> None:
        """Memory that grows to the end, and would soon be all that the host has."""
        end = self.timeline.window.end
        course = self._course(host, end)
        if course is None or course.left_level is None or not course.is_slow(end):
            return
        grown, lasted = course.peak - course.usual, course.peak_time - course.left_level
        left_s = (total - course.peak) * lasted / max(grown, 1.0)
        if course.peak_time < end - NEAR_KILL_S or left_s > _SOON_FULL_S:
            return
        text = f"{course.description(LEAK, end)}; full in {left_s:.0f} s"
        self.report.finding(
            "growth",
            text,
            host=host,
            value=course.peak,
            period=Period(course.left_level, end, uncertainty_s=course.uncertainty_s),
        )

    def _course(self, host: str, until: float) -> MemoryCourse | None:
        if not self.metric:
            return None
        return memory_course(self.timeline, self.metric, host, until)

    def _courses(self, until: float) -> Iterator[MemoryCourse]:
        """Of all hosts that have samples."""
        return filter(None, (self._course(host, until) for host in self.timeline.context.hosts))

    def _courses_of_others(self, host: str, until: float) -> Iterator[MemoryCourse]:
        return (course for course in self._courses(until) if course.host != host)


def _is_full_at(course: MemoryCourse, end: float) -> bool:
    """Whether memory was at its limit when the job ended."""
    is_full = course.share is not None and course.share > FULL_SHARE
    return is_full and course.peak_time >= end - NEAR_KILL_S


def _onset(
    course: MemoryCourse, other_hosts: Sequence[MemoryCourse], kind: str, kill: float
) -> float:
    """When memory left its level. Where that is on all nodes at once, when it usually did: some of
    them may have been in a save before."""
    if course.left_level is None:
        return kill
    if kind != ALL_NODES:
        return course.left_level
    times = [each.left_level for each in (course, *other_hosts) if each.left_level is not None]
    return sorted(times)[len(times) // 2]


def _recurrence(timeline: RunTimeline, course: MemoryCourse) -> tuple[bool, str]:
    """Whether it would happen again, and why."""
    if rises_with_saves(timeline, course):
        return True, "memory rises with each save"
    if course.is_slow(float(course.times[-1])):
        return True, "memory grows step by step"
    return False, "seen once"


def _report_pressure(timeline: RunTimeline, report: ReportWriter, host: str, kill: float) -> None:
    """What storage and GPUs did when the kernel killed."""
    for query, metric, unit in _BESIDE_A_KILL:
        peak = _peak_before(timeline, query, host, kill, metric)
        if peak is not None:
            report.row("beside", True, f"{metric} before the kill", [host], peak, unit)
    total = timeline.capacities(VRAM_TOTAL).get(host)
    used = _peak_before(timeline, "gpu-vram", host, kill)
    if total and used is not None:
        text, percent = "GPU memory before the kill", 100 * used / total
        report.row("beside", True, text, [host], percent, "%", "gpu-vram")


def _peak_before(
    timeline: RunTimeline, query: str, host: str, kill: float, metric: str | None = None
) -> float | None:
    table = timeline.of_host(query, host, metric).between(kill - NEAR_KILL_S, kill)
    return known_values.highest(table.values)
