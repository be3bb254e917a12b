"""Accelerators: memory, links, heat, power, clock, driver."""

from __future__ import annotations

import numpy as np

from tests.incidents.job import Job, Override
from tests.incidents.kinds import Run, World, keep_open, kind, slow, stuck
from tests.incidents.kinds.network import retransmits
from tests.incidents.truth import Truth

_NEVER = ("rccl-hang", "straggler", "heartbeat-false-positive", "node-death")


def _culprit(job: Job, host: str, gpu: int, at: float, load: float) -> None:
    """The slow GPU computes nearly all the time while the others wait for it."""
    job.overrides.append(Override(host, at, 1e12, (gpu,), load=load))


@kind("gpu-memory-error")
def gpu_memory_error(job: Job) -> Run:
    """An uncorrectable error of HBM; the job dies of it."""
    host, gpu, at = job.host(), job.gpu(), job.moment(0.35, 0.8)
    stuck(job, at + 3, job.uniform(2, 12))
    task = job.hosts.index(host)
    if job.chance(0.6):
        job.fail(
            1,
            "Training FAILED (exit=1)",
            f"{task}: [Node {task}] Actor failed: Training subprocess killed by SIGABRT (signal 6)",
        )
    world = yield
    world.gpu(host, gpu, "hw_gpu_ras_umc_ue_total").bump(at, float(job.rng.integers(1, 3)))
    world.one(host, "hw_dmesg_gpu_errors_total").bump(at, 5)
    return Truth("gpu-memory-error", (host,), ((host, gpu),), onset=at, never=_NEVER)


@kind("gpu-memory-error-old")
def gpu_memory_error_old(job: Job) -> Run:
    """The count stood above zero before the job began, and stays where it is."""
    host, gpu = job.host(), job.gpu()
    world = yield
    world.gpu(host, gpu, "hw_gpu_ras_umc_ue_total").values += 2
    return Truth("gpu-memory-error", (host,), ((host, gpu),), onset=None, never=_NEVER)


@kind("gpu-memory-degrading")
def gpu_memory_degrading(job: Job) -> Run:
    """Corrected errors of one GPU come in by the dozen; training feels nothing."""
    host, gpu, at = job.host(), job.gpu(), job.moment(0.3, 0.6)
    if job.chance(0.4):
        keep_open(job)
    world = yield
    world.gpu(host, gpu, "hw_gpu_ras_umc_ce_total").rate(at, 1e12, job.uniform(0.3, 3))
    return Truth("gpu-memory-degrading", (host,), ((host, gpu),), onset=at, never=_NEVER)


@kind("xgmi-error")
def xgmi_error(job: Job) -> Run:
    """The link between GPUs of one node."""
    host, gpu, at = job.host(), job.gpu(), job.moment(0.35, 0.7)
    fatal = job.chance(0.5)
    if fatal:
        stuck(job, at + 3, job.uniform(10, 25))
    world = yield
    if fatal:
        world.gpu(host, gpu, "hw_gpu_ras_xgmi_ue_total").bump(at, 1)
        world.one(host, "hw_dmesg_gpu_errors_total").bump(at, 3)
    else:
        world.gpu(host, gpu, "hw_gpu_ras_xgmi_ce_total").rate(at, 1e12, 2)
    return Truth("xgmi-error", (host,), ((host, gpu),), onset=at, never=_NEVER)


@kind("gpu-ras-error")
def gpu_ras_error(job: Job) -> Run:
    """Uncorrectable in a compute engine, memory hub or DMA engine."""
    host, gpu, at = job.host(), job.gpu(), job.moment(0.35, 0.7)
    stuck(job, at + 3, job.uniform(3, 12))
    world = yield
    block = str(job.rng.choice(["gfx", "mmhub", "sdma"]))
    world.gpu(host, gpu, f"hw_gpu_ras_{block}_ue_total").bump(at, 1)
    return Truth("gpu-ras-error", (host,), ((host, gpu),), onset=at, never=_NEVER)


@kind("pcie-fatal")
def pcie_fatal(job: Job) -> Run:
    """The link of a card is reset; what was on it is lost."""
    host, gpu, at = job.worker(), job.gpu(), job.moment(0.35, 0.75)
    stuck(job, at + 2, job.uniform(3, 12))
    world = yield
    world.gpu(host, gpu, "hw_gpu_pcie_fatal_total").bump(at, 1)
    world.gpu(host, gpu, "hw_gpu_pcie_nonfatal_total").bump(at, 2)
    world.one(host, "hw_dmesg_gpu_errors_total").bump(at, 6)
    return Truth("pcie-fatal", (host,), ((host, gpu),), onset=at, never=_NEVER)


@kind("pcie-precursor")
def pcie_precursor(job: Job) -> Run:
    """Corrected link errors grow for ten minutes before the fatal one."""
    host, gpu, at = job.worker(), job.gpu(), job.moment(0.5, 0.8)
    stuck(job, at + 2, job.uniform(3, 12))
    world = yield
    world.gpu(host, gpu, "hw_gpu_pcie_correctable_total").rate(at - 600, at, 3)
    world.gpu(host, gpu, "hw_gpu_pcie_fatal_total").bump(at, 1)
    return Truth(
        "pcie-fatal", (host,), ((host, gpu),), onset=at - 600, also_onset=(at,), never=_NEVER
    )


