"""Lines of the kernel's ring buffer that mention a fault, with what stands around them.

Source: /dev/kmsg (Documentation/ABI/testing/dev-kmsg); syslog(2) where that cannot be opened; btime
in /proc/stat (proc(5))
"""

from __future__ import annotations

import errno
import os
import re
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice, product
from typing import NamedTuple, Optional, Union

from raydiag.errors import Denied, NoData
from raydiag.host import Host, as_read_error
from raydiag.model import Status, Unread
from raydiag.probes import FIRST, probe
from raydiag.procfs import boot_time_s

PATH = "/dev/kmsg"
NOT_CHECKED = (
    "the kernel log was not checked: it needs root, CAP_SYSLOG or kernel.dmesg_restrict=0, "
    "and in a container /dev/kmsg"
)

_TEXT_LIMIT_BYTES = 4096
_LINE_LIMIT_BYTES = _TEXT_LIMIT_BYTES + 512  # header and text; a header has less than 100
_READ_BYTES = 8192  # the largest record of today's kernels; too small is EINVAL
_READ_LIMIT_BYTES = 1 << 20
_SYSLOG_LIMIT_BYTES = 16 << 20
_BATCH_LINES = 512
_KEEP_BYTES = 256 * 1024
_KEEP_LINES = 8192  # with both bounds the answer stays well below what the sandbox lets through
_READING_S = 3.0  # below the probe's timeout: what was read until then still gets out

_BEFORE, _AFTER, _AFTER_USEC = 2, 40, 1_000_000

_CLOCK_DRIFT = 50e-6
_BTIME_RESOLUTION_S = 1.0
_DEFAULT_PRIORITY = 4  # the level the kernel gives to a message without one

_SYSLOG_READ_ALL, _SYSLOG_SIZE_BUFFER = 3, 10

