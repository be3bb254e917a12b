"""One plugin that is not ours: the versions of its file, and what it said last.

A new version is offered, tried, and runs once it has passed; until then the last one that did goes
on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Optional

from raydiag.exporter.metrics import Metric, Sample

_MOST_PAUSE_CYCLES = 32  # between two trials of the same broken version


@dataclass
class PluginVersion:
    """One content of a plugin's file."""

    digest: str
    entry: Mapping[str, Any]  # of plugin_files.scan
    metrics: dict[str, tuple[str, tuple[str, ...]]] = field(default_factory=dict)
    is_proved: bool = False  # it has given samples
    is_not_here: bool = False  # it has asked not to be run any more


class ExternalPlugin:
    """One file, its versions, and what it said last."""

    def __init__(self, name: str, path: str) -> None:
        self.name = name
        self.path = path
        self.signature: list[int] = []
        self.current: Optional[PluginVersion] = None
        self.offered: Optional[PluginVersion] = None  # to be tried
        self.was_asked = False  # it has run, or was tried
        self.left: dict[int, str] = {}  # children that hang in the kernel: pid -> start
        self.left_since = 0.0  # Unix s
        self.is_late = False  # the last run of the newest content missed its deadline
        self.is_unsettled = False  # its file is being written
        self.problem = ""  # why what is there now cannot be taken; "" while it can
        self.pause: float = 0  # cycles until the next trial
        self.pauses = 0  # how many the last pause had
        self.reload_errors = 0
        self.state: Optional[str] = None
        self.kept: list[Sample] = []  # what a run that finds nothing new repeats
        self.declared: Mapping[str, Metric] = {}
        self.measured_at: Optional[float] = None
        self.repeats = False

    @property
    def is_outdated(self) -> bool:
        """Its new content was refused, and the version before runs."""
        return bool(self.problem) and self.current is not None

    def look_at(self, entry: Mapping[str, Any]) -> None:
        """Take note of what its file is now: see `plugin_files.scan`."""
        self.is_unsettled = bool(entry.get("unsettled"))
        if "problem" in entry:
            reason = entry["problem"][1]
            if self.problem != reason:
                self.refuse(reason)
            self.offered, self.signature = None, list(entry["signature"])
        elif "digest" in entry:
            self.signature = list(entry["signature"])
            self._offer(PluginVersion(entry["digest"], entry))

    def _offer(self, version: PluginVersion) -> None:
        if self.current is not None and self.current.digest == version.digest:
            self.current.entry = version.entry  # touched, or back again
            self.offered, self.problem = None, ""
        elif self.offered is None or self.offered.digest != version.digest:
            self.offered, self.problem = version, ""
            self.pause = self.pauses = 0
        else:
            self.offered.entry = version.entry

    def facts(self, now_s: float) -> dict[str, float]:
        """Values of metrics about it, by name without the prefix; `now_s` is Unix time."""
        facts: dict[str, float] = {
            "plugin_outdated": int(self.is_outdated),
            "plugin_reload_errors_total": self.reload_errors,
            "plugin_late": int(self.is_late),
            "plugin_disabled": int(self.current is not None and self.current.is_not_here),
        }
        if self.problem and not self.was_asked:
            facts["plugin_up"] = 0  # of those that ran, the collector says so
        if self.repeats and self.measured_at is not None:
            facts["plugin_replay_age_seconds"] = max(0.0, now_s - self.measured_at)
        return facts

    def refuse(self, reason: str, for_good: bool = False) -> None:
        """The offered version is broken; it is tried again after a pause, or not at all."""
        self.reload_errors += 1
        self.problem = reason
        if for_good:
            self.pause = math.inf
            return
        self.pauses = min(_MOST_PAUSE_CYCLES, 2 * self.pauses or 1)
        self.pause = self.pauses


def consistent(
    samples: list[Sample], declared: Mapping[str, Metric], version: PluginVersion
) -> tuple[list[Sample], list[str]]:
    """Samples whose metric has the type and labels that it had before; why others have not."""
    good, refused = [], []
    kinds = {name: metric.type for name, metric in declared.items()}
    for sample in samples:
        now = (kinds.get(sample.name, ""), tuple(sorted(sample.labels)))
        before = version.metrics.setdefault(sample.name, now)
        if before == now:
            good.append(sample)
        else:
            refused.append(f"{sample.name} was {_told(before)} and is now {_told(now)}")
    return good, refused


def _told(metric: tuple[str, tuple[str, ...]]) -> str:
    kind, labels = metric
    return f"{kind or 'a metric'} with labels {', '.join(labels) or 'none'}"
