"""The checklist for training that got slower: every source is looked at, also after a hit.

Sources add up, so the first one found is not the last one looked for. Each is compared between the
time when training was slow, or the whole run, and what is usual for the same host.
"""

from itertools import islice

from raydiag.model import Window
from raydiag.playbooks.report_writer import Period, ReportWriter, likely_if, remark_unless
from raydiag.playbooks.tables import COMPARED, COUNTED
from raydiag.playbooks.training_stability.storage import judge_storage, report_hidden
from raydiag.timeline import known_values, masks
from raydiag.timeline.answers import ResultTable
from raydiag.timeline.context import BEFORE_JOB, GHOST, WARM_UP
from raydiag.timeline.deviations import departure
from raydiag.timeline.queries import PROCESSES, RUNNING
from raydiag.timeline.run_timeline import RunTimeline
from raydiag.timeline.slowdowns import CLOCK_FELL, Slowdown, before_and_slow, odd_changes
from raydiag.timeline.threshold_spans import Span, first_spans, sustained_above
from raydiag.timeline.training_series import BALANCE, GRAD, LOSS
from raydiag.tsdb.series import Floats

_FALLS = ("min", "avg")  # what falls, not rises, where it hurts
_CPU_FACTOR, _CPU_TASKS = 1.5, 16.0  # more running tasks than usual
_MORE = 1.2  # times what is usual, for a row to hold
_NAMED = 8
# What tells the late host from those who wait, the clearest first: row, query, stat, least change.
_LATE = (
    ("late", "gpu-utilisation", "avg", 0.05),
    ("late", "gpu-utilisation", "min", 0.15),
    ("", "gpu-clock", "min", CLOCK_FELL),
    ("straggler", "gpu-power", "avg", 0.1),
)


def check(timeline: RunTimeline, report: ReportWriter) -> None:
    """One row for each metric of the list; findings for storage, CPU and foreign processes."""
    slowdown = timeline.slowdown
    share_of_saves = masks.unjudged(timeline.context, timeline.trained)
    hidden = share_of_saves is not None
    if share_of_saves is not None:
        report_hidden(report, share_of_saves)
    judge_storage(timeline, report, hidden)
    _judge_cpu(report, slowdown, hidden)
    _judge_foreign_processes(timeline, report)
    if slowdown is not None:
        _judge_stragglers(timeline, report, slowdown)
    for group, query, metric in COMPARED:
        _compare(report, f"checklist-{group}", query, metric, slowdown)
    for group, query in COUNTED:
        _report_counted(timeline, report, f"checklist-{group}", query)
    for metric in (BALANCE, GRAD, LOSS):
        _compare_scalar(report, metric, slowdown)


def _compare(
    report: ReportWriter, row: str, query: str, metric: str | None, slowdown: Slowdown | None
) -> None:
    """The hosts that changed most when training was slow."""
    name = metric if metric and metric.startswith("hw_") else query
    reason = report.timeline.answers.missing(query)
    table = report.timeline.steady(query).pick(metric)
    if reason or not len(table):
        report.row(row, None, f"{name}: {reason or 'metric absent'}", query=query)
        return
    if slowdown is None:
        highest = known_values.highest(table.values)
        number = "nan" if highest is None else f"{highest:.4g}"
        report.row(row, False, f"{name}: training was not slower, highest {number}", query=query)
        return
    before, slow = before_and_slow(table, slowdown)
    falls = metric in _FALLS
    odd = [host for host in slow if host in before and _changed(before[host], slow[host], falls)]
    if not odd:
        report.row(row, False, f"{name}: as before", query=query)
        return
    worst = max(odd, key=lambda host: abs(slow[host] - before[host]))
    was, is_slow = (_in_words(name, value) for value in (before[worst], slow[worst]))
    text = f"{name}: {was} before, {is_slow} while slow on {worst}"
    report.row(row, True, text, sorted(odd), slow[worst], query=query)


def _in_words(name: str, value: float) -> str:
    """Sizes in GB or MB."""
    if name != "memory" and not name.endswith("_bytes"):
        return f"{value:.4g}"
    return f"{value / 1e9:.4g} GB" if value >= 1e9 else f"{value / 1e6:.4g} MB"


def _changed(before: float, now: float, falls: bool = False) -> bool:
    if falls:
        return now < before / _MORE
    return now > _MORE * before and now - before > 1e-9


def _report_counted(timeline: RunTimeline, report: ReportWriter, row: str, query: str) -> None:
    reason = timeline.missing(query)
    if reason:
        report.row(row, None, reason, query=query)
        return
    counting = {subject.host for subject, _ in first_spans(timeline.table(query))}
    text = f"counted on {len(counting)} hosts" if counting else "nothing counted"
    report.row(row, bool(counting), text, sorted(counting), query=query)


def _compare_scalar(report: ReportWriter, metric: str, slowdown: Slowdown | None) -> None:
    """Did training's own numbers change with it?"""
    row = "checklist-training"
    series = report.timeline.training.series(metric)
    if series is None:
        report.row(row, None, f"{metric}: metric absent")
        return
    if slowdown is None or not len(series):
        report.row(row, False, f"{metric}: training was not slower")
        return
    before = known_values.median(series.values[series.times < slowdown.start])
    slow = known_values.median(series.between(slowdown.start, slowdown.end).values)
    holds = None if before is None or slow is None else _changed(before, slow)
    text = f"{metric}: {before or 0:.4g} before, {slow or 0:.4g} while slow"
    report.row(row, holds, text, value=slow)


