"""Kernel log text in whatever form people have it: which lines matter, when, and what they say.

Forms: records of /dev/kmsg; dmesg, plain, with -T, -x, --time-format; journalctl short, short-iso,
short-precise, short-monotonic; syslog, old and RFC 3339; also mixed and with half lines. A file is
read in blocks and only lines that hold one of the words are parsed, so its size does not matter.

Source: Documentation/ABI/testing/dev-kmsg, dmesg(1), journalctl(1), RFC 3164, RFC 5424
"""

from __future__ import annotations

import math
import os
import re
import stat
import sys
import time
from calendar import timegm
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Optional, Union

from raydiag.model import Status, Unread
from raydiag.probes.kernel_log import KernelLine, WordFilter

_BLOCK_BYTES = 1 << 20
_LINE_LIMIT = 4096  # bytes that are kept of a line, as on a node
_UNFINISHED_LIMIT = 1 << 16  # of a line whose end has not been read yet
_DAY_S = 86400.0

_STDIN = "-"
_USER = 1  # facility of programs
_MAGIC = {
    b"\x1f\x8b": "gzip data: zcat it",
    b"\xfd7zXZ": "xz data: xzcat it",
    b"\x28\xb5\x2f\xfd": "zstd data: zstdcat it",
    b"BZh": "bzip2 data: bzcat it",
    b"LPKSHHRH": "a journal file: read it with journalctl -k -o short-iso --file",
}
_LEVELS = ("emerg", "alert", "crit", "err", "warn", "notice", "info", "debug")
_MONTHS: tuple[str, ...] = ("Jan", "Feb", "Mar", "Apr", "May", "Jun")
_MONTHS += ("Jul", "Aug", "Sep", "Oct", "Nov", "Dec")

_RECORD = re.compile(r"(\d{1,4}),(\d{1,20}),(\d{1,20})(?:,[^;]*)?;")
_PRIORITY = re.compile(r"<(\d{1,3})>(?:\d )?\s*")
_DECODED = re.compile(r"(\w+)\s*:(emerg|alert|crit|err|warn|notice|info|debug)\s*: ?")
_ISO = re.compile(
    r"\[?(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)([.,]\d+)?(Z|[+-]\d\d:?\d\d)?\]? "
)
_CTIME = re.compile(r"\[(?:\S+ )?(\S+) +(\d{1,2}) (\d\d):(\d\d):(\d\d) (\d{4})\] ?")
_SYSLOG = re.compile(r"([A-Z][a-z]{2}) +(\d{1,2}) (\d\d):(\d\d):(\d\d)(\.\d+)? ")
_SECONDS = re.compile(r"\[ *(\d+)\.(\d{6})\d*\] ?")
# Who printed it, the time since the line before, a time without a date: of no use.
_ASIDE = re.compile(
    r"\[ *[TC]\d+\] ?|\[[A-Z][a-z]{2} ?\d{1,2} \d\d:\d\d\] |\[ *[+<] *[\d.]+>?\] |\[\.\.\.\] |"
    r"\d\d:\d\d:\d\d(?:\.\d+)? "
)
_KERNEL = re.compile(r"(?:([A-Za-z0-9][\w.-]*) )?kernel: ?")
_PROGRAM = re.compile(r"(\S+) ([\w./@-]+)(?:\[\d+\])?: ")
_NUMBERED_PROGRAM = re.compile(r"(\S+) ([\w./@-]+)\[\d+\]: ")


@dataclass(frozen=True)
class LogLine(KernelLine):
    """A line of a file. `time_s` is seconds since boot where `dated` is False, NaN for neither."""

    number: int  # of the line in its file, from 1; of a record, its own number
    dated: bool  # whether time_s is Unix seconds; a time without a zone is taken as UTC
    since_boot_s: Optional[float]
    host: str  # as syslog names it; "" when the form has none


