"""Error counters of the GPU blocks: HBM ECC, XGMI and the engines (RAS).

Reading such a file makes the driver query the hardware and may make it write error records, the
path on which some drivers hang. So each file is read once, one after another, one GPU at a time.

Source: /sys/bus/pci/drivers/amdgpu/<address>/ras/{aca_<block>,<block>_err_count} (kernel
documentation, gpu/amdgpu/ras). Sample:

    ue: 0
    ce: 12
    de: 0
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Optional, Union

from raydiag.amdgpu import gpu_files, gpu_index
from raydiag.errors import NoData, ParseError, ReadError
from raydiag.host import Host, as_unread, is_digits
from raydiag.model import Unread
from raydiag.probes import LAST, probe

_ACA_PREFIX, _COUNT_SUFFIX = "aca_", "_err_count"
_FIRST_BLOCKS = ("umc", "xgmi_wafl", "gfx", "mmhub", "sdma")
_OTHER_NAMES = {"xgmi_wafl": "xgmi"}
_NOT_READY = "query currently inaccessible"


@dataclass(frozen=True)
class RasCount:
    gpu: int  # index: position of the address among the node's sorted GPU addresses
    address: str  # PCI address, e.g. "0000:c5:00.0"
    block: str  # "umc" (HBM), "xgmi", "gfx", "mmhub", "sdma"; others by the name of their file
    file: str  # path on the node
    ue: Optional[int]  # uncorrectable errors since the driver was loaded
    ce: Optional[int]  # correctable errors since the driver was loaded
    deferred: Optional[int]  # deferred errors ("de"); None: this block or driver has no such count


def ras_directories(host: Host) -> Sequence[str]:
    """The `ras` directory of each GPU that has one, in index order. Raises NoData without any."""
    return gpu_files(host, "ras", "RAS counters")


@probe(
    RasCount,
    identity=("address", "block", "file"),
    timeout_s=2,
    stage=LAST,
    sources=ras_directories,
)
def ras(
    host: Host, source: str, blocks: Optional[Sequence[str]] = None
) -> Iterator[Union[RasCount, Unread]]:
    """One record per block of one GPU: the five of the metrics first, then the others by name.

    `blocks`: of these only, since each read queries the hardware. An Unread for each file that gave
    no count. Raises NoData when the directory has no counters.
    """
    address = source.split("/")[-2]
    gpu = gpu_index(host, address)
    files = counter_files(host.listdir(source))
    if not files:
        raise NoData(f"{source}: no error counters")
    for block, name in files:
        if blocks is not None and block not in blocks:
            continue
        path = f"{source}/{name}"
        try:
            counts = parse_counts(host.read_text(path, 4096))
        except ReadError as error:
            yield from as_unread(path, error)
            continue
        errors = map(counts.get, ("ue", "ce", "de"))
        yield RasCount(gpu, address, block, path, *errors)


def counter_files(names: Iterable[str]) -> list[tuple[str, str]]:
    """(block, file name) in reading order; where both naming schemes exist, only the `aca_` one."""
    files: dict[str, str] = {}
    for name in names:
        if name.startswith(_ACA_PREFIX):
            files[name[len(_ACA_PREFIX) :]] = name
        elif name.endswith(_COUNT_SUFFIX):
            files.setdefault(name[: -len(_COUNT_SUFFIX)], name)
    first = [block for block in _FIRST_BLOCKS if block in files]
    by_name = sorted(files.keys() - {"", *_FIRST_BLOCKS})
    return [(_OTHER_NAMES.get(block, block), files[block]) for block in first + by_name]


def parse_counts(text: str) -> dict[str, int]:
    """The counts in a file, by key; has at least one of "ue" and "ce".

    Raises ReadError while the GPU does not answer, ParseError for anything else without counts.
    """
    if _NOT_READY in text.lower():
        raise ReadError("GPU in reset or not ready (Query currently inaccessible)")
    counts = {}
    for line in text.split("\n"):
        key, _, value = line.partition(":")
        key, value = key.strip(), value.strip()
        if key not in ("ue", "ce", "de"):
            continue
        if not is_digits(value):
            raise ParseError(f"not a count: {line[:80]!r}")
        counts[key] = int(value)
    if "ue" not in counts and "ce" not in counts:
        raise ParseError(f"neither ue nor ce: {text[:80]!r}")
    return counts
