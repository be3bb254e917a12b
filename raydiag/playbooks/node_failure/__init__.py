"""Playbook: did a node or a GPU fail? Error counters, the kernel log's count, silence.

Since boot is not since the job began: what did not grow is reported as "before the job", except
that an uncorrectable error above zero always counts.
"""

from __future__ import annotations

from collections.abc import Iterator

from raydiag.playbooks.node_deaths import judge_node_deaths
from raydiag.playbooks.node_failure.error_counters import (
    fine_corrected,
    fine_uncorrected,
    judge_corrected,
    judge_uncorrected,
)
from raydiag.playbooks.node_failure.gpu_driver import (
    judge_driver,
    judge_missing_gpus,
    report_silent_exits,
)
from raydiag.playbooks.registry import playbook
from raydiag.playbooks.report_writer import ReportWriter
from raydiag.timeline.run_timeline import RunTimeline
from raydiag.tsdb.series import Query


def fine_errors(timeline: RunTimeline) -> Iterator[Query]:
    """Error counters that grew, to date them."""
    yield from fine_uncorrected(timeline)
    yield from fine_corrected(timeline)


@playbook("node-failure", fine_errors)
def node_failure(timeline: RunTimeline, report: ReportWriter) -> str:
    """Every counter of every GPU, the driver, and who fell silent."""
    judge_node_deaths(timeline, report)
    judge_uncorrected(timeline, report)
    judge_corrected(timeline, report)
    judge_driver(timeline, report)
    judge_missing_gpus(timeline, report)
    report_silent_exits(timeline, report)
    hosts = ", ".join(report.observed_hosts)
    return f"Suspects: {hosts}." if hosts else "No sign of failed hardware."
