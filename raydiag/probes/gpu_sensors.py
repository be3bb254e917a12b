"""Temperature, power, clocks and memory use of AMD GPUs.

Utilisation is left out on purpose: gpu_busy_percent reads 0 on some accelerators under full load.

Source: /sys/class/hwmon/hwmon*/{temp,power,freq}* of the devices named amdgpu,
/sys/bus/pci/drivers/amdgpu/<address>/{mem_info_vram_*,unique_id} (kernel documentation,
gpu/amdgpu/thermal and gpu/amdgpu/driver-misc)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Optional, Union

from raydiag.amdgpu import DRIVER, HWMON, hwmon_directories, required_addresses
from raydiag.errors import ParseError, ReadError
from raydiag.host import Host, OptionalFiles, parse_int
from raydiag.model import Unread
from raydiag.probes import probe

# Junction, then memory, then edge: the hottest spot throttles first, and edge is often missing.
_TEMPERATURE_SENSORS = ("temp2", "temp3", "temp1")


@dataclass(frozen=True)
class GpuSensors:
    gpu: int  # index: position of the address among the node's sorted GPU addresses
    address: str  # PCI address, e.g. "0000:c5:00.0"
    temperature_c: Optional[float]  # degrees Celsius: junction, else memory, else edge
    temperature_crit_c: Optional[float]  # critical limit of that same sensor, degrees Celsius
    power_w: Optional[float]  # watts: power1_input, else power1_average
    power_averaged: bool  # True: power_w comes from power1_average
    power_cap_w: Optional[float]  # watts, power1_cap
    sclk_mhz: Optional[float]  # core clock, MHz, freq1_input
    mclk_mhz: Optional[float]  # memory clock, MHz, freq2_input
    vram_used_bytes: Optional[int]  # bytes, mem_info_vram_used
    vram_total_bytes: Optional[int]  # bytes, mem_info_vram_total
    unique_id: str  # hexadecimal serial of the chip; "" unknown


@probe(GpuSensors, identity=("address",), timeout_s=3, samples=2)
def gpu_sensors(host: Host) -> Iterator[Union[GpuSensors, Unread]]:
    """One record per GPU in index order, an Unread for each file of it that gave no value.

    A file that does not exist leaves its field None and is no Unread: which sensors there are
    differs between models. Raises NoData without amdgpu devices.
    """
    addresses = required_addresses(host)
    hwmon: dict[str, str] = {}
    try:
        hwmon = hwmon_directories(host)
    except ReadError as error:
        yield Unread(HWMON, error.status, str(error))
    for gpu, address in enumerate(addresses):
        files = SensorFiles(host)
        yield _sensors(files, gpu, address, hwmon.get(address))
        yield from files.unread


def _sensors(files: SensorFiles, gpu: int, address: str, hwmon: Optional[str]) -> GpuSensors:
    device = f"{DRIVER}/{address}"
    if hwmon and not files.host.exists(device):
        device = f"{hwmon}/device"
    temperature_c = crit_c = power_w = cap_w = sclk_mhz = mclk_mhz = None
    averaged = False
    if hwmon:
        sensor, temperature_c = files.temperature(hwmon)
        crit_c = files.scaled(f"{hwmon}/{sensor}_crit", 1000) or None if sensor else None
        power_w, averaged = files.power(hwmon)
        cap_w = files.scaled(f"{hwmon}/power1_cap", 1e6)
        sclk_mhz = files.scaled(f"{hwmon}/freq1_input", 1e6)
        mclk_mhz = files.scaled(f"{hwmon}/freq2_input", 1e6)
    return GpuSensors(
        gpu=gpu,
        address=address,
        temperature_c=temperature_c,
        temperature_crit_c=crit_c,
        power_w=power_w,
        power_averaged=averaged,
        power_cap_w=cap_w,
        sclk_mhz=sclk_mhz,
        mclk_mhz=mclk_mhz,
        vram_used_bytes=files.integer(f"{device}/mem_info_vram_used"),
        vram_total_bytes=files.integer(f"{device}/mem_info_vram_total"),
        unique_id=files.hexadecimal(f"{device}/unique_id"),
    )


class SensorFiles(OptionalFiles):
    """Reads values of one GPU."""

    def integer(self, path: str) -> Optional[int]:
        """The integer in a file."""
        return self.value(path, parse_int)

    def temperature(self, hwmon: str) -> tuple[str, Optional[float]]:
        """Name and degrees Celsius of the first sensor above 0; a sensor that is off reads 0."""
        for sensor in _TEMPERATURE_SENSORS:
            value = self.scaled(f"{hwmon}/{sensor}_input", 1000)
            if value is not None and value > 0:
                return sensor, value
        return "", None

    def power(self, hwmon: str) -> tuple[Optional[float], bool]:
        """Watts, and whether they are a mean over some time, where there is nothing else."""
        power_w = self.scaled(f"{hwmon}/power1_input", 1e6)
        if power_w is not None:
            return power_w, False
        power_w = self.scaled(f"{hwmon}/power1_average", 1e6)
        return power_w, power_w is not None

    def scaled(self, path: str, divisor: float) -> Optional[float]:
        """The integer in a file in another unit."""
        value = self.integer(path)
        return None if value is None else value / divisor

    def hexadecimal(self, path: str) -> str:
        """The digits in a file; empty when there are none."""
        return self.value(path, _parse_hexadecimal, 256) or ""


def _parse_hexadecimal(text: str) -> str:
    if not text or text.strip("0123456789abcdefABCDEF"):
        raise ParseError(f"not hexadecimal: {text[:80]!r}")
    return text
