"""TCP as the kernel counts it: retransmissions, resets, connections that were not accepted.

Source: /proc/net/snmp, /proc/net/netstat (proc(5)), of the exporter's network namespace
"""

from __future__ import annotations

from raydiag.errors import NoData
from raydiag.exporter.plugins import Collected, Sample, plugin
from raydiag.host import Host, OptionalFiles
from raydiag.probes.network import tcp_counters

_NAMES = {
    "RetransSegs": "hw_tcp_retransmits_total",
    "ListenOverflows": "hw_tcp_listen_overflows_total",
    "ListenDrops": "hw_tcp_listen_drops_total",
    "EstabResets": "hw_tcp_estab_resets_total",
    "TCPAbortOnTimeout": "hw_tcp_abort_on_timeout_total",
}


@plugin()
def collect(host: Host) -> Collected:
    """Raises NoData when the kernel counts nothing of TCP here."""
    files = OptionalFiles(host)
    counters = tcp_counters(files)
    if not counters and not files.unread:
        raise NoData("no TCP statistics")
    for name, metric in _NAMES.items():
        if name in counters:
            yield Sample(metric, {}, counters[name])
    yield from files.unread
