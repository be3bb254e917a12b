"""Families of metrics: by prefix, and which metric stands for each."""

from __future__ import annotations

from collections.abc import Sequence

# The longest prefix that fits is the family of a metric.
# fmt: off
PREFIXES = (
    "hw_gpu_", "hw_tcp_", "hw_rdma_", "hw_io_", "hw_mem_", "hw_oom_", "hw_net_", "hw_procs_",
    "hw_dmesg_", "hw_", "ray_node_", "ray_", "tb_", "up", "scrape_",
)
OTHER = "other"
# What stands for its family: on every host, few series, and its value moves.
_SAMPLED = (
    "hw_gpu_power_watts", "hw_scrape_duration_seconds", "ray_node_mem_used", "tb_step",
    "hw_rdma_port_state", "hw_procs_running", "hw_tcp_retransmits_total", "hw_mem_dirty_bytes",
    "hw_io_pressure_full_pct", "hw_oom_kills_total", "hw_net_rx_bytes_total",
)
# fmt: on


def family_of(metric: str) -> str:
    """Prefix of the family; "other" for a metric that belongs to none."""
    return max(filter(metric.startswith, PREFIXES), key=len, default=OTHER)


def sampled(metrics: Sequence[str]) -> str:
    """The metric that stands for a family of these."""
    return next(filter(metrics.__contains__, _SAMPLED), metrics[0])
