"""GPUs compared with each other: one that does not work while the others do, heat, full memory.

What one moment shows is weak. A warning needs a GPU that takes part in the work of its node (it
holds as much memory as the others), while nearly all others there are clearly loaded, and a power
that is low in two samples or on average. Nodes are not compared by power: they may run other jobs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median

from raydiag.model import Confidence, Evidence, Finding, Severity, Snapshot
from raydiag.rules.gpu_readings import GpuReading, gpu_readings, later_gpu_readings, spread

_FEWEST_PEERS = 3
_LOADED_SHARE = 0.75  # of the other GPUs of the node
_SAME_WORK_MEMORY = 0.5  # of what the others hold
_LOW_POWER, _LOW_POWER_W = 0.6, 100.0  # of the others' median, and at least so far below it
_LOW_CLOCK = 0.7
_DEVIATIONS = 6.0
_BUSY_PERCENT = 60.0

# Above these a GPU is hot in any room; it need not be slow.
_HOT_C, _WARM_C, _HOTTER_THAN_PEERS_C = 90.0, 80.0, 20.0
_FULL = 0.98  # frameworks take up to 95 % at their start, some drivers show a little more


def slow_gpus(snapshot: Snapshot) -> Iterator[Finding]:
    """GPUs that hold a share of the work and draw little power while the others of the node work.

    Of one class each: gpu-underutilised where it says that it does nothing, gpu-clock-drop where
    its clock is low as well, else gpu-power-outlier. A single instant is no more than a remark.
    """
    later = later_gpu_readings(snapshot)
    sampled_twice = {(gpu.host, gpu.address) for gpus in later.values() for gpu in gpus}
    still = {(gpu.host, gpu.address) for gpu, _ in _slow(later)}
    for gpu, peers in _slow(gpu_readings(snapshot)):
        key = (gpu.host, gpu.address)
        if key in sampled_twice and key not in still:
            continue
        lasting = key in still or gpu.averaged
        yield Finding(
            _slow_class(gpu, peers),
            host=gpu.host,
            gpu=gpu.gpu,
            device=gpu.address,
            severity=Severity.WARNING if lasting else Severity.INFO,
            confidence=Confidence.LIKELY if lasting else Confidence.POSSIBLE,
            evidence=tuple(_slow_evidence(gpu, peers)),
            explanation="" if lasting else "Seen once, at one instant: it may be waiting for data.",
        )


def _slow(readings: Mapping[str, Sequence[GpuReading]]) -> Iterator[tuple[GpuReading, _Peers]]:
    """Each GPU with low power among loaded ones, and those."""
    for gpus in readings.values():
        for gpu in gpus:
            others = [one for one in gpus if one is not gpu and one.model == gpu.model]
            loaded = [one for one in others if one.loaded]
            few = len(loaded) < max(_FEWEST_PEERS, _LOADED_SHARE * len(others))
            if not few and _does_same_work(gpu, loaded) and _draws_little(gpu, loaded):
                yield gpu, loaded


def _does_same_work(gpu: GpuReading, loaded: _Peers) -> bool:
    """A GPU that is left out of the job holds next to nothing; unknown is no."""
    held = _known(one.vram_used_bytes for one in loaded)
    if gpu.vram_used_bytes is None or not held:
        return False
    return gpu.vram_used_bytes >= _SAME_WORK_MEMORY * median(held)


def _draws_little(gpu: GpuReading, loaded: _Peers) -> bool:
    if gpu.power_w is None:
        return False
    usual, deviation = spread(_known(one.power_w for one in loaded))
    below = usual - gpu.power_w
    least = max(_LOW_POWER_W, _DEVIATIONS * deviation)
    return gpu.power_w < _LOW_POWER * usual and below >= least


def _slow_class(gpu: GpuReading, peers: _Peers) -> str:
    busy = _known(one.utilisation_percent for one in peers)
    if gpu.utilisation_percent == 0 and busy and min(busy) > _BUSY_PERCENT:
        return "gpu-underutilised"
    clocks = _known(one.clock_mhz for one in peers)
    if gpu.clock_mhz is not None and clocks and gpu.clock_mhz < _LOW_CLOCK * median(clocks):
        return "gpu-clock-drop"
    return "gpu-power-outlier"


def _slow_evidence(gpu: GpuReading, peers: _Peers) -> Iterator[Evidence]:
    for what, unit, value, others in (
        ("power", "W", gpu.power_w, [one.power_w for one in peers]),
        ("core clock", "MHz", gpu.clock_mhz, [one.clock_mhz for one in peers]),
        ("utilisation", "%", gpu.utilisation_percent, [one.utilisation_percent for one in peers]),
    ):
        known = _known(others)
        if value is not None and known:
            text = f"{what} {value:g} {unit}, median of {len(known)} loaded GPUs here"
            yield Evidence(gpu.source, f"{text} {median(known):g} {unit}", value, gpu.time)


def hot_gpus(snapshot: Snapshot) -> Iterator[Finding]:
    """Remarks on GPUs that are hot, or much hotter than others of their model, and do not throttle.

    Heat slows nothing before the GPU's own limit, which `thermal_throttling` judges.
    """
    gpus = [gpu for some in gpu_readings(snapshot).values() for gpu in some]
    models: dict[str, list[float]] = {}
    for gpu in gpus:
        if gpu.temperature_c is not None:
            models.setdefault(gpu.model, []).append(gpu.temperature_c)
    for gpu in gpus:
        now, limit = gpu.temperature_c, gpu.temperature_crit_c
        if now is None or now <= _WARM_C or (limit is not None and now >= limit):
            continue
        usual, deviation = spread(models[gpu.model])
        margin = max(_HOTTER_THAN_PEERS_C, _DEVIATIONS * deviation)
        if now <= _HOT_C and not (len(models[gpu.model]) > _FEWEST_PEERS and now - usual > margin):
            continue
        text = f"{now:g} degrees C, median of {len(models[gpu.model])} alike {usual:g}"
        yield Finding(
            "thermal-throttling",
            host=gpu.host,
            gpu=gpu.gpu,
            device=gpu.address,
            severity=Severity.INFO,
            title="Hot GPU, below its limit",
            evidence=(Evidence(gpu.source, text, now, gpu.time),),
            explanation="Nothing shows that it is slowed down; look at its cooling when it can be.",
        )


def full_gpu_memory(snapshot: Snapshot) -> Iterator[Finding]:
    """Remarks on GPUs whose memory is all but full, which for many programs is how they work."""
    for gpus in gpu_readings(snapshot).values():
        for gpu in gpus:
            used, total = gpu.vram_used_bytes, gpu.vram_total_bytes
            if used is None or not total or used < _FULL * total:
                continue
            yield Finding(
                "vram-pressure",
                host=gpu.host,
                gpu=gpu.gpu,
                device=gpu.address,
                severity=Severity.INFO,
                evidence=(
                    Evidence(
                        gpu.source,
                        f"{used} of {total} bytes in use ({used / total:.1%})",
                        used / total,
                        gpu.time,
                    ),
                ),
            )


_Peers = Sequence[GpuReading]


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]
