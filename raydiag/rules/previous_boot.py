"""Crashes of the kernel that a node went through, from what it saved before its reboot."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import attrgetter

from raydiag.model import Confidence, Evidence, Finding, Severity, Snapshot
from raydiag.probes.previous_boot import CrashDump
from raydiag.rules.machines import machines

_SEVERITIES = {"kernel-panic": Severity.CRITICAL, "kernel-oops": Severity.WARNING}
_LINES = 4  # of each dump
_PARTS = 3  # dumps told of one kind: the first parts of the newest crash


def crashes(snapshot: Snapshot) -> Iterator[Finding]:
    """The newest panic and the newest oops of each host; from before the job it is a remark."""
    for machine in machines(snapshot):
        dumps = sorted(machine.records(CrashDump), key=attrgetter("time_s"), reverse=True)
        for failure_class in _SEVERITIES:
            alike = [dump for dump in dumps if _class(dump) == failure_class]
            if alike:
                yield _finding(failure_class, machine.name, alike, snapshot.news_since)


def _finding(failure_class: str, host: str, dumps: Sequence[CrashDump], began: float) -> Finding:
    """`dumps` newest first."""
    newest = dumps[0]
    new_dumps = [dump for dump in dumps if dump.time_s > began]
    evidence = tuple(_evidence((new_dumps or dumps)[:_PARTS]))
    severity, confidence = _SEVERITIES[failure_class], Confidence.LIKELY
    if not newest.reason and not newest.lines:
        severity, confidence = Severity.INFO, Confidence.POSSIBLE
    finding = Finding(failure_class, host, onset=newest.time_s, evidence=evidence)
    finding = replace(finding, severity=severity, confidence=confidence)
    if new_dumps:
        return finding
    explanation = "It happened before the present job; the node has rebooted."
    # An old crash must not give its date to an event of today in the kernel log.
    return replace(finding, severity=Severity.INFO, device=newest.file, explanation=explanation)


def _evidence(dumps: Sequence[CrashDump]) -> Iterator[Evidence]:
    for dump in dumps:
        for text in dump.lines[:_LINES] or (dump.reason or "compressed, or without text",):
            yield Evidence(dump.file, text, time=dump.time_s)


def _class(dump: CrashDump) -> str:
    """The kernel saves a dump for these two only, unless it is told to save all of its log."""
    if dump.reason == "Panic" or any("kernel panic" in line.lower() for line in dump.lines):
        return "kernel-panic"
    return "kernel-oops" if dump.reason in ("Oops", "") else ""
