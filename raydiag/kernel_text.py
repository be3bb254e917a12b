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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Optional, Union

from raydiag.model import Status, Unread
from raydiag.probes.kernel_log import KernelLine, WordFilter, parse_record, split_priority

_BLOCK_BYTES = 1 << 20
_LINE_LIMIT = 4096  # bytes that are kept of a line, as on a node
_UNFINISHED_LIMIT = 1 << 16  # of a line whose end has not been read yet
_DAY_S = 86400.0

NO_KERNEL_LINE = "no line of it is of a kernel log: it was not checked"
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
_MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]

# What the lines of a kernel log begin with, in any of the forms, and no other text does.
_ANY_HEADER = re.compile(
    rb"""^(?:
        \d{1,4},\d+,\d+(?:,[^;\n]*)?;
      | <\d{1,3}>
      | \w+[ ]*:(?:emerg|alert|crit|err|warn|notice|info|debug)[ ]*:
      | (?:\[[\w:. +-]+\][ ])?\[[ ]*[+<]?[ ]*\d+\.\d{6}
      | [\w.-]{1,63}:[ ]\[(?:[ ]*\d+\.\d{6}|\w{3}[ ]\w{3}[ ]+\d{1,2}[ ]\d\d:\d\d:\d\d[ ]\d{4})\]
      | \[(?:\S+[ ])?\S+[ ]+\d{1,2}[ ]\d\d:\d\d:\d\d[ ]\d{4}\]
      | \[[A-Z][a-z]{2}[ ]?\d{1,2}[ ]\d\d:\d\d\]
      | \d{4}-\d\d-\d\dT[\d:]{8},\d{6}[+-]
      | (?:(?:[A-Z][a-z]{2}[ ]+\d{1,2}|\d{4}-\d\d-\d\dT?)[ ]?\d\d:\S+[ ](?:[\w.-]+[ ])?)?kernel:
      | [a-z][\w-]*[ ][0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]:[ ]  # `dmesg -t`: driver, device
      | (?:\[drm[]:]|kfd[ ]kfd:|NVRM:|EXT4-fs|XFS[ ]\(|EDAC[ ]|mce:|Linux[ ]version[ ])
    )""",
    re.MULTILINE | re.VERBOSE,
)
# The kernel's own, where a form tells the level.
_LEVEL = re.compile(rb"^(?:[0-7],\d+,|<[0-7]>|kern *:\w+ *:)", re.MULTILINE)
# Found through the end of the line before, which is several times as fast as `^`.
_ERROR = re.compile(rb"\n(?:[0-3],\d+,|<[0-3]>|kern *:(?:emerg|alert|crit|err) *:)")
_SYSLOG_VERSION = re.compile(r"(?:\d )?\s*")
_DECODED = re.compile(r"(\w+)\s*:(emerg|alert|crit|err|warn|notice|info|debug)\s*: ?")
_ISO = re.compile(
    r"\[?(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)([.,]\d+)?(Z|[+-]\d\d:?\d\d)?\]? "
)
_CTIME = re.compile(r"\[(?:\S+ )?(\S+) +(\d{1,2}) (\d\d):(\d\d):(\d\d) (\d{4})\] ?")
_SYSLOG = re.compile(r"([A-Z][a-z]{2}) +(\d{1,2}) (\d\d):(\d\d):(\d\d)(\.\d+)? ")
# What pdsh and its like put before the lines of each host.
_GATHERED = re.compile(
    r"([\w.-]{1,63}): (?=\[(?: *\d+\.\d{6}|\w{3} \w{3} +\d{1,2} \d\d:\d\d:\d\d \d{4})\])"
)
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
    path: str,
    words: Sequence[str],
    now_s: Optional[float] = None,
    *,
    is_message: Callable[[str], bool] = bool,
    drivers: Sequence[str] = (),
    failures: Sequence[str] = (),
) -> Iterator[Union[LogLine, Unread]]:
    """The lines of a file that hold one of the words, or are errors, and its first; `-` is stdin.

    `is_message`: whether a line without a header is of the kernel all the same. Yields Unread for
    what could not be read or made no sense, and may go on after it. `drivers`, `failures`: as
    `WordFilter` takes them.
    """
    wanted = WordFilter(words, (), drivers, failures)
    try:
        if path == _STDIN and sys.stdin is None:
            yield Unread(path, Status.ERROR, "stdin is closed")
            return
        if path == _STDIN:
            text = _KernelText(path, wanted, now_s or time.time(), is_message)
            yield from text.lines(sys.stdin.fileno())
            return
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            state = os.fstat(fd)
            if stat.S_ISDIR(state.st_mode):
                yield Unread(path, Status.ERROR, "a directory: name the files in it")
                return
            reference_s = state.st_mtime if stat.S_ISREG(state.st_mode) else time.time()
            os.set_blocking(fd, stat.S_ISFIFO(state.st_mode))
            yield from _KernelText(path, wanted, now_s or reference_s, is_message).lines(fd)
        finally:
            os.close(fd)
    except OSError as error:
        yield Unread(path, _status_of(error), (error.strerror or "").lower())


