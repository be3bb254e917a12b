"""Who reported until when: hosts that went silent well before the others did."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from raydiag.timeline.answers import Answers
from raydiag.timeline.context import Context

_PATIENCE_S, _PATIENCE_SAMPLES = 60.0, 5.0


@dataclass(frozen=True)
class SilentHost:
    """A host whose series of every kind stopped while others went on."""

    host: str
    time: float  # its last sample
    sources: tuple[str, ...]  # "hw", "ray": what it had


def silent_hosts(context: Context, answers: Answers) -> Iterator[SilentHost]:
    """The earliest first; none when most are silent: then the monitoring ended, or the job."""
    sources = {host: answers.last_seen(host) for host in context.hosts}
    last_times = {host: max(times.values()) for host, times in sources.items() if times}
    for host in _gone(context, last_times):
        yield SilentHost(host, last_times[host], tuple(sorted(sources[host])))


def _gone(context: Context, last_times: Mapping[str, float]) -> list[str]:
    if len(last_times) < 2:
        return []
    patience = max(_PATIENCE_S, _PATIENCE_SAMPLES * context.resolution_s())
    limit = min(max(last_times.values()), context.window.end) - patience
    silent = [host for host, last in last_times.items() if last < limit]
    usual = float(np.median(list(last_times.values())))
    if len(silent) * 2 > len(last_times) and usual < limit:
        return []
    return sorted(silent, key=last_times.__getitem__)
