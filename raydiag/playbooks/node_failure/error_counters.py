"""Errors that GPUs count: uncorrectable ones above zero, corrected ones that grew; Xids."""

from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter, itemgetter

import numpy as np

from raydiag import catalog
from raydiag.catalog.kernel_table import NvidiaCode
from raydiag.model import Severity
from raydiag.playbooks.report_writer import Period, ReportWriter
from raydiag.playbooks.tables import CLASS_OF_COUNTER
from raydiag.timeline import follow_up
from raydiag.timeline.answers import ResultTable, Subject
from raydiag.timeline.queries import CORRECTED, FATAL, gauges, increases
from raydiag.timeline.run_timeline import RunTimeline
from raydiag.timeline.threshold_spans import first_present, growths
from raydiag.tsdb.series import Floats, Query

# Old ones say nothing; what was retired is of a card's whole life.
_ONLY_IF_GROWN = ("hw_gpu_pcie_nonfatal_total", "hw_gpu_ras_retired_ue_total")
_SEVERITY_OF_GROWTH = dict.fromkeys(_ONLY_IF_GROWN)  # others are critical
_NO_VALUES = np.empty(0)
_MANY = 10.0  # corrected errors; fewer are a remark
_SLIGHT = 0.01  # of what another GPU counted: it is not what happened


@dataclass(frozen=True)
class _Count:
    """One counter of one GPU that is above zero."""

    subject: Subject
    first: float  # value when the window began; 0 where it was not above zero
    last: float
    grew_at: float | None  # first time that it was higher than before

    @property
    def is_old(self) -> bool:
        """All of it is from before the job."""
        return self.grew_at is None

    @property
    def severity(self) -> Severity | None:
        """Critical where it grew, a warning where it was there before the job."""
        if self.is_old:
            return Severity.WARNING
        return _SEVERITY_OF_GROWTH.get(self.subject.metric, Severity.CRITICAL)

    @property
    def description(self) -> str:
        """For a person."""
        since = (
            "all of it from before the job" if self.is_old else f"{self.first:.0f} at the beginning"
        )
        return f"{self.subject.metric} {self.last:.0f}, {since}"


def fine_uncorrected(timeline: RunTimeline) -> Iterator[Query]:
    """Uncorrectable counters that grew, to date them."""
    table, context = timeline.table("gpu-errors"), timeline.context
    grown: list[tuple[float, str]] = []
    for subject, row in table:
        answered = np.flatnonzero(~np.isnan(row))
        if not answered.size:
            continue
        first = float(table.times[answered[0]])
        is_new = first > table.asked_from + table.step_s
        if is_new or np.nanmax(row) > row[answered[0]]:
            grown.append((first, subject.host))
    grown.sort()
    hosts = follow_up.first_hosts(host for _, host in grown)
    promql = gauges(FATAL, "host, gpu", "max", "$match", "0")
    rows, around = follow_up.PER_HOST * len(FATAL), next(map(itemgetter(0), grown), None)
    yield from follow_up.fine_query(context, "gpu-errors-fine", promql, hosts, rows, around)


def fine_corrected(timeline: RunTimeline) -> Iterator[Query]:
    """Corrected counters that grew, to date them."""
    context = timeline.context
    grown = sorted(growths(timeline.table("gpu-corrected")), key=attrgetter("span.start", "host"))
    hosts = follow_up.first_hosts(growth.host for growth in grown)
    if not hosts:
        return
    grown_metrics = {growth.subject.metric for growth in grown}
    metrics = list(filter(grown_metrics.__contains__, CORRECTED))
    promql = increases(metrics, "host, gpu", "{$match}", follow_up.lookback(context))
    rows, first = follow_up.PER_HOST * len(metrics), grown[0].span.start
    yield from follow_up.fine_query(context, "gpu-corrected-fine", promql, hosts, rows, first)


def judge_uncorrected(timeline: RunTimeline, report: ReportWriter) -> None:
    """Any above zero; critical where it grew, a warning where it was there before the job."""
    if report.cannot_judge("uncorrected"):
        return
    table, fine = timeline.table("gpu-errors"), timeline.table("gpu-errors-fine")
    step = fine.step_s if len(fine) else table.step_s
    counts = list(_counts(table, fine))
    for count in counts:
        _judge_count(report, count, step)
    if not counts:
        report.row("uncorrected", False, "all zero on every GPU")
        counted = set(map(CLASS_OF_COUNTER.get, filter(timeline.context.discovery.has, FATAL)))
        for failure_class in filter(counted.__contains__, ("gpu-memory-error", "pcie-fatal")):
            report.rule_out(failure_class, "its counters are zero on every GPU that has them")


