"""The same cluster as other exporters show it: dcgm-exporter or AMD's, node_exporter, Ray."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.incidents.job import Job
from tests.incidents.signals import Floats, Series, Signals

_XID = "DCGM_FI_DEV_XID_ERRORS"  # the number of another fault stands in for a counter
_GPU = {
    "dcgm": {
        "hw_gpu_power_watts": ("DCGM_FI_DEV_POWER_USAGE", 1.0),
        "hw_gpu_temperature_celsius": ("DCGM_FI_DEV_GPU_TEMP", 1.0),
        "hw_gpu_clock_mhz": ("DCGM_FI_DEV_SM_CLOCK", 1.0),
        "hw_gpu_vram_used_bytes": ("DCGM_FI_DEV_FB_USED", 2.0**-20),
        "hw_gpu_vram_total_bytes": ("DCGM_FI_DEV_FB_TOTAL", 2.0**-20),
        "hw_gpu_ras_umc_ue_total": ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", 1.0),
        "hw_gpu_ras_umc_ce_total": ("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", 1.0),
        "hw_gpu_pcie_correctable_total": ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", 1.0),
        "hw_gpu_ras_gfx_ue_total": (_XID, 79.0),
    },
    "amd": {
        "hw_gpu_power_watts": ("gpu_package_power", 1.0),
        "hw_gpu_temperature_celsius": ("gpu_junction_temperature", 1.0),
        "hw_gpu_clock_mhz": ("gpu_clock", 1.0),
        "hw_gpu_vram_used_bytes": ("gpu_used_vram", 2.0**-20),
        "hw_gpu_vram_total_bytes": ("gpu_total_vram", 2.0**-20),
        "hw_gpu_pcie_correctable_total": ("pcie_replay_count", 1.0),
        "hw_gpu_ras_umc_ue_total": ("gpu_ecc_uncorrect_umc", 1.0),
        "hw_gpu_ras_umc_ce_total": ("gpu_ecc_correct_umc", 1.0),
        "hw_gpu_ras_xgmi_ue_total": ("gpu_ecc_uncorrect_xgmi_wafl", 1.0),
        "hw_gpu_ras_gfx_ue_total": ("gpu_ecc_uncorrect_gfx", 1.0),
        "hw_gpu_ras_xgmi_ce_total": ("gpu_ecc_correct_xgmi_wafl", 1.0),
        "hw_gpu_ras_gfx_ce_total": ("gpu_ecc_correct_gfx", 1.0),
        "hw_gpu_ras_mmhub_ue_total": ("gpu_ecc_uncorrect_mmhub", 1.0),
        "hw_gpu_ras_mmhub_ce_total": ("gpu_ecc_correct_mmhub", 1.0),
        "hw_gpu_ras_sdma_ue_total": ("gpu_ecc_uncorrect_sdma", 1.0),
        "hw_gpu_ras_sdma_ce_total": ("gpu_ecc_correct_sdma", 1.0),
    },
}
_PRESSURE = {
    "hw_io_pressure_full_pct": "node_pressure_io_stalled_seconds_total",
    "hw_io_pressure_some_pct": "node_pressure_io_waiting_seconds_total",
}
_NODE = {
    "raydiag_exporter_cycle_timestamp_seconds": "node_time_seconds",
    "hw_procs_running": "node_procs_running",
    "hw_procs_blocked": "node_procs_blocked",
    "hw_context_switches_total": "node_context_switches_total",
    "hw_oom_kills_total": "node_vmstat_oom_kill",
    "hw_mem_dirty_bytes": "node_memory_Dirty_bytes",
    "hw_mem_writeback_bytes": "node_memory_Writeback_bytes",
    "hw_tcp_retransmits_total": "node_netstat_Tcp_RetransSegs",
    "hw_tcp_listen_drops_total": "node_netstat_TcpExt_ListenDrops",
    "hw_tcp_listen_overflows_total": "node_netstat_TcpExt_ListenOverflows",
    "hw_tcp_abort_on_timeout_total": "node_netstat_TcpExt_TCPAbortOnTimeout",
    "hw_net_rx_errors_total": "node_network_receive_errs_total",
    "hw_net_tx_errors_total": "node_network_transmit_errs_total",
    "hw_rdma_tx_bytes_total": "node_infiniband_port_data_transmitted_bytes_total",
    "hw_rdma_tx_retx_pkts_total": "node_infiniband_packet_sequence_errors_total",
    "hw_rdma_tx_ack_timeout_total": "node_infiniband_local_ack_timeout_errors_total",
    "hw_rdma_rx_cnp_pkts_total": "node_infiniband_rp_cnp_packets_handled_total",
    "hw_tcp_estab_resets_total": "node_netstat_Tcp_EstabResets",
    "hw_net_rx_bytes_total": "node_network_receive_bytes_total",
    "hw_net_tx_bytes_total": "node_network_transmit_bytes_total",
    "hw_rdma_req_rx_cqe_err_total": "node_infiniband_req_cqes_errors_total",
}


def offered(gpu_dialect: str) -> frozenset[str]:
    """Our metrics that `translate` keeps in another name, beside Ray's."""
    of_gpus = (ours for ours, (theirs, _) in _GPU[gpu_dialect].items() if theirs != _XID)
    return frozenset((*of_gpus, *_NODE, *_PRESSURE, "hw_rdma_port_state"))