def _judge_cpu(report: ReportWriter, slowdown: Slowdown | None, hidden: bool) -> None:
    """More tasks than usual in steady training; a constant tax shows in a comparison only."""
    row = "cpu-contention"
    table = report.timeline.steady("tasks").pick(RUNNING)
    if not len(table):
        report.row(row, None, f"{RUNNING}: metric absent")
        return
    overloaded = _overloaded(table)
    for host, (span, usual) in islice(overloaded.items(), _NAMED):
        _report_overload(report, host, span, usual, slowdown)
    if not overloaded and hidden:
        report.row(row, None, "almost no time outside saves")
    elif not overloaded:
        report.row(row, False, "as many running tasks as usual")
        report.rule_out("cpu-contention", "the number of running tasks is steady on every host")


def _overloaded(table: ResultTable) -> dict[str, tuple[Span, float]]:
    """Hosts that had too many running tasks: when, and how many are usual."""
    overall = known_values.median(table.values.ravel())
    hosts = {}
    for subject, row in table:
        usual = min(filter(None, (_early_median(row), overall)), default=None)
        if usual is None:
            continue
        span = sustained_above(table, row, max(_CPU_FACTOR * usual, usual + _CPU_TASKS))
        if span is not None:
            hosts[subject.host] = span, usual
    return hosts


def _early_median(row: Floats) -> float | None:
    """Of the first third."""
    return known_values.median(row[: max(4, row.size // 3)])


def _report_overload(
    report: ReportWriter, host: str, span: Span, usual: float, slowdown: Slowdown | None
) -> None:
    timeline = report.timeline
    text = f"{span.peak:.0f} running tasks where {usual:.0f} are usual"
    percent = timeline.steady("cpu").pick(hosts=[host])
    load = percent.medians(Window(span.start, span.end)).get(host)
    if load is not None:
        text += f", CPU at {load:.0f} %"
    slowed = slowdown is not None and slowdown.overlaps(span.start, span.end)
    step_s = timeline.steady("tasks").step_s
    report.finding(
        "cpu-contention",
        text,
        host=host,
        value=span.peak,
        at=span.peak_time,
        period=report.period(span, step_s, _overload_start(timeline, host, span, usual)),
        confidence=likely_if(slowed),
        severity=remark_unless(slowed),
    )


def _overload_start(timeline: RunTimeline, host: str, span: Span, usual: float) -> float:
    """When its tasks became more, also when a save hid that."""
    table = timeline.of_host("tasks", host, RUNNING)
    if not len(table):
        return span.start
    least = max((_CPU_FACTOR - 1) * usual, _CPU_TASKS)
    masked = (GHOST, WARM_UP, BEFORE_JOB)
    row, context = table.values[0], timeline.context
    return departure(context, table, row, host, span.start, least, 1, masked)


def _judge_foreign_processes(timeline: RunTimeline, report: ReportWriter) -> None:
    """Processes on the GPUs that came on top of the job's own."""
    table = timeline.steady("driver").pick(PROCESSES)
    if not len(table):
        report.row("neighbours", None, f"{PROCESSES}: metric absent")
        return
    hits = 0
    for subject, row in table:
        usual = _early_median(row)
        span = sustained_above(table, row, usual) if usual else None
        if span is None or not usual or hits >= _NAMED:
            continue
        hits += 1
        report.finding(
            "neighbours",
            f"{span.peak:.0f} processes on its GPUs where the job has {usual:.0f}",
            host=subject.host,
            value=span.peak,
            period=Period(span.start, span.end, not span.open, table.step_s),
        )
    if not hits:
        report.row("neighbours", False, "no process besides the job's own")


def _is_clock_kept(timeline: RunTimeline, slowdown: Slowdown) -> bool:
    """Whether most hosts kept their clock: else power fell because they were throttled."""
    change = odd_changes(timeline.steady("gpu-clock").pick("min"), slowdown, CLOCK_FELL)
    return change is not None and change.usual > 1 - CLOCK_FELL


def _judge_stragglers(timeline: RunTimeline, report: ReportWriter, slowdown: Slowdown) -> None:
    """One host whose GPUs changed otherwise than the others' when training got slower.

    Who waits in a collective spins, so the host whose GPUs do less is the one that is late. Power
    tells less: a GPU with a low clock, which has a finding of its own, and all who wait draw less.
    Where most draw less and one host as much as before, the others wait for what it computes.
    """
    # The date is that of the slow-down itself, so it says nothing of when this ended.
    uncertainty_s = max(timeline.steady("gpu-power").step_s, timeline.step_time_s)
    period = Period(slowdown.start, uncertainty_s=uncertainty_s)
    for row, query, stat, least in _LATE:
        odd = odd_changes(timeline.steady(query).pick(stat), slowdown, least)
        late = {} if odd is None else odd.ratios
        if odd is not None and row == "straggler" and _is_clock_kept(timeline, slowdown):
            late = late or odd.kept
        if odd is None or not late:
            continue
        for host, ratio in late.items():
            share = 100 * ratio
            text = f"{query} changed to {share:.0f} % there, {100 * odd.usual:.0f} % elsewhere"
            if row:
                report.finding(row, text, host=host, value=share, period=period)
        return
    report.row("straggler", False, "GPUs changed by the same share on all hosts")
