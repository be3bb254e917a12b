"""PCIe errors that AMD GPUs have seen, as the kernel counts them (AER), in every PCI domain.

Source: see `raydiag.probes.pcie`.
"""

from __future__ import annotations

from collections.abc import Sequence

from raydiag.amdgpu import device_directory, required_addresses
from raydiag.exporter.plugins import Collected, Sample, plugin
from raydiag.host import Host, OptionalFiles
from raydiag.probes.pcie import aer_total


@plugin()
def collect(host: Host) -> Collected:
    """The numbers are in the kernel's memory: no device is asked. Raises NoData without a GPU."""
    for gpu, address in enumerate(required_addresses(host)):
        directory = device_directory(host, address)
        yield from aer_samples(host, directory, gpu, ("correctable", "nonfatal", "fatal"))


def aer_samples(host: Host, directory: str, gpu: int, kinds: Sequence[str]) -> Collected:
    """Errors of these kinds, of the GPU whose files lie there; none of a kind without a file."""
    files = OptionalFiles(host)
    for kind in kinds:
        count = files.value(f"{directory}/aer_dev_{kind}", aer_total, 4096)
        if count is not None:
            yield Sample(f"hw_gpu_pcie_{kind}_total", {"gpu": str(gpu)}, count)
    yield from files.unread
