"""Findings get what the catalog knows of their class, and their order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from raydiag import catalog
from raydiag.model import Finding, Severity


def completed(finding: Finding) -> Finding:
    """The finding with the texts and the severity of its class, where it has none of its own."""
    entry = catalog.failure(finding.failure_class)
    return replace(
        finding,
        title=finding.title or entry.title,
        severity=finding.severity or entry.severity,
        explanation=finding.explanation or entry.explanation,
        next_steps=tuple(finding.next_steps or entry.next_steps),
    )


def complete(findings: Iterable[Finding]) -> list[Finding]:
    """All of them completed, the most severe and earliest first."""
    return sorted(map(completed, findings), key=order)


def severity_of(finding: Finding) -> Severity:
    """Its own severity, else that of its class."""
    return finding.severity or catalog.failure(finding.failure_class).severity


def order(finding: Finding) -> tuple[int, bool, float, str, str, str]:
    """Sorts by severity, then by onset (undated last), then by host; the rest keeps it stable."""
    return (
        -severity_of(finding).rank,
        finding.onset is None,
        finding.onset or 0.0,
        finding.host or "",
        finding.failure_class,
        finding.device or "",
    )
