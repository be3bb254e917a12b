"""Series of a simulated cluster: arrays on their scrape times, and what faults do to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass
class Series:
    """One series. NaN: no sample at that time. `times` are Unix seconds, ascending."""

    metric: str
    labels: dict[str, str]
    host: str
    source: str  # node_hw, ray, tb, up
    times: Floats
    values: Floats
    rng: np.random.Generator

    def within(self, start: float, end: float) -> Mask:
        return (self.times >= start) & (self.times < end)

    def rate(self, start: float, end: float, per_s: float, jitter: float = 0.15) -> None:
        """A counter grows by `per_s` more inside the window; whole numbers only."""
        before = np.concatenate(([self.times[0]], self.times[:-1]))
        overlap = np.clip(np.minimum(self.times, end) - np.maximum(before, start), 0, None)
        grown = overlap * per_s * self.rng.normal(1, jitter, overlap.shape).clip(0.2, 3)
        self.values += np.floor(np.cumsum(grown))

    def bump(self, at: float, amount: float = 1) -> None:
        self.values[self.times >= at] += amount

    def put(self, start: float, end: float, value: float, noise: float = 0.0) -> None:
        inside = self.within(start, end)
        self.values[inside] = value + self.rng.normal(0, 1, int(inside.sum())) * noise

    def shift(self, start: float, end: float, change: Callable[[Floats], Floats]) -> None:
        """Add what `change` says for the seconds since `start`."""
        inside = self.within(start, end)
        self.values[inside] += change(self.times[inside] - start)

    def drop(self, start: float, end: float) -> None:
        self.values[self.within(start, end)] = np.nan

    def freeze(self, start: float, end: float) -> None:
        """The last value before `start` is served again and again."""
        inside = self.within(start, end)
        before = np.flatnonzero((self.times < start) & ~np.isnan(self.values))
        if len(before) and inside.any():
            self.values[inside] = self.values[before[-1]]

    def restart(self, at: float) -> None:
        """The counter begins again at 0, as after a driver reload."""
        later = self.times >= at
        if later.any():
            self.values[later] -= self.values[later][0]


@dataclass
class Signals:
    """All series of a job."""

    rng: np.random.Generator
    series: dict[tuple[str, tuple[tuple[str, str], ...]], Series] = field(default_factory=dict)

    def add(
        self,
        metric: str,
        host: str,
        source: str,
        times: Floats,
        values: Floats,
        labels: dict[str, str],
    ) -> Series:
        made = Series(metric, labels, host, source, times, values.astype(float), self.rng)
        self.series[metric, tuple(sorted(labels.items()))] = made
        return made

    def of(
        self, host: str | None = None, metric: str = "", source: str = "", **labels: str
    ) -> Iterator[Series]:
        """Series of this host whose metric begins so, with these labels among theirs."""
        for one in self.series.values():
            fits = (host is None or one.host == host) and one.metric.startswith(metric)
            fits = fits and (not source or one.source == source)
            if fits and all(one.labels.get(key) == value for key, value in labels.items()):
                yield one

    def one(self, host: str, metric: str, **labels: str) -> Series:
        """The only series of exactly this metric there; KeyError where the job has none."""
        found = [one for one in self.of(host, metric, **labels) if one.metric == metric]
        if len(found) != 1:
            raise KeyError(f"{len(found)} series {metric} {labels} of {host}")
        return found[0]

    def remove(self, host: str | None = None, metric: str = "", source: str = "") -> None:
        """As if it had never been scraped."""
        gone = {id(one) for one in self.of(host, metric, source)}
        self.series = {key: one for key, one in self.series.items() if id(one) not in gone}
