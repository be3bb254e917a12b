"""Playbook: did a node or a GPU fail? Error counters, the kernel log's count, silence.

Since boot is not since the job began: what did not grow is told as "before the job", except that
an uncorrectable error above zero always counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

import numpy as np

from raydiag.model import Confidence, Evidence, Severity
from raydiag.playbooks import rccl_hang
from raydiag.playbooks.observations import ObservationRecorder, Report
from raydiag.playbooks.queries import CORRECTED, DMESG, PROCESSES, SCRAPE
from raydiag.playbooks.query_results import ResultTable, Where
from raydiag.playbooks.spans import present
from raydiag.playbooks.timeline import RunTimeline
from raydiag.tsdb.series import Floats

ID, TITLE, ANALYSIS = "node-failure", "Node failure and hardware", "hardware"
QUESTIONS = (
    "gpu-errors",
    "gpu-errors-fine",
    "gpu-corrected",
    "gpu-corrected-fine",
    "driver",
    "gpu-count",
    "rdma-ports-down",
    "gpu-temperature",
    "alive",
    "up",
)
# What a counter is evidence of: (class, severity when it grew, severity when it is old).
_CLASS = {
    "hw_gpu_ras_umc_ue_total": "gpu-memory-error",
    "hw_gpu_ras_xgmi_ue_total": "xgmi-error",
    "hw_gpu_ras_gfx_ue_total": "gpu-ras-error",
    "hw_gpu_ras_mmhub_ue_total": "gpu-ras-error",
    "hw_gpu_ras_sdma_ue_total": "gpu-ras-error",
    "hw_gpu_pcie_fatal_total": "pcie-fatal",
    "hw_gpu_pcie_nonfatal_total": "pcie-degraded",
    "hw_gpu_ras_umc_ce_total": "gpu-memory-degrading",
    "hw_gpu_ras_xgmi_ce_total": "xgmi-error",
    "hw_gpu_ras_gfx_ce_total": "gpu-ras-error",
    "hw_gpu_ras_mmhub_ce_total": "gpu-ras-error",
    "hw_gpu_ras_sdma_ce_total": "gpu-ras-error",
    "hw_gpu_pcie_correctable_total": "pcie-degraded",
}
_BY_CHANGE = ("hw_gpu_pcie_nonfatal_total",)  # old ones say nothing
_MANY = 10.0  # corrected errors; fewer are a remark
_SLOW_S, _TIMED_OUT_S, _GOOD_S = 8.0, 11.5, 3.0  # duration of an exporter's cycle
_SWINGS = 3  # between good and timed-out cycles
_POWER_GAPS = 3


def run(scene: RunTimeline, record: ObservationRecorder) -> Report:
    """Every counter of every GPU, the driver, and who fell silent."""
    rccl_hang.deaths(scene, record)
    _uncorrected(scene, record)
    _corrected(scene, record)
    _driver(scene, record)
    _missing_gpus(scene, record)
    _processes(scene, record)
    bad = sorted({one.finding.host for one in record.observations if one.finding.host})
    verdict = f"Suspects: {', '.join(bad)}." if bad else "No sign of failed hardware."
    return Report(ID, TITLE, ANALYSIS, record.window, QUESTIONS, tuple(record.rows), verdict)


@dataclass(frozen=True)
class _Count:
    """One counter of one GPU that is above zero."""

    where: Where
    first: float  # value when the window began; 0 where it was not above zero
    last: float
    grew_at: Optional[float]  # first time that it was higher than before


def _counts(scene: RunTimeline) -> list[_Count]:
    """From the coarse question, dated by the fine one where that was asked."""
    table, fine = scene.table("gpu-errors"), scene.table("gpu-errors-fine")
    dated = {(w.host, w.gpu, w.metric): row for w, row in fine}
    found = []
    for where, row in table:
        known = np.flatnonzero(~np.isnan(row))
        if not known.size:
            continue
        began = table.times[known[0]] <= table.first + table.step_s
        first = float(row[known[0]]) if began else 0.0
        grew = _growth(table.times[known], row[known], first)
        close = dated.get((where.host, where.gpu, where.metric))
        if close is not None and grew is not None:
            there = np.flatnonzero(~np.isnan(close))
            grew = _growth(fine.times[there], close[there], first) or grew
        found.append(_Count(where, first, float(row[known[-1]]), grew))
    return found


def _growth(times: Floats, values: Floats, first: float) -> Optional[float]:
    """When a counter first rose; a fall is a reset and says nothing."""
    before = np.concatenate([[first], values[:-1]])
    rose = np.flatnonzero(values > before)
    return float(times[rose[0]]) if rose.size else None


def _uncorrected(scene: RunTimeline, record: ObservationRecorder) -> None:
    """Any above zero; critical where it grew, a warning where it was there before the job."""
    if scene.undecided(record, "uncorrected", "gpu-errors"):
        return
    source = scene.answers.promql("gpu-errors")
    fine = scene.table("gpu-errors-fine")
    step = fine.step_s if len(fine) else scene.table("gpu-errors").step_s
    counts = _counts(scene)
    for one in counts:
        old = one.grew_at is None
        text = f"{one.where.metric} {one.last:.0f}" + (
            ", all of it from before the job" if old else f", {one.first:.0f} at the beginning"
        )
        record.row(
            "uncorrected",
            True,
            text,
            [one.where.host],
            one.last,
            "errors",
            "gpu-errors",
            one.where.gpu,
        )
        if old and one.where.metric in _BY_CHANGE:
            continue
        record.observe(
            "uncorrected",
            _CLASS[one.where.metric],
            [Evidence(source, text, one.last, one.grew_at)],
            one.where.host,
            one.grew_at,
            Confidence.CONFIRMED,
            Severity.WARNING if old else _grave(one.where.metric),
            gpu=one.where.gpu,
            uncertainty_s=step,
            before_job=old,
        )
    if not counts:
        record.row("uncorrected", False, "all zero on every GPU", question="gpu-errors")
        for failure in ("gpu-memory-error", "pcie-fatal"):
            record.rule_out(failure, "its counters are zero on every GPU that has them")


def _grave(metric: str) -> Optional[Severity]:
    return None if metric in _BY_CHANGE else Severity.CRITICAL


def _corrected(scene: RunTimeline, record: ObservationRecorder) -> None:
    """Corrected errors, by what they grew: nothing is lost yet."""
    if scene.undecided(record, "corrected", "gpu-corrected"):
        return
    fine = scene.table("gpu-corrected-fine")
    table = scene.table("gpu-corrected")
    dated = {(w.host, w.gpu, w.metric): row for w, row in fine}
    seen = False
    for where, row in table:
        found = present(table, row)
        if not found or where.metric not in CORRECTED:
            continue
        overlap = max(1.0, table.span_s / table.step_s) if table.step_s else 1.0
        total, seen = float(np.nansum(row)) / overlap, True
        onset, step = found[0].start, table.step_s
        close = dated.get((where.host, where.gpu, where.metric))
        near = present(fine, close) if close is not None else []
        if near:
            onset, step = near[0].start, fine.step_s
        many = total >= _MANY
        text = f"{where.metric} grew by {total:.0f}" + ("" if many else ", a few only")
        record.row(
            "corrected", True, text, [where.host], total, "errors", "gpu-corrected", where.gpu
        )
        record.observe(
            "corrected",
            _CLASS[where.metric],
            [Evidence(scene.answers.promql("gpu-corrected"), text, total, onset)],
            where.host,
            onset,
            Confidence.LIKELY,
            Severity.WARNING if many else Severity.INFO,
            gpu=where.gpu,
            uncertainty_s=step,
            facts={"grew_by": total},
        )
    if not seen:
        record.row("corrected", False, "none grew while the job ran", question="gpu-corrected")


def _driver(scene: RunTimeline, record: ObservationRecorder) -> None:
    """The GPU driver: lines in the kernel log, exporter cycles that time out, gaps in power."""
    table = scene.table("driver")
    lines = {where.host: row for where, row in table.pick(DMESG)}
    if not lines:
        record.row("driver", None, f"{DMESG}: metric absent", question="driver")
    bad = {host: row for host, row in lines.items() if np.nanmax(np.nan_to_num(row)) > 0}
    alone = 0 < len(bad) <= max(1, len(lines) // 8)
    for host in scene.context.hosts:
        signs = []
        onset = _rise(table, bad[host]) if host in bad else None
        if onset is not None or (host in bad and alone):
            signs.append(f"{np.nanmax(bad[host]):.0f} GPU errors in its kernel log")
        swings = _alternates(table.row(host, SCRAPE))
        if swings:
            signs.append("its exporter's cycles swing between timed out and normal")
        if _power_gaps(scene, host):
            signs.append("its power series has holes")
        if not signs or (len(signs) == 1 and host not in bad):
            continue
        growing = onset is not None
        record.row("driver", True, "; ".join(signs), [host], question="driver")
        record.observe(
            "driver",
            "gpu-driver-fault",
            [Evidence(scene.answers.promql("driver"), text, None, onset) for text in signs],
            host,
            onset,
            Confidence.CONFIRMED if len(signs) > 1 else Confidence.POSSIBLE,
            Severity.WARNING if growing or len(signs) > 1 else Severity.INFO,
            explanation="Degrading, not by itself the end of a job.",
            uncertainty_s=table.step_s,
            before_job=not growing,
        )
    if lines and not bad:
        record.row("driver", False, "no GPU error in any kernel log", question="driver")


def _rise(table: ResultTable, row: Floats) -> Optional[float]:
    """When the count of lines rose; it may fall, as the kernel's buffer forgets."""
    known = np.flatnonzero(~np.isnan(row))
    if known.size < 2:
        return None
    rose = np.flatnonzero(np.diff(row[known]) > 0)
    return float(table.times[known[rose[0] + 1]]) if rose.size else None