def _status_of(error: OSError) -> Status:
    if isinstance(error, FileNotFoundError):
        return Status.NO_DATA
    return Status.DENIED if isinstance(error, PermissionError) else Status.ERROR


class _KernelText:
    """One file while it is read."""

    def __init__(
        self, path: str, wanted: WordFilter, reference_s: float, is_message: Callable[[str], bool]
    ) -> None:
        self._path = path
        self._filter = wanted
        self._parser = Parser(reference_s)
        self._is_message = is_message
        self._lines_before = 0  # those of the blocks that are done
        self._is_kernel_log = False  # whether any line was one of a kernel log

    def lines(self, fd: int) -> Iterator[Union[LogLine, Unread]]:
        """As `log_lines`."""
        cut: list[int] = []
        blocks = _blocks(fd, cut)
        first = next(blocks, b"")
        reason = _no_text(first)
        if reason:
            yield Unread(self._path, Status.ERROR, reason)
            return
        for block in chain([first], blocks):
            yield from self._lines_of(block)
        if not first:
            yield Unread(self._path, Status.NO_DATA, "empty: there was nothing to check")
        elif not self._is_kernel_log:
            yield Unread(self._path, Status.NO_DATA, NO_KERNEL_LINE)
        if cut:
            limit = f"{_UNFINISHED_LIMIT >> 10} KiB"
            reason = f"{len(cut)} blocks of lines longer than {limit} left out"
            yield Unread(self._path, Status.ERROR, reason)

    def _lines_of(self, block: bytes) -> Iterator[LogLine]:
        self._is_kernel_log = self._is_kernel_log or bool(_ANY_HEADER.search(block))
        hits = self._filter.lines_with(block)
        if _LEVEL.search(block, 0, _LINE_LIMIT):
            hits = sorted({*hits, *_errors(block)})
        if block and self._lines_before == 0:
            hits = sorted({0, *hits})
        raw_lines = block.split(b"\n") if hits else []
        for index in hits:
            raw_line = raw_lines[index][:_LINE_LIMIT].rstrip(b"\r").replace(b"\0", b"")
            line = self._parser.parse(raw_line, self._lines_before + index + 1)
            self._is_kernel_log = self._is_kernel_log or self._is_message(line.text)
            yield line
        self._lines_before += block.count(b"\n")


def _errors(block: bytes) -> Iterator[int]:
    """Indices of the lines that the kernel printed at error level, or above."""
    index, counted, lines = 0, 0, b"\n" + block
    for match in _ERROR.finditer(lines):
        index += lines.count(b"\n", counted, match.start())
        counted = match.start()
        yield index


def _blocks(fd: int, cut: list[int]) -> Iterator[bytes]:
    """Whole lines in blocks; of a line that never ends the beginning, what is left out in `cut`."""
    unfinished = b""
    while chunk := _chunk(fd):
        end = chunk.rfind(b"\n") + 1
        if end:
            yield unfinished + chunk[:end]
            unfinished = b""
        unfinished += chunk[end:]
        if len(unfinished) > _UNFINISHED_LIMIT:
            cut.append(len(unfinished) - _UNFINISHED_LIMIT)
            unfinished = unfinished[:_UNFINISHED_LIMIT]
    if unfinished:
        yield unfinished


def _chunk(fd: int) -> bytes:
    """Empty at the end, and where a device has nothing more for now."""
    try:
        return os.read(fd, _BLOCK_BYTES)
    except BlockingIOError:
        return b""


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
        self._last = (math.nan, False, "")  # time, whether it is dated, host

    def parse(self, line: bytes, number: int) -> LogLine:
        """One line; what is in no known form is a message without a time."""
        record = parse_record(line)
        if record:
            header = _Header(_decoded(record.text), self._reference_s, seq=record.seq)
            header.set_priority(record.priority)
            header.boot_s = (record.usec or 0) / 1e6
        else:
            if line.startswith((b" ", b"\t")) and _ANY_HEADER.match(line.lstrip()):
                line = line.lstrip()  # pasted with an indentation
            header = _Header(_decoded(line), self._reference_s)
            priority, unmarked = split_priority(line)
            header.read(priority, len(line) - len(unmarked))
        return self._line(header, number)

    def _line(self, header: _Header, number: int) -> LogLine:
        time_s, host = header.time_s, header.host
        if time_s is None:  # it belongs to the line before it
            time_s, dated, last_host = self._last
            host = host or last_host
        else:
            dated = header.wall_s is not None
            self._last = (time_s, dated, host)
        return LogLine(
            seq=header.seq,
            time_s=time_s,
            uncertainty_s=0.0,
            level=header.level,
            facility=header.facility,
            text=header.text[header.end :],
            matched=True,
            lost_before=0,
            number=number,
            dated=dated,
            since_boot_s=header.boot_s,
            host=host,
        )


