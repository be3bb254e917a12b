"""The usual choices of a rule: critical, warning or note; confirmed or likely."""

from __future__ import annotations

from raydiag.model import Confidence, Severity


def warning_if(condition: object) -> Severity:
    """A warning where the condition holds, else a note."""
    return Severity.WARNING if condition else Severity.INFO


def critical_if(condition: object) -> Severity:
    """Critical where the condition holds, else a warning."""
    return Severity.CRITICAL if condition else Severity.WARNING


def confirmed_if(condition: object) -> Confidence:
    """Confirmed where the condition holds, else likely."""
    return Confidence.CONFIRMED if condition else Confidence.LIKELY
