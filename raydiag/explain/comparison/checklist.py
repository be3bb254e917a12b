"""The contention checklist: what is compared of two jobs, and what change of it means something."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from raydiag.timeline.queries import (
    BLOCKED,
    CQE,
    DIRTY,
    DMESG,
    IO_FULL,
    IO_SOME,
    MEM_USED,
    PROCESSES,
    RETRY,
    RUNNING,
    TCP_ABORTS,
    TCP_RESETS,
    WRITEBACK,
)

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
    Measure("cpu", RUNNING, "tasks", "tasks", RUNNING, share=0.1, least=4.0),
    Measure("cpu", BLOCKED, "tasks", "tasks", BLOCKED, share=0.5, least=3.0),
    Measure("cpu", SWITCHES, "/s", "context-switches", share=0.25),
    Measure("cpu", CPU, "%", "cpu", share=0.2, least=5.0),
    Measure("cpu", PROCESSES, "processes", "driver", PROCESSES, share=0.1, least=0.9),
    Measure("tcp", TCP, "/s", "tcp-retransmits", share=1.0, least=2.0),
    Measure("tcp", TCP_RESETS, "events", "tcp-errors", TCP_RESETS, GREW, 1.0, 50.0),
    Measure("tcp", TCP_ABORTS, "events", "tcp-errors", TCP_ABORTS, GREW, 1.0, 5.0),
    Measure("rdma", RETX, "/s", "rdma-retransmits", share=1.0, least=0.2),
    Measure("rdma", TIMEOUTS, "/s", "rdma-timeouts", share=1.0, least=0.02),
    Measure("rdma", CNP, "/s", "rdma-cnp", share=2.0, least=100.0),
    Measure("rdma", RETRY, "errors", "rdma-errors", RETRY, GREW, 0.0, 0.5),
    Measure("rdma", CQE, "errors", "rdma-errors", CQE, GREW, 0.0, 0.5),
    Measure("storage", IO_FULL, "%", "storage", IO_FULL, share=0.5, least=5.0),
    Measure("storage", IO_SOME, "%", "storage", IO_SOME, share=0.5, least=5.0),
    Measure("storage", DIRTY, "bytes", "storage", DIRTY, share=1.0, least=1e9),
    Measure("storage", WRITEBACK, "bytes", "storage", WRITEBACK, share=1.0, least=1e9),
    Measure("memory", MEM_USED, "bytes", "memory", MEM_USED, share=0.2, least=1e10),
    Measure("memory", OOM, "kills", "oom-kills", None, GREW, 0.0, 0.5),
    Measure("thermal", HEAT, "C", "gpu-temperature", "max", share=0.0, least=5.0),
    Measure("thermal", CLOCK, "MHz", "gpu-clock", "min", share=0.05, falls=True),
    Measure("thermal", WATTS, "W", "gpu-power", "avg", share=0.05, falls=True),
    Measure("hardware", UNCORRECTED, "errors", "gpu-errors", None, WORST, 0.0, 0.5),
    Measure("hardware", CORRECTED, "errors", "gpu-corrected", None, GREW, 0.0, 9.5),
    Measure("hardware", DMESG, "lines", "driver", DMESG, GREW, 0.0, 0.5),
)
