"""The summary of all GPUs, a line for each thing that is watched."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from raydiag.playbooks.queries import CORRECTED, FATAL, VRAM_TOTAL
from raydiag.playbooks.timeline import RunTimeline, capacities

WARM_C = 90.0


def lines(scene: RunTimeline, odd: Iterable[str], spreads: Mapping[str, float]) -> Iterator[str]:
    """Lines of the health summary, in their order; what is absent is called so."""
    gpus = sum(int(np.nanmax(row)) for _, row in scene.table("gpu-count") if np.any(row > 0))
    yield f"GPU Health Summary ({len(scene.context.hosts)} nodes, {gpus} GPUs)"
    yield "Temperature: " + _range(scene, "gpu-temperature", "C") + f" (threshold {WARM_C:.0f}C)"
    widest = max(spreads.values(), default=None)
    spread = "spread unknown" if widest is None else f"spread {widest:.0f} W"
    yield "Power: " + _range(scene, "gpu-power", "W") + f", {spread}"
    model = scene.accelerator
    nominal = (
        f"nominal {model.clock_mhz:.0f} MHz" if model and model.clock_mhz else "nominal unknown"
    )
    yield "Core clock: " + _range(scene, "gpu-clock", "MHz", mean=False) + f" ({nominal})"
    yield "VRAM: " + _vram_line(scene)
    yield "Utilization: " + _range(scene, "gpu-utilisation", "%")
    ue = _totals(scene, "gpu-errors", "ras")
    ce = _totals(scene, "gpu-corrected", "ras")
    yield f"RAS errors: {ce} correctable (in the window), {ue} uncorrectable (since boot)"
    correctable = _totals(scene, "gpu-corrected", "pcie_correctable")
    nonfatal = _totals(scene, "gpu-errors", "pcie_nonfatal")
    fatal = _totals(scene, "gpu-errors", "pcie_fatal")
    yield f"PCIe errors: {correctable} correctable, {nonfatal} non-fatal, {fatal} fatal"
    yield "Anomalous GPUs: " + (", ".join(odd) or "None")


def _range(scene: RunTimeline, question: str, unit: str, mean: bool = True) -> str:
    """Lowest, mean and highest while training went on, else of the whole window."""
    table = scene.steady(question)
    if not table.times.size or np.isnan(table.values).all():
        table = scene.table(question)
    if not len(table) or not table.times.size or np.isnan(table.values).all():
        return scene.answers.missing(question) or "no samples"
    low = float(np.nanmin(table.pick("min").values))
    high = float(np.nanmax(table.pick("max").values))
    middle_ = float(np.nanmean(table.pick("avg").values))
    return f"min {low:.0f}, " + (f"avg {middle_:.0f}, " if mean else "") + f"max {high:.0f} {unit}"


def _vram_line(scene: RunTimeline) -> str:
    table, totals = scene.table("gpu-vram"), capacities(scene, VRAM_TOTAL)
    shares = [
        (float(np.nanmax(row)), totals[where.host])
        for where, row in table
        if totals.get(where.host) and not np.isnan(row).all()
    ]
    if not shares:
        return scene.answers.missing("gpu-vram") or f"{VRAM_TOTAL}: metric absent"
    used, total = max(shares, key=lambda pair: pair[0] / pair[1])
    return f"{100 * used / total:.0f} % ({used / 1e9:.0f} GB/{total / 1e9:.0f} GB)"


def _totals(scene: RunTimeline, question: str, word: str) -> str:
    """Sum over all GPUs of the counters whose name has a word in it."""
    names = CORRECTED if question == "gpu-corrected" else FATAL
    if not any(word in name and scene.context.discovery.has(name) for name in names):
        return "unknown"
    total = 0.0
    table = scene.table(question)
    overlap = max(1.0, table.span_s / table.step_s) if table.step_s else 1.0
    for where, row in table:
        if word in where.metric and not np.isnan(row).all():
            total += float(np.nanmax(row)) if names is FATAL else float(np.nansum(row)) / overlap
    return f"{total:.0f}"