def _judge_count(report: ReportWriter, count: _Count, step_s: float) -> None:
    subject, text = count.subject, count.description
    if count.is_old and subject.metric in _ONLY_IF_GROWN:
        report.row("uncorrected", True, text, [subject.host], count.last, gpu=subject.gpu)
        return
    report.finding(
        "uncorrected",
        text,
        failure_class=CLASS_OF_COUNTER[subject.metric],
        value=count.last,
        host=subject.host,
        period=Period(count.grew_at, uncertainty_s=step_s, before_job=count.is_old),
        severity=count.severity,
        gpu=subject.gpu,
    )


def _counts(table: ResultTable, fine: ResultTable) -> Iterator[_Count]:
    """From the coarse query, dated by the fine one where that was asked."""
    fine_rows = fine.by_subject
    for subject, row in table:
        answered = np.flatnonzero(~np.isnan(row))
        if not answered.size:
            continue
        from_start = table.times[answered[0]] <= table.asked_from + table.step_s
        first = float(row[answered[0]]) if from_start else 0.0
        grew_at = _growth(table.times, row, first)
        fine_row = fine_rows.get(subject)
        if fine_row is not None and grew_at is not None:
            grew_at = _growth(fine.times, fine_row, first) or grew_at
        yield _Count(subject, first, float(row[answered[-1]]), grew_at)


def _growth(times: Floats, row: Floats, first: float) -> float | None:
    """When a counter first rose; a fall is a reset and says nothing."""
    has_value = ~np.isnan(row)
    values = row[has_value]
    before = np.concatenate([[first], values[:-1]])
    return next(map(float, times[has_value][values > before]), None)


def judge_corrected(timeline: RunTimeline, report: ReportWriter) -> None:
    """Corrected errors, by what they grew: nothing is lost yet."""
    if report.cannot_judge("corrected"):
        return
    table, fine = timeline.table("gpu-corrected"), timeline.table("gpu-corrected-fine")
    fine_rows = fine.by_subject
    grown = [growth for growth in growths(table) if growth.subject.metric in CORRECTED]
    most = max(map(attrgetter("total"), grown), default=0.0)
    for growth in grown:
        subject, onset, step = growth.subject, growth.span.start, table.step_s
        closer = first_present(fine, fine_rows.get(subject, _NO_VALUES))
        if closer is not None:
            onset, step = closer.start, fine.step_s
        text = f"{subject.metric} grew by {growth.total:.0f}"
        severity = Severity.WARNING
        if growth.total < max(_MANY, _SLIGHT * most):
            text += ", a few only"
            severity = Severity.INFO
        report.finding(
            "corrected",
            text,
            failure_class=CLASS_OF_COUNTER[subject.metric],
            host=subject.host,
            value=growth.total,
            period=Period(onset, uncertainty_s=step),
            severity=severity,
            gpu=subject.gpu,
            facts={"grew_by": growth.total},
        )
    if not grown:
        report.row("corrected", False, "no counter grew while the job ran")


# ---- NVIDIA's error numbers, as far as an exporter shows the last one of each GPU

_QUERY = "gpu-xid"
_NOT_LISTED = NvidiaCode("Xid", "a number that is not listed", "", Severity.WARNING)
_OF_PROGRAMS = (13, 31, 43, 45, 69, 108, 137)  # what a program did, or that it ended


def judge_xids(timeline: RunTimeline, report: ReportWriter) -> None:
    """A finding for each number that was new while the job ran; an older one says nothing."""
    if _QUERY not in timeline.answers:
        return
    table, power = timeline.table(_QUERY), timeline.table("gpu-power").pick("avg")
    measured_at = {subject.host: power.times[~np.isnan(row)] for subject, row in power}
    for subject, row in table:
        # What the first samples show may be weeks old.
        first = measured_at.get(subject.host, np.empty(0)).min(initial=np.inf)
        old_until = max(table.asked_from, float(first)) + table.step_s
        answered = np.flatnonzero(~np.isnan(row))
        before = np.nan
        for place in answered:
            if row[place] == before or table.times[place] <= old_until:
                before = row[place]
                continue
            before, code, onset = row[place], int(row[place]), float(table.times[place])
            meaning = catalog.nvidia_code("xid", code) or _NOT_LISTED
            severity = meaning.severity
            if code in _OF_PROGRAMS:
                severity = Severity.INFO
            text = f"Xid {code}: {meaning.title}"
            report.observe(
                "xid",
                [report.evidence(_QUERY, text, float(code), onset)],
                failure_class=meaning.finding or "nvidia-xid",
                host=subject.host,
                period=Period(onset, uncertainty_s=table.step_s),
                severity=severity,
                gpu=subject.gpu,
            )
    seen = [found for found in report.observations if found.row == "xid"]
    report.row("xid", bool(seen), f"{len(seen)} new while the job ran")
