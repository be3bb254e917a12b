"""Playbook: did a node or a GPU fail? Error counters, the kernel log's count, silence.

Since boot is not since the job began: what did not grow is reported as "before the job", except
that an uncorrectable error above zero always counts.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from raydiag import catalog
from raydiag.model import Confidence, Severity
from raydiag.playbooks.node_deaths import judge_node_deaths
from raydiag.playbooks.node_failure.driver import (
    TOGETHER_S,
    DriverSigns,
    driver_signs,
    has_power_gaps,
)
from raydiag.playbooks.node_failure.error_counters import (
    fine_corrected,
    fine_uncorrected,
    judge_corrected,
    judge_uncorrected,
    judge_xids,
)
from raydiag.playbooks.registry import playbook
from raydiag.playbooks.report_writer import Period, ReportWriter, remark_unless
from raydiag.timeline import follow_up, known_values
from raydiag.timeline.answers import ResultTable
from raydiag.timeline.queries import DMESG, POWER, PROCESSES, short_s
from raydiag.timeline.run_timeline import RunTimeline
from raydiag.tsdb.series import Query


def fine_errors(timeline: RunTimeline) -> Iterator[Query]:
    """Error counters that grew, to date them."""
    yield from fine_uncorrected(timeline)
    yield from fine_corrected(timeline)
    yield from _fine_gpus(timeline)


@playbook("node-failure", fine_errors)
def node_failure(timeline: RunTimeline, report: ReportWriter) -> str:
    """Every counter of every GPU, the driver, and who fell silent."""
    judge_node_deaths(timeline, report)
    judge_uncorrected(timeline, report)
    judge_corrected(timeline, report)
    judge_xids(timeline, report)
    judge_driver(timeline, report)
    judge_missing_gpus(timeline, report)
    report_silent_exits(timeline, report)
    hosts = ", ".join(report.observed_hosts)
    return f"Suspects: {hosts}." if hosts else "No sign of failed hardware."


def judge_driver(timeline: RunTimeline, report: ReportWriter) -> None:
    """The GPU driver: lines in the kernel log, exporter cycles that time out, gaps in power."""
    all_signs = driver_signs(timeline)
    counted = [signs for signs in all_signs if signs.errors is not None]
    if not counted:
        report.row("driver", None, f"{DMESG}: metric absent")
    for signs in all_signs:
        in_log = []
        if signs.most_errors > 0 and (signs.few or signs.grew_at is not None):
            in_log = [f"{signs.most_errors:.0f} GPU errors in its kernel log"]
        outside_log = list(signs.exporter.values())
        if signs.has_lost_gpus and not _steps_went_on(timeline, signs.lost_at):
            _report_lost_gpus(report, signs, in_log)
        elif in_log or len(outside_log) > 1 or (outside_log and signs.most_errors > 0):
            confirmed = bool(in_log and outside_log)
            _report_driver_fault(report, signs, [*in_log, *outside_log], confirmed)
    if counted and not any(signs.most_errors > 0 for signs in counted):
        report.row("driver", False, "no GPU error in any kernel log")


def _steps_went_on(timeline: RunTimeline, lost_at: float | None) -> bool:
    """Whether training computed for minutes after a host's GPUs were read for the last time."""
    _, last_step_at = timeline.last_step
    return bool(lost_at and last_step_at and last_step_at > lost_at + TOGETHER_S)


def _report_driver_fault(
    report: ReportWriter, signs: DriverSigns, texts: list[str], several: bool
) -> None:
    onset = signs.grew_at
    growing = onset is not None
    report.finding(
        "driver",
        "; ".join(texts),
        evidence=[report.evidence("driver", text, None, onset) for text in texts],
        host=signs.host,
        period=Period(onset, uncertainty_s=signs.step_s, before_job=not growing),
        confidence=Confidence.CONFIRMED if several else Confidence.POSSIBLE,
        severity=Severity.WARNING if growing or several else Severity.INFO,
        explanation="A degradation that does not end a job by itself.",
    )


def _report_lost_gpus(report: ReportWriter, signs: DriverSigns, in_log: Sequence[str]) -> None:
    """A driver that gives no answer about any GPU of a host: what computes there may wait too."""
    blocked = [] if signs.blocked is None else [f"{signs.blocked:.0f} tasks are blocked since"]
    texts = ["none of its GPUs can be read any more", *blocked, *in_log]
    onset = signs.lost_at
    report.finding(
        "driver",
        "; ".join(texts),
        evidence=[report.evidence("driver", text, None, onset) for text in texts],
        host=signs.host,
        period=Period(onset, uncertainty_s=signs.step_s),
        confidence=Confidence.CONFIRMED if blocked and signs.grew_then else Confidence.LIKELY,
        severity=Severity.CRITICAL,
        explanation=catalog.variant("gpu-driver-fault", "lost-gpus")["explanation"],
        facts={"reaches_the_job": 1.0},
    )


