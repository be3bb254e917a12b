"""The two usual choices of a rule: warning or note, confirmed or likely."""

from __future__ import annotations

from raydiag.model import Confidence, Severity


def warning_if(condition: object) -> Severity:
    """A warning where the condition holds, else a note."""
    return Severity.WARNING if condition else Severity.INFO


def confirmed_if(condition: object) -> Confidence:
    """Confirmed where the condition holds, else likely."""
    return Confidence.CONFIRMED if condition else Confidence.LIKELY