def _alternates(row: Optional[Floats]) -> bool:
    """Between cycles that timed out and normal ones, again and again."""
    if row is None:
        return False
    known = row[~np.isnan(row)]
    marked = known[(known >= _TIMED_OUT_S) | (known < _GOOD_S)] >= _TIMED_OUT_S
    return int(np.count_nonzero(np.diff(marked.astype(np.int8)))) >= _SWINGS


def _power_gaps(scene: RunTimeline, host: str) -> bool:
    """GPUs that come and go in the answers of a host that lives."""
    table = scene.table("gpu-count")
    row = table.row(host)
    if row is None or np.isnan(row).all():
        return False
    full = float(np.nanmax(row))
    known = np.nan_to_num(row) < full
    return int(np.count_nonzero(np.diff(known.astype(np.int8)) == 1)) >= _POWER_GAPS


def _missing_gpus(scene: RunTimeline, record: ObservationRecorder) -> None:
    """A GPU whose series end while its host goes on."""
    table = scene.table("gpu-count")
    if scene.undecided(record, "gpu-missing", "gpu-count"):
        return
    lost = 0
    for where, row in table:
        known = np.flatnonzero(~np.isnan(row))
        if known.size < 3 or where.host in scene.dead:
            continue
        full, left = float(np.max(row[known])), float(np.median(row[known][-3:]))
        if left >= full or _power_gaps(scene, where.host):
            continue
        at = known[np.flatnonzero(row[known] >= full)[-1] + 1]
        lost += 1
        text = f"{left:.0f} of {full:.0f} GPUs are still measured"
        record.row("gpu-missing", True, text, [where.host], left, "GPUs", "gpu-count")
        record.observe(
            "gpu-missing",
            "gpu-missing",
            [Evidence(scene.answers.promql("gpu-count"), text, left, float(table.times[at]))],
            where.host,
            float(table.times[at]),
            Confidence.LIKELY,
            uncertainty_s=table.step_s,
        )
    if not lost:
        record.row("gpu-missing", False, "no GPU fell silent on its own", question="gpu-count")


def _processes(scene: RunTimeline, record: ObservationRecorder) -> None:
    """Processes on GPUs that end on a few hosts while the others keep theirs: a silent exit."""
    table = scene.table("driver").pick(PROCESSES)
    falls: dict[str, float] = {}
    for where, row in table:
        known = np.flatnonzero(~np.isnan(row))
        if known.size < 4:
            continue
        usual = float(np.median(row[known]))
        low = np.flatnonzero(row[known] < 0.5 * usual)
        low = low[low > 0]
        if usual >= 1 and low.size:
            falls[where.host] = float(table.times[known[low[0]]])
    if not len(table):
        record.row("silent-exit", None, f"{PROCESSES}: metric absent", question="driver")
        return
    first = min(falls.values(), default=0.0)
    early = [host for host, time in falls.items() if time <= first + 2 * table.step_s]
    if falls and len(early) * 2 < len(table.hosts):
        text = "processes on its GPUs ended before those of the other hosts"
        record.row("silent-exit", True, text, early, first, "s", "driver")
    else:
        record.row("silent-exit", False, "no host lost its processes first", question="driver")
