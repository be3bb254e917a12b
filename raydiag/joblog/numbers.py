"""Numbers as log lines print them, where they print them at all."""

from __future__ import annotations

from typing import Optional

_MOST_DIGITS = 15  # a longer run of digits is no number of anything here


def whole_number(digits: Optional[str]) -> Optional[int]:
    """None without digits, and for anything else."""
    if digits and digits.isdecimal() and len(digits) <= _MOST_DIGITS:
        return int(digits)
    return None


def decimal_number(text: Optional[str]) -> Optional[float]:
    """With commas between thousands; None for anything else."""
    try:
        return float((text or "").replace(",", ""))
    except ValueError:
        return None
