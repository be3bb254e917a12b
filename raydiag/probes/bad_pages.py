"""Memory pages that a GPU no longer uses, because they lost data, or waits to retire.

The driver answers from its own list, under a lock that error handling also takes: so it is read
beside the RAS counters, and not at all where the driver is known to hang.

Source: /sys/bus/pci/drivers/amdgpu/<address>/ras/gpu_vram_bad_pages (kernel documentation,
gpu/amdgpu/ras). Sample, page : size : R (retired), P (pending) or F (could not be retired):

    0x0041a7c0 : 0x00001000 : R
    0x0041a7c8 : 0x00001000 : P
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from raydiag.amdgpu import gpu_files, gpu_index
from raydiag.errors import ParseError
from raydiag.host import Host
from raydiag.probes import LAST, probe

_LIMIT_BYTES = 1 << 20  # some 37,000 pages; a GPU is replaced for a few hundred


@dataclass(frozen=True)
class BadPages:
    gpu: int  # index: position of the address among the node's sorted GPU addresses
    address: str  # PCI address, e.g. "0000:c5:00.0"
    file: str  # path on the node
    retired: int  # pages, flag R: taken out of use; the GPU remembers them permanently
    pending: int  # pages, flag P: to be retired at the next reset, in use until then
    failed: int  # pages, flag F: could not be retired


def bad_page_files(host: Host) -> Sequence[str]:
    """The list of each GPU that has one, in index order. Raises NoData without any."""
    return gpu_files(host, "ras/gpu_vram_bad_pages", "a list of bad pages")


@probe(BadPages, identity=("address",), timeout_s=2, stage=LAST + 1, sources=bad_page_files)
def bad_pages(host: Host, source: str) -> Iterator[BadPages]:
    """One record per GPU, also for one without a bad page.

    Raises ParseError for a list in another form: its pages must not be lost from the counts.
    """
    address = source.split("/")[-3]
    gpu = gpu_index(host, address)
    counts = count_flags(host.read_text(source, _LIMIT_BYTES))
    yield BadPages(gpu, address, source, counts["R"], counts["P"], counts["F"])


def count_flags(text: str) -> dict[str, int]:
    """Pages by flag; all three keys are always there. Raises ParseError."""
    counts = {"R": 0, "P": 0, "F": 0}
    for line in text.split("\n"):
        if not line.strip():
            continue
        flag = line.rpartition(":")[2].strip()
        if line.count(":") != 2 or flag not in counts or not line.lstrip().startswith("0x"):
            raise ParseError(f"not a bad page: {line[:80]!r}")
        counts[flag] += 1
    return counts
