"""Does storage keep the job waiting, apart from what saves do to it?"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from operator import attrgetter

import numpy as np

from raydiag import catalog
from raydiag.model import Confidence, Severity, Window
from raydiag.playbooks.report_writer import Period, ReportWriter, likely_if, remark_unless
from raydiag.timeline import follow_up, known_values
from raydiag.timeline.answers import ResultTable
from raydiag.timeline.context import SAVE, WRITE_BACK
from raydiag.timeline.queries import BLOCKED, DIRTY, INODES, IO_FULL, gauges
from raydiag.timeline.rdma_events import held_up
from raydiag.timeline.run_timeline import RunTimeline
from raydiag.timeline.slowdowns import REGRESSION
from raydiag.timeline.step_stalls import waiting_for_storage
from raydiag.timeline.threshold_spans import (
    SUSTAINED,
    Span,
    above,
    is_steady,
    sustained_above,
    sustained_by_host,
)
from raydiag.tsdb.series import Floats, Query

STALL_PERCENT = 20.0  # I/O pressure, "full": all tasks that could run wait for storage
_BRIEF_PERCENT = 50.0  # the same where it does not last, but comes again
_STALL_BLOCKED = 3.0
_FULL_PERCENT, _FILLED = 99.9, 1.0  # of a disk: nothing can be written, after it grew by so much
_EARLY = 0.3  # of what it grew by: it had only begun to
_NAMED = 8
_FEW_SAVES = 2  # usual ones before, and slow ones after
_SLOW_SAVE, _SLOW_SAVE_S = 3.0, 60.0  # times the usual save, and by so much
_STALLED_SAVE_S = 300.0  # by so much, where it is a single one


def fine_storage(timeline: RunTimeline) -> Iterator[Query]:
    """I/O pressure at full resolution, where the first look was coarser."""
    context, table = timeline.context, timeline.table("storage").pick(IO_FULL)
    if table.step_s <= context.resolution_s():
        return
    spans = sustained_by_host(table, STALL_PERCENT)
    hosts = follow_up.first_hosts(spans)
    promql = gauges((IO_FULL, DIRTY), "host", "max", "$match")
    first = min((span.start for span in spans.values()), default=None)
    yield from follow_up.fine_query(context, "storage-fine", promql, hosts, 2, first)


def report_hidden(report: ReportWriter, share: float) -> None:
    """Say that saves leave next to nothing to judge storage and tasks by."""
    percent, row = 100 * share, "saves-everywhere"
    text = (
        f"saves and what they write back cover {percent:.0f} % of training: a stall of storage or "
        "of a CPU in them could not be told from a save"
    )
    report.row(row, None, text, value=percent)
    evidence = [report.evidence("storage", text, percent)]
    report.observe(row, evidence, period=Period(), severity=Severity.INFO)


def judge_saves(timeline: RunTimeline, report: ReportWriter) -> None:
    """Saves that take several times as long from some moment on, to the end."""
    saves, end = _whole_saves(timeline), timeline.window.end - timeline.context.resolution_s()
    if timeline.job.status == "running":
        saves = [save for save in saves if save.end < end]  # one that still lasts tells nothing
    lengths = np.array([save.end - save.start for save in saves])
    first = _first_slow_save(lengths)
    if first is None:
        _judge_stalled_save(timeline, report, saves, lengths)
        return
    usual, slow = float(np.median(lengths[:first])), float(np.median(lengths[first:]))
    text = f"each of the last {lengths.size - first} saves takes {slow:.0f} s, {usual:.0f} s before"
    table = timeline.table("storage").pick(IO_FULL)
    pressure = table.medians(saves[-1])
    waiting = [host for host, percent in pressure.items() if percent > STALL_PERCENT]
    report.finding(
        "slow-saves",
        text,
        failure_class="storage-stall" if waiting else "checkpoint-effect",
        value=slow,
        period=Period(saves[first].start, saves[-1].end, uncertainty_s=timeline.next_step_s),
        confidence=likely_if(bool(waiting)),
        severity=Severity.WARNING,
    )


def _judge_stalled_save(
    timeline: RunTimeline, report: ReportWriter, saves: Sequence[Window], lengths: Floats
) -> None:
    """One save that took far longer than the others, while hosts waited for storage."""
    if lengths.size <= _FEW_SAVES:
        return
    number = int(np.argmax(lengths))
    usual = float(np.median(np.delete(lengths, number)))
    save, length = saves[number], float(lengths[number])
    if length < max(_SLOW_SAVE * usual, usual + _STALLED_SAVE_S):
        return
    pressure = timeline.table("storage").pick(IO_FULL).medians(save)
    hosts = [host for host, percent in pressure.items() if percent > _BRIEF_PERCENT]
    for host in hosts[:_NAMED]:
        text = f"a save took {length:.0f} s, {usual:.0f} s usually, "
        text += f"I/O pressure {pressure[host]:.0f} % meanwhile"
        report.finding(
            "storage-stall",
            text,
            host=host,
            value=pressure[host],
            period=Period(save.start, save.end, True, timeline.next_step_s),
            confidence=Confidence.LIKELY,
            severity=Severity.WARNING,
            explanation=catalog.variant("storage-stall", "stalled-save")["explanation"],
        )


def _whole_saves(timeline: RunTimeline) -> list[Window]:
    """Each save once: log and steps may both tell of it."""
    saves: list[Window] = []
    masks = [mask for mask in timeline.context.masks if mask.kind == SAVE and mask.start > 0]
    for mask in sorted(masks, key=attrgetter("start")):
        if saves and mask.start <= saves[-1].end:
            last = saves.pop()
            saves.append(Window(last.start, max(last.end, mask.end)))
        else:
            saves.append(Window(mask.start, mask.end))
    return saves


def _first_slow_save(lengths: Floats) -> int | None:
    """From where on all saves are slow; None where they are not, or are too few to tell."""
    for first in range(_FEW_SAVES, lengths.size - _FEW_SAVES + 1):
        usual = float(np.median(lengths[:first]))
        limit = max(_SLOW_SAVE * usual, usual + _SLOW_SAVE_S)
        if lengths[first:].min() > limit >= lengths[:first].max():
            return first
    return None


def judge_disks(timeline: RunTimeline, report: ReportWriter) -> None:
    """Disks that ran full, or out of inodes, while the job ran, dated to when they began to."""
    _judge_filling(timeline, report, "disk", timeline.table("disk"), "of a disk is used")
    inodes = timeline.table("parts").pick(INODES)
    _judge_filling(timeline, report, "inodes", inodes, "of the inodes of a disk are used")


def _judge_filling(
    timeline: RunTimeline, report: ReportWriter, name: str, table: ResultTable, what: str
) -> None:
    if report.cannot_judge(name):
        return
    full = dict(_filled(table))
    for host, (span, began) in full.items():
        report.finding(
            name,
            f"{span.peak:.1f} % {what}",
            host=host,
            value=span.peak,
            period=report.period(span, table.step_s, began),
        )
    if not full:
        report.row(name, False if len(table) else None, "none ran full" if len(table) else "absent")


def _filled(table: ResultTable) -> Iterator[tuple[str, tuple[Span, float]]]:
    """Hosts with the time in which one was full, and when it began to fill."""
    for subject, row in table:
        spans = above(table, row, _FULL_PERCENT)
        if not spans or known_values.known(row)[0] > _FULL_PERCENT:
            continue
        before = table.times < spans[0].start
        lowest = float(np.nanmin(row[before]))
        if not (spans[0].sustained or spans[0].open) or lowest > _FULL_PERCENT - _FILLED:
            continue
        near_lowest = before & (row <= lowest + min(1.0, _EARLY * (_FULL_PERCENT - lowest)))
        yield subject.host, (spans[-1], float(table.times[near_lowest][-1]))


def judge_storage(timeline: RunTimeline, report: ReportWriter, hidden: bool) -> None:
    """Tasks that wait for storage outside saves, for minutes. `hidden`: next to no such time."""
    if report.cannot_judge("storage-stall"):
        return
    table = timeline.outside_saves("storage").pick(IO_FULL)
    spans = {**_recurring(timeline, table), **sustained_by_host(table, STALL_PERCENT)}
    for host in _report_hang(timeline, report):
        spans.pop(host, None)
    for host, span in islice(spans.items(), _NAMED):
        _report_stall(report, host, span, table.step_s)
    if report.observed_classes.count("storage-stall"):
        return
    if not spans and hidden:
        report.row("storage-stall", None, "almost no time outside saves")
    elif not spans:
        report.row("storage-stall", False, "no host waits for storage outside saves", query="")
        report.rule_out("storage-stall", "I/O pressure stays low outside saves")


def _recurring(timeline: RunTimeline, table: ResultTable) -> dict[str, Span]:
    """Hosts that wait for storage again and again, each time briefly, and steps wait with them."""
    hosts = {}
    for subject, row in table:
        spans = [span for span in above(table, row, _BRIEF_PERCENT) if _is_felt(timeline, span)]
        if len(spans) >= SUSTAINED:
            peak = max(spans, key=attrgetter("peak"))
            end, is_open = spans[-1].end, spans[-1].open
            hosts[subject.host] = replace(peak, start=spans[0].start, end=end, open=is_open)
    return hosts


def _is_felt(timeline: RunTimeline, span: Span) -> bool:
    """Whether steps took longer meanwhile."""
    slower = held_up(timeline, [(span.start, span.end)])
    return slower is not None and slower > REGRESSION


def _report_hang(timeline: RunTimeline, report: ReportWriter) -> tuple[str, ...]:
    """The hosts that wait for storage as long as no step ends, be it in a save."""
    stall = timeline.stall
    if stall is None:
        return ()
    hosts = waiting_for_storage(timeline, stall.settled)
    for host in hosts[:_NAMED]:
        table = timeline.of_host("storage", host, IO_FULL)
        loaded = table.values[0] > STALL_PERCENT
        quiet = table.times[~loaded & (table.times < stall.settled.start)].max(initial=0.0)
        since = table.times[loaded & (table.times > quiet)].min(initial=stall.start)
        percent = known_values.median(table.between(stall.settled.start, stall.end).values)
        report.finding(
            "storage-stall",
            f"I/O pressure {percent or 0.0:.0f} % as long as no step ends",
            host=host,
            value=percent,
            at=stall.settled.start,
            period=Period(float(since), stall.end, uncertainty_s=timeline.next_step_s),
            confidence=Confidence.CONFIRMED,
        )
    return hosts


def _report_stall(report: ReportWriter, host: str, span: Span, step_s: float) -> None:
    onset = span.start
    fine = report.timeline.outside_saves("storage-fine").pick(IO_FULL, [host])
    for _, row in fine:
        closer = sustained_above(fine, row, STALL_PERCENT)
        if closer is not None:
            onset, step_s = closer.start, fine.step_s
    onset = _start_in_save(report.timeline, host, onset)
    blocked = report.timeline.outside_saves("tasks").pick(BLOCKED, [host])
    tasks = known_values.highest(blocked.between(span.start, span.end).values) or 0.0
    outside_saves = report.timeline.outside_saves("storage").pick(IO_FULL, [host])
    steady = is_steady(outside_saves, outside_saves.values[0], span, STALL_PERCENT)
    has_steps = (
        bool(report.timeline.training.times.size) or report.timeline.context.trained is not None
    )
    dated = has_steps or not report.timeline.job.checkpoint_period
    when = "outside saves" if dated else "possibly during saves: no step is dated"
    report.finding(
        "storage-stall",
        f"I/O pressure {span.peak:.0f} % {when}, {tasks:.0f} tasks wait",
        host=host,
        value=span.peak,
        at=span.peak_time,
        period=report.period(span, step_s, onset),
        confidence=likely_if(tasks >= _STALL_BLOCKED and dated),
        severity=remark_unless(dated and not steady),
        facts={"steady": float(steady)},
    )


def _start_in_save(timeline: RunTimeline, host: str, noticed: float) -> float:
    """When storage stalled, also where that was in a save, of a host that no save loads usually."""
    table = timeline.of_host("storage", host, IO_FULL)
    if not len(table):
        return noticed
    times, pressure = table.times, table.values[0]
    early = times < noticed
    in_saves = ~timeline.context.judged(times, host, IO_FULL, SAVE, WRITE_BACK)
    usual = known_values.median(pressure[early & in_saves])
    quiet = times[early & (pressure <= STALL_PERCENT)]  # NaN is not quiet either
    if usual is None or usual > STALL_PERCENT / 4 or not quiet.size:
        return noticed
    stalled = times[(times > quiet[-1]) & early & (pressure > STALL_PERCENT)]
    return next(map(float, stalled), noticed)
