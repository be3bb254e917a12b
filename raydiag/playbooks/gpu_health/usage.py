"""GPU memory that is full, and GPUs that are not busy though steps go on."""

from operator import attrgetter

from raydiag.model import Severity
from raydiag.playbooks.gpu_health.single_gpus import NAMED, extreme_gpu
from raydiag.playbooks.report_writer import Period, ReportWriter
from raydiag.timeline import known_values
from raydiag.timeline.queries import VRAM_TOTAL
from raydiag.timeline.run_timeline import RunTimeline
from raydiag.timeline.threshold_spans import Span, above

VRAM_PERCENT = 95.0
USED_PERCENT = 80.0


def full_hosts(timeline: RunTimeline) -> list[str]:
    """Hosts with a GPU whose memory is nearly full."""
    totals = timeline.capacities(VRAM_TOTAL)
    full = []
    for subject, row in timeline.table("gpu-vram"):
        total, used = totals.get(subject.host), known_values.highest(row)
        if total and used is not None and used > 0.95 * total:
            full.append(subject.host)
    return full


def judge_memory(timeline: RunTimeline, report: ReportWriter) -> None:
    """Frameworks reserve memory in advance, so a full GPU is a remark."""
    if report.cannot_judge("vram"):
        return
    table, totals = timeline.table("gpu-vram"), timeline.capacities(VRAM_TOTAL)
    full: dict[str, Span] = {}
    for subject, row in table:
        total = totals.get(subject.host)
        spans = above(table, 100.0 * row / total, VRAM_PERCENT) if total else []
        if spans:
            full[subject.host] = max(spans, key=attrgetter("peak"))
    for number, (host, worst) in enumerate(full.items()):
        gpu = extreme_gpu(timeline, "gpu-vram-fine", host, worst)
        text = f"{worst.peak:.1f} % of GPU memory in use, or reserved"
        report.row("vram", True, text, [host], worst.peak, gpu=gpu)
        if number < NAMED:
            report.observe(
                "vram",
                [report.evidence("gpu-vram", text, worst.peak, worst.peak_time)],
                host=host,
                period=Period(worst.start, worst.end, uncertainty_s=table.step_s),
                severity=Severity.INFO,
                gpu=gpu,
            )
    if not totals:
        report.row("vram", None, f"{VRAM_TOTAL}: metric absent")
    elif not full:
        report.row("vram", False, f"none above {VRAM_PERCENT:.0f} %")


def judge_utilisation(timeline: RunTimeline, report: ReportWriter) -> None:
    """GPUs that are not busy though steps go on."""
    query = "gpu-utilisation"
    if report.cannot_judge("utilisation"):
        return
    table = timeline.steady(query).pick("avg")
    if timeline.trained is None or not table.times.size:
        report.row("utilisation", None, "no training to judge it by")
        return
    low: dict[str, float] = {}
    for subject, row in table:
        usual = known_values.median(row)
        if usual is not None and usual < USED_PERCENT:
            low[subject.host] = usual
    for number, (host, usual) in enumerate(low.items()):
        text = f"{usual:.0f} % in the middle of training"
        report.row("utilisation", True, text, [host], usual)
        if number < NAMED:
            report.observe(
                "utilisation",
                [report.evidence(query, "in steady training", usual)],
                host=host,
                period=Period(float(table.times[0]), uncertainty_s=table.step_s),
            )
    if not low:
        report.row("utilisation", False, f"not below {USED_PERCENT:.0f} % while training")
