"""Crashes of the kernel that a node went through, from what it saved before its reboot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from raydiag.model import Confidence, Evidence, Finding, Severity, Snapshot
from raydiag.probes.previous_boot import CrashDump
from raydiag.rules.machines import by_host, distinct

_NEWS_S = 86_400.0  # without a job
_LINES = 4  # of each dump
_PARTS = 3  # dumps told of one kind: the first parts of the newest crash


def crashes(snapshot: Snapshot) -> Iterator[Finding]:
    """The newest panic and the newest oops of each host; from before the job it is a remark."""
    began = snapshot.time - _NEWS_S if snapshot.job_start is None else snapshot.job_start
    for host, reports in by_host(snapshot).items():
        dumps: list[CrashDump] = distinct(reports, "previous_boot", "file")
        dumps.sort(key=lambda dump: dump.time_s, reverse=True)
        for failure_class in ("kernel-panic", "kernel-oops"):
            same = [dump for dump in dumps if _class(dump) == failure_class]
            if same:
                yield _finding(failure_class, host, same, began)


def _finding(failure_class: str, host: str, dumps: Sequence[CrashDump], began: float) -> Finding:
    """`dumps` newest first."""
    time_s = dumps[0].time_s
    is_new = time_s > began
    severity = Severity.CRITICAL if failure_class == "kernel-panic" else Severity.WARNING
    is_told = bool(dumps[0].reason or dumps[0].lines)
    evidence = [
        Evidence(dump.file, text, time=dump.time_s)
        for dump in dumps[:_PARTS]
        if dump is dumps[0] or not is_new or dump.time_s > began
        for text in dump.lines[:_LINES] or (dump.reason or "compressed, or without text",)
    ]
    return Finding(
        failure_class,
        host=host,
        # An old one must not give its date to what the kernel log tells of today.
        device=None if is_new else dumps[0].file,
        severity=severity if is_new and is_told else Severity.INFO,
        onset=time_s,
        confidence=Confidence.LIKELY if is_told else Confidence.POSSIBLE,
        evidence=tuple(evidence),
        explanation="" if is_new else "It happened before the present job; the node has rebooted.",
    )


def _class(dump: CrashDump) -> str:
    """The kernel saves a dump for these two only, unless it is told to save all of its log."""
    if dump.reason == "Panic" or any("kernel panic" in line.lower() for line in dump.lines):
        return "kernel-panic"
    return "kernel-oops" if dump.reason in ("Oops", "") else ""
