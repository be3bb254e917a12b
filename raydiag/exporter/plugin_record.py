"""What is known of one plugin: how its runs went, as samples and as lines for people."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Optional

from raydiag.exporter.metrics import OWN_PREFIX, Sample
from raydiag.model import Status

_LOG_AGAIN_S = 60.0


@dataclass
class PluginRecord:
    """A run is over when all its sources have ended."""

    started: float = 0.0  # monotonic, when the first source of this run went to a reader
    sources: int = 0  # of this run, that have not ended
    trouble: str = ""  # why this run is not healthy
    denied: str = ""  # what this run may not read, of a plugin of ours
    up: Optional[bool] = None  # None: it has not run yet
    last_success: float = 0.0  # Unix s; 0: none yet
    duration_s: float = 0.0
    failures: int = 0
    timeouts: int = 0
    rejected: int = 0
    left_alone: int = 0  # paths
    _logged: tuple[str, float] = ("", 0.0)  # trouble, monotonic

    def open(self) -> None:
        """A source is to be read; the first one begins a run."""
        if not self.sources:
            self.started, self.trouble, self.denied = 0.0, "", ""
        self.sources += 1

    def end(self, status: Status, reason: str, is_own: bool) -> str:
        """A source has ended. Returns a line when its plugin begins to fail, or succeeds again.

        Not `is_own`: whoever calls knows better when the values are from.
        """
        self.timeouts += status is Status.TIMEOUT
        self.failures += status in (Status.ERROR, Status.DENIED)
        if status not in (Status.OK, Status.NO_DATA):
            self.trouble = self.trouble or reason
        if status is Status.DENIED and is_own:
            self.denied = reason
        self.sources -= 1
        if self.sources:
            return ""
        was_up = self.up is not False
        now = time.monotonic()
        self.duration_s = now - (self.started or now)
        self.up = not self.trouble
        if self.up and is_own:
            self.last_success = time.time()
        return self._line(was_up, now)

    def _line(self, was_up: bool, now: float) -> str:
        """What there is to log of a run that has ended; "" when that was logged a moment ago."""
        logged, logged_at = self._logged
        is_repetition = self.trouble == logged or now - logged_at < _LOG_AGAIN_S
        if self.up is was_up and is_repetition:
            return ""
        self._logged = (self.trouble, now)
        return self.trouble or "succeeds again"

    def samples(self, plugin: str, series: int) -> Iterator[Sample]:
        """About the plugin of that name, with so many series on the page."""
        facts: dict[str, float] = {
            "plugin_failures_total": self.failures,
            "plugin_timeouts_total": self.timeouts,
            "plugin_series": series,
            "rejected_samples_total": self.rejected,
            "skipped_paths": self.left_alone,
        }
        if self.up is not None:
            facts["plugin_up"] = int(self.up)
            facts["plugin_duration_seconds"] = round(self.duration_s, 6)
        if self.last_success:
            facts["plugin_last_success_timestamp_seconds"] = round(self.last_success, 3)
        if self.denied:
            labels = {"plugin": plugin, "reason": self.denied}
            yield Sample(f"{OWN_PREFIX}plugin_denied_info", labels, 1)
        for name, value in facts.items():
            yield Sample(OWN_PREFIX + name, {"plugin": plugin}, value)
