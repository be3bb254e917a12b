"""What is asked of Prometheus, once for all playbooks: each query once, by host, on the server.

A plan costs little whatever the size of the job: few points a host, per GPU or device only for
what is wrong there. What stands out is queried again, finer, by the playbook that needs it
(`follow_up.py` has what these queries share).
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import resources
from itertools import chain
from string import Template

from raydiag.catalog.rows import CatalogRow, loaded, rows
from raydiag.model import Window
from raydiag.timeline.context import Context
from raydiag.tsdb.series import Query, QueryResult

OVERVIEW_POINTS = 30_000  # of one metric, all hosts together
_SPARSE_POINTS = 100_000  # evaluations of one metric on the server where answers are few
_MAX_SAMPLES = 2_400_000  # that one query looks at, where a coarser look serves as well
_MAX_STEPS = 10_000  # a little below what Prometheus answers
_RAW_S = 86_400.0  # longest window of raw samples
_PER_HOST = 8  # GPUs, ports
_MIN_RATE_SAMPLES = 4  # in the range of a rate: one or two missed scrapes do no harm

GRID = "grid"  # by host at each step
SPARSE = "sparse"  # mostly empty, coarser
FEW = "few"  # a handful of points
ONCE = "once"  # at the end, over the whole window
RAW = "raw"  # samples as they are, at their own times


@dataclass(frozen=True)
class QueryTemplate:
    """A query without its times.

    $range: how far a rate looks back; $short: a few scrapes.
    """

    id: str
    promql: str
    kind: str  # GRID, SPARSE, FEW, ONCE or RAW
    metrics: tuple[str, ...]  # asked when one of them is there
    counter: bool = False
    # Keeps only what is wrong: no series means that nothing is, not that nothing was measured.
    faults_only: bool = False
    known_as: Mapping[str, str] = field(default_factory=dict)  # our name of a metric, by another


def _spread(metrics: Sequence[str], by: str) -> str:
    return " or ".join(
        f'label_replace({stat} by ({by}) ({metrics[0]}), "stat", "{stat}", "", "")'
        for stat in ("min", "avg", "max")
    )


def increases(metrics: Iterable[str], by: str, selector: str = "", lookback: str = "$range") -> str:
    """What grew by how much, told apart by the label `metric`; empty where nothing did.

    `selector`: label matchers in their braces.
    """
    return " or ".join(
        f"label_replace(sum by ({by}) (increase({metric}{selector}[{lookback}]) > 0), "
        f'"metric", "{metric}", "", "")'
        for metric in metrics
    )


def gauges(
    metrics: Sequence[str], by: str, aggregate: str = "max", match: str = "", above: str = ""
) -> str:
    """Several gauges in one query, told apart by their names; `above`: only what is more."""
    and_match = f", {match}" if match else ""
    # Filtered before it is summed up: the server sorts what is left into groups, mostly nothing.
    only = f" > {above}" if above else ""
    names = "|".join(metrics)
    return f'{aggregate} by ({by}, __name__) ({{__name__=~"{names}"{and_match}}}{only})'


def rated_parts(by: str, match: str = "") -> str:
    """What a part keeps by design, by name: the least, and of what heats up or fills up the most.

    Our exporter tells the clock of memory by a label.
    """
    matchers = ", ".join(filter(None, ('type="mclk"', match)))
    clock = f"min by ({by}) (hw_gpu_clock_mhz{{{matchers}}})"
    # `or` drops what differs in its name alone.
    parts = (
        f'label_replace({gauges(_LEAST, by, "min", match)}, "of", "least", "", "")',
        f'label_replace({gauges(_MOST, by, "max", match)}, "of", "most", "", "")',
        f'label_replace({clock}, "metric", "hw_gpu_memory_clock_mhz", "", "")',
    )
    return " or ".join(parts)


def _by_name(metrics: Iterable[str], _by: str = "") -> str:
    return f'{{__name__=~"{"|".join(metrics)}"}}'


def _rate(metrics: Sequence[str], by: str) -> str:
    return f"sum by ({by}) (rate({metrics[0]}[$range]))"


POWER, TEMPERATURE = "hw_gpu_power_watts", "hw_gpu_temperature_celsius"
UTILISATION = "ray_node_gpus_utilization"
DMESG, PROCESSES = "hw_dmesg_gpu_errors_total", "hw_gpu_user_processes"
SCRAPE = "hw_scrape_duration_seconds"
MEM_USED, MEM_HOST, MEM_TOTAL = "ray_node_mem_used", "ray_node_mem_used_host", "ray_node_mem_total"
VRAM_USED, VRAM_TOTAL = "hw_gpu_vram_used_bytes", "hw_gpu_vram_total_bytes"
OOM_KILLS = "hw_oom_kills_total"
DIRTY, WRITEBACK = "hw_mem_dirty_bytes", "hw_mem_writeback_bytes"
IO_FULL, IO_SOME = "hw_io_pressure_full_pct", "hw_io_pressure_some_pct"
CPU = "ray_node_cpu_utilization"
RUNNING, BLOCKED = "hw_procs_running", "hw_procs_blocked"
TCP_RETX, TCP_ABORTS = "hw_tcp_retransmits_total", "hw_tcp_abort_on_timeout_total"
TCP_RESETS = "hw_tcp_estab_resets_total"
LISTEN = ("hw_tcp_listen_drops_total", "hw_tcp_listen_overflows_total")
RDMA_RETX, RDMA_TIMEOUTS = "hw_rdma_tx_retx_pkts_total", "hw_rdma_tx_ack_timeout_total"
RDMA_PORT = "hw_rdma_port_state"
RETRY, CQE = "hw_rdma_req_tx_retry_excd_err_total", "hw_rdma_req_rx_cqe_err_total"
LINK_ERRORS = (
    "hw_rdma_symbol_errors_total",
    "hw_rdma_link_recoveries_total",
    "hw_rdma_received_errors_total",
)
INODES = "hw_disk_inodes_used_pct"
FILL = "tb_metrics_plugin_staleness_fill"
RAY_HOST = "instance, ip"  # what Ray's series name their host by
# Asked as one, since nothing but their metrics tells them apart; the answer is split by name.
_JOINED = ((("driver", "storage", "tasks"), "host"), (("memory", "cpu", "disk"), RAY_HOST))
_AND = "+"


_LEAST = ("hw_gpu_memory_clock_mhz", "hw_gpu_pcie_speed", "hw_rdma_port_rate_bytes")
_MOST = ("hw_gpu_memory_temperature_celsius", INODES)


_FORMS: Mapping[str, Callable[[Sequence[str], str], str]] = {
    "spread": _spread,
    "rate": _rate,
    "named": gauges,
    "by-name": _by_name,
    "above-zero": partial(gauges, above="0"),
    "grew": increases,
    "rated": lambda _metrics, by: rated_parts(by),
}


def _template(row: CatalogRow) -> QueryTemplate:
    metrics, form = row.texts("metrics"), row.choice("form", tuple(_FORMS), "")
    if not form:
        return row.rest(QueryTemplate, id=row.name, metrics=metrics)
    promql = _FORMS[form](metrics, row.text("by"))
    return row.rest(QueryTemplate, id=row.name, metrics=metrics, promql=promql)


_FILE = "queries.yaml"
_TEXT = resources.files(__package__).joinpath(_FILE).read_text("utf-8")
_templates = {row.name: _template(row) for row in rows(loaded(_TEXT, _FILE), _FILE, "id")}
TRAINING = _templates["training"]
FATAL, CORRECTED = _templates["gpu-errors"].metrics, _templates["gpu-corrected"].metrics


def templates() -> tuple[QueryTemplate, ...]:
    """Of every query of the first plan."""
    return tuple(_templates.values())


def template(query_id: str) -> QueryTemplate | None:
    """None for a follow-up, which has no template of its own."""
    return _templates.get(query_id)


def plan(context: Context) -> list[Query]:
    """The first queries: all that can have an answer, over the whole window."""
    planned = {
        candidate.id: query(candidate, context)
        for candidate in templates()
        if _may_have_answer(candidate, context)
    }
    for query_ids, by in _JOINED:
        _join(planned, query_ids, by, context)
    return list(planned.values())


def _may_have_answer(candidate: QueryTemplate, context: Context) -> bool:
    discovery = context.discovery
    return not discovery.metrics or any(map(discovery.has, candidate.metrics))


def _join(planned: dict[str, Query], query_ids: Sequence[str], by: str, context: Context) -> None:
    """Replace several planned queries by one, which keeps the place of the first."""
    parts = [_templates[query_id] for query_id in query_ids if query_id in planned]
    if len(parts) < 2:
        return
    metrics = tuple(chain.from_iterable(part.metrics for part in parts))
    joined_id = _AND.join(part.id for part in parts)
    joined = QueryTemplate(joined_id, gauges(metrics, by), parts[0].kind, metrics)
    planned[parts[0].id] = query(joined, context)
    for part in parts[1:]:
        del planned[part.id]


def template_ids(query_id: str) -> tuple[str, ...]:
    """Ids of the templates that a query was asked for."""
    return tuple(query_id.split(_AND))


def split_result(result: QueryResult) -> Iterator[QueryResult]:
    """The answers to the queries that were asked together, each with the query as it was."""
    query_ids = template_ids(result.query.id)
    if len(query_ids) == 1:
        yield result
        return
    for query_id in query_ids:
        metrics = _templates[query_id].metrics
        series = tuple(series for series in result.series if series.metric in metrics)
        yield replace(result, query=replace(result.query, id=query_id), series=series)


def query(template: QueryTemplate, context: Context) -> Query:
    """A template with its times; the last evaluation is at the end of the window."""
    if template.kind == RAW:
        return _raw_query(template, context)
    window = context.window
    length = max(window.end - window.start, 1.0)
    step = _step_s(template.kind, context, length)
    start = window.end - max(0, math.floor(length / step)) * step
    if template.kind == ONCE:
        start = window.end
    promql = Template(template.promql).substitute(
        range=_duration(range_s(context, step)),
        short=_duration(short_s(context)),
    )
    return Query(template.id, promql, Window(start, max(window.end, start), step))


def range_s(context: Context, step_s: float) -> float:
    """How far rates look back: without holes from one evaluation to the next where that is cheap.

    Beyond it each evaluation samples the time before it, and what is short may be missed.
    """
    resolution = context.resolution_s()
    minimum = _MIN_RATE_SAMPLES * resolution
    length = max(context.window.end - context.window.start, 1.0)
    evaluations = max(1.0, length / step_s) * max(1, len(context.hosts)) * _PER_HOST
    affordable = _MAX_SAMPLES / evaluations * resolution
    return max(minimum, min(step_s + resolution, affordable))


def _step_s(kind: str, context: Context, length: float) -> float:
    resolution, hosts = context.resolution_s(), max(1, len(context.hosts))
    step = max(resolution, hosts * length / OVERVIEW_POINTS, length / _MAX_STEPS)
    if kind in (FEW, ONCE):
        return max(step, length / (4 if kind == FEW else 1))
    if kind == SPARSE:
        step = max(step, hosts * _PER_HOST * length / _SPARSE_POINTS)
    return math.ceil(step / resolution) * resolution


def _raw_query(template: QueryTemplate, context: Context) -> Query:
    window = context.window
    length = max(window.end - window.start, 1.0)
    promql = _by_name(tuple(filter(context.discovery.has, template.metrics)) or template.metrics)
    if length <= _RAW_S:
        promql += f"[{_duration(length)}]"
        return Query(template.id, promql, Window(window.start, window.end))
    step = float(math.ceil(length / _MAX_STEPS))
    return Query(template.id, promql, Window(window.start, window.end, step))


def short_s(context: Context) -> float:
    """`$short` in seconds: so long after its last sample a series still counts."""
    return _MIN_RATE_SAMPLES * context.resolution_s()


def _duration(seconds: float) -> str:
    return f"{max(1, math.ceil(seconds))}s"
