"""The contention checklist: what is compared of two jobs, and what change of it means something."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from raydiag.timeline import queries

MEAN, GREW, WORST = "mean", "grew", "worst"
SWITCHES, CPU = "rate(hw_context_switches_total)", "ray_node_cpu_utilization"
TCP, OOM = "rate(hw_tcp_retransmits_total)", "hw_oom_kills_total"
RETX, TIMEOUTS = "rate(hw_rdma_tx_retx_pkts_total)", "rate(hw_rdma_tx_ack_timeout_total)"
CNP = "rate(hw_rdma_rx_cnp_pkts_total)"
HEAT, CLOCK = "hw_gpu_temperature_celsius", 'hw_gpu_clock_mhz{type="sclk"}'
WATTS = "hw_gpu_power_watts"
UNCORRECTED = "hw_gpu_ras_*, hw_gpu_pcie_* (uncorrected)"
CORRECTED = "hw_gpu_ras_*, hw_gpu_pcie_* (corrected)"


@dataclass(frozen=True)
class Measure:
    """One line of the checklist."""

    group: str
    metric: str
    unit: str
    question: str
    pick: Optional[str] = None  # label `metric`, `stat` or name within the question
    how: str = MEAN  # over time: mean, growth over the window, worst value
    share: float = 0.1  # least change that counts, of the smaller value
    least: float = 0.0  # least change that counts, in the unit
    falls: bool = False  # lower is worse


MEASURES = (
    Measure("cpu", queries.RUNNING, "tasks", "tasks", queries.RUNNING, MEAN, 0.1, 4.0),
    Measure("cpu", queries.BLOCKED, "tasks", "tasks", queries.BLOCKED, MEAN, 0.5, 3.0),
    Measure("cpu", SWITCHES, "/s", "context-switches", share=0.25),
    Measure("cpu", CPU, "%", "cpu", share=0.2, least=5.0),
    Measure("cpu", queries.PROCESSES, "processes", "driver", queries.PROCESSES, MEAN, 0.1, 0.9),
    Measure("tcp", TCP, "/s", "tcp-retransmits", share=1.0, least=2.0),
    Measure("tcp", queries.TCP_RESETS, "events", "tcp-errors", queries.TCP_RESETS, GREW, 1.0, 50.0),
    Measure("tcp", queries.TCP_ABORTS, "events", "tcp-errors", queries.TCP_ABORTS, GREW, 1.0, 5.0),
    Measure("rdma", RETX, "/s", "rdma-retransmits", share=1.0, least=0.2),
    Measure("rdma", TIMEOUTS, "/s", "rdma-timeouts", share=1.0, least=0.02),
    Measure("rdma", CNP, "/s", "rdma-cnp", share=2.0, least=100.0),
    Measure("rdma", queries.RETRY, "errors", "rdma-errors", queries.RETRY, GREW, 0.0, 0.5),
    Measure("rdma", queries.CQE, "errors", "rdma-errors", queries.CQE, GREW, 0.0, 0.5),
    Measure("storage", queries.IO_FULL, "%", "storage", queries.IO_FULL, MEAN, 0.5, 5.0),
    Measure("storage", queries.IO_SOME, "%", "storage", queries.IO_SOME, MEAN, 0.5, 5.0),
    Measure("storage", queries.DIRTY, "bytes", "storage", queries.DIRTY, MEAN, 1.0, 1e9),
    Measure("storage", queries.WRITEBACK, "bytes", "storage", queries.WRITEBACK, MEAN, 1.0, 1e9),
    Measure("memory", queries.MEM_USED, "bytes", "memory", queries.MEM_USED, MEAN, 0.2, 1e10),
    Measure("memory", OOM, "kills", "oom-kills", None, GREW, 0.0, 0.5),
    Measure("thermal", HEAT, "C", "gpu-temperature", "max", MEAN, 0.0, 5.0),
    Measure("thermal", CLOCK, "MHz", "gpu-clock", "min", share=0.05, falls=True),
    Measure("thermal", WATTS, "W", "gpu-power", "avg", share=0.05, falls=True),
    Measure("hardware", UNCORRECTED, "errors", "gpu-errors", None, WORST, 0.0, 0.5),
    Measure("hardware", CORRECTED, "errors", "gpu-corrected", None, GREW, 0.0, 9.5),
    Measure("hardware", queries.DMESG, "lines", "driver", queries.DMESG, GREW, 0.0, 0.5),
)
UNITS = {measure.metric: measure.unit for measure in MEASURES}
