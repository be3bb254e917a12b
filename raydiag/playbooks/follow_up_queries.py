"""What to ask again, finer: the GPUs, ports and moments of the hosts that stand out.

At most eleven questions for a few hosts each.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from typing import Optional

import numpy as np

from raydiag.model import Window
from raydiag.playbooks import gpu_health, rdma
from raydiag.playbooks.queries import (
    CORRECTED,
    DIRTY,
    FATAL,
    IO_FULL,
    MEM_HOST,
    MEM_USED,
    RDMA_PORT,
    RDMA_RETX,
    RDMA_TIMEOUTS,
    VRAM_TOTAL,
    VRAM_USED,
    grown,
    named,
)
from raydiag.playbooks.spans import above, present
from raydiag.playbooks.storage import STALL_PERCENT
from raydiag.playbooks.timeline import RunTimeline, capacities
from raydiag.tsdb.series import Query

HOSTS = 16  # that one question asks about, the worst first
_POINTS = 40_000
_AROUND_S = 900.0  # of the moment, where the whole window would be too much
_GPUS = 8


def follow_up(scene: RunTimeline, most: Optional[int] = None) -> list[Query]:
    """The second questions, at most so many; none where nothing stands out."""
    return [query for query in _all(scene) if query is not None][:most]


def _all(scene: RunTimeline) -> Iterator[Optional[Query]]:
    """What decides more first."""
    yield _ports(scene)
    yield _port_states(scene)
    yield _errors(scene)
    yield _busy(scene)
    yield _memory(scene)
    yield _storage(scene)
    yield from _gpus(scene)
    yield _corrected(scene)


def labels(scene: RunTimeline, hosts: Iterable[str], ray: bool = False) -> str:
    """Matcher for hosts, with what is special in a regular expression taken literally."""
    names: list[str] = []
    for host in hosts:
        known = scene.context.discovery.host(host)
        found = (known.instances if ray else known.labels) if known else ()
        names += found or (host,)
    pattern = "|".join(re.escape(name) for name in sorted(set(names)))
    if ray:
        pattern = f"({pattern})(:.*)?"
    quoted = pattern.replace("\\", "\\\\").replace('"', '\\"')
    return f'{"instance" if ray else "host"}=~"{quoted}"'


def _window(scene: RunTimeline, rows: int, around: Optional[float], step_s: float = 0.0) -> Window:
    """At the resolution of the samples; around a moment where all of it would be too much."""
    step = step_s or scene.context.resolution_s()
    start, end = scene.window.start, scene.window.end
    if rows * (end - start) / step > _POINTS:
        centre = end if around is None else around
        half = max(_AROUND_S, min(_POINTS * step / max(rows, 1) / 2, end - start))
        start, end = max(start, centre - half), min(end, centre + half)
    steps = math.floor((end - start) / step)
    return Window(end - steps * step, end, step)


def _range(scene: RunTimeline) -> str:
    return f"{math.ceil(4 * scene.context.resolution_s())}s"


def _ports(scene: RunTimeline) -> Optional[Query]:
    """Retransmits by port."""
    found = [one for one in rdma.events(scene) if one.notable]
    worst = sorted(found, key=lambda one: -one.span.peak)
    hosts = list(dict.fromkeys(one.host for one in worst))[:HOSTS]
    if not hosts:
        return None
    match, span = labels(scene, hosts), _range(scene)
    parts = [
        f"label_replace(sum by (host, device, port) (rate({metric}{{{match}}}[{span}])) > 0, "
        f'"metric", "{metric}", "", "")'
        for metric in (RDMA_RETX, RDMA_TIMEOUTS)
    ]
    window = _window(scene, len(hosts) * _GPUS * 2, found[0].span.start)
    return Query("rdma-ports", " or ".join(parts), window)


def _port_states(scene: RunTimeline) -> Optional[Query]:
    table = scene.table("rdma-ports-down")
    starts = {
        where.host: spans[0].start
        for where, row in table
        for spans in [present(table, row)]
        if spans
    }
    hosts = list(starts)[:HOSTS]
    if not hosts:
        return None
    first = min(starts.values())
    promql = f"min by (host, device, port) ({RDMA_PORT}{{{labels(scene, hosts)}}}) == 0"
    return Query("rdma-ports-down-fine", promql, _window(scene, len(hosts) * _GPUS, first))


def _errors(scene: RunTimeline) -> Optional[Query]:
    """Uncorrectable counters that grew, to date them."""
    table = scene.table("gpu-errors")
    grew = [
        (float(table.times[~np.isnan(row)][0]), where.host)
        for where, row in table
        if (known := row[~np.isnan(row)]).size
        and (known.max() > known[0] or table.times[~np.isnan(row)][0] > table.first + table.step_s)
    ]
    hosts = list(dict.fromkeys(host for _, host in sorted(grew)))[:HOSTS]
    if not hosts:
        return None
    promql = named(FATAL, "host, gpu", "max", labels(scene, hosts), "0")
    window = _window(scene, len(hosts) * _GPUS * len(FATAL), min(grew)[0])
    return Query("gpu-errors-fine", promql, window)


def _corrected(scene: RunTimeline) -> Optional[Query]:
    table = scene.table("gpu-corrected")
    starts = sorted(
        (spans[0].start, where.host, where.metric)
        for where, row in table
        for spans in [present(table, row)]
        if spans
    )
    hosts = list(dict.fromkeys(host for _, host, _ in starts))[:HOSTS]
    if not hosts:
        return None
    metrics = [name for name in CORRECTED if name in {metric for _, _, metric in starts}]
    promql = grown(metrics, "host, gpu", labels(scene, hosts), _range(scene))
    window = _window(scene, len(hosts) * _GPUS * len(metrics), starts[0][0])
    return Query("gpu-corrected-fine", promql, window)


def _gpus(scene: RunTimeline) -> Iterator[Optional[Query]]:
    """GPU by GPU: temperature, clock, memory and power of the hosts with an odd one."""
    hot = _over(scene, "gpu-temperature", "max", gpu_health.WARM_C)
    yield _each(scene, "gpu-temperature-fine", "hw_gpu_temperature_celsius{%s}", hot)
    clocks = _clock_hosts(scene)
    yield _each(scene, "gpu-clock-fine", 'hw_gpu_clock_mhz{type="sclk", %s}', hot + clocks)
    totals = capacities(scene, VRAM_TOTAL)
    full = [
        where.host
        for where, row in scene.table("gpu-vram")
        if totals.get(where.host) and np.nanmax(np.nan_to_num(row)) > 0.95 * totals[where.host]
    ]
    yield _each(scene, "gpu-vram-fine", f"{VRAM_USED}{{%s}}", full)
    spreads = gpu_health.spreads(scene.steady("gpu-power"))
    wide = [host for host, gap in spreads.items() if gap > gpu_health.SPREAD_WATTS]
    wide.sort(key=lambda host: -spreads[host])
    yield _each(scene, "gpu-power-fine", "hw_gpu_power_watts{%s}", wide)


def _over(scene: RunTimeline, question: str, metric: str, floor: float) -> list[str]:
    table = scene.table(question).pick(metric)
    peaks = {where.host: float(np.nanmax(np.nan_to_num(row))) for where, row in table}
    return sorted((h for h, peak in peaks.items() if peak > floor), key=lambda h: -peaks[h])


def _clock_hosts(scene: RunTimeline) -> list[str]:
    """Hosts whose slowest GPU is well below the job's in training."""
    table = scene.steady("gpu-clock").pick("min")
    if not len(table) or scene.trained is None or np.isnan(table.values).all():
        return []
    usual = float(np.nanmedian(table.values))
    return [
        where.host
        for where, row in table
        if any(s.sustained for s in above(table, usual - row, (1 - gpu_health.CLOCK_SHARE) * usual))
    ]