@kind("pcie-degraded")
def pcie_degraded(job: Job) -> Run:
    """Corrected link errors grow steadily and nothing else happens."""
    host, gpu, at = job.host(), job.gpu(), job.moment(0.3, 0.6)
    world = yield
    world.gpu(host, gpu, "hw_gpu_pcie_correctable_total").rate(at, 1e12, job.uniform(2, 8))
    return Truth("pcie-degraded", (host,), ((host, gpu),), onset=at, never=_NEVER)


def _heat(world: World, host: str, gpu: int, at: float, celsius: float, tau_s: float) -> None:
    series = world.gpu(host, gpu, "hw_gpu_temperature_celsius")
    inside = series.within(at, 1e12) & (series.values > 55)
    rise = (celsius - 66) * (1 - np.exp(-(series.times[inside] - at) / tau_s))
    series.values[inside] = np.round(series.values[inside] + rise, 1)


@kind("thermal-throttling")
def thermal_throttling(job: Job) -> Run:
    """Cooling of one GPU fails: hot first, then slow, and all others wait for it."""
    host, gpu, at = job.host(), job.gpu(), job.moment(0.35, 0.65)
    factor = job.uniform(1.25, 1.6)
    slow(job, at + 60, 1e12, factor)
    _culprit(job, host, gpu, at + 60, 0.98)
    world = yield
    _heat(world, host, gpu, at, job.uniform(103, 108), 40)
    clock = world.gpu(host, gpu, "hw_gpu_clock_mhz")
    power = world.gpu(host, gpu, "hw_gpu_power_watts")
    busy = clock.within(at + 60, 1e12) & (clock.values > 1000)
    clock.values[busy] = np.round(clock.values[busy] / factor)
    power.values[busy] = np.round(power.values[busy] / factor**0.5, 1)
    return Truth("thermal-throttling", (host,), ((host, gpu),), onset=at, never=("rccl-hang",))


@kind("hot-not-throttling")
def hot_not_throttling(job: Job) -> Run:
    """Above 90 degrees: a concern, though the clock still holds."""
    host, gpu, at = job.host(), job.gpu(), job.moment(0.35, 0.65)
    world = yield
    _heat(world, host, gpu, at, job.uniform(95, 98), 40)
    return Truth("thermal-throttling", (host,), ((host, gpu),), onset=at, never=_NEVER)


@kind("gpu-clock-drop")
def gpu_clock_drop(job: Job) -> Run:
    """One GPU falls to a low clock, cool; the cluster waits for it."""
    host, gpu, at = job.host(), job.gpu(), job.moment(0.35, 0.65)
    factor = job.uniform(1.4, 1.9)
    slow(job, at, 1e12, factor)
    _culprit(job, host, gpu, at, 0.97)
    world = yield
    clock = world.gpu(host, gpu, "hw_gpu_clock_mhz")
    power = world.gpu(host, gpu, "hw_gpu_power_watts")
    busy = clock.within(at, 1e12) & (power.values > job.model.wait_watts * 1.4)
    clock.values[busy] = np.round(clock.values[busy] / factor)
    power.values[busy] = np.round(power.values[busy] * 0.55, 1)
    return Truth(
        "gpu-clock-drop",
        (host,),
        ((host, gpu),),
        onset=at,
        also=("straggler",),
        never=("rccl-hang", "thermal-throttling"),
    )


@kind("straggler-node")
def straggler_node(job: Job) -> Run:
    """All GPUs of one node are clocked low; nothing says why."""
    host, at = job.host(), job.moment(0.35, 0.65)
    factor = job.uniform(1.3, 1.7)
    slow(job, at, 1e12, factor)
    job.overrides.append(Override(host, at, 1e12, None, load=0.97))
    world = yield
    for gpu in range(job.options.gpus):
        clock = world.gpu(host, gpu, "hw_gpu_clock_mhz")
        power = world.gpu(host, gpu, "hw_gpu_power_watts")
        busy = clock.within(at, 1e12) & (power.values > job.model.wait_watts * 1.4)
        clock.values[busy] = np.round(clock.values[busy] / factor)
        power.values[busy] = np.round(power.values[busy] * 0.62, 1)
    return Truth("straggler", (host,), onset=at, also=("gpu-clock-drop",), never=("rccl-hang",))


@kind("gpu-power-outlier")
def gpu_power_outlier(job: Job) -> Run:
    """One GPU draws much more than the others of its node, at the same clock and speed."""
    host, gpu, at = job.host(), job.gpu(), job.moment(0.3, 0.6)
    share = job.uniform(0.14, 0.22) * (1 if job.chance(0.6) else -1)
    world = yield
    power = world.gpu(host, gpu, "hw_gpu_power_watts")
    busy = power.within(at, 1e12) & (power.values > job.model.wait_watts * 1.4)
    power.values[busy] = np.round(power.values[busy] * (1 + share), 1)
    return Truth("gpu-power-outlier", (host,), ((host, gpu),), onset=at, never=_NEVER)


