"""The rows: what is seen, which incident shows it, and the class that it has to get.

Hosts, GPUs, devices and onset of each come from the incident's own truth. Rows are grouped as the
playbooks' tables are.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Row(NamedTuple):
    """One line of a table."""

    name: str
    kind: str  # of tests/incidents
    verdict: str
    seed: int = 1
    options: dict[str, Any] = {}  # noqa: RUF012 - never changed


HANGS = (
    Row("utilisation high, power at waiting level, network clean", "rccl-hang", "rccl-hang"),
    Row("the same in a finished job", "rccl-hang", "rccl-hang", 4),
    Row("two of the GPUs busy on each node", "rccl-hang-partial", "rccl-hang"),
    Row("other GPUs stuck on one node, no step yet", "hang-before-first-step", "rccl-hang"),
    Row("retransmits before the hang", "hang-after-rdma", "rdma-degraded"),
    Row("a port down before the hang", "hang-after-port-down", "rdma-port-down"),
    Row("one node at full power, all others wait", "straggler-stall", "straggler"),
    Row("one node idle, all others wait", "host-side-stall", "straggler"),
    Row("series of one node stop", "node-death", "node-death"),
    Row("driver errors, then series stop", "gpu-fell-off", "node-death"),
    Row("power high, network busy: not a hang", "log-stops", "healthy"),
    Row("no series of GPUs at all", "hang-without-gpu-series", "hang"),
    Row("near miss: a save's retransmits just before", "hang-after-save", "rccl-hang"),
    Row("near miss: ghost data at training power", "ghost-hides-hang", "rccl-hang"),
    Row("near miss: a gap some minutes before", "tsdb-gap-hides-hang", "rccl-hang"),
)

HEARTBEATS = (
    Row(
        "accused at full utilisation, all clean",
        "heartbeat-false-positive",
        "heartbeat-false-positive",
    ),
    Row(
        "accused at full utilisation, TCP burst", "heartbeat-tcp-burst", "heartbeat-false-positive"
    ),
    Row("accused while it saves", "heartbeat-during-save", "heartbeat-false-positive"),
    Row("accused idle, process gone", "heartbeat-was-exit", "heartbeat-timeout"),
    Row("near miss: all waited for half an hour", "heartbeat-was-hang", "rccl-hang"),
    Row("near miss: the kernel killed the accused", "heartbeat-was-oom", "oom-host"),
    Row("near miss: the node of the accused is gone", "heartbeat-was-node-death", "node-death"),
)

MEMORY = (
    Row("ramp on one host", "oom-host-leak", "oom-host"),
    Row("sudden, outside of saves", "oom-host-spike", "oom-host"),
    Row("peak of a save, on a writer", "oom-host-checkpoint", "oom-host"),
    Row("all nodes at once", "oom-host-all-nodes", "oom-host"),
    Row("near miss: half full and steady", "memory-grows-unharmed", "healthy"),
)

HARDWARE = (
    Row("uncorrectable HBM error", "gpu-memory-error", "gpu-memory-error"),
    Row("uncorrectable HBM error from before the job", "gpu-memory-error-old", "gpu-memory-error"),
    Row("corrected HBM errors by the dozen", "gpu-memory-degrading", "gpu-memory-degrading"),
    Row("XGMI", "xgmi-error", "xgmi-error"),
    Row("XGMI, another time", "xgmi-error", "xgmi-error", 2),
    Row("gfx, mmhub or sdma", "gpu-ras-error", "gpu-ras-error"),
    Row("gfx, mmhub or sdma, another time", "gpu-ras-error", "gpu-ras-error", 3),
    Row("PCIe fatal", "pcie-fatal", "pcie-fatal"),
    Row("PCIe corrected errors, then a fatal one", "pcie-precursor", "pcie-fatal"),
    Row("PCIe corrected errors, steadily", "pcie-degraded", "pcie-degraded"),
    Row("driver messages on one host alone", "driver-messages", "gpu-driver-fault"),
    Row("scrapes of 12 s and 3 s by turns, gaps, messages", "gpu-driver-fault", "gpu-driver-fault"),
    Row("temperature spike, then the node is gone", "overheated", "thermal-throttling"),
    Row("process gone, node well", "process-died", "signal-kill"),
)

GPU_HEALTH = (
    Row("above 90 degrees", "hot-not-throttling", "thermal-throttling"),
    Row("above 100 degrees, clock down", "thermal-throttling", "thermal-throttling"),
    Row("power far from its neighbours", "gpu-power-outlier", "gpu-power-outlier"),
    Row("power far from its neighbours, another time", "gpu-power-outlier", "gpu-power-outlier", 5),
    Row("clock drops on one GPU", "gpu-clock-drop", "gpu-clock-drop"),
    Row("clock drops on a whole node", "straggler-node", "straggler"),
    Row("memory above 95 %", "vram-pressure", "vram-pressure"),
    Row("utilisation below 80 % while training", "gpu-underutilised", "gpu-underutilised"),
)

NETWORK = (
    Row("retransmits and timeouts on one port", "rdma-degraded", "rdma-degraded"),
    Row("the same from the first step on", "rdma-from-start", "rdma-degraded"),
    Row("node X, a recovery, node Y", "rdma-phased", "rdma-degraded"),
    Row("over again, throughput back at once", "rdma-recovered", "rdma-degraded"),
    Row("completion errors alone", "rdma-completion-errors", "rdma-degraded"),
    Row("port not active", "rdma-port-down", "rdma-port-down"),
    Row("retries exhausted", "rdma-retry-exhausted", "rdma-retry-exhausted"),
    Row("lost packets before retransmits before TCP", "worst-port-first", "rdma-retry-exhausted"),
    Row("congestion notices on many nodes", "network-congestion", "network-congestion"),
    Row("NIC errors", "nic-errors", "nic-errors"),
    Row("aborts on timeout", "tcp-aborts", "tcp-aborts"),
    Row("accept queue of the head overflows", "coordinator-overload", "coordinator-overload"),
    Row("near miss: TCP only", "healthy-tcp-noise", "healthy"),
    Row("near miss: 90 million from before the job", "healthy-old-counters", "healthy"),
    Row("near miss: no recovery with the port", "red-herring-retransmits", "gpu-clock-drop"),
)

TRAINING = (
    Row("gradients multiply, then NaN", "gradient-explosion", "gradient-explosion"),
    Row("loss climbs", "loss-divergence", "loss-divergence"),
    Row("loss is NaN at once", "loss-nan", "loss-divergence"),
    Row("balance loss of experts", "moe-imbalance", "moe-imbalance"),
    Row("learning rate jumps", "lr-anomaly", "lr-anomaly"),
    Row("learning rate is gone", "lr-zero", "lr-anomaly"),
    Row("throughput falls, nobody knows why", "tgs-degradation", "tgs-degradation"),
    Row("throughput falls bit by bit", "tgs-gradual", "tgs-degradation"),
    Row("processors of one host", "cpu-contention", "cpu-contention"),
    Row("storage of one host, between saves", "storage-stall", "storage-stall"),
    Row("one save ten times as long", "checkpoint-effect", "checkpoint-effect"),
    Row("an exception, all instruments well", "software-crash", "python-exception"),
    Row("near miss: one long step", "healthy-step-hiccup", "healthy"),
    Row("near miss: stopped by its user", "cancelled", "healthy"),
)

OBSERVABILITY = (
    Row("directory without data", "tsdb-empty", "tsdb-empty"),
    Row("gap, Prometheus restarted", "tsdb-gap", "tsdb-gap"),
    Row("another job's loss", "tsdb-wrong-job", "tsdb-wrong-job"),
    Row("another job's hosts", "tsdb-foreign-hosts", "tsdb-wrong-job"),
    Row("one host never scraped", "host-missing", "host-missing"),
    Row("no series of Ray", "ray-metrics-missing", "ray-metrics-missing"),
    Row("scalars missing for a while", "tb-bridge-gap", "tb-bridge-gap"),
    Row("exporter gone", "exporter-down", "exporter-down"),
    Row("exporter killed again and again", "exporter-restarting", "exporter-restarting"),
    Row("each cycle 12 s", "exporter-plugin-timeout", "exporter-plugin-timeout"),
    Row("GPU plugin left out", "exporter-plugin-skipped", "exporter-plugin-skipped"),
    Row("one clock minutes off", "clock-skew", "clock-skew"),
    Row("everything of a host flat", "ghost-data", "ghost-data"),
    Row("near miss: ghost data beside a fault", "ghost-beside-rdma", "rdma-degraded"),
)

WELL = (
    Row("saves, noise, a scrape lost now and then", "healthy", "healthy"),
    Row("newest samples in the WAL", "healthy", "healthy", 2, {"wal_s": 900}),
    Row("restored", "healthy-restored", "healthy"),
    Row("families missing", "healthy-missing-families", "healthy"),
    Row("Ray reports every five minutes", "healthy-slow-ray", "healthy"),
    Row("counters begin again before the first step", "healthy-reloaded", "healthy"),
    Row("a quarter of an hour old", "healthy-young", "healthy"),
)

ROWS: tuple[tuple[str, tuple[Row, ...]], ...] = (
    ("hangs", HANGS),
    ("heartbeats", HEARTBEATS),
    ("memory", MEMORY),
    ("hardware", HARDWARE),
    ("GPU health", GPU_HEALTH),
    ("network", NETWORK),
    ("training", TRAINING),
    ("observability", OBSERVABILITY),
    ("well", WELL),
)
