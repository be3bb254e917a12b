"""Symptoms of the nodes' metrics exporters: gone, hanging, incomplete, restarting, repeating."""

from collections.abc import Iterator
from itertools import chain, filterfalse
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from raydiag.model import Evidence, Observation
from raydiag.playbooks.observability.stack import Stack, log_evidence, observation
from raydiag.playbooks.report_writer import remark_unless
from raydiag.timeline.answers import EXPORTER, RAY
from raydiag.timeline.context import GHOST
from raydiag.timeline.known_values import last_true
from raydiag.timeline.masks import scrape_durations
from raydiag.timeline.queries import SCRAPE
from raydiag.tsdb.series import Floats, Series
from raydiag.tsdb.stack_logs import StackLine

_SLOW_S, _TIMED_OUT_S, _FAST_S = 8.0, 11.5, 3.0  # duration of an exporter's cycle
_SLOW_CYCLES = 3
# One source of a host silent for so long while the other goes on: so many scrapes, within bounds.
_SILENT_SCRAPES, _SILENT_S, _SILENT_AT_MOST_S = 8.0, 60.0, 120.0
_RESTARTS = 2  # more than one is a habit
_AHEAD_S, _SKEW_S = 3.0, 20.0  # of a clock, against Prometheus's and against the others'
_YOUNG_PERCENT = 10.0  # of an exporter's cycles, the youngest when scraped: none hangs then
_RECOVERED_S = 600.0  # fast again for so long


def exporter_down(stack: Stack) -> Iterator[Observation]:
    """A node's hardware metrics stop, or never came, while its Ray goes on."""
    hw, ray = stack.newest_samples(EXPORTER), stack.newest_samples(RAY)
    for host in stack.hosts:
        if host in stack.translated:
            yield from _silent_exporters(stack, host)
        elif host not in ray or "ray-metrics" in stack.never_there:
            continue
        elif host in hw:
            silence = ray[host] - hw[host]
            if silence > _silent_s(stack):
                yield _stopped(stack, host, hw[host], silence)
        elif not stack.is_scraped(host):
            text = "no hw_* of this host at all, although its Ray has metrics"
            evidence = [Evidence("hw_*", text), *log_evidence(stack.logs.of("port-taken", host))]
            yield observation("exporter-down", evidence, host, until=stack.end)


def _silent_s(stack: Stack) -> float:
    return min(_SILENT_AT_MOST_S, max(_SILENT_S, _SILENT_SCRAPES * stack.resolution_s))


def _stopped(stack: Stack, host: str, last: float, silence: float) -> Observation:
    text = f"hw_* ends {silence:.0f} s before ray_* of the same host"
    log = [*stack.logs.of("gave-up", host), *stack.logs.of("restart", host)[-1:]]
    return observation(
        "exporter-down",
        [stack.evidence_of_samples(text, last, last), *log_evidence(log)],
        host,
        last,
        until=stack.end,
        uncertainty_s=stack.resolution_s,
    )


def _silent_exporters(stack: Stack, host: str) -> Iterator[Observation]:
    """Of several exporters of others one stops, or never came, while the host goes on."""
    series = stack.context.discovery.host(host)
    if series is None:
        return
    ranges = filter(None, map(series.sample_range, ("hw_", "ray_")))
    newest = max(map(attrgetter("last"), ranges), default=0.0)
    for prefix in ("hw_gpu_", "hw_procs_"):
        own, last = series.sample_range(prefix), None
        text = f"no {prefix}* of this host, which most others have"
        is_down = 2 * len(_hosts_with(stack, prefix)) > len(stack.hosts)
        if own is not None:
            last, is_down = own.last, newest - own.last > _silent_s(stack)
            text = f"{prefix}* ends {newest - last:.0f} s before other series of this host"
        if is_down:
            evidence = [Evidence(prefix, text, last, last)]
            yield observation("exporter-down", evidence, host, last, until=stack.end)


def plugin_timeout(stack: Stack) -> Iterator[Observation]:
    """Cycles of an exporter that take as long as a plugin is allowed, again and again."""
    ghosts = [mask for mask in stack.context.masks if mask.kind == GHOST]
    for host, durations in scrape_durations(stack.answers).items():
        slow = durations.values > _SLOW_S
        for mask in ghosts:
            if mask.host == host:
                slow &= (durations.times <= mask.start) | (durations.times > mask.end)
        if int(slow.sum()) >= _SLOW_CYCLES:
            yield _slow_cycles(stack, host, durations, np.flatnonzero(slow))


def _slow_cycles(stack: Stack, host: str, durations: Series, slow: np.ndarray) -> Observation:
    seconds, times = durations.values, durations.times
    first, last = float(times[slow[0]]), float(times[slow[-1]])
    timed_out = int((seconds[slow] >= _TIMED_OUT_S).sum())
    text = f"{slow.size} cycles above {_SLOW_S:g} s, {timed_out} of them a plugin's time limit"
    if (seconds[slow[0] : slow[-1] + 1] < _FAST_S).any():
        text += ", others fast"
    evidence = Evidence(SCRAPE, text, float(seconds[slow].max()), first)
    return observation(
        "plugin-timeout",
        [evidence, *log_evidence(stack.logs.of("plugin-timeout", host))],
        host,
        first,
        until=last,
        uncertainty_s=durations.spacing_s or 0.0,
        recovered=float(times[-1]) - last > _RECOVERED_S,
    )


