"""Every metric that the exporter knows: name, type, unit, labels, help and where it comes from.

The names are those of the shell exporter that jobs have run so far, so that dashboards and stored
series go on. Where a value differs from the shell exporter's on purpose:

| metric | difference | why |
|---|---|---|
| hw_tcp_estab_resets_total | from Tcp in /proc/net/snmp | in netstat it is missing, so 0 for ever |
| hw_gpu_ras_*, hw_gpu_pcie_* | GPUs of every PCI domain | the others were passed over |
| hw_gpu_ras_* | <block>_err_count where there is no aca_<block> | older drivers' name of it |
| hw_gpu_power_watts | power1_average where there is no power1_input | other models' name of it |
| hw_dmesg_gpu_errors_total | never falls while the node is up | records leave the ring buffer |
| hw_dmesg_gpu_errors_total | goes on where records were overwritten | there the others stop |
| hw_io_pressure_full_total_us | untyped | its name is none for a counter |
| hw_rdma_* of mlx5, bnxt_re | by the names of these drivers, where they mean the same | no series |
| hw_rdma_rx_bytes_total and its like | no sample where the card refuses or counts not | 0 before |
| hw_scrape_duration_seconds | of the whole last cycle, of all plugins together | they run apart |

A GPU is its position among the sorted PCI addresses, a host its short name. Runs on Python 3.9.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple, Optional, Union

GAUGE, COUNTER, UNTYPED = "gauge", "counter", "untyped"
OWN_PREFIX = "raydiag_exporter_"
TENSORBOARD_PREFIX = "tb_"


@dataclass(frozen=True)
class Metric:
    """One metric family."""

    name: str
    type: str  # GAUGE, COUNTER, UNTYPED; of foreign plugins also "histogram" and "summary"
    unit: str  # of the value, in words; "" for a plain number
    labels: tuple[str, ...]  # names, "host" included
    help: str
    source: str  # file on the node and key in it


class Sample(NamedTuple):
    """One value of one series; as JSON a list in this order."""

    name: str
    labels: Mapping[str, str]  # without `host`, which the page adds
    value: Union[int, float]
    timestamp_ms: Optional[int] = None  # None: now, which is right for all but tb_*


_GPU = "/sys/bus/pci/drivers/amdgpu/<address>"
_PORT = "/sys/class/infiniband/<device>/ports/<port>"
_RAS = (
    ("umc", "aca_umc", "memory (HBM ECC)"),
    ("xgmi", "aca_xgmi_wafl", "links to other GPUs (XGMI, WAFL)"),
    ("gfx", "aca_gfx", "compute engine"),
    ("mmhub", "aca_mmhub", "memory hub"),
    ("sdma", "aca_sdma", "DMA engines"),
)
_UNTYPED = frozenset({"hw_io_pressure_full_total_us"})

# Name, unit, source, help. What ends in _total is a counter, what is not in _UNTYPED a gauge.
_Row = tuple[str, str, str, str]

# fmt: off
_GPU_ROWS: tuple[_Row, ...] = (
    ("hw_gpu_temperature_celsius", "°C", f"{_GPU}/hwmon/hwmon*/temp{{2,3,1}}_input",
     "Junction temperature of the GPU, else that of its memory, else of its edge."),
    ("hw_gpu_power_watts", "W", f"{_GPU}/hwmon/hwmon*/power1_input", "Power that the GPU draws."),
    ("hw_gpu_vram_used_bytes", "bytes", f"{_GPU}/mem_info_vram_used", "GPU memory in use."),
    ("hw_gpu_vram_total_bytes", "bytes", f"{_GPU}/mem_info_vram_total", "GPU memory."),
    *((f"hw_gpu_ras_{block}_{key}_total", "errors", f"{_GPU}/ras/{file} {key}",
       f"{word} errors of the GPU's {what}.")
      for (block, file, what), (key, word) in product(
          _RAS, (("ue", "Uncorrectable"), ("ce", "Correctable")))),
    ("hw_gpu_pcie_correctable_total", "errors", f"{_GPU}/aer_dev_correctable TOTAL_ERR_COR",
     "PCIe errors that the GPU has seen: corrected."),
    ("hw_gpu_pcie_nonfatal_total", "errors", f"{_GPU}/aer_dev_nonfatal TOTAL_ERR_NONFATAL",
     "PCIe errors that the GPU has seen: uncorrected, the link survived."),
    ("hw_gpu_pcie_fatal_total", "errors", f"{_GPU}/aer_dev_fatal TOTAL_ERR_FATAL",
     "PCIe errors that the GPU has seen: uncorrected, the link broke."),
)
_CLOCK_ROWS: tuple[_Row, ...] = (
    ("hw_gpu_clock_mhz", "MHz", f"{_GPU}/hwmon/hwmon*/freq{{1,2}}_input",
     "Clock of the GPU's cores (sclk) and of its memory (mclk)."),
)
_DIRECTIONS = (("rx", "received"), ("tx", "sent"))
_NET_QUANTITIES = (  # name, unit, noun, field of /proc/net/dev of what was received and sent
    ("bytes", "bytes", "Bytes", (0, 8)),
    ("errors", "errors", "Errors", (2, 10)),
    ("drop", "drops", "Dropped packets", (3, 11)),
)
_PORT_COUNTERS = (  # name, unit, files of what was received and sent
    ("bytes", "bytes", ("rcv_data", "xmit_data")),
    ("pkts", "packets", ("rcv_packets", "xmit_packets")),
)
_HW_COUNTERS: tuple[_Row, ...] = (  # name, unit, file below hw_counters, help
    ("tx_retx_bytes", "bytes", "tx_rdma_retx_bytes", "Bytes sent once more."),
    ("tx_retx_pkts", "packets", "tx_rdma_retx_pkts", "Packets sent once more."),
    ("tx_ack_timeout", "events", "tx_rdma_ack_timeout",
     "Acknowledgements that did not come in time."),
    ("rx_cnp_pkts", "packets", "rx_rdma_cnp_pkts", "Congestion notices received."),
    ("tx_cnp_pkts", "packets", "tx_rdma_cnp_pkts", "Congestion notices sent."),
    ("rx_ecn_pkts", "packets", "rx_rdma_ecn_pkts",
     "Packets received that a switch had marked as congested."),
    ("req_rx_cqe_err", "errors", "req_rx_cqe_err", "Requests that completed in error."),
    ("req_tx_retry_excd_err", "errors", "req_tx_retry_excd_err",
     "Requests given up after all retries."),
    ("ccl_tx_retx_pkts", "packets", "tx_rdma_ccl_cts_retx_pkts",
     "Clear-to-send packets of collectives sent once more."),
    ("ccl_tx_retx_bytes", "bytes", "tx_rdma_ccl_cts_retx_bytes",
     "Clear-to-send bytes of collectives sent once more."),
    ("ccl_tx_ack_timeout", "events", "tx_rdma_ccl_cts_ack_timeout",
     "Acknowledgements of clear-to-send packets that did not come in time."),
    ("ccl_tx_pkts", "packets", "tx_rdma_ccl_cts_pkts",
     "Clear-to-send packets of collectives sent."),
    ("ccl_tx_bytes", "bytes", "tx_rdma_ccl_cts_bytes",
     "Clear-to-send bytes of collectives sent."),
    ("ccl_rx_pkts", "packets", "rx_rdma_ccl_cts_pkts",
     "Clear-to-send packets of collectives received."),
    ("ccl_rx_bytes", "bytes", "rx_rdma_ccl_cts_bytes",
     "Clear-to-send bytes of collectives received."),
    ("rx_dup_response", "events", "req_rx_dup_response", "Responses received twice."),
    ("rx_dup_request", "events", "resp_rx_dup_request", "Requests received twice."),
)


def _net_rows() -> Iterator[_Row]:
    for quantity, unit, noun, fields in _NET_QUANTITIES:
        for (direction, verb), field in zip(_DIRECTIONS, fields):
            name = f"hw_net_{direction}_{quantity}_total"
            yield name, unit, f"/proc/net/dev field {field}", f"{noun} of the interface, {verb}."


def _rdma_rows() -> Iterator[_Row]:
    yield ("hw_rdma_port_state", "0/1", f"{_PORT}/state", "Whether the port's state is ACTIVE.")
    for quantity, unit, files in _PORT_COUNTERS:
        for (direction, verb), file in zip(_DIRECTIONS, files):
            source = f"{_PORT}/counters/port_{file}, else hw_counters"
            text = f"RDMA {unit} that the port has {verb}."
            yield f"hw_rdma_{direction}_{quantity}_total", unit, source, text
    for name, unit, file, text in _HW_COUNTERS:
        yield f"hw_rdma_{name}_total", unit, f"{_PORT}/hw_counters/{file}", text


_HOST_ROWS: tuple[_Row, ...] = (
    ("hw_tcp_retransmits_total", "segments", "/proc/net/snmp Tcp RetransSegs",
     "TCP segments sent once more."),
    ("hw_tcp_estab_resets_total", "events", "/proc/net/snmp Tcp EstabResets",
     "Established TCP connections that were reset."),
    ("hw_tcp_listen_overflows_total", "events", "/proc/net/netstat TcpExt ListenOverflows",
     "Connections that found the accept queue full."),
    ("hw_tcp_listen_drops_total", "events", "/proc/net/netstat TcpExt ListenDrops",
     "Connections dropped on their way into the accept queue."),
    ("hw_tcp_abort_on_timeout_total", "events", "/proc/net/netstat TcpExt TCPAbortOnTimeout",
     "TCP connections given up after the last retransmission."),
    ("hw_procs_running", "processes", "/proc/stat procs_running", "Threads that run or want to."),
    ("hw_procs_blocked", "processes", "/proc/stat procs_blocked",
     "Threads that wait for I/O; not all that are in uninterruptible sleep."),
    ("hw_context_switches_total", "switches", "/proc/stat ctxt", "Context switches of all CPUs."),
    ("hw_oom_kills_total", "kills", "/proc/vmstat oom_kill",
     "Processes killed for lack of memory, on the whole node."),
    ("hw_mem_dirty_bytes", "bytes", "/proc/meminfo Dirty",
     "Memory that waits to be written to disk."),
    ("hw_mem_writeback_bytes", "bytes", "/proc/meminfo Writeback",
     "Memory that is being written to disk."),
    *((f"hw_io_pressure_{kind}{suffix}_pct", "%", f"/proc/pressure/io {kind} avg{seconds}",
       f"Share of time in which {who} waited for I/O, mean of {seconds} s.")
      for (kind, who), (suffix, seconds) in product(
          (("some", "a task"), ("full", "all tasks")), (("", 10), ("_avg300", 300)))),
    ("hw_io_pressure_full_total_us", "us", "/proc/pressure/io full total",
     "Microseconds in which all tasks waited for I/O; it only grows."),
    ("hw_dmesg_gpu_errors_total", "lines", "/dev/kmsg",
     "Lines about a GPU in trouble in the kernel log since the node booted."),
    ("hw_gpu_user_processes", "processes", "/sys/class/kfd/kfd/proc",
     "Processes that have the GPU compute device open."),
    ("hw_scrape_duration_seconds", "s", "the collector", "How long the last cycle took."),
)
_TENSORBOARD_ROWS: tuple[_Row, ...] = tuple(
    (f"{TENSORBOARD_PREFIX}{name}", unit, "TensorBoard event file", text)
    for name, unit, text in (
        ("step", "step", "Training step that the values belong to."),
        ("learning_loss", "", "Loss of the step."),
        ("learning_grad_norm", "", "Norm of the gradients after clipping."),
        ("learning_raw_grad_norm", "", "Norm of the gradients before clipping."),
        ("learning_param_norm", "", "Norm of the parameters."),
        ("learning_current_learning_rate", "", "Learning rate."),
        ("learning_total_weights", "tokens", "Weight of the step's tokens, not of parameters."),
        ("learning_moe_lb_loss", "", "Load-balancing loss of a mixture of experts."),
        ("learning_mtp_loss", "", "Loss of multi-token prediction."),
        ("perf_step_time_seconds", "s", "How long the step took."),
        ("perf_per_device_tflops", "TFLOP", "Work of the step on each device."),
        ("perf_per_device_tflops_per_sec", "TFLOP/s", "Work a second on each device."),
        ("perf_per_device_tokens", "tokens", "Tokens of the step on each device."),
        ("perf_per_device_tokens_per_sec", "tokens/s", "Tokens a second on each device."),
        ("metrics_plugin_staleness_fill", "0/1", "1: a repetition while no step came, 0: real."),
    )
)
_OWN_ROWS: Mapping[tuple[str, ...], Sequence[tuple[str, str, str]]] = {
    (): (
        ("start_time_seconds", "s", "When the exporter started, Unix time."),
        ("interval_seconds", "s", "Time from one cycle to the next."),
        ("cycles_total", "cycles", "Cycles since the exporter started."),
        ("cycle_timestamp_seconds", "s", "When the last cycle ended, Unix time."),
        ("page_age_seconds", "s", "Age of the page at the moment of the scrape."),
        ("abandoned_readers", "processes", "Readers that hang in the kernel now."),
        ("abandoned_readers_total", "processes", "Readers that have ever hung."),
        ("kernel_log_records_lost_total", "records",
         "Records of the kernel log that were overwritten before they were read."),
    ),
    ("version", "python"): (("build_info", "", "1; the exporter's version and Python's."),),
    ("plugin",): (
        ("plugin_up", "0/1", "Whether the plugin's last run succeeded."),
        ("plugin_last_success_timestamp_seconds", "s", "When it last succeeded, Unix time."),
        ("plugin_duration_seconds", "s", "How long the plugin's last run took."),
        ("plugin_failures_total", "runs", "Runs that gave an error."),
        ("plugin_timeouts_total", "runs", "Runs that missed their deadline."),
        ("plugin_late", "0/1",
         "1: the last run, or the trial of the file's new content, missed its deadline."),
        ("plugin_series", "series", "Series of the plugin on this page."),
        ("plugin_disabled", "0/1", "1: it asked not to be run any more (exit status 99)."),
        ("plugin_outdated", "0/1",
         "1: the file's new content is broken, and the last good one runs."),
        ("plugin_replay_age_seconds", "s",
         "Age of the values that the plugin lets stand because it found nothing new."),
        ("plugin_reload_errors_total", "reloads", "New versions of its file that were refused."),
        ("rejected_samples_total", "samples",
         "Samples refused: another plugin's series, another type, or malformed."),
        ("skipped_paths", "paths", "Files that answered EINVAL and are left alone since."),
    ),
    ("plugin", "source"): (
        ("stuck_source_seconds", "s", "How long a reader has hung in this source."),
    ),
}
# fmt: on


def _metrics() -> Iterator[Metric]:
    groups: Sequence[tuple[Sequence[_Row], tuple[str, ...]]] = (
        (_GPU_ROWS, ("gpu", "host")),
        (_CLOCK_ROWS, ("gpu", "host", "type")),
        (list(_net_rows()), ("device", "host")),
        (list(_rdma_rows()), ("device", "host", "port")),
        (_HOST_ROWS, ("host",)),
        (_TENSORBOARD_ROWS, ("host",)),
    )
    for rows, labels in groups:
        for name, unit, source, text in rows:
            yield Metric(name, _type(name), unit, labels, text, source)
    for extra, own_metrics in _OWN_ROWS.items():
        own_labels = tuple(sorted((*extra, "host")))
        for name, unit, text in own_metrics:
            source = "the exporter itself"
            yield Metric(OWN_PREFIX + name, _type(name), unit, own_labels, text, source)


def _type(name: str) -> str:
    if name.endswith("_total"):
        return COUNTER
    return UNTYPED if name in _UNTYPED else GAUGE


REGISTRY: Mapping[str, Metric] = {metric.name: metric for metric in _metrics()}


def metric_of(name: str) -> Optional[Metric]:
    """The metric of a sample of ours; any other tb_ name is a tag that training writes."""
    if name in REGISTRY or not name.startswith(TENSORBOARD_PREFIX):
        return REGISTRY.get(name)
    text = "A scalar that training writes for TensorBoard."
    return Metric(name, GAUGE, "", ("host",), text, "TensorBoard event file")
