"""What the workers' own logs say about communicators and compilations, counted.

Each process that joins a communicator prints one line about MSCCL++ for each of its GPUs, so these
lines come in waves: one when the process starts, one when training begins, and one more where a
restore built a communicator of its own.

    [2026-11-20 03:12:07] mi2033:4000:4411 [0] init.cc:2095 NCCL WARN MSCCL++: ...

Source: ray_logs/<host>/**/worker*.out and .err; RCCL, src/init.cc.
"""

import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median_low
from typing import Any

from raydiag.errors import ReadError
from raydiag.joblog.clock import Clock
from raydiag.joblog.facts import Resolved
from raydiag.joblog.lines import open_log
from raydiag.model import Evidence, Status, Unread

WAVE_GAP_S = 5.0  # within a wave the GPUs of one host follow each other at once
_OTHER_LINES = 3  # between waves, where no line prints a time
_NEAR = 3  # lines above one without a time that may print it
_FILES, _MOST_BYTES, _LONGEST_LINE = 64, 512 << 20, 1 << 16

INIT = "NCCL WARN MSCCL++"
PATTERNS: Mapping[str, tuple[bytes, ...]] = {
    INIT: (b"NCCL WARN MSCCL++",),
    "NCCL WARN, others": (b"NCCL WARN",),
    "XLA compilations": (b"Compilation of ", b"Compiling module", b"Compiled "),
    "single-replica broadcast": (b"SingleReplicaArrayHandler", b"broadcast_one_replica_to_all"),
    "tracebacks": (b"Traceback (most recent call last)",),
}
_MARKS = re.compile(
    rb"restor|heckpoint|completed step|Synchronizing hosts|SingleReplica|one_replica|ompil"
)
_DUMPED = re.compile(r"^(module_\d+)\.(jit_create_zeros)\b")


@dataclass(frozen=True)
class Wave:
    """Initialisations that belong together."""

    lines: int
    first_line: int
    time: float | None
    text: str  # of its first line


@dataclass(frozen=True)
class WorkerLogCounts:
    """All logs of one job's workers together."""

    counts: Mapping[str, int] = field(default_factory=dict)  # lines by the patterns above
    waves: int | None = None  # of most hosts; None: no line about communicators
    of_file: tuple[Wave, ...] = ()  # of the first file that has so many
    file: str = ""
    files: int = 0
    dumped_zeros: int | None = None  # modules jit_create_zeros in xla_dump/; None: no dump
    unread: tuple[Unread, ...] = ()

    def wave_evidence(self) -> Iterator[Evidence]:
        """The lines that open the waves."""
        for wave in self.of_file:
            source, text = f"{self.file}:{wave.first_line}", f"wave: {wave.text}"
            yield Evidence(source, text, wave.lines, wave.time)


def read(resolved: Resolved, head: str | None) -> WorkerLogCounts:
    """The head node's logs first. Never raises: what cannot be read is in `unread`."""
    counts: Counter[str] = Counter()
    by_file: dict[str, list[Wave]] = {}
    unread: list[Unread] = []
    paths = sorted(resolved.worker_logs, key=lambda path: (head or "") not in Path(path).parts)
    for path in paths[:_FILES]:
        try:
            reader = _WorkerLogReader()
            reader.read(path)
        except (ReadError, OSError, EOFError) as error:
            unread.append(Unread(path, getattr(error, "status", Status.ERROR), str(error)))
            continue
        counts.update(reader.counts)
        if reader.waves:
            by_file[path] = reader.waves
        if reader.stopped:
            unread.append(Unread(path, Status.ERROR, f"read to {_MOST_BYTES >> 20} MiB only"))
    waves, file = None, ""
    if by_file:
        waves = median_low(map(len, by_file.values()))
        file = next(path for path, found_waves in by_file.items() if len(found_waves) == waves)
    of_file, dumped = tuple(by_file.get(file, ())), _dumped(resolved.job_dir)
    lines, files = {name: counts[name] for name in PATTERNS}, len(paths[:_FILES])
    return WorkerLogCounts(lines, waves, of_file, file, files, dumped, tuple(unread))


def _dumped(job_dir: str | None) -> int | None:
    """Different modules that create zeros; each is dumped in several files."""
    if job_dir is None:
        return None
    try:
        names = [path.name for path in (Path(job_dir) / "xla_dump").iterdir()]
    except OSError:
        return None
    return len({match[1] for match in map(_DUMPED.match, names) if match})


class _WorkerLogReader:
    """One pass over one log."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.waves: list[Wave] = []
        self.stopped = False
        self._newest: float | None = None  # time of the newest initialisation
        self._apart = 0  # other lines since then
        self._marked = False  # one of them is of a phase of the job

    def read(self, path: str) -> None:
        """The whole log, once."""
        opened = open_log(path)
        clock = Clock(opened.mtime)
        above: deque[bytes] = deque(maxlen=_NEAR)
        bytes_read = 0
        with opened.stream as stream:
            for number, raw in enumerate(_lines(stream), 1):
                bytes_read += len(raw)
                if bytes_read > _MOST_BYTES:
                    self.stopped = True
                    return
                if b"NCCL WARN" in raw:
                    self._warning(raw, number, clock, above)
                else:
                    self._other(raw)
                above.append(raw)

    def _warning(self, raw: bytes, number: int, clock: Clock, above: Iterable[bytes]) -> None:
        if b"MSCCL++" not in raw:
            self.counts["NCCL WARN, others"] += 1
            return
        self.counts[INIT] += 1
        printed = clock.time(raw)
        # Lines of the wave itself push what stood above it out of sight.
        time = printed if printed is not None else _time(clock, above)
        if not self.waves or self._opens(time, printed is not None):
            text = raw[:400].decode("utf-8", "replace").strip()
            self.waves.append(Wave(1, number, time, text))
        else:
            self.waves[-1] = replace(self.waves[-1], lines=self.waves[-1].lines + 1)
        self._newest = time if time is not None else self._newest
        self._apart, self._marked = 0, False

    def _opens(self, time: float | None, is_own: bool) -> bool:
        """Time tells; without it, what stands between."""
        if time is not None and self._newest is not None and (is_own or time != self._newest):
            return time - self._newest > WAVE_GAP_S
        return self._marked or self._apart >= _OTHER_LINES

    def _other(self, raw: bytes) -> None:
        if b"NCCL" in raw:
            return
        for name, words in PATTERNS.items():
            if any(word in raw for word in words):
                self.counts[name] += 1
        if self.waves and not self._marked:
            self._apart += 1
            self._marked = self._apart <= _OTHER_LINES and bool(_MARKS.search(raw))


def _lines(stream: Any) -> Iterable[bytes]:
    """Overlong lines in pieces. Raw files are unbuffered, and compressed ones are not."""
    incomplete = b""
    while chunk := stream.read(1 << 18):
        *complete, incomplete = (incomplete + chunk).split(b"\n")
        yield from complete
        if len(incomplete) > _LONGEST_LINE:
            yield incomplete
            incomplete = b""
    if incomplete:
        yield incomplete


def _time(clock: Clock, lines: Iterable[bytes]) -> float | None:
    """The newest time that one of the lines prints."""
    times = list(filter(None, map(clock.time, lines)))
    return times[-1] if times else None
