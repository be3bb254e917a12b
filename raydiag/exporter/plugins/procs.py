"""Threads that run or wait for I/O, and context switches.

Source: /proc/stat (proc(5))
"""

from __future__ import annotations

from raydiag.exporter.plugins import Collected, Sample, plugin
from raydiag.host import Host
from raydiag.probes.scheduler import task_numbers


@plugin()
def collect(host: Host) -> Collected:
    """Tasks that run and that wait, and context switches."""
    numbers = task_numbers(host)
    yield Sample("hw_procs_running", {}, numbers["procs_running"])
    yield Sample("hw_procs_blocked", {}, numbers["procs_blocked"])
    yield Sample("hw_context_switches_total", {}, numbers["ctxt"])
