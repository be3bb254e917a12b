"""NVIDIA GPUs under the names of the AMD ones, where NVML's Python binding is installed.

    hw_gpu_{temperature,power,clock}_*   as of the AMD GPUs
    hw_gpu_vram_used_bytes               with what the driver reserves
    hw_gpu_ras_umc_{ue,ce}_total         ECC errors since the driver was loaded (volatile); of the
                                         GPU's whole life (aggregate) where it counts those alone
    hw_gpu_pcie_correctable_total        PCIe packets that were sent again (replays)
    hw_gpu_pcie_{nonfatal,fatal}_total   as the kernel counts them (AER)

There is no series for what a GPU does not have. XGMI and the engines have no counterpart. GPUs are
numbered by PCI address, behind AMD ones if there are any.

Source: NVML API reference (nvmlDeviceGet*), by `pynvml` (package nvidia-ml-py);
/sys/bus/pci/devices/<address>/aer_dev_{nonfatal,fatal}
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable
from typing import Any, Optional

from raydiag.amdgpu import amdgpu_addresses
from raydiag.errors import NoData, ReadError
from raydiag.exporter.plugins import Collected, Sample, plugin
from raydiag.exporter.plugins.gpu_pcie import aer_samples
from raydiag.host import Host
from raydiag.model import Status, Unread
from raydiag.probes import COMMANDS
from raydiag.probes.nvidia import pci_address

_DEVICE = "/dev/nvidiactl"
_NOT_SUPPORTED, _NO_PERMISSION = 3, 4  # nvmlReturn_t

_started: list[Any] = []  # in a reader: NVML, initialised


@plugin(timeout_s=8.0, reader=COMMANDS)
def collect(host: Host) -> Collected:
    """GPUs in the order of their numbers. Raises NoData without NVML's binding or a GPU to use."""
    # Without its device NVML would make it.
    if not host.exists(_DEVICE):
        raise NoData("no NVIDIA GPU can be used here")
    nvml = _nvml()
    try:
        handles = _handles(nvml)
    except nvml.NVMLError as error:
        _started.clear()  # the driver was reloaded, or is gone: begin anew the next time
        with contextlib.suppress(nvml.NVMLError):  # it was over already
            nvml.nvmlShutdown()
        raise ReadError(f"NVML: {error}") from None
    first = len(amdgpu_addresses(host))
    for gpu, (address, handle) in enumerate(handles, first):
        yield from _Gpu(nvml, handle, str(gpu), address).samples()
        directory = f"/sys/bus/pci/devices/{address}"
        yield from aer_samples(host, directory, gpu, ("nonfatal", "fatal"))


def _nvml() -> Any:
    """NVML, initialised once in the life of a reader. Raises NoData, ReadError."""
    if not _started:
        try:
            nvml = importlib.import_module("pynvml")
        except ImportError:
            raise NoData("NVML's Python binding (nvidia-ml-py) is not installed") from None
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            raise ReadError(f"NVML does not start: {error}") from None
        _started.append(nvml)
    return _started[0]


def _handles(nvml: Any) -> list[tuple[str, Any]]:
    """Address and handle of each GPU, in the order of the addresses."""
    handles = []
    for index in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        bus_id = nvml.nvmlDeviceGetPciInfo(handle).busId
        text = bus_id.decode("ascii", "replace") if isinstance(bus_id, bytes) else str(bus_id)
        handles.append((pci_address(text) or text, handle))
    return sorted(handles, key=lambda handle: handle[0])


class _Gpu:
    """What one GPU says."""

    def __init__(self, nvml: Any, handle: Any, gpu: str, address: str) -> None:
        self.nvml, self.handle, self.gpu, self.address = nvml, handle, gpu, address
        self.unread: list[Unread] = []

    def samples(self) -> Collected:
        """All values of this GPU."""
        nvml, labels = self.nvml, {"gpu": self.gpu}
        celsius = self.ask("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU)
        milliwatts = self.ask("nvmlDeviceGetPowerUsage")
        memory = self.ask("nvmlDeviceGetMemoryInfo")
        values = {
            "hw_gpu_temperature_celsius": celsius,
            "hw_gpu_power_watts": None if milliwatts is None else milliwatts / 1000,
            "hw_gpu_vram_used_bytes": memory and memory.used,
            "hw_gpu_vram_total_bytes": memory and memory.total,
            "hw_gpu_ras_umc_ue_total": self.ecc(nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
            "hw_gpu_ras_umc_ce_total": self.ecc(nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
            "hw_gpu_pcie_correctable_total": self.ask("nvmlDeviceGetPcieReplayCounter"),
        }
        for name, value in values.items():
            if value is not None:
                yield Sample(name, labels, value)
        for kind, clock in (("sclk", nvml.NVML_CLOCK_SM), ("mclk", nvml.NVML_CLOCK_MEM)):
            megahertz = self.ask("nvmlDeviceGetClockInfo", clock)
            if megahertz is not None:
                yield Sample("hw_gpu_clock_mhz", {**labels, "type": kind}, megahertz)
        yield from self.unread

    def ecc(self, kind: int) -> Optional[int]:
        """Errors of the memory; None where it has no ECC, or ECC is off."""
        for counter in (self.nvml.NVML_VOLATILE_ECC, self.nvml.NVML_AGGREGATE_ECC):
            count: Optional[int] = self.ask("nvmlDeviceGetTotalEccErrors", kind, counter)
            if count is not None:
                return count
        return None

    def ask(self, function: str, *arguments: Any) -> Any:
        """None for what the GPU does not have, or does not tell: that is in `unread`."""
        call: Callable[..., Any] = getattr(self.nvml, function)
        try:
            return call(self.handle, *arguments)
        except self.nvml.NVMLError as error:
            code = getattr(error, "value", None)
            if code != _NOT_SUPPORTED:
                status = Status.DENIED if code == _NO_PERMISSION else Status.ERROR
                text = f"{function} of {self.address}: {error}"
                self.unread.append(Unread(f"NVML {self.address}", status, text))
            return None
