"""How many processes have the GPU compute device open; 0 where there is no such driver.

Source: names in /sys/class/kfd/kfd/proc
"""

from __future__ import annotations

from raydiag.exporter.plugins import Collected, Sample, plugin
from raydiag.host import Host
from raydiag.probes.gpu_users import kfd_pids


@plugin()
def collect(host: Host) -> Collected:
    """How many processes have the compute device open."""
    yield Sample("hw_gpu_user_processes", {}, len(kfd_pids(host) or ()))
