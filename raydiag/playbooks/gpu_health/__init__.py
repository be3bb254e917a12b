"""Playbook: are the GPUs healthy? Temperature, power, clock, memory, utilisation, error counters.

Power, clock and utilisation follow what the job does, so they are judged in steady training only,
against the other GPUs of the node or the job, and count as symptoms.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from raydiag.playbooks.gpu_health.power_spread import judge_power_spread, spreads, uneven_hosts
from raydiag.playbooks.gpu_health.single_gpus import gpu_by_gpu
from raydiag.playbooks.gpu_health.temperature import (
    WARM_C,
    judge_clock,
    judge_temperature,
    slow_clocks,
    warm_hosts,
)
from raydiag.playbooks.gpu_health.usage import full_hosts, judge_memory, judge_utilisation
from raydiag.playbooks.rated_levels import GPU_ROWS, fine_parts, judge_rated
from raydiag.playbooks.registry import playbook
from raydiag.playbooks.report_writer import ReportWriter
from raydiag.timeline import known_values
from raydiag.timeline.queries import CORRECTED, FATAL, POWER, TEMPERATURE, VRAM_TOTAL, VRAM_USED
from raydiag.timeline.run_timeline import RunTimeline
from raydiag.tsdb.series import Query

_WHOLE_HOST = -1  # in place of a GPU's number


def single_gpus(timeline: RunTimeline) -> Iterator[Query]:
    """GPU by GPU: temperature, clock, memory and power of the hosts with an odd one."""
    warm = warm_hosts(timeline)
    slow = [*warm, *slow_clocks(timeline)]
    full, uneven = full_hosts(timeline), uneven_hosts(timeline)
    yield from gpu_by_gpu(timeline, "gpu-temperature-fine", f"{TEMPERATURE}{{%s}}", warm)
    yield from gpu_by_gpu(timeline, "gpu-clock-fine", 'hw_gpu_clock_mhz{type="sclk", %s}', slow)
    yield from gpu_by_gpu(timeline, "gpu-vram-fine", f"{VRAM_USED}{{%s}}", full)
    yield from gpu_by_gpu(timeline, "gpu-power-fine", f"{POWER}{{%s}}", uneven)
    yield from fine_parts(timeline)


@playbook("gpu-health", single_gpus)
def gpu_health(timeline: RunTimeline, report: ReportWriter) -> str:
    """Every threshold is exclusive: exactly 90 degrees is healthy."""
    judge_temperature(report, judge_clock(timeline, report))
    judge_rated(timeline, report, GPU_ROWS)
    judge_power_spread(timeline, report)
    judge_memory(timeline, report)
    judge_utilisation(timeline, report)
    names = _anomalous(report)
    widest = spreads(timeline.steady("gpu-power"))
    report.summary = tuple(summary_lines(timeline, names, widest))
    return f"Anomalous: {', '.join(names)}." if names else "No GPU stands out."


def _anomalous(report: ReportWriter) -> list[str]:
    """Hosts and GPUs with a finding, as "host" or "host:gpu", in order."""
    places: set[tuple[str, int]] = set()
    for observation in report.observations:
        host, gpu = observation.finding.host, observation.finding.gpu
        if host:
            places.add((host, _WHOLE_HOST if gpu is None else gpu))
    names = []
    for host, gpu in sorted(places):
        names.append(host if gpu == _WHOLE_HOST else f"{host}:{gpu}")
    return names


def summary_lines(
    timeline: RunTimeline, anomalous: Sequence[str], spreads: Mapping[str, float]
) -> Iterator[str]:
    """Lines of the health summary, in their order; what is absent is called so."""
    gpus = sum(int(known_values.highest(row) or 0) for _, row in timeline.table("gpu-count"))
    yield f"GPU Health Summary ({len(timeline.context.hosts)} nodes, {gpus} GPUs)"
    yield f"Temperature: {_range(timeline, 'gpu-temperature', 'C')} (threshold {WARM_C:.0f}C)"
    widest = max(spreads.values(), default=None)
    spread = "spread unknown" if widest is None else f"spread {widest:.0f} W"
    yield f"Power: {_range(timeline, 'gpu-power', 'W')}, {spread}"
    clock = _range(timeline, "gpu-clock", "MHz", mean=False)
    yield f"Core clock: {clock} (nominal {_nominal_clock(timeline)})"
    yield f"VRAM: {_vram(timeline)}"
    yield f"Utilization: {_range(timeline, 'gpu-utilisation', '%')}"
    corrected = _total(timeline, "gpu-corrected", CORRECTED, "ras")
    uncorrected = _total(timeline, "gpu-errors", FATAL, "ras")
    yield (
        f"RAS errors: {corrected} correctable (in the window), "
        f"{uncorrected} uncorrectable (since boot)"
    )
    correctable = _total(timeline, "gpu-corrected", CORRECTED, "pcie_correctable")
    nonfatal = _total(timeline, "gpu-errors", FATAL, "pcie_nonfatal")
    fatal = _total(timeline, "gpu-errors", FATAL, "pcie_fatal")
    yield f"PCIe errors: {correctable} correctable, {nonfatal} non-fatal, {fatal} fatal"
    yield f"Anomalous GPUs: {', '.join(anomalous) or 'None'}"


def _nominal_clock(timeline: RunTimeline) -> str:
    model = timeline.gpu_model
    return f"{model.clock_mhz:.0f} MHz" if model and model.clock_mhz else "unknown"


def _range(timeline: RunTimeline, query: str, unit: str, mean: bool = True) -> str:
    """Lowest, mean and highest while training went on, else of the whole window."""
    table = timeline.steady(query)
    if table.is_blank:
        table = timeline.table(query)
    if table.is_blank:
        return timeline.answers.missing(query) or "no samples"
    low = float(np.nanmin(table.pick("min").values))
    high = float(np.nanmax(table.pick("max").values))
    average = f"avg {np.nanmean(table.pick('avg').values):.0f}, " if mean else ""
    return f"min {low:.0f}, {average}max {high:.0f} {unit}"


def _vram(timeline: RunTimeline) -> str:
    """The fullest GPU memory."""
    totals = timeline.capacities(VRAM_TOTAL)
    fullest = (0.0, 0.0, 0.0)
    for subject, row in timeline.table("gpu-vram"):
        used, total = known_values.highest(row), totals.get(subject.host)
        if used is not None and total:
            fullest = max(fullest, (used / total, used, total))
    share, used, total = fullest
    if not total:
        return timeline.answers.missing("gpu-vram") or f"{VRAM_TOTAL}: metric absent"
    return f"{100 * share:.0f} % ({used / 1e9:.0f} GB/{total / 1e9:.0f} GB)"


def _total(timeline: RunTimeline, query: str, metrics: Sequence[str], part: str) -> str:
    """Sum over all GPUs of the counters whose name has `part` in it."""
    discovery = timeline.context.discovery
    if not any(part in metric and discovery.has(metric) for metric in metrics):
        return "unknown"
    table, total = timeline.table(query), 0.0
    for subject, row in table:
        if part not in subject.metric:
            continue
        if metrics is FATAL:  # counts since boot, the others count what was added
            total += known_values.highest(row) or 0.0
        else:
            total += float(np.nansum(row)) / table.overlap
    return f"{total:.0f}"
