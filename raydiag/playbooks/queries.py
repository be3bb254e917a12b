"""What the playbooks ask, once for all of them: each question once, by host, on the server.

A plan costs little whatever the size of the job: few points a host, per GPU or device only for
what is wrong there. What stands out is asked for again, finer (`follow_up_queries.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from string import Template
from typing import Optional

from raydiag.model import Window
from raydiag.playbooks.context import Context
from raydiag.tsdb.series import Query, QueryResult

OVERVIEW_POINTS = 30_000  # of one metric, all hosts together
_SPARSE_POINTS = 100_000  # evaluations of one metric on the server where answers are few
_MOST_SAMPLES = 2_400_000  # that one query looks at, where a coarser look serves as well
_MOST_STEPS = 10_000  # a little below what Prometheus answers
_RAW_S = 86_400.0  # longest window of raw samples
_PER_HOST = 8  # GPUs, ports
_LEAST_SAMPLES = 4  # in the range of a rate: one or two missed scrapes do no harm

BLOCKS = ("umc", "xgmi", "gfx", "mmhub", "sdma")


@dataclass(frozen=True)
class Question:
    """A query without its times.

    $range: how far a rate looks back; $short: a few scrapes.
    """

    id: str
    promql: str
    # grid: by host at each step; sparse: mostly empty, coarser; few: a handful of points;
    # raw: samples as they are, at their own times.
    kind: str
    metrics: tuple[str, ...]  # asked when one of them is there
    counter: bool = False


def _stats(metric: str, by: str) -> str:
    """Lowest, mean and highest of a host, told apart by the label `stat`."""
    parts = [
        f'label_replace({stat} by ({by}) ({metric}), "stat", "{stat}", "", "")'
        for stat in ("min", "avg", "max")
    ]
    return " or ".join(parts)


def grown(metrics: Iterable[str], by: str, match: str = "", span: str = "$range") -> str:
    """What grew by how much, told apart by the label `metric`; empty where nothing did."""
    chosen = f"{{{match}}}" if match else ""
    parts = [
        f"label_replace(sum by ({by}) (increase({one}{chosen}[{span}]) > 0), "
        f'"metric", "{one}", "", "")'
        for one in metrics
    ]
    return " or ".join(parts)


def named(
    metrics: Sequence[str], by: str, how: str = "max", match: str = "", above: str = ""
) -> str:
    """Several gauges in one question, told apart by their names; `above`: what is more alone."""
    chosen = f", {match}" if match else ""
    # Filtered before it is summed up: the server sorts what is left into groups, mostly nothing.
    more = f" > {above}" if above else ""
    return f'{how} by ({by}, __name__) ({{__name__=~"{"|".join(metrics)}"{chosen}}}{more})'


UNCORRECTED = tuple(f"hw_gpu_ras_{block}_ue_total" for block in BLOCKS)
CORRECTED = (*(f"hw_gpu_ras_{block}_ce_total" for block in BLOCKS), "hw_gpu_pcie_correctable_total")
FATAL = (*UNCORRECTED, "hw_gpu_pcie_fatal_total", "hw_gpu_pcie_nonfatal_total")
DMESG, PROCESSES = "hw_dmesg_gpu_errors_total", "hw_gpu_user_processes"
SCRAPE = "hw_scrape_duration_seconds"
MEM_USED, MEM_HOST, MEM_TOTAL = "ray_node_mem_used", "ray_node_mem_used_host", "ray_node_mem_total"
VRAM_USED, VRAM_TOTAL = "hw_gpu_vram_used_bytes", "hw_gpu_vram_total_bytes"
DIRTY, WRITEBACK = "hw_mem_dirty_bytes", "hw_mem_writeback_bytes"
IO_FULL, IO_SOME = "hw_io_pressure_full_pct", "hw_io_pressure_some_pct"
CPU = "ray_node_cpu_utilization"
RUNNING, BLOCKED = "hw_procs_running", "hw_procs_blocked"
TCP_RETX, TCP_ABORTS = "hw_tcp_retransmits_total", "hw_tcp_abort_on_timeout_total"
TCP_RESETS = "hw_tcp_estab_resets_total"
LISTEN = ("hw_tcp_listen_drops_total", "hw_tcp_listen_overflows_total")
RDMA_RETX, RDMA_TIMEOUTS = "hw_rdma_tx_retx_pkts_total", "hw_rdma_tx_ack_timeout_total"
RDMA_CNP, RDMA_PORT = "hw_rdma_rx_cnp_pkts_total", "hw_rdma_port_state"
RETRY, CQE = "hw_rdma_req_tx_retry_excd_err_total", "hw_rdma_req_rx_cqe_err_total"
CCL_RETX, CCL_SENT = "hw_rdma_ccl_tx_retx_pkts_total", "hw_rdma_ccl_tx_pkts_total"
NIC_ERRORS = ("hw_net_rx_errors_total", "hw_net_tx_errors_total")
FILL = "tb_metrics_plugin_staleness_fill"
TB = (
    "tb_step",
    "tb_learning_loss",
    "tb_learning_grad_norm",
    "tb_learning_raw_grad_norm",
    "tb_learning_current_learning_rate",
    "tb_learning_moe_lb_loss",
    "tb_perf_step_time_seconds",
    "tb_perf_per_device_tokens_per_sec",
)
_RAY = "instance, ip"
# Asked as one, since nothing but their metrics tells them apart; the answer is parted by name.
_TOGETHER = ((("driver", "storage", "tasks"), "host"), (("memory", "cpu"), _RAY))
_AND = "+"


def _rate(metric: str) -> str:
    return f"sum by (host) (rate({metric}[$range]))"


QUESTIONS = (
    Question("gpu-power", _stats("hw_gpu_power_watts", "host"), "grid", ("hw_gpu_power_watts",)),
    Question(
        "gpu-temperature",
        _stats("hw_gpu_temperature_celsius", "host"),
        "grid",
        ("hw_gpu_temperature_celsius",),
    ),
    Question(
        "gpu-clock",
        _stats('hw_gpu_clock_mhz{type="sclk"}', "host"),
        "grid",
        ("hw_gpu_clock_mhz",),
    ),
    Question(
        "gpu-utilisation",
        _stats("ray_node_gpus_utilization", f"{_RAY}, GpuDeviceName"),
        "grid",
        ("ray_node_gpus_utilization",),
    ),
    Question("gpu-vram", f"max by (host) ({VRAM_USED})", "grid", (VRAM_USED,)),
    # Counted from samples, so that a GPU that fell silent is not repeated for minutes.
    Question(
        "gpu-count",
        "count by (host) (count_over_time(hw_gpu_power_watts[$short]))",
        "grid",
        ("hw_gpu_power_watts",),
    ),
    Question(
        "capacity",
        named((VRAM_TOTAL, MEM_TOTAL), f"host, {_RAY}", "min"),
        "few",
        (VRAM_TOTAL, MEM_TOTAL),
    ),
    Question("gpu-errors", named(FATAL, "host, gpu", above="0"), "sparse", FATAL),
    Question("gpu-corrected", grown(CORRECTED, "host, gpu"), "sparse", CORRECTED, True),
    Question(
        "driver",
        named((DMESG, PROCESSES, SCRAPE), "host"),
        "grid",
        (DMESG, PROCESSES, SCRAPE),
    ),
    Question("memory", named((MEM_USED, MEM_HOST), _RAY), "grid", (MEM_USED, MEM_HOST)),
    Question(
        "oom-kills",
        "sum by (host) (increase(hw_oom_kills_total[$range]) > 0)",
        "grid",
        ("hw_oom_kills_total",),
        True,
    ),
    Question(
        "storage",
        named((DIRTY, WRITEBACK, IO_FULL, IO_SOME), "host"),
        "grid",
        (DIRTY, WRITEBACK, IO_FULL, IO_SOME),
    ),
    Question("tasks", named((RUNNING, BLOCKED), "host"), "grid", (RUNNING, BLOCKED)),
    Question(
        "context-switches",
        _rate("hw_context_switches_total"),
        "grid",
        ("hw_context_switches_total",),
        True,
    ),
    Question("cpu", named((CPU,), _RAY), "grid", (CPU,)),
    Question("tcp-retransmits", _rate(TCP_RETX), "grid", (TCP_RETX,), True),
    Question(
        "tcp-errors",
        grown((TCP_ABORTS, TCP_RESETS, *LISTEN), "host"),
        "grid",
        (TCP_ABORTS, TCP_RESETS, *LISTEN),
        True,
    ),
    Question("rdma-retransmits", _rate(RDMA_RETX), "grid", (RDMA_RETX,), True),
    Question("rdma-timeouts", _rate(RDMA_TIMEOUTS), "grid", (RDMA_TIMEOUTS,), True),
    Question("rdma-cnp", f"max by (host) (rate({RDMA_CNP}[$range]))", "grid", (RDMA_CNP,), True),
    Question(
        "rdma-errors", grown((RETRY, CQE), "host, device, port"), "sparse", (RETRY, CQE), True
    ),
    Question(
        "rdma-ports-down",
        f"min by (host, device, port) ({RDMA_PORT}) == 0",
        "sparse",
        (RDMA_PORT,),
    ),
    Question(
        "rdma-sent",
        _rate("hw_rdma_tx_bytes_total"),
        "grid",
        ("hw_rdma_tx_bytes_total",),
        True,
    ),
    Question(
        "rdma-collectives",
        f"{_rate(CCL_RETX)} / {_rate(CCL_SENT)}",
        "grid",
        (CCL_RETX,),
        True,
    ),
    Question("nic-errors", grown(NIC_ERRORS, "host, device"), "sparse", NIC_ERRORS, True),
    Question("training", f'{{__name__=~"{"|".join((*TB, FILL))}"}}', "raw", ("tb_step",)),
    Question(
        "alive",
        f"max by (host) (timestamp({SCRAPE}) or timestamp({RUNNING}))"
        f" or max by ({_RAY}) (timestamp({MEM_USED}))",
        "grid",
        (SCRAPE, RUNNING, MEM_USED),
    ),
    Question("up", "min by (job, instance) (up)", "grid", ("up",)),
)


def plan(context: Context) -> list[Query]:
    """The first questions: all that can have an answer, over the whole window."""
    there = context.discovery
    asked = {
        one.id: query(one, context)
        for one in QUESTIONS
        if not there.metrics or any(there.has(metric) for metric in one.metrics)
    }
    for group, by in _TOGETHER:
        together = [one for one in QUESTIONS if one.id in group and one.id in asked]
        if len(together) > 1:
            metrics = tuple(metric for one in together for metric in one.metrics)
            name = _AND.join(one.id for one in together)
            joined = Question(name, named(metrics, by), together[0].kind, metrics)
            asked[together[0].id] = query(joined, context)
            for one in together[1:]:
                del asked[one.id]
    return list(asked.values())


def parts(asked: str) -> tuple[str, ...]:
    """Ids of the questions that a query was asked for."""
    return tuple(asked.split(_AND))


def parted(answer: QueryResult) -> Iterator[QueryResult]:
    """The answers to the questions that were asked together, each with the query as it was."""
    names = parts(answer.query.id)
    if len(names) == 1:
        yield answer
        return
    for one in QUESTIONS:
        if one.id in names:
            own = tuple(series for series in answer.series if series.metric in one.metrics)
            yield replace(answer, query=replace(answer.query, id=one.id), series=own)


def query(question: Question, context: Context, step_s: Optional[float] = None) -> Query:
    """A question with its times; the last evaluation is at the end of the window."""
    window = context.window
    length = max(window.end - window.start, 1.0)
    if question.kind == "raw":
        return _raw(question, window, length)
    step = step_s or _step_s(question.kind, context, length)
    steps = max(0, math.floor(length / step))
    values = {
        "range": _duration(range_s(context, step)),
        "short": _duration(_LEAST_SAMPLES * context.resolution_s()),
    }
    promql = Template(question.promql).substitute(values)
    start = window.end - steps * step
    return Query(question.id, promql, Window(start, max(window.end, start), step))


def step_s(context: Context) -> float:
    """Distance of two evaluations of the questions by host: the resolution itself if it may be."""
    window = context.window
    return _step_s("grid", context, max(window.end - window.start, 1.0))


def range_s(context: Context, step: float) -> float:
    """How far rates look back: without holes from one evaluation to the next where that is cheap.

    Beyond it each evaluation samples the time before it, and what is short may be missed.
    """
    resolution = context.resolution_s()
    least = _LEAST_SAMPLES * resolution
    length = max(context.window.end - context.window.start, 1.0)
    evaluations = max(1.0, length / step) * max(1, len(context.hosts)) * _PER_HOST
    affordable = _MOST_SAMPLES / evaluations * resolution
    return max(least, min(step + resolution, affordable))


def _step_s(kind: str, context: Context, length: float) -> float:
    resolution, hosts = context.resolution_s(), max(1, len(context.hosts))
    wanted = max(resolution, hosts * length / OVERVIEW_POINTS, length / _MOST_STEPS)
    if kind == "few":
        return max(wanted, length / 4)
    if kind == "sparse":
        wanted = max(wanted, hosts * _PER_HOST * length / _SPARSE_POINTS)
    return math.ceil(wanted / resolution) * resolution


def _raw(question: Question, window: Window, length: float) -> Query:
    if length <= _RAW_S:
        promql = f"{question.promql}[{_duration(length)}]"
        return Query(question.id, promql, Window(window.start, window.end))
    step = float(math.ceil(length / _MOST_STEPS))
    return Query(question.id, question.promql, Window(window.start, window.end, step))


def _duration(seconds: float) -> str:
    return f"{max(1, math.ceil(seconds))}s"


def ids() -> Iterator[str]:
    """Of the questions of every plan."""
    return (one.id for one in QUESTIONS)
