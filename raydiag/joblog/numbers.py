"""Numbers and durations as log lines, schedulers and batch scripts print them.

Source of durations: Slurm's TimeFormat, `2-03:04:05` and shorter; batch scripts, `1d 2h 3m 4s`,
`900s`.
"""

import re

_CLOCK = re.compile(r"(?:(\d{1,6})-)?(?:(\d{1,6}):)?(\d{1,6}):(\d{1,6})")
_PART = re.compile(r"(?<!\d)(\d{1,9}(?:\.\d{1,9})?)\s{0,8}([dhms])")
_UNIT_S = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}

_MOST_DIGITS = 15  # a longer run of digits is no number of anything here


def whole_number(digits: str | None) -> int | None:
    """None without digits, and for anything else."""
    if digits and digits.isdecimal() and len(digits) <= _MOST_DIGITS:
        return int(digits)
    return None


def decimal_number(text: str | None) -> float | None:
    """With commas between thousands; None for anything else."""
    try:
        return float((text or "").replace(",", ""))
    except ValueError:
        return None


def seconds_of(text: str) -> float | None:
    """Seconds in all; None for a text that is no duration."""
    clock = _CLOCK.fullmatch(text)
    if clock:
        days, hours, minutes, seconds = (float(part or 0) for part in clock.groups())
        return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    parts = _PART.findall(text)
    if parts:
        return sum(float(number) * _UNIT_S[unit] for number, unit in parts)
    return None


def each_in_seconds(text: str) -> list[float]:
    """Every duration in seconds that a text holds, as `300s/900s`."""
    return [float(number) for number, unit in _PART.findall(text) if unit == "s"]
