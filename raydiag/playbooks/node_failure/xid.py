"""NVIDIA's error numbers, as far as an exporter shows the last one of each GPU."""

from __future__ import annotations

import numpy as np

from raydiag import catalog
from raydiag.catalog.kernel_table import NvidiaCode
from raydiag.model import Severity
from raydiag.playbooks.report_writer import Period, ReportWriter
from raydiag.timeline.run_timeline import RunTimeline

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
