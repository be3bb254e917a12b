"""The summary of all GPUs, a line for each thing that is watched."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from raydiag.playbooks.gpu_health.temperature import WARM_C
from raydiag.timeline import known_values
from raydiag.timeline.queries import CORRECTED, FATAL, VRAM_TOTAL
from raydiag.timeline.run_timeline import RunTimeline


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
