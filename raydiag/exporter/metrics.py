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

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
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


_DEVICE = "/sys/bus/pci/drivers/amdgpu/<address>"
_HWMON = f"{_DEVICE}/hwmon/hwmon*"
_PORT = "/sys/class/infiniband/<device>/ports/<port>"
_HW = f"{_PORT}/hw_counters"
_DEV, _SNMP, _NETSTAT = "/proc/net/dev", "/proc/net/snmp Tcp:", "/proc/net/netstat TcpExt:"

# Name, type, unit, help, source; a source that begins with a word is a file of the group's place.
_Row = tuple[str, str, str, str, str]
_GPU: tuple[_Row, ...] = (
    (
        "hw_gpu_temperature_celsius",
        GAUGE,
        "°C",
        "Junction temperature of the GPU, else that of its memory, else of its edge.",
        f"{_HWMON}/temp{{2,3,1}}_input",
    ),
    ("hw_gpu_power_watts", GAUGE, "W", "Power that the GPU draws.", f"{_HWMON}/power1_input"),
    (
        "hw_gpu_vram_used_bytes",
        GAUGE,
        "bytes",
        "GPU memory in use.",
        f"{_DEVICE}/mem_info_vram_used",
    ),
    ("hw_gpu_vram_total_bytes", GAUGE, "bytes", "GPU memory.", f"{_DEVICE}/mem_info_vram_total"),
    *(
        (
            f"hw_gpu_ras_{block}_{key}_total",
            COUNTER,
            "errors",
            f"{'Uncorrectable' if key == 'ue' else 'Correctable'} errors of the GPU's {what}.",
            f"{_DEVICE}/ras/aca_{file} {key}",
        )
        for block, file, what in (
            ("umc", "umc", "memory (HBM ECC)"),
            ("xgmi", "xgmi_wafl", "links to other GPUs (XGMI, WAFL)"),
            ("gfx", "gfx", "compute engine"),
            ("mmhub", "mmhub", "memory hub"),
            ("sdma", "sdma", "DMA engines"),
        )
        for key in ("ue", "ce")
    ),
    *(
        (
            f"hw_gpu_pcie_{kind}_total",
            COUNTER,
            "errors",
            f"PCIe errors that the GPU has seen: {what}.",
            f"{_DEVICE}/aer_dev_{kind} {key}",
        )
        for kind, what, key in (
            ("correctable", "corrected", "TOTAL_ERR_COR"),
            ("nonfatal", "uncorrected, the link survived", "TOTAL_ERR_NONFATAL"),
            ("fatal", "uncorrected, the link broke", "TOTAL_ERR_FATAL"),
        )
    ),
)
_CLOCK: tuple[_Row, ...] = (
    (
        "hw_gpu_clock_mhz",
        GAUGE,
        "MHz",
        "Clock of the GPU's cores (sclk) and of its memory (mclk).",
        f"{_HWMON}/freq{{1,2}}_input",
    ),
)
_NET: tuple[_Row, ...] = tuple(
    (
        f"hw_net_{way}_{what}_total",
        COUNTER,
        unit,
        f"{noun} of the interface, {'received' if way == 'rx' else 'sent'}.",
        f"{_DEV} field {first + offset}",
    )
    for what, unit, noun, offset in (
        ("bytes", "bytes", "Bytes", 0),
        ("errors", "errors", "Errors", 2),
        ("drop", "drops", "Dropped packets", 3),
    )
    for way, first in (("rx", 0), ("tx", 8))
)
_RDMA: tuple[_Row, ...] = (
    *(
        (
            f"hw_rdma_{way}_{what}_total",
            COUNTER,
            unit,
            f"RDMA {unit} that the port has {'received' if way == 'rx' else 'sent'}.",
            f"{_PORT}/counters/port_{port_way}_{port_what}, else hw_counters",
        )
        for what, unit, port_what in (("bytes", "bytes", "data"), ("pkts", "packets", "packets"))
        for way, port_way in (("rx", "rcv"), ("tx", "xmit"))
    ),
    *(
        (name, COUNTER, unit, text, f"{_HW}/{file}")
        for name, unit, text, file in (
            (
                "hw_rdma_tx_retx_bytes_total",
                "bytes",
                "Bytes sent once more.",
                "tx_rdma_retx_bytes",
            ),
            ("hw_rdma_tx_retx_pkts_total", "packets", "Packets sent again.", "tx_rdma_retx_pkts"),
            (
                "hw_rdma_tx_ack_timeout_total",
                "events",
                "Acknowledgements that did not come in time.",
                "tx_rdma_ack_timeout",
            ),
            (
                "hw_rdma_rx_cnp_pkts_total",
                "packets",
                "Congestion notices received.",
                "rx_rdma_cnp_pkts",
            ),
            (
                "hw_rdma_tx_cnp_pkts_total",
                "packets",
                "Congestion notices sent.",
                "tx_rdma_cnp_pkts",
            ),
            (
                "hw_rdma_req_rx_cqe_err_total",
                "errors",
                "Requests that completed with an error.",
                "req_rx_cqe_err",
            ),
            (
                "hw_rdma_req_tx_retry_excd_err_total",
                "errors",
                "Requests given up after all retries.",
                "req_tx_retry_excd_err",
            ),
            (
                "hw_rdma_rx_ecn_pkts_total",
                "packets",
                "Packets received that a switch marked as congested.",
                "rx_rdma_ecn_pkts",
            ),
            *(
                (
                    f"hw_rdma_ccl_tx_retx_{unit}_total",
                    word,
                    f"Clear-to-send {word} of collectives sent again.",
                    f"tx_rdma_ccl_cts_retx_{unit}",
                )
                for unit, word in (("pkts", "packets"), ("bytes", "bytes"))
            ),
            (
                "hw_rdma_ccl_tx_ack_timeout_total",
                "events",
                "Acknowledgements of clear-to-send packets that did not come in time.",
                "tx_rdma_ccl_cts_ack_timeout",
            ),
            *(
                (
                    f"hw_rdma_ccl_{way}_{unit}_total",
                    word,
                    f"Clear-to-send {word} of collectives {'sent' if way == 'tx' else 'received'}.",
                    f"{way}_rdma_ccl_cts_{unit}",
                )
                for way in ("tx", "rx")
                for unit, word in (("pkts", "packets"), ("bytes", "bytes"))
            ),
            (
                "hw_rdma_rx_dup_response_total",
                "events",
                "Responses received twice.",
                "req_rx_dup_response",
            ),
            (
                "hw_rdma_rx_dup_request_total",
                "events",
                "Requests received twice.",
                "resp_rx_dup_request",
            ),
        )
    ),
    (
        "hw_rdma_port_state",
        GAUGE,
        "0/1",
        "Whether the port's state is ACTIVE.",
        f"{_PORT}/state",
    ),
)
_HOST: tuple[_Row, ...] = (
    (
        "hw_tcp_retransmits_total",
        COUNTER,
        "segments",
        "TCP segments sent again.",
        f"{_SNMP} RetransSegs",
    ),
    (
        "hw_tcp_listen_overflows_total",
        COUNTER,
        "events",
        "Connections that found the accept queue full.",
        f"{_NETSTAT} ListenOverflows",
    ),
    (
        "hw_tcp_listen_drops_total",
        COUNTER,
        "events",
        "Connections dropped on their way into the accept queue.",
        f"{_NETSTAT} ListenDrops",
    ),
    (
        "hw_tcp_estab_resets_total",
        COUNTER,
        "events",
        "Established TCP connections that were reset.",
        f"{_SNMP} EstabResets",
    ),
    (
        "hw_tcp_abort_on_timeout_total",
        COUNTER,
        "events",
        "TCP connections given up after the last retransmission.",
        f"{_NETSTAT} TCPAbortOnTimeout",
    ),
    (
        "hw_procs_running",
        GAUGE,
        "processes",
        "Threads that run or want to.",
        "/proc/stat procs_running",
    ),
    (
        "hw_procs_blocked",
        GAUGE,
        "processes",
        "Threads that wait for I/O; not all that are in uninterruptible sleep.",
        "/proc/stat procs_blocked",
    ),
    (
        "hw_context_switches_total",
        COUNTER,
        "switches",
        "Context switches of all CPUs.",
        "/proc/stat ctxt",
    ),
    (
        "hw_oom_kills_total",
        COUNTER,
        "kills",
        "Processes killed for want of memory, on the whole node.",
        "/proc/vmstat oom_kill",
    ),
    (
        "hw_mem_dirty_bytes",
        GAUGE,
        "bytes",
        "Memory that waits to be written to disk.",
        "/proc/meminfo Dirty",
    ),
    (
        "hw_mem_writeback_bytes",
        GAUGE,
        "bytes",
        "Memory that is being written to disk.",
        "/proc/meminfo Writeback",
    ),
    *(
        (
            f"hw_io_pressure_{kind}{suffix}_pct",
            GAUGE,
            "%",
            f"Share of time in which {who} waited for I/O, mean of {seconds} s.",
            f"/proc/pressure/io {kind} avg{seconds}",
        )
        for kind, who in (("some", "a task"), ("full", "all tasks"))
        for suffix, seconds in (("", 10), ("_avg300", 300))
    ),
    (
        "hw_io_pressure_full_total_us",
        UNTYPED,
        "us",
        "Microseconds in which all tasks waited for I/O; it only grows.",
        "/proc/pressure/io full total",
    ),
    (
        "hw_dmesg_gpu_errors_total",
        COUNTER,
        "lines",
        "Lines about a GPU in trouble in the kernel log since the node booted.",
        "/dev/kmsg",
    ),
    (
        "hw_gpu_user_processes",
        GAUGE,
        "processes",
        "Processes that have the GPU compute device open.",
        "/sys/class/kfd/kfd/proc",
    ),
    (
        "hw_scrape_duration_seconds",
        GAUGE,
        "s",
        "How long the last cycle of all plugins took.",
        "the collector",
    ),
)
_TENSORBOARD: tuple[_Row, ...] = tuple(
    (f"{TENSORBOARD_PREFIX}{name}", GAUGE, unit, text, "TensorBoard event file")
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
_OWN: tuple[tuple[str, str, str, tuple[str, ...], str], ...] = (
    ("build_info", GAUGE, "", ("version", "python"), "1; the exporter's version and Python's."),
    ("start_time_seconds", GAUGE, "s", (), "When the exporter started, Unix time."),
    ("interval_seconds", GAUGE, "s", (), "Time from one cycle to the next."),
    ("cycles_total", COUNTER, "cycles", (), "Cycles since the exporter started."),
    ("cycle_timestamp_seconds", GAUGE, "s", (), "When the last cycle ended, Unix time."),
    ("page_age_seconds", GAUGE, "s", (), "Age of the page at the moment of the scrape."),
    ("plugin_up", GAUGE, "0/1", ("plugin",), "Whether the plugin's last run went well."),
    (
        "plugin_last_success_timestamp_seconds",
        GAUGE,
        "s",
        ("plugin",),
        "When the plugin last went well, Unix time.",
    ),
    ("plugin_duration_seconds", GAUGE, "s", ("plugin",), "How long the plugin's last run took."),
    ("plugin_failures_total", COUNTER, "runs", ("plugin",), "Runs that gave an error."),
    ("plugin_timeouts_total", COUNTER, "runs", ("plugin",), "Runs that missed their deadline."),
    ("plugin_series", GAUGE, "series", ("plugin",), "Series of the plugin on this page."),
    (
        "plugin_disabled",
        GAUGE,
        "0/1",
        ("plugin",),
        "1: it asked not to be run any more (exit status 99).",
    ),
    (
        "plugin_outdated",
        GAUGE,
        "0/1",
        ("plugin",),
        "1: the file's new content is broken, and the last good one runs.",
    ),
    (
        "plugin_reload_errors_total",
        COUNTER,
        "reloads",
        ("plugin",),
        "New versions of the plugin's file that were refused.",
    ),
    (
        "plugin_replay_age_seconds",
        GAUGE,
        "s",
        ("plugin",),
        "Age of the values that the plugin lets stand because it found nothing new.",
    ),
    (
        "rejected_samples_total",
        COUNTER,
        "samples",
        ("plugin",),
        "Samples refused: another plugin's series, another type, or malformed.",
    ),
    ("abandoned_readers", GAUGE, "processes", (), "Readers that hang in the kernel now."),
    ("abandoned_readers_total", COUNTER, "processes", (), "Readers that have ever hung."),
    (
        "stuck_source_seconds",
        GAUGE,
        "s",
        ("plugin", "source"),
        "How long a reader has hung in this source.",
    ),
    (
        "skipped_paths",
        GAUGE,
        "paths",
        ("plugin",),
        "Files that answered EINVAL and are left alone since.",
    ),
    (
        "kernel_log_records_lost_total",
        COUNTER,
        "records",
        (),
        "Records of the kernel log that were overwritten before they were read.",
    ),
)


def _metrics() -> Iterator[Metric]:
    groups: tuple[tuple[tuple[_Row, ...], tuple[str, ...]], ...] = (
        (_GPU, ("gpu", "host")),
        (_CLOCK, ("gpu", "host", "type")),
        (_NET, ("device", "host")),
        (_RDMA, ("device", "host", "port")),
        (_HOST, ("host",)),
        (_TENSORBOARD, ("host",)),
    )
    for rows, labels in groups:
        for name, kind, unit, text, source in rows:
            yield Metric(name, kind, unit, labels, text, source)
    for name, kind, unit, extra, text in _OWN:
        labels = tuple(sorted((*extra, "host")))
        yield Metric(OWN_PREFIX + name, kind, unit, labels, text, "the exporter itself")


REGISTRY: Mapping[str, Metric] = {metric.name: metric for metric in _metrics()}


def metric_of(name: str) -> Optional[Metric]:
    """The metric of a sample of ours; any other tb_ name is a tag that training writes."""
    if name in REGISTRY or not name.startswith(TENSORBOARD_PREFIX):
        return REGISTRY.get(name)
    text = "A scalar that training writes for TensorBoard."
    return Metric(name, GAUGE, "", ("host",), text, "TensorBoard event file")
