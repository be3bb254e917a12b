"""Times that log lines print, as Unix seconds.

Source: the formats of Python's logging, absl and glog (no year), Ray, vLLM (no year), NeMo, date(1)
and Slurm. A time without a zone is read as UTC.
"""

import math
import re
from dataclasses import dataclass
from datetime import date, datetime, timezone
from functools import lru_cache

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_CLOCK = rb"(\d\d):(\d\d):(\d\d)"
_DAY = rb"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)"
_MONTH = "|".join(_MONTHS).encode()

# A line's own time stands in front, or after a logger's name; a path's stands behind.
REACH = 160
_ISO = re.compile(
    rb"(?<![\d/])(\d{4})[-/](\d\d)[-/](\d\d)[T ]" + _CLOCK + rb"(?:[.,](\d{1,9}))?"
    rb"(?: ?(Z\b|UTC\b|[+-]\d\d:?\d\d(?!\d)))?"
)
_GLOG = re.compile(rb"(?<![A-Za-z0-9])[IWEF](\d?\d)(\d\d) " + _CLOCK + rb"\.(\d{6})")
_SHORT = re.compile(rb"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) (\d\d)-(\d\d) " + _CLOCK + rb"()")
_CTIME = re.compile(
    _DAY + rb" (" + _MONTH + rb") +(\d{1,2}) " + _CLOCK + rb"(?: (AM|PM))?(?: [A-Z]{3,4})? (\d{4})"
)
# What any of them needs, searched for first: most lines have no time at all.
_ANY = re.compile(rb"\d\d:\d\d:\d\d")
_LEAP_BACK_S = 60.0
_SKEW_S = 86400.0
_DAY_S = 86400.0


@lru_cache(maxsize=4096)
def _midnight(year: int, month: int, day: int) -> float | None:
    try:
        return (date(year, month, day).toordinal() - 719163) * _DAY_S
    except ValueError:
        return None


def _of_day(hour: bytes, minute: bytes, second: bytes) -> float | None:
    hours, minutes, seconds = int(hour), int(minute), int(second)
    if hours > 23 or minutes > 59 or seconds > 60:
        return None
    return hours * 3600.0 + minutes * 60.0 + seconds


def _dated(year: int, month: int, day: int, of_day: float | None) -> float | None:
    midnight = _midnight(year, month, day) if 1970 <= year < 2200 else None
    if midnight is None or of_day is None:
        return None
    return midnight + of_day


def _zone_s(zone: bytes | None) -> float:
    if zone is None or zone[:1] not in b"+-":
        return 0.0
    digits = zone[1:].replace(b":", b"")
    seconds = int(digits[:2]) * 3600.0 + int(digits[2:]) * 60.0
    return seconds if zone[:1] == b"+" else -seconds


def _fraction(digits: bytes | None) -> float:
    return int(digits) / 10.0 ** len(digits) if digits else 0.0


class Clock:
    """Reads the times of one log; years that are not printed come from what is near."""

    def __init__(self, mtime: float | None) -> None:
        self.mtime = mtime
        self.anchor: float | None = None  # newest time that was printed with its year

    def time(self, line: bytes) -> float | None:
        """The first time within the first `REACH` bytes of a line, Unix seconds."""
        head = line[:REACH]
        if _ANY.search(head) is None:
            return None
        if iso := _ISO.search(head):
            return self._iso(iso)
        others = ((_GLOG, self._yearless), (_SHORT, self._yearless), (_CTIME, self._ctime))
        for pattern, read in others:
            match = pattern.search(head)
            time = read(match) if match else None
            if time is not None:
                return time
        return None

    def know_year(self, text: bytes) -> None:
        """Takes the first time with a year in the text as near, unless one is known."""
        for match in _ISO.finditer(text):
            if self.anchor is not None:
                return
            self.time(match[0])

    def _iso(self, match: re.Match[bytes]) -> float | None:
        year, month, day, hour, minute, second, part, zone = match.groups()
        time = _dated(int(year), int(month), int(day), _of_day(hour, minute, second))
        if time is None:
            return None
        self.anchor = time + _fraction(part) - _zone_s(zone)
        return self.anchor

    def _ctime(self, match: re.Match[bytes]) -> float | None:
        name, day, hour, minute, second, half, year = match.groups()
        if half is not None:
            hour = b"%d" % (int(hour) % 12 + 12 * (half == b"PM"))
        month = _MONTHS.index(name.decode()) + 1
        time = _dated(int(year), month, int(day), _of_day(hour, minute, second))
        self.anchor = self.anchor if time is None else time
        return time

    def _yearless(self, match: re.Match[bytes]) -> float | None:
        """Nearest to a time that was printed with its year, else the newest before the mtime."""
        month, day, hour, minute, second, part = match.groups()
        near, latest = self.anchor, math.inf
        if near is None:
            if self.mtime is None:
                return None
            near, latest = self.mtime, self.mtime + _SKEW_S
        times = []
        this_year = datetime.fromtimestamp(near, timezone.utc).year
        for year in (this_year - 1, this_year, this_year + 1):
            time = _dated(year, int(month), int(day), _of_day(hour, minute, second))
            if time is not None and time <= latest:
                times.append(time)
        nearest = min(times, key=lambda time: abs(time - near), default=None)
        return None if nearest is None else nearest + _fraction(part)


@dataclass
class Timeline:
    """First and last time of a log, and its newest."""

    first: float | None = None
    last: float | None = None
    last_line: int = 0
    jumps: int = 0
    newest: float | None = None

    def see(self, time: float, line: int) -> None:
        """One more time, in file order."""
        if self.newest is not None and time < self.newest - _LEAP_BACK_S:
            self.jumps += 1
        if self.newest is None or time > self.newest or time < self.newest - _DAY_S:
            self.newest = time
        if self.first is None:
            self.first = time
        self.last, self.last_line = time, line


def has_time(line: bytes) -> bool:
    """Whether a line may print a time, by the colons of a clock."""
    return _ANY.search(line[:REACH]) is not None
