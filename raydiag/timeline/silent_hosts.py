"""Who reported until when: hosts that went silent well before the others did, some for a while."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from raydiag.timeline.answers import ALIVE, EXPORTER, RAY, Answers
from raydiag.timeline.context import Context
from raydiag.tsdb.series import Floats

_PATIENCE_S, _PATIENCE_SAMPLES = 60.0, 5.0


@dataclass(frozen=True)
class SilentHost:
    """A host whose series of every kind stopped while others went on."""

    host: str
    time: float  # its last sample
    sources: tuple[str, ...]  # "hw", "ray": what it had
    back_at: float | None = None  # its first sample after it; None: it stayed silent


def silent_hosts(context: Context, answers: Answers) -> Iterator[SilentHost]:
    """The earliest first; none when most are silent: then the monitoring ended, or the job."""
    sources = {host: answers.last_seen(host) for host in context.hosts}
    last_times = {host: max(times.values()) for host, times in sources.items() if times}
    for host in _gone(context, last_times):
        yield SilentHost(host, last_times[host], tuple(sorted(sources[host])))


def _gone(context: Context, last_times: Mapping[str, float]) -> list[str]:
    if len(last_times) < 2:
        return []
    limit = min(max(last_times.values()), context.window.end) - _patience_s(context)
    silent = [host for host, last in last_times.items() if last < limit]
    usual = float(np.median(list(last_times.values())))
    if len(silent) * 2 > len(last_times) and usual < limit:
        return []
    return sorted(silent, key=last_times.__getitem__)


def _patience_s(context: Context) -> float:
    return max(_PATIENCE_S, _PATIENCE_SAMPLES * context.resolution_s())


def returned_hosts(context: Context, answers: Answers) -> Iterator[SilentHost]:
    """Hosts that gave no sample of any kind for a while, though most others did, and came back."""
    stamps = {host: _stamps(answers, host) for host in context.hosts}
    stamps = {host: times for host, times in stamps.items() if times.size > 1}
    patience = _patience_s(context) + 2.0 * answers.step_s(ALIVE)
    for host, times in stamps.items():
        for place in np.flatnonzero(np.diff(times) > patience):
            before, after = float(times[place]), float(times[place + 1])
            others = [stamps[other] for other in stamps if other != host]
            silences = [_longest_silence(times, before, after) for times in others]
            if silences and float(np.median(silences)) <= patience:
                yield SilentHost(host, before, tuple(sorted(answers.last_seen(host))), after)


def _stamps(answers: Answers, host: str) -> Floats:
    """Times of a host's samples, by exporter or Ray."""
    stamps = [np.empty(0)]
    for source in (EXPORTER, RAY):
        by_host = answers.sample_times(source)
        if host in by_host:
            stamps.append(by_host[host][1])
    return np.unique(np.concatenate(stamps))


def _longest_silence(times: Floats, start: float, end: float) -> float:
    inside = times[(times > start) & (times < end)]
    return float(np.diff(np.concatenate([[start], inside, [end]])).max())
