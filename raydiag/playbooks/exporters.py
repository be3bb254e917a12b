"""Symptoms of the nodes' metrics exporters: gone, hanging, incomplete, restarting, repeating."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from raydiag.model import (
    Evidence,
    Severity,
)
from raydiag.playbooks.context import GHOST, Mask
from raydiag.playbooks.masks import scrape_durations
from raydiag.playbooks.monitoring_stack import (
    Stack,
    log_lines,
    newest_samples,
    observation,
    scraped,
)
from raydiag.playbooks.observations import Observation
from raydiag.playbooks.queries import SCRAPE
from raydiag.playbooks.query_results import ALIVE

_SLOW_S, _TIMED_OUT_S, _FAST_S = 8.0, 11.5, 3.0  # duration of an exporter's cycle
_SLOW_CYCLES = 3
_SILENT_S = 120.0  # one source of a host silent for so long while the other goes on
_RESTARTS = 2  # more than one is a habit


def exporter_down(stack: Stack) -> Iterator[Observation]:
    """A node's hardware metrics stop, or never came, while its Ray goes on."""
    hw, ray = newest_samples(stack, "hw"), newest_samples(stack, "ray")
    if not hw and not ray:
        return
    for host in stack.context.hosts:
        newest = ray.get(host)
        if newest is None:
            continue
        if host in hw and newest - hw[host] > _SILENT_S:
            text = f"hw_* ends {newest - hw[host]:.0f} s before ray_* of the same host"
            seen = [Evidence(stack.answers.promql(ALIVE), text, hw[host], hw[host])]
            log = [*stack.logs.of("gave-up", host), *stack.logs.of("restart", host)[-1:]]
            yield observation(
                "exporter-down",
                "exporter-down",
                [*seen, *log_lines(log)],
                host,
                hw[host],
                until=stack.end,
                uncertainty_s=stack.resolution_s,
            )
        elif host not in hw and not scraped(stack, host):
            text = "no hw_* of this host at all, although its Ray has metrics"
            log = stack.logs.of("port-taken", host)
            seen = [Evidence("hw_*", text), *log_lines(log)]
            yield observation("exporter-down", "exporter-down", seen, host, until=stack.end)


def plugin_timeout(stack: Stack) -> Iterator[Observation]:
    """Cycles of an exporter that take as long as a plugin is allowed, again and again."""
    for host, duration in scrape_durations(stack.context, stack.answers).items():
        slow = np.flatnonzero(duration.values > _SLOW_S)
        if slow.size < _SLOW_CYCLES:
            continue
        ghosts = [mask for mask in stack.context.masks if mask.kind == GHOST and mask.host == host]
        slow = slow[[not _inside(duration.times[i], ghosts) for i in slow]]
        if slow.size < _SLOW_CYCLES:
            continue
        timed_out = int((duration.values[slow] >= _TIMED_OUT_S).sum())
        first, last = float(duration.times[slow[0]]), float(duration.times[slow[-1]])
        between = duration.values[slow[0] : slow[-1] + 1]
        alternates = bool((between < _FAST_S).any())
        text = (
            f"{slow.size} cycles above {_SLOW_S:g} s, {timed_out} of them a plugin's time limit"
            f"{', others fast' if alternates else ''}"
        )
        seen = [Evidence(SCRAPE, text, float(duration.values[slow].max()), first)]
        newest = float(duration.times[-1])
        yield observation(
            "exporter-plugin-timeout",
            "plugin-timeout",
            [*seen, *log_lines(stack.logs.of("plugin-timeout", host))],
            host,
            first,
            until=last,
            uncertainty_s=duration.spacing_s or 0.0,
            recovered=newest - last > 600.0,
        )


def _inside(time: float, masks: Iterable[Mask]) -> bool:
    return any(mask.start < time <= mask.end for mask in masks)


def plugin_skipped(stack: Stack) -> Iterator[Observation]:
    """An exporter answers and a whole family is missing from it."""
    found = stack.context.discovery
    gpu, other = found.family("hw_gpu_"), found.family("hw_procs_")
    with_gpu = set(gpu.hosts) if gpu is not None else set()
    with_other = set(other.hosts) if other is not None else set()
    known = with_gpu | with_other
    for host in stack.context.hosts:
        log = [one for one in stack.logs.of("plugin-skipped", host) if "tb_" not in one.plugin]
        lacks = "hw_gpu_*" if host not in with_gpu else "hw_procs_*"
        half = host in known and (host in with_gpu) != (host in with_other)
        silent = host not in known and scraped(stack, host)
        if not (half or silent or log):
            continue
        what = "hw_*" if silent else lacks
        text = f"{what} is missing on this host, whose exporter answers"
        seen = [Evidence("label values of host", text)] if half or silent else []
        yield observation(
            "exporter-plugin-skipped",
            "plugin-skipped",
            [*seen, *log_lines(log)],
            host,
            log[0].time if log else None,
            until=stack.end,
        )


def restarting(stack: Stack) -> Iterator[Observation]:
    """The watchdog starts an exporter again and again; one that is gone in the end is down."""
    gone = {one.finding.host for one in exporter_down(stack)}
    for host in dict.fromkeys(one.host for one in stack.logs.lines if one.host):
        if host in gone:
            continue
        restarts = stack.logs.of("restart", host)
        gave_up = stack.logs.of("gave-up", host)
        if not restarts and not gave_up:
            continue
        count = max((one.number or 0 for one in restarts), default=0)
        often = max(count, len(restarts)) >= _RESTARTS or bool(gave_up)
        taken = stack.logs.of("port-taken", host)
        yield observation(
            "exporter-restarting",
            "restarting",
            log_lines([*gave_up, *restarts[:1], *restarts[-1:], *taken]),
            host,
            restarts[0].time if restarts else gave_up[0].time,
            severity=None if often else Severity.INFO,
            until=restarts[-1].time if restarts else None,
        )


def ghost_data(stack: Stack) -> Iterator[Observation]:
    """A host's metrics are repeats of old ones."""
    for mask in stack.context.masks:
        if mask.kind != GHOST or mask.host is None:
            continue
        lasted = min(mask.end, stack.end) - mask.start
        text = f"{SCRAPE} did not change for {lasted:.0f} s, nor did power"
        yield observation(
            "ghost-data",
            "ghost-data",
            [Evidence(SCRAPE, text, lasted, mask.start)],
            mask.host,
            mask.start,
            until=min(mask.end, stack.end),
            uncertainty_s=stack.resolution_s,
            recovered=mask.end < stack.end,
        )
