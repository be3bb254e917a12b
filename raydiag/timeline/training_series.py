"""What training itself says: its steps and scalars, without what the bridge filled in.

Source: `tb_*`, event times of the rank that writes them; `tb_metrics_plugin_staleness_fill` is 1
where the bridge repeated an old value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from raydiag.model import Status
from raydiag.timeline.answers import Answers
from raydiag.timeline.queries import FILL, TRAINING
from raydiag.tsdb.series import Floats, Query, QueryResult, Series

STEP = "tb_step"
LOSS, GRAD, RAW_GRAD = "tb_learning_loss", "tb_learning_grad_norm", "tb_learning_raw_grad_norm"
RATE, BALANCE = "tb_learning_current_learning_rate", "tb_learning_moe_lb_loss"
SECONDS, TGS = "tb_perf_step_time_seconds", "tb_perf_per_device_tokens_per_sec"
TFLOPS = "tb_perf_per_device_tflops_per_sec"
_Scalar = TypeVar("_Scalar")
_NO_TIMES = np.empty(0)
_NO_SERIES = Series({}, _NO_TIMES, _NO_TIMES)


@dataclass(frozen=True, eq=False)
class TrainingSeries:
    """Real samples by metric, of the host that has most of them."""

    host: str | None = None
    by_metric: Mapping[str, Series] = field(default_factory=dict)

    @classmethod
    def of(cls, answers: Answers) -> TrainingSeries:
        """From the answer to the query for training's scalars; empty without steps."""
        by_host: dict[str, list[Series]] = {}
        for series in answers.series("training"):
            if _has_samples(series):
                by_host.setdefault(series.labels.get("host", ""), []).append(series)
        hosts = [host for host, all_series in by_host.items() if _has_steps(all_series)]
        if not hosts:
            return cls()
        host = max(hosts, key=lambda name: sum(map(len, by_host[name])))
        filled = [_NO_TIMES]
        filled += [fill.times[fill.values != 0] for fill in by_host[host] if fill.metric == FILL]
        return cls(host, _real_samples(by_host[host], np.concatenate(filled)))

    def series(self, metric: str) -> Series | None:
        """None for a metric without real samples."""
        series = self.by_metric.get(metric)
        if series is None or not _has_samples(series):
            return None
        return series

    @property
    def throughput(self) -> Series | None:
        """Tokens or operations per second and device; where nobody counts them, steps per second.

        A batch that grows makes steps longer, and no work slower.
        """
        counted, seconds = self.series(TGS) or self.series(TFLOPS), self.series(SECONDS)
        if counted is not None or seconds is None:
            return counted or self.pace
        return Series({}, seconds.times, 1.0 / np.maximum(seconds.values, 1e-9))

    @property
    def pace(self) -> Series | None:
        """Steps per second from one end of a step to the next, with what lies between them."""
        if self.times.size < 2:
            return None
        return Series(
            {}, self.times[1:], np.diff(self.steps) / np.maximum(np.diff(self.times), 1e-9)
        )

    @property
    def throughput_unit(self) -> str:
        """Of `throughput`."""
        units = {TGS: "tokens/s/device", TFLOPS: "TFLOP/s/device"}
        counted = [unit for metric, unit in units.items() if self.series(metric) is not None]
        return next(iter(counted), "steps/s")

    @property
    def times(self) -> Floats:
        """When steps ended."""
        return self.by_metric.get(STEP, _NO_SERIES).times

    @property
    def steps(self) -> Floats:
        """Numbers of the steps, beside `times`."""
        return self.by_metric.get(STEP, _NO_SERIES).values

    @property
    def last(self) -> tuple[int, float] | None:
        """Newest step and when it ended."""
        if not self.times.size:
            return None
        return int(self.steps[-1]), float(self.times[-1])

    def step_at(self, time: float) -> int | None:
        """The newest step that had ended by then."""
        before = int(np.searchsorted(self.times, time, side="right"))
        return int(self.steps[before - 1]) if before else None

    @property
    def step_time_s(self) -> float | None:
        """Usual time of one step."""
        seconds = self.by_metric.get(SECONDS)
        if seconds is not None and len(seconds) >= 3:
            return float(np.median(seconds.values))
        if self.times.size < 3:
            return None
        return float(np.median(np.diff(self.times) / np.maximum(np.diff(self.steps), 1)))


def with_training(answers: Answers, series: Iterable[Series], source: str) -> Answers:
    """The answers with training's scalars from elsewhere as well."""
    answer = answers.answer("training")
    if answer is not None and answer.series:
        source = f"{answer.query.promql} and {source}"
    asked = Query.at("training", source, answer.query.window.end if answer is not None else 0.0)
    return answers.also([QueryResult(asked, Status.OK, series=tuple(series))])


def _has_samples(series: Series) -> bool:
    return bool(len(series) or series.nan_times.size)


def _has_steps(all_series: Sequence[Series]) -> bool:
    return STEP in {series.metric for series in all_series}


def in_our_names(scalars: Mapping[str, _Scalar]) -> dict[str, _Scalar]:
    """Scalars of training by our names; of several that mean the same, the first of the table."""
    order = {name: place for place, name in enumerate(TRAINING.metrics)}
    named: dict[str, _Scalar] = {}
    for name in sorted(scalars, key=lambda name: order.get(name, len(order))):
        named.setdefault(TRAINING.known_as.get(name, name), scalars[name])
    return named


def _real_samples(all_series: Sequence[Series], filled: Floats) -> dict[str, Series]:
    """By metric, without what the bridge filled in."""
    merged: dict[str, Series] = {}
    for series in all_series:
        if series.metric == FILL:
            continue
        real, metric = _without(series, filled), series.metric
        merged[metric] = _joined(merged[metric], real) if metric in merged else real
    return in_our_names(merged)


def _without(series: Series, filled: Floats) -> Series:
    real = ~np.isin(series.times, filled)
    nans = series.nan_times[~np.isin(series.nan_times, filled)]
    return Series(series.labels, series.times[real], series.values[real], nans)


def _joined(first: Series, second: Series) -> Series:
    """Two series of one metric: an exporter that came back under another instance."""
    times = np.concatenate([first.times, second.times])
    order = np.argsort(times, kind="stable")
    values = np.concatenate([first.values, second.values])[order]
    nans = np.sort(np.concatenate([first.nan_times, second.nan_times]))
    return Series(first.labels, times[order], values, nans)
