"""Playbook: is training itself healthy? Loss, gradients, learning rate, balance, throughput.

Only real samples count. A NaN is a sample: it is counted, never dropped. Slow steps at saves are
normal; throughput that falls otherwise is a symptom, and the contention checklist looks for why.
"""

from raydiag.playbooks.registry import playbook
from raydiag.playbooks.report_writer import ReportWriter
from raydiag.playbooks.training_stability import contention
from raydiag.playbooks.training_stability.scalars import (
    judge_expert_balance,
    judge_gradients,
    judge_learning_rate,
    judge_loss,
)
from raydiag.playbooks.training_stability.speed import judge_throughput, report_step_times
from raydiag.playbooks.training_stability.storage import fine_storage, judge_disks, judge_saves
from raydiag.timeline.run_timeline import RunTimeline


@playbook("training-stability", fine_storage)
def training_stability(timeline: RunTimeline, report: ReportWriter) -> str:
    """Loss to throughput, then the whole checklist, whatever was found before."""
    reason = timeline.answers.missing("training")
    if reason:
        report.row("training", None, f"no tb_ samples ({reason}): read the event file")
    else:
        _judge_training(timeline, report)
    judge_saves(timeline, report)
    judge_disks(timeline, report)
    contention.check(timeline, report)
    classes = ", ".join(report.observed_classes)
    verdict = f"Seen: {classes}." if classes else ""
    if reason:
        return f"Undecided: no tb_ samples. {verdict}".strip()
    return verdict or "Training is steady."


def _judge_training(timeline: RunTimeline, report: ReportWriter) -> None:
    judge_loss(timeline, report)
    judge_gradients(timeline, report)
    judge_expert_balance(timeline, report)
    judge_learning_rate(timeline, report)
    report_step_times(timeline, report)
    judge_throughput(timeline, report)
