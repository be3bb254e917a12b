"""Threads that run or wait for I/O, and context switches.

Source: /proc/stat (proc(5))
"""

from __future__ import annotations

from collections.abc import Iterator

from raydiag.exporter.metrics import Sample
from raydiag.exporter.plugins import plugin
from raydiag.host import Host
from raydiag.probes.scheduler import task_numbers


@plugin()
def collect(host: Host) -> Iterator[Sample]:
    """Tasks that run and that wait, and context switches."""
    numbers = task_numbers(host)
    yield Sample("hw_procs_running", {}, numbers["procs_running"])
    yield Sample("hw_procs_blocked", {}, numbers["procs_blocked"])
    yield Sample("hw_context_switches_total", {}, numbers["ctxt"])