@dataclass
class _Header:
    """What stands before the message of a line, part after part."""

    text: str  # the whole line
    reference_s: float  # see `Parser`
    end: int = 0  # of what was read so far
    seq: int = -1
    level: int = -1
    facility: int = 0
    wall_s: Optional[float] = None
    boot_s: Optional[float] = None
    host: str = ""
    names_kernel: bool = False  # as syslog does

    @property
    def time_s(self) -> Optional[float]:
        """Unix seconds, else seconds since boot."""
        return self.boot_s if self.wall_s is None else self.wall_s

    def set_priority(self, priority: int) -> None:
        """Level and facility of a priority as the kernel writes it."""
        self.facility, self.level = divmod(priority, 8)

    def read(self, priority: int, end: int) -> None:
        """Go through a header that is no record's. `priority`: -1 when there is none."""
        self.end = end
        if priority >= 0:
            self.set_priority(priority)
            self._accept(_SYSLOG_VERSION)
        decoded = self._accept(_DECODED)
        if decoded:
            self.level = _LEVELS.index(decoded[2])
            self.facility = int(decoded[1] != "kern")
        gathered = self._accept(_GATHERED)
        if gathered:
            self.host = gathered[1]
        while self._stamp() or self._sender():
            pass
        if self.wall_s is not None and not self.names_kernel:
            self._program()

    def _accept(self, form: re.Pattern[str]) -> Optional[re.Match[str]]:
        """Step over a part in that form, if it comes next."""
        match = form.match(self.text, self.end)
        if match:
            self.end = match.end()
        return match

    def _stamp(self) -> bool:
        begins = self.text[self.end : self.end + 1]
        if begins == "[" or begins.isdigit():  # what else could be a stamp needs no regex
            seconds = self._accept(_SECONDS)
            if seconds:
                self.boot_s = int(seconds[1]) + int(seconds[2]) / 1e6
            if seconds or self._accept(_ASIDE):
                return True
        return self.wall_s is None and (begins == "[" or begins.isalnum()) and self._date()

    def _sender(self) -> bool:
        kernel = self._accept(_KERNEL)
        if kernel:
            self.names_kernel = True
            self.host = kernel[1] or self.host
        return kernel is not None

    def _date(self) -> bool:
        if iso := self._accept(_ISO):
            self.wall_s = _iso_s(iso)
        elif ctime := self._accept(_CTIME):
            clock = map(int, ctime.groups()[2:5])
            self.wall_s = _unix_s(int(ctime[6]), _month(ctime[1]), int(ctime[2]), *clock)
        elif syslog := self._accept(_SYSLOG):
            self.wall_s = _without_year(syslog, self.reference_s)
        else:
            return False
        return True

    def _program(self) -> None:
        """A program's line in a syslog; the kernel's own have no such name, or no pid with it."""
        if self.text.startswith("["):
            return
        form = _PROGRAM if _SYSLOG.match(self.text) else _NUMBERED_PROGRAM
        program = self._accept(form)
        if program:
            self.host, self.facility, self.level = program[1], _USER, -1


def _decoded(line: bytes) -> str:
    return line.decode("utf-8", "backslashreplace")


def _iso_s(stamp: re.Match[str]) -> Optional[float]:
    wall_s = _unix_s(*map(int, stamp.groups()[:6]))
    if wall_s is None:
        return None
    return wall_s + float("0" + (stamp[7] or "").replace(",", ".")) - _offset_s(stamp[8])


def _without_year(stamp: re.Match[str], reference_s: float) -> Optional[float]:
    """Unix seconds of a date in the year before `reference_s`."""
    year = time.gmtime(reference_s).tm_year
    date = (_month(stamp[1]), *map(int, stamp.groups()[1:5]))
    wall_s = _unix_s(year, *date)
    if wall_s is not None and wall_s > reference_s + _DAY_S:
        wall_s = _unix_s(year - 1, *date)
    return wall_s and wall_s + float(stamp[6] or 0)


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