def translate(job: Job, signals: Signals, gpu_dialect: str) -> None:
    """Every series in other exporters' names; without one there, and of training's, it is gone."""
    series = list(signals.series.values())
    signals.series.clear()
    for old in series:
        address = job.ips[job.hosts.index(old.host)] if old.host in job.hosts else old.host
        for metric, port, labels, values in _foreign(old, gpu_dialect):
            labels = {"instance": f"{address}:{port}", **labels}
            signals.add(metric, old.host, old.source, old.times, values, labels)


def _foreign(old: Series, dialect: str) -> Iterator[tuple[str, int, dict[str, str], Floats]]:
    """Metric, port, labels and values of what shows the same."""
    if old.metric.startswith("hw_gpu_"):
        yield from _of_gpu(old, dialect)
    elif old.metric.startswith("ray_"):
        labels = {key: value for key, value in old.labels.items() if key != "instance"}
        yield old.metric, 8080, labels, old.values
    elif old.metric == "up" and old.labels["job"] == "ray":
        yield "up", 8080, {"job": "ray"}, old.values
    elif old.metric == "up":
        yield "up", 9400, {"job": dialect}, old.values
        yield "up", 9100, {"job": "node"}, old.values
    else:
        for metric, labels, values in _of_host(old):
            yield metric, 9100, {"job": "node", **labels}, values


def _of_gpu(old: Series, dialect: str) -> Iterator[tuple[str, int, dict[str, str], Floats]]:
    if old.metric not in _GPU[dialect]:
        return
    metric, factor = _GPU[dialect][old.metric]
    gpu, fqdn = old.labels["gpu"], f"{old.host}.cluster.example"
    labels = {"job": dialect, "gpu": gpu, "Hostname": fqdn, "device": f"nvidia{gpu}"}
    if dialect == "amd":
        labels = {"job": dialect, "gpu_id": gpu, "hostname": fqdn, "gpu_partition_id": "0"}
    if old.labels.get("type") == "mclk":
        metric = "DCGM_FI_DEV_MEM_CLOCK" if dialect == "dcgm" else metric
    if metric == "gpu_clock":
        labels["clock_type"] = "memory" if old.labels.get("type") == "mclk" else "system"
    yield metric, 9400, labels, old.values * factor


def _of_host(old: Series) -> Iterator[tuple[str, dict[str, str], Floats]]:
    own = {key: value for key, value in old.labels.items() if key in ("device", "port")}
    if old.metric in _NODE:
        yield _NODE[old.metric], own, old.values
    elif old.metric in _PRESSURE:
        waited = np.nan_to_num(old.values) / 100 * np.diff(old.times, prepend=old.times[0])
        yield _PRESSURE[old.metric], own, np.where(np.isnan(old.values), np.nan, waited.cumsum())
    elif old.metric == "hw_rdma_port_state":
        yield "node_infiniband_state_id", own, np.where(old.values == 0, 1.0, old.values * 4)
    elif old.metric == "hw_scrape_duration_seconds":
        ones = np.where(np.isnan(old.values), np.nan, 1.0)
        yield "node_uname_info", {"nodename": old.host, "sysname": "Linux"}, ones
