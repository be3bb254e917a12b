"""GPUs compared with each other: one that does not work while the others do, heat, full memory.

AMD and NVIDIA GPUs are read in one form. What one moment shows is weak. A warning needs a GPU that
takes part in the work of its node (it holds as much memory as the others), while nearly all others
there are clearly loaded, and a power that is low in two samples or on average. Nodes are not
compared by power: they may run other jobs.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from statistics import median
from typing import Any, NamedTuple

from raydiag.model import Confidence, Evidence, Finding, Severity, Snapshot
from raydiag.probes.gpu_sensors import GpuSensors
from raydiag.probes.nvidia import NvidiaGpu
from raydiag.rules.grades import known, spread
from raydiag.rules.machines import Machine, machines

# Of its power limit. Idle and busy-waiting GPUs of all known models draw less, training ones more.
_LOADED_FRACTION = 0.5
_GIB = 1 << 30
_SHARED = (
    *("gpu", "address", "temperature_c", "power_w", "power_cap_w"),
    *("vram_used_bytes", "vram_total_bytes"),
)
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


@dataclass(frozen=True)
class GpuReading:
    """One GPU at one moment; None: not known."""

    machine: Machine
    gpu: int
    address: str
    model: str  # what tells models apart: the name, or the size of the memory
    source: str  # for evidence
    temperature_c: float | None
    temperature_crit_c: float | None
    power_w: float | None
    power_cap_w: float | None
    clock_mhz: float | None
    vram_used_bytes: int | None
    vram_total_bytes: int | None
    utilisation_percent: float | None  # where it can be trusted
    averaged: bool  # its power is an average, not a moment

    @property
    def key(self) -> tuple[str, str]:
        """Machine and PCI address."""
        return self.machine.name, self.address

    @property
    def loaded(self) -> bool:
        """Whether it clearly computes; False also where that is unknown."""
        if self.power_w is None or not self.power_cap_w:
            return False
        return self.power_w >= _LOADED_FRACTION * self.power_cap_w

    def evidence(self, text: str, value: float) -> Evidence:
        """A piece of evidence from where this was read."""
        return self.machine.evidence(self.source, text, value)

    def finding(self, failure_class: str, *evidence: Evidence, **fields: Any) -> Finding:
        """A finding about this GPU; `fields`: what else is known of it."""
        return self.machine.finding(
            failure_class, *evidence, gpu=self.gpu, device=self.address, **fields
        )


def gpu_readings(snapshot: Snapshot) -> Iterator[list[GpuReading]]:
    """The GPUs of each machine; the first sample where a probe took two."""
    for machine in machines(snapshot):
        amd = map(partial(_amd, machine), machine.records(GpuSensors))
        yield [*amd, *map(partial(_nvidia, machine), machine.records(NvidiaGpu))]


def later_gpu_readings(snapshot: Snapshot) -> Iterator[list[GpuReading]]:
    """Of each machine, the second sample of those GPUs that have one."""
    for machine in machines(snapshot):
        samples = machine.samples(GpuSensors)  # nvidia-smi is asked once
        yield [_amd(machine, sample.later) for sample in samples]


def every_gpu(snapshot: Snapshot) -> list[GpuReading]:
    """The GPUs of all machines."""
    return list(itertools.chain(*gpu_readings(snapshot)))


def _amd(machine: Machine, sensors: GpuSensors) -> GpuReading:
    total = sensors.vram_total_bytes
    return GpuReading(
        machine=machine,
        model=f"amdgpu with {round(total / _GIB)} GiB" if total else "amdgpu",
        source=f"hwmon of {sensors.address}",
        temperature_crit_c=sensors.temperature_crit_c,
        clock_mhz=sensors.sclk_mhz,
        utilisation_percent=None,  # gpu_busy_percent reads 0 on some models under full load
        averaged=sensors.power_averaged,
        **_shared(sensors),
    )


def _nvidia(machine: Machine, gpu: NvidiaGpu) -> GpuReading:
    return GpuReading(
        machine=machine,
        model=gpu.name or "nvidia",
        source=f"nvidia-smi, {gpu.address}",
        temperature_crit_c=None,  # it says itself when it slows down for heat
        clock_mhz=gpu.sm_clock_mhz,
        utilisation_percent=gpu.utilisation_percent,
        averaged=True,
        **_shared(gpu),
    )


def _shared(record: object) -> dict[str, Any]:
    """What both probes call the same."""
    return {name: getattr(record, name) for name in _SHARED}


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
