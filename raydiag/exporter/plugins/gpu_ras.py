"""Error counters of AMD GPUs' blocks: HBM ECC, XGMI and the engines.

Each read is a query to the hardware, on the path that a driver fault hangs: so these come last,
one GPU at a time, of the five blocks that have metrics only.

Source: see `raydiag.probes.ras`.
"""

from __future__ import annotations

from raydiag.exporter.plugins import Collected, Sample, plugin
from raydiag.host import Host
from raydiag.model import Unread
from raydiag.probes.ras import ras, ras_directories

_BLOCKS = ("umc", "xgmi", "gfx", "mmhub", "sdma")


@plugin(last=True, sources=ras_directories)
def collect(host: Host, source: str) -> Collected:
    """Error counters of one GPU, by block."""
    for item in ras(host, source, _BLOCKS):
        if isinstance(item, Unread):
            yield item
            continue
        for key, count in (("ue", item.ue), ("ce", item.ce)):
            if count is not None:
                name = f"hw_gpu_ras_{item.block}_{key}_total"
                yield Sample(name, {"gpu": str(item.gpu)}, count)
