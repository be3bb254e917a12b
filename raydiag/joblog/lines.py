"""A log as a stream of windows: bounded memory whatever the file holds.

Plain files are read and not mapped: a log that shrinks while it is mapped kills its reader. Lines
end at LF, CR LF or a lone CR (progress bars); only LF counts lines. A line that is longer than
`LINE_BYTES` is looked at in pieces of that size; of one longer than `LOOKED_AT_BYTES`, no log line
any more, the middle is passed over, but for no less than its last 64 KiB.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import stat
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO, cast

from raydiag.errors import Denied, NoData, ParseError, ReadError
from raydiag.untrusted import regular

LINE_BYTES = 64 * 1024
BEHIND_BYTES = 128 * 1024  # what stays in sight above a line, for context and silences
AHEAD_BYTES = 64 * 1024  # and below it
CHUNK_BYTES = 512 * 1024
LOOKED_AT_BYTES = 1024 * 1024
_MAGIC = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
}


@dataclass(frozen=True)
class TextWindow:
    """A stretch of a log: lines between `begin` and `end`, and what is in sight around them."""

    data: bytes
    begin: int  # in `data`; at a line start, or at a piece of an overlong line
    end: int
    offset: int  # of data[0] in the uncompressed log
    line: int  # number of the line that starts (or goes on) at `begin`
    last: bool = False  # the log ends with it
    _counted: list[tuple[int, int]] = field(default_factory=list)  # newest (position, its line)

    def line_at(self, position: int) -> int:
        """Number of the line at a position in `data`; cheap when positions ascend."""
        at, line = self._counted[0] if self._counted else (self.begin, self.line)
        if position < at:
            return line - self.data.count(b"\n", position, at)
        line += self.data.count(b"\n", at, position)
        self._counted[:] = [(position, line)]
        return line

    def segment(self, position: int, floor: int) -> tuple[int, int]:
        """Start and end of the segment around a position.

        `floor` is where the search for its start may stop: a segment's start or end.
        """
        data = self.data
        start = data.rfind(b"\n", floor, position) + 1 or floor
        end = data.find(b"\n", position, position + LINE_BYTES + 1)
        if 0 <= end <= start + LINE_BYTES and data.find(b"\r", start, end) < 0:
            return start, end  # as most are
        if end < 0:
            end = min(len(data), position + LINE_BYTES + 1)
        start = max(data.rfind(b"\r", start, position) + 1, start)
        cut = data.find(b"\r", position, end)
        end = cut if cut >= 0 else end
        if end - start > LINE_BYTES:
            start += (position - start) // LINE_BYTES * LINE_BYTES
            end = min(end, start + LINE_BYTES)
        return start, end


@dataclass(frozen=True)
class Opened:
    """A log that can be read."""

    path: str
    size_bytes: int
    mtime: float
    inode: int
    kind: str  # plain, gzip, zstd, bzip2, xz
    stream: BinaryIO


def open_log(path: str) -> Opened:
    """Raises NoData, Denied or ParseError, with one line that says why."""
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            raise ParseError("is not a regular file")
        raw = open(path, "rb", 0, opener=regular)  # noqa: SIM115 (Source closes it)
    except FileNotFoundError:
        raise NoData("does not exist") from None
    except PermissionError:
        raise Denied("permission denied") from None
    except OSError as error:
        raise ReadError(error.strerror or str(error)) from None
    try:
        magic = raw.read(6) or b""
        raw.seek(0)
    except OSError as error:
        raw.close()
        raise ReadError(error.strerror or str(error)) from None
    kind = next((name for start, name in _MAGIC.items() if magic.startswith(start)), "plain")
    stream = _STREAMS[kind](raw) if kind in _STREAMS else raw
    inode = status.st_ino
    return Opened(path, status.st_size, status.st_mtime, inode, kind, cast(BinaryIO, stream))


def _zstd(raw: Any) -> Any:
    """Python 3.14 reads it without help; older ones need the package `zstandard`."""
    try:
        from compression import zstd  # type: ignore[import-not-found,unused-ignore]

        return zstd.ZstdFile(raw)
    except ImportError:
        pass
    try:
        import zstandard  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raw.close()
        raise ReadError(
            "is zstd: reading it needs Python 3.14 or `pip install zstandard`"
        ) from None
    return zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True)


_STREAMS: dict[str, Callable[[Any], Any]] = {
    "gzip": lambda raw: gzip.GzipFile(fileobj=raw, mode="rb"),
    "bzip2": bz2.BZ2File,
    "xz": lzma.LZMAFile,
    "zstd": _zstd,
}


class Source:
    """Reads one opened log to the size that it had when it was opened.

    `trouble` says afterwards why less came than there should be; empty otherwise.
    """

    def __init__(self, opened: Opened, start: int = 0) -> None:
        self._opened = opened
        self._left = opened.size_bytes - start if opened.kind == "plain" else None
        self.trouble = ""
        self.read_bytes = start
        if start:
            opened.stream.seek(start)

    def read(self, size: int) -> bytes:
        """Up to `size` bytes; empty at the end."""
        if self._left is not None:
            size = min(size, self._left)
        if not size or self.trouble:
            return b""
        data = b"".join(self._parts(size))
        if self._left is not None:
            self._left -= len(data)
            if not data:
                self.trouble = "became shorter while it was read"
        self.read_bytes += len(data)
        return data

    def _parts(self, size: int) -> Iterator[bytes]:
        """Part by part, so that what stands before damage in a compressed log is not lost."""
        stream: Any = self._opened.stream
        read = getattr(stream, "read1", stream.read)
        try:
            while size > 0 and (data := read(size)):
                size -= len(data)
                yield data
        except (OSError, EOFError, zlib.error, lzma.LZMAError, ValueError) as error:
            self.trouble = f"ends in the middle: {_reason(error)}"
        except Exception as error:
            if type(error).__name__ != "ZstdError":
                raise
            self.trouble = f"ends in the middle: {error}"

    def close(self) -> None:
        """Closes the log, and notices that another file has taken its name."""
        opened = self._opened
        opened.stream.close()
        if self.trouble:
            return
        try:
            if os.stat(opened.path).st_ino != opened.inode:
                self.trouble = "was replaced by another file while it was read"
        except OSError:
            self.trouble = "was removed while it was read"


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error).split("\n")[0] or type(error).__name__


def windows(
    source: Source, start: int = 0, line: int = 1, chunk: int = CHUNK_BYTES, behind: bytes = b""
) -> Iterator[TextWindow]:
    """The log in windows that end where a line does; the last may be empty.

    Nothing but the middle of an overlong line lies between one window and the next.
    `start` and `line` say where `source` stands, at a line's start; `behind` is what lies before.
    """
    data = behind
    begin = len(behind)  # of what no window has had
    offset = start - len(behind)
    looked_at = 0  # bytes of the line that goes on at `begin`
    addition = b"\n"
    while addition:
        addition = source.read(chunk)
        data += addition
        end = _cut(data, begin, len(data) - AHEAD_BYTES)
        if end > begin:
            window = TextWindow(data, begin, end, offset, line)
            goes_on = data[end - 1] not in b"\r\n"
            if looked_at < LOOKED_AT_BYTES or not goes_on or _ends(data, end):
                yield window
            looked_at = looked_at + end - begin if goes_on else 0
            line = window.line_at(end)
            drop = max(0, end - BEHIND_BYTES)
            data, begin, offset = data[drop:], end - drop, offset + drop
    yield TextWindow(data, begin, len(data), offset, line, last=True)


def _ends(data: bytes, begin: int) -> bool:
    return data.find(b"\n", begin) >= 0 or data.find(b"\r", begin) >= 0


def _cut(data: bytes, begin: int, limit: int) -> int:
    """Last place before `limit` where a segment ends; `begin` when there is none."""
    if limit <= begin:
        return begin
    end = max(data.rfind(b"\n", begin, limit), data.rfind(b"\r", begin, limit))
    if end >= 0:
        return end + 1
    return begin + (limit - begin) // LINE_BYTES * LINE_BYTES


# What terminals are sent besides text: bell, backspace, tab, line and page ends, shifts, escape.
_SENT_TO_TERMINALS = b"\x07\b\t\n\v\f\r\x0e\x0f\x1b"
_NEVER_TEXT = bytes(set(range(32)) - set(_SENT_TO_TERMINALS))


def binary(data: bytes) -> bool:
    """Whether the start of a file is no text: NUL and its like make up a twentieth of it."""
    head = data[:8192]
    return (len(head) - len(head.translate(None, _NEVER_TEXT))) * 20 > len(head)