def log_lines(
    path: str, words: Sequence[str], now_s: Optional[float] = None
) -> Iterator[Union[LogLine, Unread]]:
    """The lines of a file that hold one of the words, besides its first one; `-` is stdin.

    Yields Unread for what could not be read or made no sense, and may go on after it.
    """
    try:
        if path == _STDIN:
            yield from _stream_lines(sys.stdin.fileno(), path, words, now_s or time.time())
            return
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            state = os.fstat(fd)
            if stat.S_ISDIR(state.st_mode):
                yield Unread(path, Status.ERROR, "a directory: name the files in it")
                return
            reference_s = state.st_mtime if stat.S_ISREG(state.st_mode) else time.time()
            os.set_blocking(fd, stat.S_ISFIFO(state.st_mode))
            yield from _stream_lines(fd, path, words, now_s or reference_s)
        finally:
            os.close(fd)
    except OSError as error:
        denied = isinstance(error, PermissionError)
        kind = Status.DENIED if denied else Status.ERROR
        missing = isinstance(error, FileNotFoundError)
        yield Unread(path, Status.NO_DATA if missing else kind, (error.strerror or "").lower())


def _stream_lines(
    fd: int, path: str, words: Sequence[str], reference_s: float
) -> Iterator[Union[LogLine, Unread]]:
    chosen = WordFilter(words)
    parser = Parser(reference_s)
    number, nothing_yet = 0, True
    cut: list[int] = []
    for block in _blocks(fd, cut):
        if nothing_yet:
            reason = _no_text(block)
            if reason:
                yield Unread(path, Status.ERROR, reason)
                return
            nothing_yet = False
        hits = chosen.lines_with(block)
        if number == 0:
            hits = sorted({0, *hits})
        if hits:
            lines = block.split(b"\n")
            for index in hits:
                text = lines[index][:_LINE_LIMIT].rstrip(b"\r").replace(b"\0", b"")
                yield parser.parse(text.decode("utf-8", "backslashreplace"), number + index + 1)
        number += block.count(b"\n")
    if nothing_yet:
        yield Unread(path, Status.NO_DATA, "empty: there was nothing to check")
    if cut:
        reason = f"{len(cut)} blocks of lines longer than {_UNFINISHED_LIMIT >> 10} KiB left out"
        yield Unread(path, Status.ERROR, reason)


def _blocks(fd: int, cut: list[int]) -> Iterator[bytes]:
    """Whole lines in blocks; of a line that never ends the beginning, what is left out in `cut`."""
    rest = b""
    while True:
        try:
            chunk = os.read(fd, _BLOCK_BYTES)
        except BlockingIOError:
            break
        if not chunk:
            break
        end = chunk.rfind(b"\n") + 1
        if end:
            yield rest + chunk[:end]
            rest = b""
        rest += chunk[end:]
        if len(rest) > _UNFINISHED_LIMIT:
            cut.append(len(rest) - _UNFINISHED_LIMIT)
            rest = rest[:_UNFINISHED_LIMIT]
    if rest:
        yield rest


def _no_text(block: bytes) -> str:
    """Why the beginning of a file is no log; empty when it may be one."""
    for magic, what in _MAGIC.items():
        if block.startswith(magic):
            return f"{what}, then `| raydiag kmsg -`"
    head = block[:_LINE_LIMIT]
    # A log that was being written when the node died ends in zeros, it does not begin with them.
    odd = sum(byte < 9 or 13 < byte < 27 for byte in head)
    return "binary data, not a log" if odd > len(head) // 16 else ""


