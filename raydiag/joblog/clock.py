"""Times that log lines print, as Unix seconds.

Source: the formats of Python's logging, absl and glog (no year), Ray, vLLM (no year), NeMo, date(1)
and Slurm. A time without a zone is read as UTC.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from datetime import date, datetime, timezone
from functools import lru_cache
from typing import Optional

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_CLOCK = rb"(\d\d):(\d\d):(\d\d)"
_DAY = rb"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)"
_MONTH = "|".join(_MONTHS).encode()

# A line's own time stands in front, or after a logger's name; a path's stands behind.
REACH = 160
SILENCE_S = 60.0  # shorter ones are of no interest
_ISO = re.compile(
    rb"(?<![\d/])(\d{4})[-/](\d\d)[-/](\d\d)[T ]" + _CLOCK + rb"(?:[.,](\d{1,9}))?"
    rb"(?: ?(Z\b|UTC\b|[+-]\d\d:?\d\d(?!\d)))?"
)
_GLOG = re.compile(rb"(?<![A-Za-z0-9])[IWEF](\d\d)(\d\d) " + _CLOCK + rb"\.(\d{6})")
_SHORT = re.compile(rb"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) (\d\d)-(\d\d) " + _CLOCK)
_CTIME = re.compile(
    _DAY + rb" (" + _MONTH + rb") +(\d{1,2}) " + _CLOCK + rb"(?: (AM|PM))?(?: [A-Z]{3,4})? (\d{4})"
)
# What any of them needs, searched for first: most lines have no time at all.
_ANY = re.compile(rb"\d\d:\d\d:\d\d")
_LEAP_BACK_S = 60.0
_SKEW_S = 86400.0
_DAY_S = 86400.0


@dataclass(frozen=True)
class Silence:
    """No line printed a time between two that did."""

    start: float
    end: float
    line: int

    @property
    def seconds(self) -> float:
        """How long it was."""
        return self.end - self.start


@dataclass(frozen=True)
class Stamp:
    """A time as printed: its form tells programs apart that may live in different zones."""

    time: float
    form: str
    yearless: bool


@lru_cache(maxsize=4096)
def _midnight(year: int, month: int, day: int) -> Optional[float]:
    try:
        return (date(year, month, day).toordinal() - 719163) * _DAY_S
    except ValueError:
        return None


def _of_day(hour: bytes, minute: bytes, second: bytes) -> Optional[float]:
    hours, minutes, seconds = int(hour), int(minute), int(second)
    if hours > 23 or minutes > 59 or seconds > 60:
        return None
    return hours * 3600.0 + minutes * 60.0 + seconds


def _zone_s(zone: Optional[bytes]) -> float:
    if zone is None or zone[:1] not in b"+-":
        return 0.0
    digits = zone[1:].replace(b":", b"")
    seconds = int(digits[:2]) * 3600.0 + int(digits[2:]) * 60.0
    return seconds if zone[:1] == b"+" else -seconds


def _fraction(digits: Optional[bytes]) -> float:
    return int(digits) / 10.0 ** len(digits) if digits else 0.0


class Clock:
    """Reads the times of one log; years that are not printed come from what is near."""

    def __init__(self, mtime: Optional[float]) -> None:
        self.mtime = mtime
        self.anchor: Optional[float] = None  # newest time that was printed with its year

    def stamp(self, line: bytes) -> Optional[Stamp]:
        """The first time within the first `REACH` bytes of a line; None without one."""
        head = line[:REACH]
        if _ANY.search(head) is None:
            return None
        iso = _ISO.search(head)
        if iso:
            return self._iso(iso)
        return self._glog(head) or self._short(head) or self._ctime(head)

    def time(self, line: bytes) -> Optional[float]:
        """The first time of a line as Unix seconds."""
        stamp = self.stamp(line)
        return stamp.time if stamp else None

    def know_year(self, text: bytes) -> None:
        """Takes the first time with a year in the text as near, unless one is known."""
        for match in _ISO.finditer(text):
            if self.anchor is not None:
                return
            self.stamp(match[0])

    def _iso(self, match: re.Match[bytes]) -> Optional[Stamp]:
        year, month, day, hour, minute, second, part, zone = match.groups()
        time = self._dated(int(year), int(month), int(day), _of_day(hour, minute, second))
        if time is None:
            return None
        form = "iso"
        if zone is not None:
            form = "zoned"
        elif match[0][10:11] == b"T":
            form = "iso-t"
        self.anchor = time + _fraction(part) - _zone_s(zone)
        return Stamp(self.anchor, form, False)

    def _glog(self, head: bytes) -> Optional[Stamp]:
        match = _GLOG.search(head)
        if not match:
            return None
        month, day, hour, minute, second, part = match.groups()
        time = self._yearless(int(month), int(day), _of_day(hour, minute, second))
        if time is None:
            return None
        return Stamp(time + _fraction(part), "glog", True)

    def _short(self, head: bytes) -> Optional[Stamp]:
        match = _SHORT.search(head)
        if not match:
            return None
        month, day, hour, minute, second = match.groups()
        time = self._yearless(int(month), int(day), _of_day(hour, minute, second))
        if time is None:
            return None
        return Stamp(time, "short", True)

    def _ctime(self, head: bytes) -> Optional[Stamp]:
        match = _CTIME.search(head)
        if not match:
            return None
        name, day, hour, minute, second, half, year = match.groups()
        if half is not None:
            hour = b"%d" % (int(hour) % 12 + 12 * (half == b"PM"))
        month = _MONTHS.index(name.decode()) + 1
        time = self._dated(int(year), month, int(day), _of_day(hour, minute, second))
        if time is None:
            return None
        self.anchor = time
        return Stamp(time, "ctime", False)

    def _dated(self, year: int, month: int, day: int, of_day: Optional[float]) -> Optional[float]:
        if of_day is None or not 1970 <= year < 2200:
            return None
        midnight = _midnight(year, month, day)
        return None if midnight is None else midnight + of_day

    def _yearless(self, month: int, day: int, of_day: Optional[float]) -> Optional[float]:
        """Nearest to a time that was printed with its year, else the newest before the mtime."""
        if of_day is None:
            return None
        near, latest = self.anchor, math.inf
        if near is None:
            if self.mtime is None:
                return None
            near, latest = self.mtime, self.mtime + _SKEW_S
        times = []
        this_year = datetime.fromtimestamp(near, timezone.utc).year
        for year in (this_year - 1, this_year, this_year + 1):
            time = self._dated(year, month, day, of_day)
            if time is not None and time <= latest:
                times.append(time)
        return min(times, key=lambda time: abs(time - near), default=None)


@dataclass
class Timeline:
    """First and last time of a log, and its longest silence.

    Only times of one form make a silence: Slurm prints local time among programs that print UTC.
    """

    first: Optional[float] = None
    last: Optional[float] = None
    last_line: int = 0
    jumps: int = 0
    newest: Optional[float] = None
    newest_of: dict[str, float] = field(default_factory=dict)
    gap: Optional[Silence] = None
    pending: Optional[Silence] = None  # until a next time shows that the clock did not just jump

    def see(self, stamp: Stamp, line: int) -> None:
        """One more time, in file order."""
        time = stamp.time
        self._confirm(time)
        if self.newest is not None and stamp.form in self.newest_of:
            start = max(self.newest, self.newest_of[stamp.form])
            if time - start > self._longest_s():
                self.pending = Silence(start, time, line)
        if self.newest is not None and time < self.newest - _LEAP_BACK_S:
            self.jumps += 1
        if self.newest is None or time > self.newest or time < self.newest - _DAY_S:
            self.newest = time
        if len(self.newest_of) < 16 or stamp.form in self.newest_of:
            self.newest_of[stamp.form] = time
        if self.first is None:
            self.first = time
        self.last, self.last_line = time, line

    def may_hide(self, stamp: Stamp) -> bool:
        """Whether a longer silence than the longest known could lie before this time."""
        return self.newest is not None and stamp.time - self.newest > self._longest_s()

    def finish(self) -> None:
        """After the last line."""
        self._confirm(self.last)

    def _longest_s(self) -> float:
        return max(SILENCE_S, self.gap.seconds) if self.gap else SILENCE_S

    def _confirm(self, time: Optional[float]) -> None:
        silence, self.pending = self.pending, None
        if silence and time is not None and time >= silence.end - _LEAP_BACK_S:
            self.gap = silence


def has_time(line: bytes) -> bool:
    """Whether a line may print a time, by the colons of a clock."""
    return _ANY.search(line[:REACH]) is not None
