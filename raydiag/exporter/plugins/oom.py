"""Processes killed for lack of memory, on the whole node since it booted.

Source: oom_kill in /proc/vmstat (proc(5))
"""

from __future__ import annotations

from raydiag.cgroup import parse_numbers
from raydiag.errors import NoData
from raydiag.exporter.plugins import Collected, Sample, plugin
from raydiag.host import Host


@plugin()
def collect(host: Host) -> Collected:
    """Raises NoData where the kernel does not count them."""
    numbers = parse_numbers(host.read_text("/proc/vmstat"))
    if "oom_kill" not in numbers:
        raise NoData("/proc/vmstat: no oom_kill")
    yield Sample("hw_oom_kills_total", {}, numbers["oom_kill"])