class Parser:
    """Lines of one file in any of the forms."""

    def __init__(self, reference_s: float) -> None:
        """`reference_s`: Unix seconds not before the newest line, for times without a year."""
        self._reference_s = reference_s
        self._year = time.gmtime(reference_s).tm_year
        self._last = (math.nan, False, "")  # time, whether it is dated, host

    def parse(self, text: str, number: int) -> LogLine:
        """One line; what is in no known form is a message without a time."""
        record = _RECORD.match(text) if text[:1].isdigit() else None
        if record:
            priority, sequence, usec = (int(field) for field in record.groups())
            return self._line(text[record.end() :], number, sequence, priority, usec / 1e6)
        priority, wall_s, boot_s, host, kernel, at = -1, None, None, "", False, 0
        marked = _PRIORITY.match(text) if text[:1] == "<" else None
        if marked:
            priority, at = int(marked[1]), marked.end()
        decoded = _DECODED.match(text, at) if text[at : at + 1].islower() else None
        if decoded:
            priority = (0 if decoded[1] == "kern" else 8) + _LEVELS.index(decoded[2])
            at = decoded.end()
        while True:
            stamp, begins = None, text[at : at + 1]
            if begins == "[" or begins.isdigit():  # what else could be a stamp needs no regex
                stamp = _SECONDS.match(text, at)
                if stamp:
                    boot_s = int(stamp[1]) + int(stamp[2]) / 1e6
                else:
                    stamp = _ASIDE.match(text, at)
            if not stamp and wall_s is None and (begins == "[" or begins.isalnum()):
                stamp, wall_s = self._wall(text, at)
            if stamp:
                at = stamp.end()
                continue
            said = _KERNEL.match(text, at) if "kernel:" in text else None
            if not said:
                break
            host, kernel, at = said[1] or host, True, said.end()
        if wall_s is not None and not kernel:
            # A program's line in a syslog; the kernel's own have no such name, or no pid with it.
            form = _PROGRAM if _SYSLOG.match(text) else _NUMBERED_PROGRAM
            program = form.match(text, at)
            if program and not text.startswith("["):
                line = self._line(text[program.end() :], number, -1, -1, boot_s, wall_s, program[1])
                return replace(line, facility=_USER)
        return self._line(text[at:], number, -1, priority, boot_s, wall_s, host)

    def _line(
        self,
        text: str,
        number: int,
        sequence: int,
        priority: int,
        boot_s: Optional[float],
        wall_s: Optional[float] = None,
        host: str = "",
    ) -> LogLine:
        time_s = wall_s if wall_s is not None else boot_s
        if time_s is None:  # it belongs to the line before it
            time_s, dated, last_host = self._last
            host = host or last_host
        else:
            dated = wall_s is not None
            self._last = (time_s, dated, host)
        return LogLine(
            seq=sequence,
            time_s=time_s,
            uncertainty_s=0.0,
            level=priority & 7 if priority >= 0 else -1,
            facility=priority >> 3 if priority >= 0 else 0,
            text=text,
            matched=True,
            lost_before=0,
            number=number,
            dated=dated,
            since_boot_s=boot_s,
            host=host,
        )

    def _wall(self, text: str, at: int) -> tuple[Optional[re.Match[str]], Optional[float]]:
        """A stamp of date and time at that place, and its Unix seconds."""
        iso = _ISO.match(text, at)
        if iso:
            year, month, day, hour, minute, second = (int(part) for part in iso.groups()[:6])
            wall_s = _unix_s(year, month, day, hour, minute, second)
            if wall_s is not None:
                wall_s += float("0." + iso[7][1:]) if iso[7] else 0.0
                wall_s -= _offset_s(iso[8])
            return iso, wall_s
        ctime = _CTIME.match(text, at)
        if ctime:
            hour, minute, second = (int(part) for part in ctime.groups()[2:5])
            month = _month(ctime[1])
            return ctime, _unix_s(int(ctime[6]), month, int(ctime[2]), hour, minute, second)
        syslog = _SYSLOG.match(text, at)
        if syslog:
            return syslog, self._without_year(syslog)
        return None, None

    def _without_year(self, stamp: re.Match[str]) -> Optional[float]:
        month, day = _month(stamp[1]), int(stamp[2])
        clock = (int(stamp[3]), int(stamp[4]), int(stamp[5]))
        wall_s = _unix_s(self._year, month, day, *clock)
        if wall_s is not None and wall_s > self._reference_s + _DAY_S:
            wall_s = _unix_s(self._year - 1, month, day, *clock)
        return wall_s + float(stamp[6] or 0) if wall_s is not None else None


def _month(name: str) -> int:
    """1 to 12; 0 for a name in another language."""
    return _MONTHS.index(name) + 1 if name in _MONTHS else 0


def _unix_s(
    year: int, month: int, day: int, hour: int, minute: int, second: int
) -> Optional[float]:
    """Unix seconds; None for what is no date, such as a month in another language."""
    if not (1 <= month <= 12 and 1 <= day <= 31 and hour < 24 and minute < 60 and second < 61):
        return None
    return float(timegm((year, month, day, hour, minute, second)))


def _offset_s(zone: Optional[str]) -> float:
    if not zone or zone == "Z":
        return 0.0
    digits = zone[1:].replace(":", "")
    seconds = int(digits[:2]) * 3600 + int(digits[2:]) * 60
    return float(-seconds if zone[0] == "-" else seconds)
