"""Findings get what the catalog knows of their class, and their order."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from raydiag import catalog
from raydiag.model import Finding, Severity

NOTHING_KNOWN: Mapping[str, str] = {}


def completed(finding: Finding, situation: Mapping[str, str] = NOTHING_KNOWN) -> Finding:
    """The finding with the texts and the severity of its class, where it has none of its own.

    `situation`: what is known of the job, such as {"state": "ended", "framework": "torch"}; the
    class's next steps are those that it does not contradict.
    """
    entry = catalog.failure(finding.failure_class)
    return replace(
        finding,
        title=finding.title or entry.title,
        severity=finding.severity or entry.severity,
        explanation=finding.explanation or entry.explanation,
        next_steps=tuple(finding.next_steps or entry.steps_in(situation)),
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
