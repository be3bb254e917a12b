"""What a served page says of a replaced plugin: metrics that are missing, and its own report.

A missed deadline is not a failure: on a node whose CPUs training takes, cycles come late and values
expire. What raydiag's exporter says of its cycles tells late from failed.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Optional

from raydiag.hotfix.messages import Verify
from raydiag.hotfix.process import SCRIPT
from raydiag.hotfix.served_page import ParsedPage

DURATION = "hw_scrape_duration_seconds"
# Values change with training alone, and there need not be any.
MAY_STAND_STILL = ("tb_metrics_plugin.sh",)

_OWN = "raydiag_exporter_"
_GPU = "hw_gpu_"
# Where no dry run says which metrics a plugin makes: those with this prefix, but for the others'.
_PREFIXES = {
    "gpu_metrics_plugin.sh": _GPU,
    "host_metrics_plugin.sh": "hw_",
    "tb_metrics_plugin.sh": "tb_",
    SCRIPT: "hw_",
}
_OF_OTHERS = {"host_metrics_plugin.sh": (_GPU, DURATION)}
# The exporter removes values that were not replaced for so long, and serves no values at all from
# a page of the second age.
_VALUES_EXPIRE_INTERVALS, _PAGE_EXPIRES_INTERVALS = 1.5, 2.0
_CLOCK_S = 0.01  # its times are rounded


@dataclass(frozen=True)
class OwnReport:
    """What raydiag's exporter says of itself and of one plugin; None where it does not say."""

    file: str  # of the plugin
    interval_s: Optional[float]
    page_age_s: Optional[float]
    cycle_at: Optional[float]  # Unix s, end of the last cycle
    up: Optional[bool]
    outdated: bool  # its new content was refused, and the version before runs
    disabled: bool
    late: bool  # the last run, or the trial of its new content, missed the deadline
    timeouts: int
    succeeded_at: Optional[float]  # Unix s

    @classmethod
    def of(cls, page: ParsedPage, file: str) -> OwnReport:
        """Of the plugin in `file`."""
        plugin = os.path.splitext(file)[0]
        fact = functools.partial(own_value, page, plugin=plugin)
        up = fact("plugin_up")
        return cls(
            file=file,
            interval_s=own_value(page, "interval_seconds"),
            page_age_s=own_value(page, "page_age_seconds"),
            cycle_at=own_value(page, "cycle_timestamp_seconds"),
            up=None if up is None else bool(up),
            outdated=bool(fact("plugin_outdated")),
            disabled=bool(fact("plugin_disabled")),
            late=bool(fact("plugin_late")),
            timeouts=int(fact("plugin_timeouts_total") or 0),
            succeeded_at=fact("plugin_last_success_timestamp_seconds"),
        )

    def failure(self) -> str:
        """Why the plugin is not healthy, which may be that it is late; "" when it is."""
        if self.outdated:
            return f"{self.file} was not loaded: the exporter goes on with the one before"
        if self.up is False:
            return f"{self.file} fails: raydiag_exporter_plugin_up is 0"
        return ""

    def awaited_run(self, since: float) -> str:
        """Which run of the plugin is still to come; "" when one has ended after `since`."""
        if self.disabled:
            return ""
        if self.up is None:
            return f"a first run of {self.file}"
        if self.succeeded_at is not None and self.succeeded_at < since:
            return f"a run of {self.file} after the change"
        return ""

    def page_has_expired(self) -> bool:
        """Whether the exporter's cycles are so late that its page has no values."""
        if not self.interval_s or self.page_age_s is None:
            return False
        return self.page_age_s > _PAGE_EXPIRES_INTERVALS * self.interval_s

    def values_have_expired(self) -> bool:
        """Whether the plugin's last good run is so long ago that its values were removed."""
        if not self.interval_s or self.cycle_at is None or self.succeeded_at is None:
            return False
        age_s = self.cycle_at - self.succeeded_at
        return age_s > _VALUES_EXPIRE_INTERVALS * self.interval_s - _CLOCK_S


def own_value(page: ParsedPage, name: str, plugin: str = "") -> Optional[float]:
    """A value that raydiag's exporter tells of itself or of a plugin; None when it does not."""
    for series, value in page.values.items():
        is_named = series.partition("{")[0] == _OWN + name
        if is_named and (not plugin or f'plugin="{plugin}"' in series):
            return value
    return None


def metrics_of_plugin(request: Verify, metrics: Mapping[str, int]) -> Iterator[str]:
    """Names of the metrics that the replaced file makes, among these."""
    if request.expected:
        yield from (name for name in metrics if name in request.expected)
        return
    prefix = _PREFIXES.get(request.name)
    if prefix is None:
        return
    of_others = _OF_OTHERS.get(request.name, (DURATION,))
    for name in metrics:
        if name.startswith(prefix) and not name.startswith(of_others):
            yield name


def missing_metrics(request: Verify, page: ParsedPage) -> str:
    """Which metrics of the plugin are gone, or have fewer series; "" when none has."""
    served = page.metrics
    earlier = list(metrics_of_plugin(request, request.before))
    for name in earlier:
        if name not in served or _has_lost_gpus(request, name, served[name]):
            return f"{name} has {served.get(name, 0)} series, and had {request.before[name]}"
    if request.name in MAY_STAND_STILL and not earlier:
        return ""
    makes_metrics = bool(request.expected) or request.name in _PREFIXES
    if makes_metrics and not any(metrics_of_plugin(request, served)):
        return f"nothing is served of what {request.name} makes"
    return ""


def _has_lost_gpus(request: Verify, name: str, series: int) -> bool:
    """Whether GPUs are missing, and the dry run did not have as few of them."""
    before = request.before[name]
    is_planned = bool(request.expected) and request.expected.get(name, 0) < before
    return name.startswith(_GPU) and series < before and not is_planned
