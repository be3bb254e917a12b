"""Bytes, errors and drops of network interfaces.

Of every interface but loopback, Docker's bridge and those that end in a container.

Source: /proc/net/dev (proc(5))
"""

from __future__ import annotations

from raydiag.exporter.plugins import Collected, Sample, plugin
from raydiag.host import Host
from raydiag.probes.network import DEV, parse_interfaces

_COLUMNS = {"bytes": "bytes", "errors": "errors", "dropped": "drop"}


@plugin()
def collect(host: Host) -> Collected:
    """Traffic of every interface but those of containers and the loopback."""
    interfaces = parse_interfaces(host.read_text(DEV, 4 << 20), left_out=("veth",))
    for device, counters in interfaces.items():
        if device == "docker0":
            continue
        for column, name in _COLUMNS.items():
            for direction in ("rx", "tx"):
                value = counters[f"{direction}_{column}"]
                yield Sample(f"hw_net_{direction}_{name}_total", {"device": device}, value)
