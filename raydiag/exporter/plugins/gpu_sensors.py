"""Temperature, power, clocks and memory of AMD GPUs.

Source: see `raydiag.probes.gpu_sensors`.
"""

from __future__ import annotations

from typing import Union

from raydiag.amdgpu import amdgpu_addresses, device_directory, hwmon_directory, required_addresses
from raydiag.exporter.plugins import Collected, Sample, plugin
from raydiag.host import Host
from raydiag.probes.gpu_sensors import SensorFiles


@plugin(sources=required_addresses)  # one GPU that hangs costs no other its series
def collect(host: Host, source: str) -> Collected:
    """A sensor that is not there gives no sample, and no Unread: that differs between models."""
    gpu = {"gpu": str(amdgpu_addresses(host).index(source))}
    files = SensorFiles(host)
    hwmon = hwmon_directory(host, source)
    if hwmon:
        yield from _sample("hw_gpu_temperature_celsius", gpu, files.temperature(hwmon)[1])
        yield from _sample("hw_gpu_power_watts", gpu, files.power(hwmon)[0])
        for number, clock in ((1, "sclk"), (2, "mclk")):
            mhz = files.scaled(f"{hwmon}/freq{number}_input", 1e6)
            yield from _sample("hw_gpu_clock_mhz", {**gpu, "type": clock}, mhz)
    device = device_directory(host, source)
    for quantity in ("used", "total"):
        count = files.integer(f"{device}/mem_info_vram_{quantity}")
        yield from _sample(f"hw_gpu_vram_{quantity}_bytes", gpu, count)
    yield from files.unread


def _sample(name: str, labels: dict[str, str], value: Union[int, float, None]) -> Collected:
    if value is not None:
        yield Sample(name, labels, value)