_DIGITS = b"0123456789"
_FOLDED = bytes.maketrans(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ", b"abcdefghijklmnopqrstuvwxyz")
_SHAPES = 32768  # remembered; a log with more different ones is searched again

# Numbers of up to 64 bits; longer ones are no header.
_RECORD = re.compile(rb"(\d{1,20}),(\d{1,20}),(\d{1,20})(?:,[^;]*)?;")
_PRIORITY = re.compile(rb"<(\d{1,20})>")
_STAMP = re.compile(rb"\[\s*(\d{1,20})\.(\d{1,20})\s*\] ?")

_ERRORS = (b"0,", b"1,", b"2,", b"3,", b"<0>", b"<1>", b"<2>", b"<3>")  # so records of errors begin
_GAP = b""  # stands in a stream of lines where records were overwritten


@dataclass(frozen=True)
class KernelLine:
    seq: int  # record number; -1 when the source has none
    time_s: float  # Unix seconds: btime + the record's microseconds since boot
    uncertainty_s: float  # bound of the error of time_s, see `kernel_log`
    level: int  # 0 emergency to 7 debug; 4 when the source has none
    facility: int  # 0 kernel; anything else was written by user space
    text: str  # message without header, at most 4 KiB; `\xNN` stands for an unprintable byte
    matched: bool  # True: one of the words is in it; False: context of one, or first record
    lost_before: int  # records overwritten just before it, while the ring was being read


@probe(KernelLine, timeout_s=4, stage=FIRST)
def kernel_log(
    host: Host,
    *,
    words: Sequence[str] = (),
    quiet: Sequence[str] = (),
    drivers: Sequence[str] = (),
) -> Iterator[Union[KernelLine, Unread]]:
    """Records whose lower-cased text contains one of `words`, oldest first.

    "a&b" wants both, "a&b|c" a with b or with c.

    Not those that hold a phrase of `quiet`: what a driver prints by the hundred while it starts.
    Also records at error level or above that begin with one of `drivers` (lower case).

    With each come the 2 records before it and up to 40 after it within 1 s, because a call trace
    follows its headline. The first record of the ring always comes, and the first after a gap, so
    that it shows how far back was seen. Only the newest 256 KiB of text are kept.

    time_s is off by at most uncertainty_s: 1 s, because btime has whole seconds, plus 50 ppm of
    the time from boot to the record. The kernel stamps records with a clock that nobody adjusts,
    while btime rests on the adjusted one, and a server's crystal stays within 50 ppm. Time spent
    suspended is not covered. A line without a time has that of the last dated one before it, and
    everything from there to now as its uncertainty.

    Raises Denied when there is nothing to read, also when the device is missing or empty: in a
    container that means "not checked", never "clean". ParseError without btime.
    """
    boot_s = boot_time_s(host)
    selection = _Selection(words, quiet, drivers)
    deadline = time.monotonic() + _READING_S
    lines = _lines(host)
    while batch := list(islice(lines, _BATCH_LINES)):
        selection.offer(batch)
        if time.monotonic() > deadline:
            reason = f"more than {_READING_S:g} s of reading: the newest records were not read"
            yield Unread(PATH, Status.TIMEOUT, reason)
            break
    if selection.first is None:
        raise Denied(f"{PATH}: holds no record; {NOT_CHECKED}")
    if selection.dropped_bytes:
        reason = (
            f"{selection.dropped_bytes} bytes of older matching lines dropped: "
            f"the newest {_KEEP_BYTES >> 10} KiB are kept"
        )
        yield Unread(PATH, Status.ERROR, reason)
    yield from _dated((selection.first, *selection.kept), boot_s)


class _Record(NamedTuple):
    seq: int
    usec: Optional[int]  # since boot; None: the line has no time
    priority: int  # 8 x facility + level
    text: bytes
    matched: bool = False
    lost: int = 0


class WordFilter:
    """Finds the lines that hold one of some words, cheap enough for a whole log.

    Lines of a log differ in their numbers and little else. Each is looked up by its shape, lower
    case and without digits, and only a shape that is new is searched for the words.
    """

    def __init__(
        self,
        words: Sequence[str],
        quiet: Sequence[str] = (),
        drivers: Sequence[str] = (),
        failures: Sequence[str] = (),
    ) -> None:
        """`quiet`: phrases (lower case, no digits) of lines that mean nothing at all.

        One of `drivers` together with one of `failures` is a word as well.
        """
        self._words = _by_first_part(map(_shape, words))
        names = [word for word, others in self._words.items() if () in others]  # found anyhow
        for name in sorted(map(_shape, drivers), key=len):
            if not any(shorter in name for shorter in names):
                names.append(name)
        self._drivers = _by_first_part(name for name in names if name not in self._words)
        self._failures = _by_first_part(map(_shape, failures))
        self._quiet = [phrase.encode() for phrase in quiet]
        self._dull: set[bytes] = set()  # shapes without any of the words

    def lines_with(self, block: bytes) -> list[int]:
        """Indices of lines, parted by newlines, that may hold a word; no line that does is missed.

        A word that is broken up by digits is found as well: look again at what comes.
        """
        shapes = block.translate(_FOLDED, _DIGITS).split(b"\n")
        if self._dull.issuperset(shapes):
            return []
        fresh = list(set(shapes) - self._dull)
        if len(self._dull) > _SHAPES:
            self._dull.clear()
            fresh = list(set(shapes))
        named = list(_holding(fresh, self._drivers))
        failed = _holding([fresh[index] for index in named], self._failures)
        hits = {
            index
            for index in _holding(fresh, self._words).union(named[at] for at in failed)
            if not any(phrase in fresh[index] for phrase in self._quiet)
        }
        self._dull.update(shape for index, shape in enumerate(fresh) if index not in hits)
        return [index for index, shape in enumerate(shapes) if shape not in self._dull]


def _shape(word: str) -> bytes:
    return word.encode().translate(_FOLDED, _DIGITS)


def _holding(shapes: Sequence[bytes], words: Mapping[bytes, list[tuple[bytes, ...]]]) -> set[int]:
    """Indices of shapes that hold a word.

    One search per word through all at once is several times faster than one per line.
    """
    joined = b"\n".join(shapes)
    ends = list(accumulate(len(shape) + 1 for shape in shapes))
    hits: set[int] = set()
    for first, others in words.items():
        at = joined.find(first)
        while at >= 0:
            index = bisect_right(ends, at)
            if index >= len(shapes):
                break
            if _holds(shapes[index], others):
                hits.add(index)
            at = joined.find(first, ends[index])
    return hits


def _by_first_part(words: Iterable[bytes]) -> dict[bytes, list[tuple[bytes, ...]]]:
    """For the first part of each word, the other parts that must be there as well."""
    found: dict[bytes, list[tuple[bytes, ...]]] = {}
    for word in words:
        first, *others = word.split(b"&")
        alternatives = (part.split(b"|") for part in others)
        found.setdefault(first, []).extend(product(*alternatives))
    return found


def _holds(text: bytes, others: list[tuple[bytes, ...]]) -> bool:
    return any(all(part in text for part in parts) for parts in others)


class _Selection:
    """Picks records out of a stream of lines, in bounded memory."""

    def __init__(
        self,
        words: Sequence[str],
        quiet: Sequence[str],
        drivers: Sequence[str] = (),
    ) -> None:
        self._drivers = tuple(begin.encode() for begin in drivers)
        self._words = _by_first_part(word.lower().encode() for word in words)
        self._filter = WordFilter(words, quiet)
        self.first: Optional[_Record] = None
        self.kept: deque[_Record] = deque()
        self.dropped_bytes = 0
        self._kept_bytes = 0
        self._before: deque[bytes] = deque(maxlen=_BEFORE)
        self._previous = b""
        self._gap = False
        self._following = 0  # records of context that may still come
        self._until_usec = 0.0

    def offer(self, lines: Sequence[bytes]) -> None:
        """Take the next lines; most are only looked at as bytes."""
        hits = set(self._filter.lines_with(b"\n".join(lines)))
        for index, line in enumerate(lines):
            if line == _GAP:
                self._gap = True
                continue
            hit = index in hits or line.startswith(_ERRORS)
            if hit or self._following or self._gap or self.first is None:
                self._consider(line, hit)
            else:
                self._before.append(line)
            self._previous = line

    def _consider(self, line: bytes, hit: bool) -> None:
        record = parse_line(line)
        if self._gap:
            lost = record.seq - parse_line(self._previous).seq - 1 if self._previous else 0
            record = record._replace(lost=max(0, lost))
        text = record.text.lower() if hit else b""
        in_time = record.usec is None or record.usec <= self._until_usec
        is_error = record.priority < 4 and text.startswith(self._drivers)
        holds = any(first in text and _holds(text, o) for first, o in self._words.items())
        if hit and (is_error or holds):
            for earlier in self._before:
                self._keep(parse_line(earlier))
            self._before.clear()
            self._keep(record._replace(matched=True))
            self._following = _AFTER
            self._until_usec = float("inf") if record.usec is None else record.usec + _AFTER_USEC
        elif self._following and in_time:
            self._keep(record)
            self._following -= 1
        else:
            self._following = 0
            if self._gap or self.first is None:
                self._before.clear()  # what comes next has its context on this side of the gap
                self._keep(record)
            else:
                self._before.append(line)
        self._gap = False

    def _keep(self, record: _Record) -> None:
        if self.first is None:
            self.first = record
            return
        self.kept.append(record)
        self._kept_bytes += len(record.text)
        while self._kept_bytes > _KEEP_BYTES or len(self.kept) > _KEEP_LINES:
            oldest = len(self.kept.popleft().text)
            self._kept_bytes -= oldest
            self.dropped_bytes += oldest


def _dated(records: Sequence[_Record], boot_s: float) -> Iterator[KernelLine]:
    last_usec = 0
    for record in records:
        last_usec = last_usec if record.usec is None else record.usec
        time_s = boot_s + last_usec / 1e6
        uncertainty_s = _BTIME_RESOLUTION_S + _CLOCK_DRIFT * last_usec / 1e6
        if record.usec is None:
            uncertainty_s += max(0.0, time.time() - time_s)
        yield KernelLine(
            seq=record.seq,
            time_s=time_s,
            uncertainty_s=uncertainty_s,
            level=record.priority & 7,
            facility=record.priority >> 3,
            text=record.text.decode("utf-8", "replace"),
            matched=record.matched,
            lost_before=record.lost,
        )


def parse_line(line: bytes) -> _Record:
    """One line: a record of /dev/kmsg, `<priority>[seconds] text`, `[seconds] text`, bare text."""
    record = parse_record(line)
    if record:
        return record
    priority, text = split_priority(line)
    if priority < 0:
        priority = _DEFAULT_PRIORITY
    stamp = _STAMP.match(text)
    if not stamp:
        return _Record(-1, None, priority, text[:_TEXT_LIMIT_BYTES])
    usec = int(stamp[1]) * 1_000_000 + int(stamp[2][:6].ljust(6, b"0"))
    return _Record(-1, usec, priority, text[stamp.end() :][:_TEXT_LIMIT_BYTES])


def parse_record(line: bytes) -> Optional[_Record]:
    """A record of /dev/kmsg, such as `4,18261,86423178160,-,caller=T7;Call Trace:`.

    Its header holds priority, number, microseconds since boot, flags. None for any other line.
    """
    header = _RECORD.match(line)
    if not header:
        return None
    priority, seq, usec = map(int, header.groups())
    return _Record(seq, usec, priority, line[header.end() :][:_TEXT_LIMIT_BYTES])


def split_priority(line: bytes) -> tuple[int, bytes]:
    """The number of `<4>` at the beginning of a line, and what follows; -1 for a line without."""
    mark = _PRIORITY.match(line)
    return (int(mark[1]), line[mark.end() :]) if mark else (-1, line)


def message_of(line: str) -> str:
    """A line without its header: `<0>[ 8123.456789] text` as text."""
    return parse_line(line.encode()).text.decode("utf-8", "replace").strip()


def _lines(host: Host) -> Iterator[bytes]:
    try:
        fd = host.open(PATH)
    except (NoData, Denied) as error:
        if host.root:
            raise Denied(f"{error}; {NOT_CHECKED}") from None
        yield from _syslog_lines(str(error))
        return
    try:
        yield from read_lines(fd)
    except OSError as error:
        failure = as_read_error(error, PATH)
        kind = Denied if isinstance(failure, NoData) else type(failure)
        raise kind(f"{failure}; {NOT_CHECKED}") from None
    finally:
        os.close(fd)


def read_lines(fd: int) -> Iterator[bytes]:
    """Lines of the device (a record per read, EAGAIN at the end) or of a file (any, then EOF).

    Lines are cut, empty ones and `KEY=value` left out; _GAP where records were overwritten.
    """
    size, rest = _READ_BYTES, b""
    while True:
        try:
            chunk = os.read(fd, size)
        except BlockingIOError:
            break
        except BrokenPipeError:
            yield _GAP
            continue
        except OSError as error:
            if error.errno != errno.EINVAL or size >= _READ_LIMIT_BYTES:
                raise
            size *= 2
            continue
        if not chunk:
            break
        lines = (rest + chunk).split(b"\n")
        # A longer rest is beyond the limit anyhow: the next chunk only adds to what is cut off.
        rest = lines.pop()[:_LINE_LIMIT_BYTES]
        for line in lines:
            if line and not _is_continuation(line):
                yield line[:_LINE_LIMIT_BYTES]
    if rest and not _is_continuation(rest):
        yield rest


def _is_continuation(line: bytes) -> bool:
    """` SUBSYSTEM=pci` and its like; a bare line of a call trace starts with a blank as well."""
    if line[:1] != b" ":
        return False
    key, equals, _ = line[1:].partition(b"=")
    return bool(equals) and key.isupper() and key.replace(b"_", b"").isalnum()


def _syslog_lines(reason: str) -> Iterator[bytes]:
    """The ring through syslog(2). Raises Denied, with `reason` as well, when that is refused."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    size = min(libc.klogctl(_SYSLOG_SIZE_BUFFER, None, 0), _SYSLOG_LIMIT_BYTES)
    buffer = ctypes.create_string_buffer(max(size, 1))
    length = libc.klogctl(_SYSLOG_READ_ALL, buffer, size) if size > 0 else size
    if length < 0:
        refusal = os.strerror(ctypes.get_errno())
        raise Denied(f"{reason}; syslog(2): {refusal}; {NOT_CHECKED}")
    for line in buffer.raw[:length].split(b"\n"):
        if line:
            yield line[:_LINE_LIMIT_BYTES]
