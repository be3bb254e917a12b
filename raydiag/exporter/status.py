"""Is there an exporter on this node, whose, and do its values live: two looks, some seconds apart.

An exporter that answers may serve the past, so the second look waits until values move, for two
cycles at most. What is wrong is judged by the rules that `raydiag probe` has for all nodes
(`rules.exporter`), and by what raydiag's own exporter says of itself.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Optional

from raydiag import model
from raydiag.explain import diagnosis
from raydiag.exporter import findings
from raydiag.exporter.look import Look, look
from raydiag.exposition import ExpositionLine
from raydiag.model import Status

LONGEST_WAIT_S = 25.0


@dataclass(frozen=True)
class ExaminedExporter:
    """The exporter of this node."""

    host: str
    port: int
    kind: str  # "raydiag", "shell", "other", "none"
    answer: str  # "ok", "refused", "timeout", "error", as of the second look
    fresh: Optional[bool]  # values moved between the looks; None: there were none to compare
    moved: int  # series of hw_ metrics whose value moved
    compared: int  # those that both looks saw
    waited_s: float  # between the looks
    first: Look
    now: Look
    served: findings.ServedMetrics
    diagnosis: model.Diagnosis = field(repr=False)


def examine(
    port: int,
    host: str,
    root: str = "/",
    wait_s: float = LONGEST_WAIT_S,
    logs: Sequence[str] = (),
    again_s: float = 1.0,
) -> ExaminedExporter:
    """Look twice; `again_s` apart, and once more until values move or `wait_s` are over.

    `logs` are further logs of the watchdog; those that the exporter prints to are found.
    """
    first = look(port, root, logs)
    looked_at = time.monotonic()
    now = first
    while _may_still_move(first, now, looked_at + wait_s):
        time.sleep(max(0.0, min(again_s, looked_at + wait_s - time.monotonic())))
        now = look(port, root, logs)
    moved, compared = _moved(first, now)
    waited_s = time.monotonic() - looked_at
    served = findings.ServedMetrics.of(now.own_lines, first.own_lines)
    kind, answer = _kind(now, served), now.record.answer if now.record else "refused"
    fresh = moved > 0 if compared else None
    snapshot = _snapshot(host, first, now, waited_s, is_unsure=fresh is False)
    judged = [*findings.judge_exporter(snapshot, now.record, served, now.watched, now.processes)]
    if not any(finding.failure_class == "ghost-data" for finding in judged):
        judged += findings.standstill(snapshot, first.record, now.record, moved, compared)
    diagnosed = diagnosis.of_findings(judged, diagnosis.coverage(snapshot))
    looks = (moved, compared, waited_s, first, now)
    return ExaminedExporter(host, port, kind, answer, fresh, *looks, served, diagnosed)


def _may_still_move(first: Look, now: Look, until: float) -> bool:
    """Whether another look may show more; `until` is monotonic."""
    if first.record is None or time.monotonic() >= until:
        return False
    return first.record.answer != "ok" or not _moved(first, now)[0]


def _kind(look: Look, served: findings.ServedMetrics) -> str:
    roles = {process.role for process in look.processes}
    if served.is_there or "raydiag" in roles:
        return "raydiag"
    if look.record is None:
        return "none"
    if roles & {"loop", "server"} or look.record.file_age_s is not None:
        return "shell"
    return "none" if look.record.answer == "refused" else "other"


def _moved(first: Look, now: Look) -> tuple[int, int]:
    """Series of hw_ metrics that moved, and how many there are to compare."""
    before, after = _hardware_values(first.lines), _hardware_values(now.lines)
    compared_keys = before.keys() & after.keys()
    return sum(before[key] != after[key] for key in compared_keys), len(compared_keys)


def _hardware_values(lines: Sequence[ExpositionLine]) -> dict[object, float]:
    return {(line.name, line.labels): line.value for line in lines if line.name.startswith("hw_")}


def _snapshot(
    host: str, first: Look, now: Look, interval_s: float, is_unsure: bool
) -> model.Snapshot:
    """The looks as the two samples of a probe's run, which is what rules read."""
    unread = list(now.unread)
    if is_unsure and interval_s < findings.TWO_CYCLES_S:
        reason = f"no value moved within {interval_s:.0f} s, which may be less than a cycle"
        unread.append(model.Unread("freshness of the values", Status.TIMEOUT, reason))
    result = model.ProbeResult(
        "exporter",
        Status.OK if now.record else Status.NO_DATA,
        records=(first.record,) if first.record else (),
        later=(now.record,) if now.record and now is not first else (),
        interval_s=interval_s,
        unread=tuple(unread),
    )
    node, probes = model.Node("", host, "127.0.0.1"), {"exporter": result}
    report = model.NodeReport(node, model.NodeStatus.OK, probes=probes, collected_at=now.time)
    return model.Snapshot(nodes=(report,), time=now.time)
