"""Scalars of TensorBoard event files: every step that training wrote, also what the bridge lost.

    events.out.tfevents.1795000200.mi2033.cluster.local

Source: as of `event_file`.
"""

import itertools
import math
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Optional

import numpy as np

from raydiag import event_file
from raydiag.errors import ParseError
from raydiag.event_file import metric_name
from raydiag.model import Status, Unread
from raydiag.tsdb import tfrecords
from raydiag.tsdb.series import Floats
from raydiag.tsdb.unread import unread_file
from raydiag.untrusted import regular

_MOST_BYTES = 256 << 20  # of one file
_DEPTH, _ENTRIES = 4, 4000

_Rows = dict[str, list[tuple[float, float, float]]]  # tag -> (step, wall time, value)


@dataclass(frozen=True)
class EventFile:
    """One file, by what its name says."""

    path: str
    created: float  # Unix seconds
    host: str  # with whatever the writer put after it, e.g. "mi2033.4711.0.v2"


@dataclass(frozen=True, eq=False)
class ScalarSeries:
    """One tag: parallel arrays by step; of a step that was written twice, the newest."""

    steps: Floats
    times: Floats  # wall time of the event
    values: Floats


@dataclass(frozen=True)
class Events:
    """All scalars of one run, by tag ("learning/loss")."""

    scalars: dict[str, ScalarSeries] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    unread: tuple[Unread, ...] = ()
    cut: bool = False  # the newest file ends within a record: still written, or its end is lost

    @property
    def steps(self) -> Floats:
        """Every step that has a scalar, ascending."""
        steps = [scalar.steps for scalar in self.scalars.values()]
        return np.unique(np.concatenate(steps)) if steps else np.empty(0)

    @property
    def times(self) -> Floats:
        """When each of `steps` was written, by the earliest of its scalars."""
        steps = self.steps
        times = np.full(steps.size, np.inf)
        for scalar in self.scalars.values():
            places = np.searchsorted(steps, scalar.steps)
            times[places] = np.minimum(times[places], scalar.times)
        return times

    def of_metric(self, metric: str) -> Optional[ScalarSeries]:
        """By the name that the bridge gives a tag, as in `tb_learning_loss`."""
        for tag, scalar in self.scalars.items():
            if metric_name(tag) == metric:
                return scalar
        return None


def find(
    directories: Iterable[Path], host: Optional[str] = None, since: Optional[float] = None
) -> list[EventFile]:
    """Event files below the directories, oldest first.

    Jobs that save checkpoints share a directory: `host` and the time of creation tell whose a file
    is. Host names are compared between dots, so that host001 is not host0012.
    """
    files = {}
    for path in itertools.chain.from_iterable(map(_files, directories)):
        name = event_file.name_of(path)
        if name is None or (host is not None and not name.is_of(host)):
            continue
        if since is None or name.created >= math.floor(since):
            files[os.path.realpath(path)] = EventFile(path, name.created, name.host)
    return sorted(files.values(), key=attrgetter("created", "path"))


def _files(directory: Path) -> Iterator[str]:
    waiting, entries_to_go = [(str(directory), 0)], _ENTRIES
    while waiting and entries_to_go > 0:
        path, depth = waiting.pop()
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    entries_to_go -= 1
                    if entry.is_dir(follow_symlinks=False) and depth < _DEPTH:
                        waiting.append((entry.path, depth + 1))
                    elif entry.is_file():
                        yield entry.path
        except OSError:
            continue


def read(files: Sequence[EventFile]) -> Events:
    """The scalars of the files together. Never raises: what cannot be read is in `unread`."""
    rows: _Rows = defaultdict(list)
    unread: list[Unread] = []
    paths_read, cut = [], False
    for file in files:
        try:
            records = tfrecords.scan(_content(file.path))
        except OSError as error:
            unread.append(unread_file(file.path, error))
            continue
        damage = "; ".join(filter(None, (records.damage, _take(records, rows))))
        if damage:
            unread.append(Unread(file.path, Status.ERROR, damage))
        paths_read.append(file.path)
        cut = records.cut
    scalars = {tag: _scalar(tag_rows) for tag, tag_rows in sorted(rows.items())}
    return Events(scalars, tuple(paths_read), tuple(unread), cut)


def _content(path: str) -> bytes:
    with open(path, "rb", opener=regular) as file:
        size = os.fstat(file.fileno()).st_size
        if size > _MOST_BYTES:
            raise OSError(0, f"{size >> 20} MiB: more than is read of one event file")
        return file.read(_MOST_BYTES)


def _take(records: tfrecords.Records, rows: _Rows) -> str:
    """Adds all scalars to `rows`; says what could not be understood."""
    not_events = 0
    for content in records.contents:
        try:
            for tag, step, time, value in event_file.scalars(content):
                rows[tag].append((float(step), time, value))
        except ParseError:
            not_events += 1
    return f"{not_events} records are no events" if not_events else ""


def _scalar(rows: list[tuple[float, float, float]]) -> ScalarSeries:
    newest = {step: (time, value) for step, time, value in sorted(rows, key=itemgetter(1))}
    columns = [(step, *newest[step]) for step in sorted(newest)]
    steps, times, values = np.array(columns, dtype=np.float64).reshape(-1, 3).T
    return ScalarSeries(steps, times, values)
