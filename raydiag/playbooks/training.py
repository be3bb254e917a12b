"""What training itself says: its steps and scalars, without what the bridge filled in.

Source: `tb_*`, event times of the rank that writes them; `tb_metrics_plugin_staleness_fill` is 1
where the bridge repeated an old value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Optional

import numpy as np

from raydiag.playbooks.queries import FILL
from raydiag.playbooks.query_results import Answers
from raydiag.tsdb.series import Floats, Series

STEP = "tb_step"
LOSS, GRAD, RAW_GRAD = "tb_learning_loss", "tb_learning_grad_norm", "tb_learning_raw_grad_norm"
RATE, BALANCE = "tb_learning_current_learning_rate", "tb_learning_moe_lb_loss"
SECONDS, TGS = "tb_perf_step_time_seconds", "tb_perf_per_device_tokens_per_sec"


@dataclass(frozen=True, eq=False)
class Training:
    """Real samples by metric, of the host that has most of them."""

    host: Optional[str] = None
    by_metric: Mapping[str, Series] = field(default_factory=dict)

    @classmethod
    def of(cls, answers: Answers) -> Training:
        series = [one for one in answers.series("training") if len(one) or one.nan_times.size]
        hosts = {one.labels.get("host", "") for one in series if one.metric == STEP}
        if not hosts:
            return cls()
        host = max(hosts, key=lambda name: _samples(series, name))
        own = [one for one in series if one.labels.get("host", "") == host]
        fills = [one for one in own if one.metric == FILL]
        filled = np.concatenate([one.times[one.values != 0] for one in fills] or [np.empty(0)])
        merged: dict[str, Series] = {}
        for one in own:
            if one.metric != FILL:
                real = _without(one, filled)
                known = merged.get(one.metric)
                merged[one.metric] = real if known is None else _joined(known, real)
        return cls(host, merged)

    def series(self, metric: str) -> Optional[Series]:
        """None for a metric without real samples."""
        found = self.by_metric.get(metric)
        return found if found is not None and (len(found) or found.nan_times.size) else None

    @property
    def times(self) -> Floats:
        """When steps ended."""
        step = self.by_metric.get(STEP)
        return step.times if step is not None else np.empty(0)

    @property
    def steps(self) -> Floats:
        step = self.by_metric.get(STEP)
        return step.values if step is not None else np.empty(0)

    @property
    def last(self) -> Optional[tuple[int, float]]:
        """Newest step and when it ended."""
        if not self.times.size:
            return None
        return int(self.steps[-1]), float(self.times[-1])

    def step_at(self, time: float) -> Optional[int]:
        """The newest step that had ended by then."""
        before = int(np.searchsorted(self.times, time, side="right"))
        return int(self.steps[before - 1]) if before else None

    @property
    def step_time_s(self) -> Optional[float]:
        """Usual time of one step."""
        seconds = self.by_metric.get(SECONDS)
        if seconds is not None and len(seconds) >= 3:
            return float(np.median(seconds.values))
        if self.times.size < 3:
            return None
        each = np.diff(self.times) / np.maximum(np.diff(self.steps), 1)
        return float(np.median(each))


def _samples(series: Iterable[Series], host: str) -> int:
    return sum(len(one) for one in series if one.labels.get("host", "") == host)


def _without(series: Series, filled: Floats) -> Series:
    """Also without repeats: a step that is told twice counts once."""
    keep = ~np.isin(series.times, filled)
    nans = series.nan_times[~np.isin(series.nan_times, filled)]
    return Series(series.labels, series.times[keep], series.values[keep], nans)


def _joined(one: Series, other: Series) -> Series:
    """Two series of one metric: an exporter that came back under another instance."""
    times = np.concatenate([one.times, other.times])
    order = np.argsort(times, kind="stable")
    values = np.concatenate([one.values, other.values])[order]
    nans = np.sort(np.concatenate([one.nan_times, other.nan_times]))
    return Series(one.labels, times[order], values, nans)
