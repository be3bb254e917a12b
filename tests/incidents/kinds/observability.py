"""The instruments are at fault, alone or so that they hide something."""

from __future__ import annotations

import numpy as np

from tests.incidents.job import Job
from tests.incidents.jobdir import iso
from tests.incidents.kinds import Run, World, kind, slow, stuck
from tests.incidents.kinds.network import retransmits
from tests.incidents.signals import Signals
from tests.incidents.truth import Truth

_NEVER = ("rccl-hang", "node-death", "straggler", "gpu-driver-fault", "gpu-power-outlier")


def _last_change(world: World, host: str, at: float) -> float:
    """Time of the first scrape that repeats the one before."""
    times = world.one(host, "hw_scrape_duration_seconds").times
    return float(times[times >= at][0])


def _ghost(world: World, host: str, start: float, end: float) -> None:
    for series in world.signals.of(host, "hw_"):
        series.freeze(start, end)


def _cut(signals: Signals, start: float, end: float) -> None:
    """Scalars of this window are lost: NaN would be a value of theirs, so the samples go."""
    for series in signals.of(source="tb"):
        kept = ~series.within(start, end)
        series.times, series.values = series.times[kept], series.values[kept]


def _other_loss(signals: Signals, offset: float) -> None:
    for series in signals.of(metric="tb_learning_loss"):
        series.values = series.values + offset


def _rename(signals: Signals) -> None:
    for series in signals.series.values():
        for label in ("host", "instance"):
            if label in series.labels:
                series.labels[label] = "other-" + series.labels[label]


@kind("ghost-data")
def ghost_data(job: Job) -> Run:
    """The exporter's loop hangs, its server repeats the last file; training is well."""
    host, at = job.host(), job.moment(0.35, 0.6)
    until = at + job.uniform(600, 1500) if job.chance(0.5) else 1e12
    world = yield
    _ghost(world, host, at, until)
    if until < 1e12:
        line = f"[{iso(until)}] [Metrics Exporter] Watchdog: exited with code 137, restart #1"
        job.exporter_lines[host] = [line]
    return Truth("ghost-data", (host,), onset=_last_change(world, host, at), never=_NEVER)


@kind("ghost-hides-hang")
def ghost_hides_hang(job: Job) -> Run:
    """One host goes on showing training power after all have hung: it is no straggler."""
    at = job.moment(0.4, 0.65)
    host = job.worker()
    stuck(job, at)
    world = yield
    _ghost(world, host, at - job.uniform(100, 300), 1e12)
    return Truth("rccl-hang", None, onset=world.last_step, never=("straggler", "ghost-data"))


@kind("ghost-beside-rdma")
def ghost_beside_rdma(job: Job) -> Run:
    """One host repeats itself while a port of another one degrades."""
    ghost = job.host()
    host, port = job.host(ghost), job.port()
    at = job.moment(0.4, 0.6)
    slow(job, at, 1e12, 1.25)
    world = yield
    _ghost(world, ghost, at - job.uniform(200, 500), 1e12)
    retransmits(world, host, port, at, 1e12, 2500)
    return Truth(
        "rdma-degraded",
        (host,),
        devices=((host, port),),
        onset=at,
        never=("ghost-data", "gpu-power-outlier", "straggler"),
    )


@kind("exporter-down")
def exporter_down(job: Job) -> Run:
    """Nothing comes from the exporter of one host; Ray's series of it go on."""
    host, at = job.host(), job.moment(0.35, 0.6)
    world = yield
    for series in world.signals.of(host, "hw_"):
        series.drop(at, 1e12)
    for series in world.signals.of(host, "up", job="node_hw"):
        series.put(at, 1e12, 0.0)
    if host == job.head:
        world.afterwards.append(lambda signals: _cut(signals, at, 1e12))
    job.exporter_lines[host] = [
        f"[{iso(at)}] [Metrics Exporter] Watchdog: too many restarts (50), giving up"
    ]
    return Truth("exporter-down", (host,), onset=at, never=_NEVER)


@kind("exporter-restarting")
def exporter_restarting(job: Job) -> Run:
    """The exporter is killed again and again; a scrape is lost each time."""
    host, at = job.host(), job.moment(0.3, 0.5)
    world = yield
    lines, count = [], int(job.rng.integers(5, 9))
    for number in range(count):
        when = at + number * 150.0
        stamp = iso(when)
        restart = f"exited with code 137, restart #{number + 1}"
        lines.append(f"[{stamp}] [Metrics Exporter] Watchdog: {restart}")
        lines.append("OSError: [Errno 98] Address already in use")
        for series in world.signals.of(host, "hw_"):
            series.drop(when, when + 2 * job.interval_s)
        for series in world.signals.of(host, "up", job="node_hw"):
            series.put(when, when + 2 * job.interval_s, 0.0)
    job.exporter_lines[host] = lines
    return Truth("exporter-restarting", (host,), onset=at, also=("exporter-down",), never=_NEVER)


@kind("exporter-plugin-timeout")
def exporter_plugin_timeout(job: Job) -> Run:
    """The GPU plugin never ends in time: each cycle takes 12 s and has no GPU series."""
    host, at = job.host(), job.moment(0.35, 0.6)
    world = yield
    duration = world.one(host, "hw_scrape_duration_seconds")
    inside = duration.within(at, 1e12)
    duration.values[inside] = np.round(12.05 + job.rng.uniform(0, 0.3, int(inside.sum())), 3)
    for series in world.signals.of(host, "hw_gpu_"):
        if series.metric != "hw_gpu_user_processes":
            series.drop(at, 1e12)
    return Truth("exporter-plugin-timeout", (host,), onset=at, never=_NEVER)


