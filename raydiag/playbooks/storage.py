"""Does storage keep the job waiting, apart from what saves do to it?"""

from __future__ import annotations

import numpy as np

from raydiag.model import Confidence, Evidence, Severity
from raydiag.playbooks.context import LOADED, SAVE, WRITE_BACK
from raydiag.playbooks.observations import ObservationRecorder
from raydiag.playbooks.queries import BLOCKED, IO_FULL
from raydiag.playbooks.spans import held
from raydiag.playbooks.timeline import RunTimeline, middle

STALL_PERCENT = 20.0  # I/O pressure, "full": all tasks that could run wait for storage
_STALL_BLOCKED = 3.0
_NAMED = 8


def hidden(scene: RunTimeline, record: ObservationRecorder, share: float) -> None:
    """Says that saves leave next to nothing to judge storage and tasks by."""
    text = f"saves and what they write back cover {100 * share:.0f} % of training"
    text += ": a stall of storage or of a CPU in them could not be told from a save"
    record.row("saves-everywhere", None, text, value=100 * share, unit="%", question="storage")
    record.observe(
        "saves-everywhere",
        "checkpoint-effect",
        [Evidence(scene.answers.promql("storage"), text, 100 * share)],
        confidence=Confidence.POSSIBLE,
        severity=Severity.INFO,
        symptom=True,
    )


def stalls(scene: RunTimeline, record: ObservationRecorder, hidden: bool) -> None:
    """Tasks that wait for storage outside saves, for minutes. `hidden`: next to no such time."""
    if scene.undecided(record, "storage-stall", "storage"):
        return
    table = scene.without(scene.table("storage"), *LOADED, question="storage").pick(IO_FULL)
    blocked = scene.without(scene.table("tasks"), *LOADED, question="tasks")
    dated = scene.trained is not None or not scene.job.checkpoint_period
    hits = {}
    for where, row in table:
        long = held(table, row, STALL_PERCENT)
        if long:
            hits[where.host] = long[0]
    for host, span in list(hits.items())[:_NAMED]:
        fine = scene.without(scene.table("storage-fine"), *LOADED, question="storage").pick(
            IO_FULL, [host]
        )
        onset, step = span.start, table.step_s
        for _, row in fine:
            close = held(fine, row, STALL_PERCENT)
            if close:
                onset, step = close[0].start, fine.step_s
        onset = _stalled_in_save(scene, host, onset)
        waiting = blocked.pick(BLOCKED, [host]).between(span.start, span.end).values
        tasks = float(np.nanmax(waiting)) if waiting.size and not np.isnan(waiting).all() else 0.0
        place = "outside saves" if dated else "at times that may be of saves: no step is dated"
        text = f"I/O pressure {span.peak:.0f} % {place}, {tasks:.0f} tasks wait"
        record.row("storage-stall", True, text, [host], span.peak, "%", "storage")
        record.observe(
            "storage-stall",
            "storage-stall",
            [Evidence(scene.answers.promql("storage"), text, span.peak, span.peak_time)],
            host,
            onset,
            Confidence.LIKELY if tasks >= _STALL_BLOCKED and dated else Confidence.POSSIBLE,
            None if dated else Severity.INFO,
            until=span.end,
            recovered=scene.over(span),
            uncertainty_s=step,
        )
    if not hits and hidden:
        record.row("storage-stall", None, "next to no time outside saves", question="storage")
    elif not hits:
        record.row("storage-stall", False, "no host waits for storage outside saves")
        record.rule_out("storage-stall", "I/O pressure stays low outside saves")


def _stalled_in_save(scene: RunTimeline, host: str, seen: float) -> float:
    """When storage stalled, also where that was in a save, of a host that no save loads usually."""
    for _, row in scene.table("storage").pick(IO_FULL, [host]):
        times = scene.table("storage").times
        early = times < seen
        saved = ~scene.context.judged(times, host, IO_FULL, SAVE, WRITE_BACK)
        usual = middle(row[early & saved])
        quiet = times[early & (row <= STALL_PERCENT)]  # NaN is not quiet either
        if usual is None or usual > STALL_PERCENT / 4 or not quiet.size:
            return seen
        later = times[(times > quiet[-1]) & early & (row > STALL_PERCENT)]
        return float(later[0]) if later.size else seen
    return seen
