"""Memory that waits to be written to disk.

Source: Dirty and Writeback in /proc/meminfo (proc(5))
"""

from __future__ import annotations

from raydiag.cgroup import parse_numbers
from raydiag.errors import ParseError
from raydiag.exporter.plugins import Collected, Sample, plugin
from raydiag.host import Host

_KIB = 1024  # the "kB" of /proc/meminfo


@plugin()
def collect(host: Host) -> Collected:
    """Memory that waits to be written back."""
    numbers = parse_numbers(host.read_text("/proc/meminfo"))
    for key in ("Dirty", "Writeback"):
        if key not in numbers:
            raise ParseError(f"/proc/meminfo: no {key}")
        yield Sample(f"hw_mem_{key.lower()}_bytes", {}, numbers[key] * _KIB)
