"""One pass over one log, which may lie in several pieces: candidate lines go to every tally."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from raydiag import records
from raydiag.errors import ParseError, ReadError
from raydiag.joblog import exits, header, matches, saves, stages, startup, step_formats
from raydiag.joblog.clock import REACH, Clock, Timeline, has_time
from raydiag.joblog.exits import ExitTally
from raydiag.joblog.facts import LogFile
from raydiag.joblog.fast_step_lines import FastStepLines
from raydiag.joblog.header import MOST_NODES, HeaderTally
from raydiag.joblog.kernel_lines import ANCHORS as KERNEL_ANCHORS
from raydiag.joblog.kernel_lines import KernelTally
from raydiag.joblog.line_context import LineContext, decode
from raydiag.joblog.line_shapes import Interest, Interests
from raydiag.joblog.lines import (
    AHEAD_BYTES,
    BEHIND_BYTES,
    CHUNK_BYTES,
    Opened,
    Source,
    TextWindow,
    binary,
    open_log,
    windows,
)
from raydiag.joblog.log_line import Classify, JobLogLine, Prefix, Selector
from raydiag.joblog.matches import MatchTally
from raydiag.joblog.prefixes import host_stems, leading_host, of_rank, on_host, plain, split, stem
from raydiag.joblog.saves import SaveTally
from raydiag.joblog.stages import StageTally
from raydiag.joblog.startup import StartTally
from raydiag.joblog.state import Mark, PassState, digests
from raydiag.joblog.state import plain as as_json
from raydiag.joblog.steps import StepTally
from raydiag.model import Unread
from raydiag.nodeset import expand_in_order

ANCHORS: tuple[bytes, ...] = tuple(
    dict.fromkeys(
        step_formats.ANCHORS
        + header.ANCHORS
        + stages.ANCHORS
        + exits.ANCHORS
        + saves.ANCHORS
        + startup.ANCHORS
        + matches.ANCHORS
        + KERNEL_ANCHORS
    )
)
_STEP, _NEAR_BYTES = b"completed step: ", 64
HEAD_LINES, TAIL_LINES, EDGE_CHARS = 80, 200, 4096
GRID_BYTES = 64 * 1024  # how often a time is looked for where no candidate line has one
_PROBED_LINES = 8
_HOSTS = 16384


def _strings(anchors: Sequence[bytes]) -> tuple[str, ...]:
    return tuple(anchor.decode() for anchor in anchors)


_HEADER, _STAGES, _EXITS = (_strings(part.ANCHORS) for part in (header, stages, exits))
_STARTS = _strings(startup.ANCHORS)


def _holds(text: str, anchors: tuple[str, ...]) -> bool:
    for anchor in anchors:  # noqa: SIM110 (any() takes twice the time, for each candidate line)
        if anchor in text:
            return True
    return False


@dataclass
class Learnt:
    """All tallies of one log: what a state file keeps."""

    header: HeaderTally = field(default_factory=HeaderTally)
    stages: StageTally = field(default_factory=StageTally)
    steps: StepTally = field(default_factory=StepTally)
    saves: SaveTally = field(default_factory=SaveTally)
    exits: ExitTally = field(default_factory=ExitTally)
    starts: StartTally = field(default_factory=StartTally)
    matches: MatchTally = field(default_factory=MatchTally)
    kernel: KernelTally = field(default_factory=KernelTally)
    timeline: Timeline = field(default_factory=Timeline)
    head: list[str] = field(default_factory=list)
    hosts: dict[int, str] = field(default_factory=dict)  # task -> host, from lines with both
    addresses: dict[str, str] = field(default_factory=dict)  # IP address -> host, likewise
    seen_to: int = -1  # offset of the newest line that the timeline has
    probe_at: int = 0
    anchor_time: float | None = None
    binary: bool = False


@dataclass
class Pass:
    """Reads the pieces of one log in order; `learnt` grows."""

    select: Selector
    classify: Classify
    rank: int | None = None  # of all lines: the file is of one rank
    host: str | None = None
    chunk: int = CHUNK_BYTES
    learnt: Learnt = field(default_factory=Learnt)
    files: list[LogFile] = field(default_factory=list)
    unread: list[Unread] = field(default_factory=list)
    tail: list[str] = field(default_factory=list)
    tail_first_line: int = 0
    complete: bool = True
    resumed_at: int = 0
    directory: str = ""  # in which the files lie, which go by their names without it

    def read(self, path: str, role: str, state: PassState | None = None) -> bool:
        """Reads one file. False, and a line in `unread`, where it cannot be opened."""
        try:
            opened = open_log(os.path.join(self.directory, path))
        except ReadError as error:
            self.unread.append(Unread(path, error.status, str(error)))
            return False
        mark = self._resumed(opened, state)
        if mark is None:
            self.learnt.seen_to, self.learnt.probe_at = -1, 0
        start, line = (mark.offset, mark.line) if mark else (0, 1)
        self.resumed_at = start
        self._clock = Clock(opened.mtime)
        self._clock.anchor = self.learnt.anchor_time
        self._path, self._nodelist = path, ""
        self._node_names: frozenset[str] = frozenset()
        self._stems = host_stems(list(map(plain, self.learnt.head)))
        self._fast_steps = FastStepLines(path)
        self._know_hosts()
        self._interests = Interests()
        source = Source(opened, max(0, start - BEHIND_BYTES))
        behind = _exactly(source, min(start, BEHIND_BYTES))
        lines = 0
        for window in windows(source, start, line, self.chunk, behind):
            if window.last:
                self._remember(opened, window, state)
            self._window(window)
            if window.last:
                self._close(window)
                lines = self._finish(window)
        source.close()
        sizes = opened.size_bytes, source.read_bytes, lines
        self.files.append(
            LogFile(path, role, *sizes, opened.mtime, self.complete, self.learnt.binary)
        )
        if source.trouble:
            self.unread.append(Unread(path, ReadError.status, source.trouble))
        return True

    def _resumed(self, opened: Opened, state: PassState | None) -> Mark | None:
        """The mark to go on from, its tallies loaded; None for reading from the start."""
        if state is None or opened.kind != "plain":
            return None
        mark = state.mark_for(opened.path, opened.size_bytes, opened.inode)
        if mark is None:
            return None
        try:
            self.learnt = records.decode(Learnt, mark.learnt)
        except ParseError:
            return None
        return mark

    def _remember(self, opened: Opened, window: TextWindow, state: PassState | None) -> None:
        """Before the last window: what is in it may still change as the log grows."""
        if state is None or opened.kind != "plain":
            return
        state.marks.pop(opened.path, None)
        offset = window.offset + window.begin
        if offset == 0:
            return
        self.learnt.anchor_time = self._clock.anchor
        self.learnt.steps.settle()
        first, edge = digests(opened.path, offset)
        mark = Mark(offset, window.line, opened.inode, first, edge, as_json(self.learnt))
        state.marks[opened.path] = mark

    def _window(self, window: TextWindow) -> None:
        if window.offset + window.begin == 0:
            self._start(window)
        data, offset, learnt = window.data, window.offset, self.learnt
        passed = -(-offset // GRID_BYTES) * GRID_BYTES  # by an overlong line
        learnt.probe_at = max(learnt.probe_at, passed)
        hits = self.select(data[window.begin : window.end])
        at = floor = window.begin
        number = window.line  # of the line at `at`
        for hit in hits:
            position = window.begin + hit
            if position < floor or position >= window.end:
                continue
            start, end = window.segment(position, floor)
            floor = max(end, position + 1)
            if start == end:
                continue
            number += data.count(b"\n", at, start)
            at = start
            if learnt.probe_at < offset + start:
                self._probe(window, offset + start)
            if not self._fast_steps.take(
                window, start, end, number, learnt.steps, learnt.timeline.newest
            ):
                self._segment(window, start, end, number)
            elif data.startswith(b"\n", end) and data.find(_STEP, end, end + _NEAR_BYTES) > 0:
                after, steps = number + 1, learnt.steps
                floor, number = self._fast_steps.run(data, end + 1, window.end, after, steps)
                at = floor
        self._probe(window, window.offset + window.end)

    def _segment(self, window: TextWindow, start: int, end: int, number: int) -> None:
        """One candidate line."""
        learnt = self.learnt
        raw = window.data[start:end]
        interest = self._interests(raw)
        time = self._clock.time(raw) if interest.time else None
        verbatim = decode(raw)
        text = plain(verbatim)
        kernel = learnt.kernel.part(text, bool(interest.forms)) if interest.kernel else None
        if time is not None and window.offset + start > learnt.seen_to:
            if kernel is None:
                self._see(window, start, number, time)
            learnt.seen_to = window.offset + start  # a kernel line was not printed when it says
        if self._stems:
            self._know_leading(text)
        prefix, text = split(text, self._node_names)
        if self.rank is not None and prefix.rank is None:
            prefix = of_rank(prefix, self.rank)
        if self.host is not None and prefix.host is None:
            prefix = on_host(prefix, self.host)
        if kernel is not None and kernel["host"]:
            prefix = on_host(prefix, kernel["host"])
        line = JobLogLine(
            self._path,
            number,
            text,
            verbatim,
            prefix,
            time,
            learnt.timeline.newest,
            learnt.steps.step_lines > 0,
            not window.last or end < len(window.data),
        )
        if prefix.host:
            self._know_writer(prefix, prefix.host)
        if interest.steps and learnt.steps.take(line, interest.forms):
            if time is None:
                self._fast_steps.learn(line, raw)
            return
        if kernel is not None:
            learnt.kernel.take(line, kernel, learnt.steps.newest)
        self._others(line, LineContext(window, start, end, number, self._node_names), interest)

    def _others(self, line: JobLogLine, view: LineContext, interest: Interest) -> None:
        learnt, text = self.learnt, line.text
        if interest.header and _holds(text, _HEADER):
            learnt.header.take(line)
            self._know_hosts()
        if interest.stages and _holds(text, _STAGES):
            learnt.stages.take(line, view)
        if interest.exits and _holds(text, _EXITS):
            learnt.exits.take(line, view)
        if interest.saves:
            learnt.saves.take(line)
        if interest.startup and _holds(text, _STARTS):
            learnt.starts.take(line)
        learnt.matches.take(line, view, self.classify, learnt.steps.newest)

    def _know_writer(self, prefix: Prefix, host: str) -> None:
        """What Ray brings from an actor's node stands behind the task of the driver."""
        if prefix.ip is not None and len(self.learnt.addresses) < _HOSTS:
            self.learnt.addresses.setdefault(prefix.ip, host)
        elif prefix.pid is None and prefix.task is not None:
            self._know_host(prefix.task, host)

    def _know_host(self, task: int, host: str) -> None:
        if len(self.learnt.hosts) < _HOSTS:
            self.learnt.hosts.setdefault(task, host)

    def _know_leading(self, text: str) -> None:
        """A host that a launcher puts before lines, and that no list of nodes names."""
        name = leading_host(text)
        if stem(name) in self._stems and len(self._node_names) < _HOSTS:
            self._node_names |= {name}

    def _know_hosts(self) -> None:
        nodelist = self.learnt.header.nodes
        if nodelist and nodelist != self._nodelist:
            self._nodelist = nodelist
            self._node_names = frozenset(expand_in_order(nodelist, MOST_NODES))
            self._fast_steps.forget()

    def _probe(self, window: TextWindow, until: int) -> None:
        """Sees a time every so often up to `until`, an offset in the log, by candidates or not."""
        learnt, data = self.learnt, window.data
        while learnt.probe_at < until:
            grid = learnt.probe_at
            position = grid - window.offset
            if grid == 0:
                timed_line = _first_timed(data, position, HEAD_LINES)
            else:
                timed_line = _first_timed_after(data, position)
            if timed_line >= 0 and window.offset + timed_line >= until:
                return  # a candidate stands above it
            learnt.probe_at = (grid // GRID_BYTES + 1) * GRID_BYTES
            if timed_line >= 0 and window.offset + timed_line > learnt.seen_to:
                self._look(window, timed_line)

    def _look(self, window: TextWindow, start: int) -> None:
        time = self._clock.time(_head(window.data, start))
        if time is not None:
            self._see(window, start, window.line_at(start), time)

    def _see(self, window: TextWindow, start: int, number: int, time: float) -> None:
        learnt = self.learnt
        learnt.timeline.see(time, number)
        learnt.steps.see_time(time, self._path, number)
        learnt.seen_to = window.offset + start

    def _start(self, window: TextWindow) -> None:
        data = window.data
        if binary(data):
            self.learnt.binary = True
        self._clock.know_year(data[:AHEAD_BYTES])
        if self.learnt.head:
            return
        lines = data[:AHEAD_BYTES].split(b"\n", HEAD_LINES)
        if len(lines) > HEAD_LINES or not lines[-1] or (len(lines) > 1 and len(data) > AHEAD_BYTES):
            lines.pop()
        self.learnt.head = [decode(line.rstrip(b"\r"))[:EDGE_CHARS] for line in lines]
        self._stems = host_stems(list(map(plain, self.learnt.head)))

    def _finish(self, window: TextWindow) -> int:
        """Tail and number of lines; the last 128 KiB are always in sight here."""
        data = window.data
        self.complete = not data or data.endswith(b"\n")
        total = window.line_at(len(data)) - self.complete
        lines = data[-BEHIND_BYTES:].split(b"\n")
        if len(data) > BEHIND_BYTES or window.offset:
            lines = lines[1:] or lines
        if not lines[-1]:
            lines.pop()
        lines = lines[-TAIL_LINES:]
        self.tail = [decode(line.rstrip(b"\r")[-EDGE_CHARS:]) for line in lines]
        self.tail_first_line = total - len(lines) + 1 if lines else 0
        return total

    def _close(self, window: TextWindow) -> None:
        """The times of the log's last lines."""
        data = window.data
        floor = max(self.learnt.seen_to + 1 - window.offset, len(data) - AHEAD_BYTES)
        for position in _line_starts(data, max(floor, window.offset > 0), len(data)):
            if has_time(_head(data, position)):
                self._look(window, position)


def _exactly(source: Source, size: int) -> bytes:
    data = b""
    while len(data) < size and (addition := source.read(size - len(data))):
        data += addition
    return data


def _head(data: bytes, start: int) -> bytes:
    """As much of a line as may hold its time."""
    return data[start : start + REACH].split(b"\n", 1)[0]


def _first_timed(data: bytes, start: int, lines: int) -> int:
    """Where the first of the next lines starts that prints a time; -1 without one."""
    stop = min(len(data), start + AHEAD_BYTES // 2)
    for _ in range(lines):
        if start >= stop:
            return -1
        end = data.find(b"\n", start, stop)
        end = stop if end < 0 else end
        if has_time(data[start : min(end, start + REACH)]):
            return start
        start = end + 1
    return -1


def _first_timed_after(data: bytes, position: int) -> int:
    """The same from the next line on."""
    start = data.find(b"\n", position) + 1
    return _first_timed(data, start, _PROBED_LINES) if start else -1


def _line_starts(data: bytes, floor: int, stop: int) -> list[int]:
    starts = []
    position = floor if floor == 0 else data.find(b"\n", floor - 1, stop) + 1
    while 0 <= position < stop and (position or floor == 0):
        starts.append(position)
        feed = data.find(b"\n", position, stop)
        if feed < 0:
            break
        position = feed + 1
    return starts