@kind("exporter-plugin-skipped")
def exporter_plugin_skipped(job: Job) -> Run:
    """The GPU plugin asked to be left out: no GPU series, and quick cycles."""
    host = job.host()
    world = yield
    job.exporter_lines[host] = [
        "[metrics_exporter] gpu_metrics_plugin exited 99 \u2014 permanently skipped"
    ]
    for metric in ("clock", "power", "temperature", "vram", "ras", "pcie"):
        world.signals.remove(host, f"hw_gpu_{metric}")
    return Truth("exporter-plugin-skipped", (host,), onset=None, never=_NEVER)


@kind("tsdb-gap")
def tsdb_gap(job: Job) -> Run:
    """Prometheus was away for a while and came back."""
    at = job.moment(0.35, 0.55)
    until = at + job.uniform(400, 1000)
    world = yield
    for series in world.signals.series.values():
        series.drop(at, until)
    world.afterwards.append(lambda signals: _cut(signals, at, until))
    job.prometheus_lines = [
        f"[{iso(until)}] [Prometheus] Watchdog: exited with code 2, restart #1",
        'level=info msg="Server is ready to receive web requests."',
    ]
    return Truth("tsdb-gap", None, onset=at, never=_NEVER)


@kind("tsdb-gap-hides-hang")
def tsdb_gap_hides_hang(job: Job) -> Run:
    """The gap ends before a hang and has nothing to do with it."""
    at = job.moment(0.55, 0.75)
    stuck(job, at)
    world = yield
    for series in world.signals.series.values():
        if series.source != "tb":
            series.drop(at - 1100, at - 500)
    job.prometheus_lines = [
        f"[{iso(at - 500)}] [Prometheus] Watchdog: exited with code 2, restart #1"
    ]
    return Truth("rccl-hang", None, onset=world.last_step, never=("tsdb-gap", "node-death"))


@kind("host-missing")
def host_missing(job: Job) -> Run:
    """One host was never scraped."""
    host = job.worker()
    world = yield
    for source in ("node_hw", "ray"):
        world.signals.remove(host, source=source)
    for series in world.signals.of(host, "up"):
        series.values[:] = 0.0
    job.prometheus_lines = [
        'level=debug component="scrape manager" scrape_pool=node_hw '
        f'target=http://{host}:9400/metrics msg="Scrape failed" err="context deadline exceeded"'
    ]
    return Truth("host-missing", (host,), onset=None, never=(*_NEVER, "exporter-down"))


@kind("ray-metrics-missing")
def ray_metrics_missing(job: Job) -> Run:
    """Ray's own exporter is not reached anywhere."""
    world = yield
    world.signals.remove(source="ray")
    for series in world.signals.of(metric="up", job="ray"):
        series.values[:] = 0.0
    return Truth("ray-metrics-missing", None, onset=None, never=_NEVER)


@kind("tb-bridge-gap")
def tb_bridge_gap(job: Job) -> Run:
    """Training goes on, its scalars do not arrive for a while; the event file has them."""
    at = job.moment(0.35, 0.55)
    until = at + job.uniform(700, 1100)
    job.event_file = True
    world = yield
    times = world.training.times
    world.training.exported &= ~((times >= at) & (times < until))
    onset = float(times[times >= at][0])
    return Truth(
        "tb-bridge-gap",
        (),
        onset=onset,
        also_hosts=((job.head,),),
        resolution_s=job.plan.step_s * 2,
        never=(*_NEVER, "tgs-degradation"),
    )


@kind("tsdb-wrong-job")
def tsdb_wrong_job(job: Job) -> Run:
    """The directory holds the series of another job on the same hosts."""
    world = yield
    world.afterwards.append(lambda signals: _other_loss(signals, 1.37))
    return Truth("tsdb-wrong-job", None, onset=None, never=_NEVER)


@kind("tsdb-foreign-hosts")
def tsdb_foreign_hosts(job: Job) -> Run:
    """The directory holds the series of another job on other hosts."""
    world = yield
    world.afterwards += [_rename, lambda signals: _other_loss(signals, 2.11)]
    return Truth("tsdb-wrong-job", None, onset=None, never=(*_NEVER, "host-missing"))


@kind("tsdb-empty")
def tsdb_empty(job: Job) -> Run:
    """Prometheus never got a port; there is its log and nothing else."""
    job.early_lines.append("[Prometheus] FAILED: could not bind any port in range")
    world = yield
    world.afterwards.append(lambda signals: signals.series.clear())
    job.prometheus_lines = ['level=error err="listen tcp 127.0.0.1:9195: address already in use"']
    return Truth("tsdb-empty", None, onset=None, never=_NEVER)


@kind("clock-skew")
def clock_skew(job: Job) -> Run:
    """One node's clock is a minute or more off; what it measures is well."""
    host, off_s = job.host(), job.uniform(60, 400)
    world = yield
    for name in job.hosts:
        cycle = world.one(name, "hw_scrape_duration_seconds")
        ages = job.rng.uniform(1, job.interval_s, cycle.times.size)
        clock = cycle.times - ages + (off_s if name == host else 0.0)
        world.signals.add(
            "raydiag_exporter_cycle_timestamp_seconds",
            name,
            cycle.source,
            cycle.times,
            np.where(np.isnan(cycle.values), np.nan, np.round(clock, 3)),
            dict(cycle.labels),
        )
    return Truth("clock-skew", (host,), never=_NEVER)
