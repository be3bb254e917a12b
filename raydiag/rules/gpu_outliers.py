"""GPUs compared with each other: one that does not work while the others do, heat, full memory.

What one moment shows is weak. A warning needs a GPU that takes part in the work of its node (it
holds as much memory as the others), while nearly all others there are clearly loaded, and a power
that is low in two samples or on average. Nodes are not compared by power: they may run other jobs.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from statistics import median
from typing import NamedTuple

from raydiag.model import Confidence, Evidence, Finding, Severity, Snapshot
from raydiag.rules.gpu_readings import GpuReading, every_gpu, gpu_readings, later_gpu_readings
from raydiag.rules.growth import known, spread

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


_LASTING = {"severity": Severity.WARNING, "confidence": Confidence.LIKELY}
_SEEN_ONCE = {
    "severity": Severity.INFO,
    "confidence": Confidence.POSSIBLE,
    "explanation": "Seen once, at one instant: it may be waiting for data.",
}


class _Compared(NamedTuple):
    """A GPU beside the loaded ones of its model on the same node."""

    gpu: GpuReading
    peers: Sequence[GpuReading]

    def values(self, quantity: str) -> list[float]:
        """What is known of one field of the peers."""
        return known(map(attrgetter(quantity), self.peers))

    @property
    def is_slow(self) -> bool:
        """Whether it shares the work and draws little power; False where that is unknown."""
        # A GPU that is left out of the job holds next to nothing.
        memory, usual_memory = self.gpu.vram_used_bytes, self.values("vram_used_bytes")
        if memory is None or not usual_memory or self.gpu.power_w is None:
            return False
        usual_w, deviation_w = spread(self.values("power_w"))
        least_w = max(_LOW_POWER_W, _DEVIATIONS * deviation_w)
        does_same_work = memory >= _SAME_WORK_MEMORY * median(usual_memory)
        draws_little = self.gpu.power_w < _LOW_POWER * usual_w
        return does_same_work and draws_little and usual_w - self.gpu.power_w >= least_w

    @property
    def failure_class(self) -> str:
        """What kind of slowness it is, as far as the readings tell."""
        busy = self.values("utilisation_percent")
        if self.gpu.utilisation_percent == 0 and busy and min(busy) > _BUSY_PERCENT:
            return "gpu-underutilised"
        clocks, clock_mhz = self.values("clock_mhz"), self.gpu.clock_mhz
        if clock_mhz is not None and clocks and clock_mhz < _LOW_CLOCK * median(clocks):
            return "gpu-clock-drop"
        return "gpu-power-outlier"

    def evidence(self) -> Iterator[Evidence]:
        """Its power, clock and utilisation beside the peers'."""
        for quantity, name, unit in (
            ("power_w", "power", "W"),
            ("clock_mhz", "core clock", "MHz"),
            ("utilisation_percent", "utilisation", "%"),
        ):
            value, peers = getattr(self.gpu, quantity), self.values(quantity)
            if value is not None and peers:
                usual = f"median of {len(peers)} loaded GPUs here {median(peers):g} {unit}"
                yield self.gpu.evidence(f"{name} {value:g} {unit}, {usual}", value)


def slow_gpus(snapshot: Snapshot) -> Iterator[Finding]:
    """GPUs that hold a share of the work and draw little power while the others of the node work.

    Of one class each: gpu-underutilised where it says that it does nothing, gpu-clock-drop where
    its clock is low as well, else gpu-power-outlier. A single instant is no more than a note.
    """
    later = list(later_gpu_readings(snapshot))
    sampled_twice = set(map(attrgetter("key"), itertools.chain(*later)))
    still_slow = set(map(attrgetter("gpu.key"), _slow(later)))
    for compared in _slow(gpu_readings(snapshot)):
        gpu = compared.gpu
        if gpu.key in sampled_twice and gpu.key not in still_slow:
            continue
        weight = _LASTING if gpu.key in still_slow or gpu.averaged else _SEEN_ONCE
        yield gpu.finding(compared.failure_class, *compared.evidence(), **weight)


def _slow(readings: Iterable[Sequence[GpuReading]]) -> Iterator[_Compared]:
    """The GPUs with low power among loaded ones."""
    for gpus in readings:
        for gpu in gpus:
            peers = [peer for peer in gpus if peer is not gpu and peer.model == gpu.model]
            loaded = list(filter(attrgetter("loaded"), peers))
            compared = _Compared(gpu, loaded)
            if len(loaded) >= max(_FEWEST_PEERS, _LOADED_SHARE * len(peers)) and compared.is_slow:
                yield compared


def hot_gpus(snapshot: Snapshot) -> Iterator[Finding]:
    """Notes on GPUs that are hot, or much hotter than others of their model, and do not throttle.

    Heat slows nothing before the GPU's own limit, which `thermal_throttling` judges.
    """
    temperatures: dict[str, list[float]] = {}
    gpus = every_gpu(snapshot)
    for gpu in gpus:
        temperatures.setdefault(gpu.model, []).extend(known([gpu.temperature_c]))
    for gpu in gpus:
        temperature, of_model = gpu.temperature_c, temperatures[gpu.model]
        if temperature is None or not _is_hot(gpu, temperature, of_model):
            continue
        text = f"{temperature:g} degrees C, median of {len(of_model)} alike {median(of_model):g}"
        yield gpu.finding("thermal-throttling", gpu.evidence(text, temperature), variant="hot")


def _is_hot(gpu: GpuReading, temperature: float, of_model: Sequence[float]) -> bool:
    limit = gpu.temperature_crit_c
    if temperature <= _WARM_C or (limit is not None and temperature >= limit):
        return False
    usual, deviation = spread(of_model)
    margin = max(_HOTTER_THAN_PEERS_C, _DEVIATIONS * deviation)
    is_outlier = len(of_model) > _FEWEST_PEERS and temperature - usual > margin
    return temperature > _HOT_C or is_outlier


def full_gpu_memory(snapshot: Snapshot) -> Iterator[Finding]:
    """Notes on GPUs whose memory is all but full, which for many programs is how they work."""
    for gpu in every_gpu(snapshot):
        used, total = gpu.vram_used_bytes, gpu.vram_total_bytes
        if used is None or not total or used < _FULL * total:
            continue
        text = f"{used} of {total} bytes in use ({used / total:.1%})"
        evidence = gpu.evidence(text, used / total)
        yield gpu.finding("vram-pressure", evidence, severity=Severity.INFO)
