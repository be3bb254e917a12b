"""What stands around a line, for those who need more than the line itself."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from raydiag.joblog.lines import AHEAD_BYTES, BEHIND_BYTES, LINE_BYTES, TextWindow
from raydiag.joblog.log_line import Prefix
from raydiag.joblog.prefixes import plain, split


def decode(data: bytes) -> str:
    return data.decode("utf-8", "replace")


@dataclass(frozen=True)
class LineContext:
    """One segment of a window and its neighbours; what they hold is the same for any chunk size."""

    window: TextWindow
    start: int
    end: int
    number: int  # of its line
    hosts: Collection[str] = ()

    @property
    def offset(self) -> int:
        return self.window.offset + self.start

    def below(self, limit: int) -> Iterator[tuple[int, str]]:
        """Number and text, verbatim, of the lines below, nearest first."""
        data, number = self.window.data, self.number
        stop = min(len(data), self.end + AHEAD_BYTES)
        position = self.end
        for _ in range(limit):
            if position >= stop:
                return
            if (
                data[position : position + 1] == b"\r"
                and data[position + 1 : position + 2] != b"\n"
            ):
                position += 1
            else:
                feed = data.find(b"\n", position, stop)
                if feed < 0:
                    return
                position, number = feed + 1, number + 1
            end = data.find(b"\n", position, stop)
            end = stop if end < 0 else end
            cut = data.find(b"\r", position, end)
            end = cut if cut >= 0 else end
            if position < end or end < stop:
                yield number, decode(data[position : min(end, position + LINE_BYTES)])
            position = end

    def writers_below(self, limit: int, writer: Prefix) -> Iterator[tuple[int, str]]:
        """The same, plain and without prefixes, of one writer only."""
        for number, raw in self.below(limit):
            prefix, text = split(plain(raw), self.hosts)
            if prefix.where == writer.where:
                yield number, text

    def text_above(self, limit: int) -> list[str]:
        """Up to `limit` lines above, plain and without prefixes, oldest first."""
        return [split(plain(raw), self.hosts)[1] for raw in self.above(limit)]

    def above(self, limit: int) -> list[str]:
        """Up to `limit` lines above, verbatim, oldest first."""
        data = self.window.data
        floor = max(0, self.start - BEHIND_BYTES // 2)
        lines: list[str] = []
        end = data.rfind(b"\n", floor, self.start)
        while end >= 0 and len(lines) < limit:
            start = data.rfind(b"\n", floor, end)
            if start < 0 and floor + self.window.offset > 0:
                break  # where that line starts is out of sight
            lines.append(decode(data[max(start + 1, end - LINE_BYTES) : end].rstrip(b"\r")))
            end = start
        return lines[::-1]