def _each(scene: RunTimeline, name: str, metric: str, hosts: list[str]) -> Optional[Query]:
    chosen = list(dict.fromkeys(hosts))[:HOSTS]
    if not chosen:
        return None
    promql = f"max by (host, gpu) ({metric % labels(scene, chosen)})"
    # Coarse over all of the window is worth more here than fine at one moment.
    rows = len(chosen) * _GPUS
    length = scene.window.end - scene.window.start
    resolution = scene.context.resolution_s()
    step = math.ceil(max(resolution, rows * length / _POINTS) / resolution) * resolution
    return Query(name, promql, _window(scene, rows, None, step))


def _busy(scene: RunTimeline) -> Optional[Query]:
    """How many GPUs spin in a stall: it need not be all of them."""
    stall = scene.stall
    if stall is None or not scene.context.discovery.has("ray_node_gpus_utilization"):
        return None
    rows = max(1, len(scene.context.hosts))
    length = max(stall.end - stall.start, 1.0)
    step = max(scene.context.resolution_s(), length / 60, rows * length / _POINTS)
    promql = "sum by (instance, ip) (ray_node_gpus_utilization >= bool 80)"
    steps = math.floor(length / step)
    return Query("gpu-busy", promql, Window(stall.end - steps * step, stall.end, step))


def _memory(scene: RunTimeline) -> Optional[Query]:
    """Memory at full resolution, where the first look was coarser."""
    table = scene.table("oom-kills")
    kills = {where.host: spans[0].start for where, row in table if (spans := present(table, row))}
    coarse = scene.table("memory").step_s > scene.context.resolution_s()
    hosts = list(kills)[:HOSTS]
    if not hosts or not coarse:
        return None
    match = labels(scene, hosts, ray=True)
    promql = named((MEM_USED, MEM_HOST), "instance, ip", "max", match)
    return Query("memory-fine", promql, _window(scene, 2 * len(hosts), min(kills.values())))


def _storage(scene: RunTimeline) -> Optional[Query]:
    table = scene.table("storage").pick(IO_FULL)
    if table.step_s <= scene.context.resolution_s():
        return None
    found = {
        where.host: held[0]
        for where, row in table
        if (held := [one for one in above(table, row, STALL_PERCENT) if one.sustained])
    }
    hosts = list(found)[:HOSTS]
    if not hosts:
        return None
    promql = named((IO_FULL, DIRTY), "host", "max", labels(scene, hosts))
    first = min(span.start for span in found.values())
    return Query("storage-fine", promql, _window(scene, 2 * len(hosts), first))
