"""Share of time in which tasks waited for I/O, and for how long in all.

Source: /proc/pressure/io (kernel documentation, accounting/psi)
"""

from __future__ import annotations

from raydiag.cgroup import parse_pressure, parse_pressure_totals
from raydiag.exporter.plugins import Collected, Sample, plugin
from raydiag.host import Host

_PATH = "/proc/pressure/io"


@plugin()
def collect(host: Host) -> Collected:
    """Raises NoData where the kernel has PSI switched off."""
    text = host.read_text(_PATH)
    averages, totals = parse_pressure("io", text), parse_pressure_totals(text)
    for kind in ("some", "full"):
        for window, suffix in (("avg10", ""), ("avg300", "_avg300")):
            key = f"io_{kind}_{window}"
            if key in averages:
                yield Sample(f"hw_io_pressure_{kind}{suffix}_pct", {}, averages[key])
    if "full" in totals:
        yield Sample("hw_io_pressure_full_total_us", {}, totals["full"])