def plugin_skipped(stack: Stack) -> Iterator[Observation]:
    """An exporter answers and a whole family is missing from it."""
    # Where no scrape is answered any more, what counts is what the host had.
    had_gpu, had_tasks = (stack.answers.table(query).hosts for query in ("gpu-power", "tasks"))
    with_gpu = _hosts_with(stack, "hw_gpu_") | stack.silent.intersection(had_gpu)
    with_tasks = _hosts_with(stack, "hw_procs_") | stack.silent.intersection(had_tasks)
    down = set(map(attrgetter("finding.host"), exporter_down(stack)))
    for host in filterfalse(down.union(stack.translated).__contains__, stack.hosts):
        log = [line for line in stack.logs.of("plugin-skipped", host) if "tb_" not in line.plugin]
        missing = _missing_family(stack, host, with_gpu, with_tasks)
        if not missing and not log:
            continue
        evidence = log_evidence(log)
        if missing:
            text = f"{missing} is missing on this host, whose exporter answers"
            evidence.insert(0, Evidence("label values of host", text))
        yield observation(
            "plugin-skipped",
            evidence,
            host,
            next(map(attrgetter("time"), log), None),
            until=stack.end,
        )


def _hosts_with(stack: Stack, prefix: str) -> frozenset[str]:
    family = stack.context.discovery.family(prefix)
    if family is None:
        return frozenset()
    return frozenset(family.hosts)


def _missing_family(
    stack: Stack, host: str, with_gpu: frozenset[str], with_tasks: frozenset[str]
) -> str:
    """The family that one host lacks; "" where it has both, or does not answer."""
    if host not in with_gpu and host not in with_tasks:
        return "hw_*" if stack.is_scraped(host) and host not in stack.silent else ""
    if host not in with_gpu:
        return "hw_gpu_*"
    return "" if host in with_tasks else "hw_procs_*"


def clock_skew(stack: Stack) -> Iterator[Observation]:
    """A node whose exporter measures in the future, or longer ago than any other's, at any time."""
    ages, table = {}, stack.answers.table("cycle-age")
    for subject, row in table:
        ages[subject.host] = float(np.nanpercentile(row, _YOUNG_PERCENT)), row
    usual = float(np.median([age for age, _ in ages.values()])) if ages else 0.0
    for host, (age, row) in ages.items():
        if age < -_AHEAD_S or abs(age - usual) > _SKEW_S:
            text = (
                f"its newest cycle ended {age:.0f} s before it was scraped, {usual:.0f} s elsewhere"
            )
            evidence = Evidence(stack.answers.promql("cycle-age"), text, age)
            onset = _skewed_from(table.times, np.abs(row - usual) > _AHEAD_S)
            yield observation("clock-skew", [evidence], host, onset, until=stack.end)


def _skewed_from(times: Floats, is_off: NDArray[np.bool_]) -> float | None:
    """Since when its clock is off to the end; None where it was so from the first sample on."""
    start = last_true(~is_off) + 1
    return float(times[start]) if 0 < start < times.size else None


def restarting(stack: Stack) -> Iterator[Observation]:
    """The watchdog starts an exporter again and again; one that is gone in the end is down."""
    down = set(map(attrgetter("finding.host"), exporter_down(stack)))
    for host in dict.fromkeys(line.host for line in stack.logs.lines):
        restarts = stack.logs.of("restart", host)
        gave_up = stack.logs.of("gave-up", host)
        if not host or host in down or not (restarts or gave_up):
            continue
        yield observation(
            "restarting",
            log_evidence(
                chain(gave_up, restarts[:1], restarts[-1:], stack.logs.of("port-taken", host))
            ),
            host,
            (*restarts, *gave_up)[0].time,
            severity=remark_unless(bool(gave_up) or _is_often(restarts)),
            until=next(map(attrgetter("time"), reversed(restarts)), None),
        )


def _is_often(restarts: list[StackLine]) -> bool:
    count = max((line.number or 0 for line in restarts), default=0)
    return max(count, len(restarts)) >= _RESTARTS


def ghost_data(stack: Stack) -> Iterator[Observation]:
    """A host's metrics are repeats of old ones."""
    for mask in stack.context.masks:
        if mask.kind != GHOST or mask.host is None:
            continue
        until = min(mask.end, stack.end)
        lasted = until - mask.start
        text = f"{SCRAPE} did not change for {lasted:.0f} s, nor did power"
        yield observation(
            "ghost-data",
            [Evidence(SCRAPE, text, lasted, mask.start)],
            mask.host,
            mask.start,
            until=until,
            uncertainty_s=stack.resolution_s,
            recovered=mask.end < stack.end,
        )
