"""Scalars of TensorBoard event files: every step that training wrote, also what the bridge lost.

    events.out.tfevents.1795000200.mi2033.cluster.local

The package `tensorboard` (which `tbparse` brings as well) reads them where it is installed; else,
and where a file is damaged, they are read directly, with the same result.

Source: as of `event_file`.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

import numpy as np

from raydiag import event_file
from raydiag.errors import ParseError
from raydiag.event_file import metric_name
from raydiag.model import Status, Unread
from raydiag.tsdb import tfrecords
from raydiag.tsdb.series import Floats

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
        found = [one.steps for one in self.scalars.values()]
        return np.unique(np.concatenate(found)) if found else np.empty(0)

    @property
    def times(self) -> Floats:
        """When each of `steps` was written, by the earliest of its scalars."""
        steps = self.steps
        times = np.full(steps.size, np.inf)
        for one in self.scalars.values():
            at = np.searchsorted(steps, one.steps)
            times[at] = np.minimum(times[at], one.times)
        return times

    def of_metric(self, metric: str) -> Optional[ScalarSeries]:
        """By the name that the bridge gives a tag, as in `tb_learning_loss`."""
        found = (one for tag, one in self.scalars.items() if metric_name(tag) == metric)
        return next(found, None)


def find(
    places: Iterable[Path], host: Optional[str] = None, since: Optional[float] = None
) -> list[EventFile]:
    """Event files below the directories, oldest first.

    Jobs that save checkpoints share a directory: `host` and the time of creation tell whose a file
    is. Host names are compared between dots, so that host001 is not host0012.
    """
    found = {}
    for place in places:
        for path in _files(place):
            name = event_file.name_of(path)
            if name is None or (host is not None and not name.is_of(host)):
                continue
            one = EventFile(path, name.created, name.host)
            if since is not None and one.created < math.floor(since):
                continue
            found[os.path.realpath(path)] = one
    return sorted(found.values(), key=lambda one: (one.created, one.path))


def _files(place: Path) -> Iterator[str]:
    waiting, left = [(str(place), 0)], _ENTRIES
    while waiting and left > 0:
        directory, depth = waiting.pop()
        try:
            with os.scandir(directory) as entries:
                for entry in entries:
                    left -= 1
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
    whole, cut = [], False
    for one in files:
        try:
            content = _content(one.path)
        except OSError as error:
            denied = isinstance(error, PermissionError)
            status = Status.DENIED if denied else Status.ERROR
            unread.append(Unread(one.path, status, error.strerror or str(error)))
            continue
        records = tfrecords.scan(content)
        damage = records.damage or _take(one.path, records, rows)
        if damage:
            unread.append(Unread(one.path, Status.ERROR, damage))
        if records.damage:
            _directly(records, rows)
        whole.append(one.path)
        cut = records.cut
    scalars = {tag: _scalar(found) for tag, found in sorted(rows.items())}
    return Events(scalars, tuple(whole), tuple(unread), cut)


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > _MOST_BYTES:
            raise OSError(0, f"{size >> 20} MiB: more than is read of one event file")
        return file.read(_MOST_BYTES)


def _take(path: str, records: tfrecords.Records, rows: _Rows) -> str:
    """All scalars of a file without damage; says what could not be understood."""
    if _tensorboard() is not None:
        _by_tensorboard(path, rows)
        return ""
    return _directly(records, rows)


def _scalar(found: list[tuple[float, float, float]]) -> ScalarSeries:
    newest = {step: (time, value) for step, time, value in sorted(found, key=lambda row: row[1])}
    steps = np.array(sorted(newest), dtype=np.float64)
    times = np.array([newest[step][0] for step in steps], dtype=np.float64)
    values = np.array([newest[step][1] for step in steps], dtype=np.float64)
    return ScalarSeries(steps, times, values)


# ---- by the package


def _tensorboard() -> Optional[Any]:
    """Its accumulator; None without it, or beside TensorFlow, which it would load: that takes
    seconds and touches GPUs."""
    if importlib.util.find_spec("tensorboard") is None:
        return None
    if importlib.util.find_spec("tensorflow") is not None:
        return None
    try:
        return importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    except ImportError:  # a version that does not fit what it needs itself
        return None


def _by_tensorboard(path: str, rows: _Rows) -> None:
    module = _tensorboard()
    assert module is not None
    every = {module.SCALARS: 0, module.TENSORS: 0, module.IMAGES: 1, module.HISTOGRAMS: 1}
    found = module.EventAccumulator(path, size_guidance=every, purge_orphaned_data=False)
    found.Reload()
    tags = found.Tags()
    for tag in tags["scalars"]:
        rows[tag] += [(float(e.step), e.wall_time, float(e.value)) for e in found.Scalars(tag)]
    for tag in tags["tensors"]:
        for event in found.Tensors(tag):
            value = event_file.tensor_number(event.tensor_proto.SerializeToString())
            if value is not None:
                rows[tag].append((float(event.step), event.wall_time, value))


# ---- directly


def _directly(records: tfrecords.Records, rows: _Rows) -> str:
    wrong = 0
    for content in records.contents:
        try:
            for tag, step, time, value in event_file.scalars(content):
                rows[tag].append((float(step), time, value))
        except ParseError:
            wrong += 1
    return f"{wrong} records are no events" if wrong else ""