@kind("vram-pressure")
def vram_pressure(job: Job) -> Run:
    """The memory of one GPU is full to 97 %."""
    host, gpu, at = job.host(), job.gpu(), job.moment(0.3, 0.6)
    world = yield
    used = world.gpu(host, gpu, "hw_gpu_vram_used_bytes")
    busy = used.within(at, 1e12) & (used.values > 1e10)
    used.values[busy] = np.round(job.model.vram_bytes * 0.972)
    # A framework that reserves all memory at its start looks the same: a remark may do.
    return Truth(
        "vram-pressure",
        (host,),
        ((host, gpu),),
        onset=at,
        also=("healthy",),
        also_hosts=((),),
        never=_NEVER,
    )


@kind("gpu-underutilised")
def gpu_underutilised(job: Job) -> Run:
    """GPUs of one node are busy for two thirds of the time, from the first step on."""
    host = job.host()
    world = yield
    first = world.timeline.steps[0].end
    for series in world.signals.of(host, "ray_node_gpus_utilization"):
        busy = series.within(first, 1e12) & (series.values > 90)
        series.values[busy] = np.round(series.values[busy] * 0.62)
    return Truth("gpu-underutilised", (host,), (), onset=None, never=_NEVER)


@kind("gpu-driver-fault")
def gpu_driver_fault(job: Job) -> Run:
    """The driver hangs its readers: every other cycle of the exporter waits for the limit."""
    host, at = job.host(), job.moment(0.3, 0.6)
    if job.chance(0.5):
        keep_open(job)
    world = yield
    duration = world.one(host, "hw_scrape_duration_seconds")
    inside = np.flatnonzero(duration.within(at, 1e12))
    stalled = np.zeros(len(duration.times), dtype=bool)
    stalled[inside] = (np.arange(len(inside)) // int(job.rng.integers(1, 4))) % 2 == 0
    duration.values[stalled] = np.round(12.0 + world.signals.rng.uniform(0, 0.4, stalled.sum()), 3)
    calm = duration.within(at, 1e12) & ~stalled
    duration.values[calm] = np.round(world.signals.rng.uniform(0.4, 2.6, int(calm.sum())), 3)
    for series in world.signals.of(host, "hw_gpu_"):
        if series.metric != "hw_gpu_user_processes":
            series.values[stalled] = np.nan
    dmesg = world.one(host, "hw_dmesg_gpu_errors_total")
    for number in range(12):
        dmesg.bump(at + number * 300, float(job.rng.integers(1, 5)))
    return Truth("gpu-driver-fault", (host,), onset=at, never=(*_NEVER, "exporter-plugin-timeout"))


@kind("overheated")
def overheated(job: Job) -> Run:
    """A GPU gets too hot and its node switches itself off."""
    host, gpu, at = job.worker(), job.gpu(), job.moment(0.4, 0.75, 200)
    gone = at + 150
    stuck(job, gone + 1, job.uniform(8, 25))
    world = yield
    _heat(world, host, gpu, at, 109, 35)
    for series in world.signals.of(host):
        if series.source == "up":
            series.put(gone, 1e12, 0.0)
        else:
            series.drop(gone, 1e12)
    return Truth(
        "thermal-throttling", (host,), ((host, gpu),), onset=at, never=("rccl-hang", "straggler")
    )


@kind("driver-messages")
def driver_messages(job: Job) -> Run:
    """Driver errors pile up in the kernel log of one host; that is the only sign."""
    host, at = job.host(), job.moment(0.35, 0.6)
    world = yield
    dmesg = world.one(host, "hw_dmesg_gpu_errors_total")
    for number in range(20):
        dmesg.bump(at + number * 60, float(job.rng.integers(1, 6)))
    return Truth("gpu-driver-fault", (host,), onset=at, never=_NEVER)


@kind("red-herring-retransmits")
def red_herring_retransmits(job: Job) -> Run:
    """A clock falls for good; a port elsewhere resends for two minutes and recovers."""
    host, gpu, at = job.host(), job.gpu(), job.moment(0.35, 0.6)
    other, port = job.host(host), job.port()
    slow(job, at, 1e12, 1.6)
    _culprit(job, host, gpu, at, 0.97)
    world = yield
    clock = world.gpu(host, gpu, "hw_gpu_clock_mhz")
    power = world.gpu(host, gpu, "hw_gpu_power_watts")
    busy = clock.within(at, 1e12) & (power.values > job.model.wait_watts * 1.4)
    clock.values[busy] = np.round(clock.values[busy] / 1.6)
    power.values[busy] = np.round(power.values[busy] * 0.55, 1)
    retransmits(world, other, port, at + 200, at + 320, 900)
    return Truth(
        "gpu-clock-drop",
        (host,),
        ((host, gpu),),
        onset=at,
        also=("straggler",),
        never=("rdma-degraded", "rccl-hang"),
    )