@dataclass(frozen=True)
class _FewerGpus:
    """A host of which fewer GPUs are measured than once, or than of the other hosts."""

    host: str
    full: float
    now: float
    gone_at: float | None  # None: they were never there


def _hosts_with_fewer_gpus(timeline: RunTimeline) -> Iterator[_FewerGpus]:
    table = timeline.table("gpu-count")
    most = {subject.host: known_values.highest(row) or 0.0 for subject, row in table}
    usual = _usual_of_most(most.values())
    for subject, row in table:
        answered = np.flatnonzero(~np.isnan(row))
        if answered.size < 3 or subject.host in timeline.dead_hosts:
            continue
        counts, full = row[answered], most[subject.host]
        now = float(np.median(counts[-3:]))
        if now < full and not has_power_gaps(table, subject.host):
            gone_at = table.times[answered[np.flatnonzero(counts >= full)[-1] + 1]]
            shown_for_s = short_s(timeline.context)
            yield _FewerGpus(subject.host, full, now, float(gone_at) - shown_for_s)
        elif usual is not None and now == full < usual:
            yield _FewerGpus(subject.host, usual, now, None)


def _usual_of_most(counts: Collection[float]) -> float | None:
    """What all hosts but one or two have, where they are many."""
    (usual, number), *_ = [*Counter(counts).most_common(1), (0.0, 0)]
    others = sum(1 for count in counts if count != usual)
    return usual if number >= 3 * others else None


def _fine_gpus(timeline: RunTimeline) -> Iterator[Query]:
    """Which GPUs are measured at the end, of hosts that lack some."""
    hosts = [fewer.host for fewer in _hosts_with_fewer_gpus(timeline)]
    if hosts:
        context = timeline.context
        match = follow_up.host_matcher(context, follow_up.first_hosts(hosts))
        promql = f"count_over_time({POWER}{{{match}}}[{follow_up.lookback(context)}])"
        yield Query.at("gpus-left", promql, context.window.end)


def judge_missing_gpus(timeline: RunTimeline, report: ReportWriter) -> None:
    """A GPU whose series end while its host goes on, or that only its host lacks."""
    if report.cannot_judge("gpu-missing"):
        return
    any_missing = False
    for fewer in _hosts_with_fewer_gpus(timeline):
        any_missing = True
        at = fewer.gone_at or timeline.window.start
        was_there = fewer.gone_at is not None
        never_began = timeline.job.status == "failed" and timeline.last_step[0] is None
        report.finding(
            "gpu-missing",
            f"{fewer.now:.0f} of {fewer.full:.0f} GPUs are measured",
            host=fewer.host,
            gpu=_missing_gpu(timeline, fewer),
            value=fewer.now,
            period=Period(at, uncertainty_s=timeline.table("gpu-count").step_s),
            # A job that trains without them does not miss them; hosts may differ.
            severity=remark_unless(was_there or never_began),
            confidence=Confidence.LIKELY if was_there else Confidence.POSSIBLE,
        )
    if not any_missing:
        report.row("gpu-missing", False, "every host has the GPUs that it had")


def _missing_gpu(timeline: RunTimeline, fewer: _FewerGpus) -> int | None:
    """The only one that is not measured any more; None where that is not known."""
    left = {
        subject.gpu for subject in timeline.table("gpus-left").pick(hosts=[fewer.host]).subjects
    }
    missing = set(range(int(fewer.full))) - left
    return next(iter(missing)) if left and len(missing) == 1 else None


def report_silent_exits(timeline: RunTimeline, report: ReportWriter) -> None:
    """Processes on GPUs that end on a few hosts while the others keep theirs: a silent exit."""
    table = timeline.table("driver").pick(PROCESSES)
    if not len(table):
        report.row("silent-exit", None, f"{PROCESSES}: metric absent")
        return
    exits = _process_exits(table)
    first = min(exits.values(), default=0.0)
    early = [host for host, time in exits.items() if time <= first + 2 * table.step_s]
    if early and len(early) * 2 < len(table.hosts):
        text = "processes on its GPUs ended before those of the other hosts"
        report.row("silent-exit", True, text, early, first)
    else:
        report.row("silent-exit", False, "no host lost its processes first")


def _process_exits(table: ResultTable) -> Mapping[str, float]:
    """When most of a host's processes were gone."""
    exits = {}
    for subject, row in table:
        answered = np.flatnonzero(~np.isnan(row))
        if answered.size < 4:
            continue
        counts = row[answered]
        usual = float(np.median(counts))
        low = np.flatnonzero(counts < 0.5 * usual)
        low = low[low > 0]
        if usual >= 1 and low.size:
            exits[subject.host] = float(table.times[answered[low[0]]])
    return exits
