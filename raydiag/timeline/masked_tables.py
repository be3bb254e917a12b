"""The answers by host without what must not be judged: repeated samples, saves, warm-up."""

from dataclasses import replace
from functools import cached_property

import numpy as np

from raydiag.timeline.answers import Answers, ResultTable
from raydiag.timeline.context import GHOST, LOADED, Context
from raydiag.timeline.known_values import known
from raydiag.timeline.queries import range_s, template
from raydiag.timeline.steps import computing_time
from raydiag.timeline.training_series import TrainingSeries

_FINE = "-fine"  # ends the id of a follow-up that asks for single devices
_WARM_UP_S = 120.0  # of computing
_BY_GPU = ("gpu-power", "gpu-temperature", "gpu-clock", "gpu-vram")


class MaskedTables:
    """The context and the answers of one run, read together."""

    def __init__(self, context: Context, answers: Answers) -> None:
        self.context, self.answers = context, answers
        self.window, self.job = context.window, context.job
        self._tables: dict[str, ResultTable] = {}
        self._steady: dict[str, ResultTable] = {}

    @cached_property
    def training(self) -> TrainingSeries:
        """What training itself says."""
        return TrainingSeries.of(self.answers)

    @cached_property
    def trained(self) -> tuple[float, float] | None:
        """First and last completed step; where none has a time, when GPUs computed; else None."""
        times, placed = self.training.times, self.context.trained
        if times.size > 1:
            return float(times[0]), float(times[-1])
        if placed is not None:
            return placed.start, placed.end
        computing = computing_time(self.answers) if self.job.last_step is not None else None
        return (computing.first + _WARM_UP_S, computing.last) if computing is not None else None

    def missing(self, query_id: str) -> str:
        """Why there is nothing to judge; "" when there is, also when all of it is healthy.

        Queries that keep only what is wrong are answered by nothing when nothing is.
        """
        answer, query = self.answers.answer(query_id), template(query_id)
        if answer is not None and answer.ok and query is not None and query.faults_only:
            return ""
        return self.answers.missing(query_id)

    def table(self, query_id: str) -> ResultTable:
        """The answer by host, without ghost data."""
        if query_id not in self._tables:
            self._tables[query_id] = self._table(query_id)
        return self._tables[query_id]

    def steady(self, query_id: str) -> ResultTable:
        """Only while training went on, without saves, warm-up and the like."""
        if query_id not in self._steady:
            table = self.without(self.table(query_id))
            if self.trained is not None:
                table = table.between(*self.trained)
            self._steady[query_id] = table
        return self._steady[query_id]

    def outside_saves(self, query_id: str) -> ResultTable:
        """Without the times at which storage and coordination are busy, and that is normal."""
        return self.without(self.table(query_id), *LOADED)

    def without(self, table: ResultTable, *kinds: str) -> ResultTable:
        """NaN where a mask of these kinds (default: any) covers a value."""
        query = template(table.query_id.removesuffix(_FINE))  # of single devices, the same metric
        metric = query.metrics[0] if query is not None else ""
        judged, lag_s = self.context.judged, table.lookback_s
        on_all_hosts = judged(table.times, "", metric, *kinds, lag_s=lag_s)
        values = np.where(on_all_hosts[None, :], table.values, np.nan)
        masked_hosts = {mask.host for mask in self.context.masks if mask.host}
        for row, subject in enumerate(table.subjects):
            if subject.host in masked_hosts:
                keep = judged(table.times, subject.host, metric, *kinds, lag_s=lag_s)
                values[row, ~keep] = np.nan
        return replace(table, values=values)

    def capacities(self, metric: str) -> dict[str, float]:
        """What each host has of something, in bytes."""
        capacities = {}
        for subject, row in self.answers.table("capacity").pick(metric):
            numbers = known(row)
            if numbers.size:
                capacities[subject.host] = float(numbers[-1])
        return capacities

    def _table(self, query_id: str) -> ResultTable:
        table, query = self.answers.table(query_id), template(query_id)
        if query is not None and query.counter and table.step_s > 0:
            table = replace(table, lookback_s=range_s(self.context, table.step_s))
        if query_id.removesuffix(_FINE) in _BY_GPU:
            table = self._without_silent_gpus(table)
        return self.without(table, GHOST)

    def _without_silent_gpus(self, table: ResultTable) -> ResultTable:
        """NaN where a host's GPUs gave no sample: the server repeats the last ones for minutes."""
        counts = self.answers.table("gpu-count")
        if not len(counts) or not table.times.size:
            return table
        values = table.values.copy()
        columns = np.searchsorted(counts.times, table.times).clip(0, counts.times.size - 1)
        for row, subject in enumerate(table.subjects):
            gpu_counts = counts.row(subject.host)
            if gpu_counts is not None:
                values[row, np.isnan(gpu_counts[columns])] = np.nan
        return replace(table, values=values)
