"""Progress of the workers of one job against each other, over all hosts.

A worker that is behind is accused only where it stands alone with it: the others, more than half of
them, are closer together than it is to them. Nodes are read at slightly different moments, so one
that goes on must be behind by more time than that explains. All workers at the same step, moving or
not, are no finding here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from raydiag.model import Confidence, Evidence, Finding, Snapshot
from raydiag.probes.ray_logs import RayLog
from raydiag.rules.growth import pairs
from raydiag.rules.nodes import by_host, distinct

_LEAST_STEPS = 3  # fewer steps behind are the difference between two moments
_LEAST_LINES = 2  # likewise fewer lines, of a log that prints every so many steps
_PAUSE_S, _PAUSE_STEPS = 3.0, 10.0  # no step for so long, and for so many step times: it stopped
_UNTIMED_PAUSE_S = 30.0  # where nothing tells how long a step takes
_LONG_PAUSE_S = 300.0
_BEHIND_S = 60.0  # for a worker that still moves
_NEWER_S = 60.0
_MOST_EVIDENCE = 4


@dataclass(frozen=True)
class _WorkerProgress:
    host: str
    log: RayLog  # the later of two samples
    step: int
    advanced: int | None  # steps between the samples; None where that is not known
    interval_s: float  # between the samples
    read_at: float | None


def stragglers(snapshot: Snapshot) -> Iterator[Finding]:
    """Workers whose last step is behind that of the other workers of the same job and actor class.

    One finding for a host: what slows or stops one worker of a host mostly does so with all.
    """
    groups: dict[tuple[str, ...], list[_WorkerProgress]] = {}
    for worker in _workers(snapshot):
        log = worker.log
        alike = (log.session, log.job_id, log.actor, log.step_format, str(log.total_steps))
        groups.setdefault(alike, []).append(worker)
    for group in groups.values():
        behind = _behind(group)
        for host in dict.fromkeys(worker.host for worker in behind):
            here = [worker for worker in behind if worker.host == host]
            yield _finding(host, here, [worker for worker in group if worker not in behind])


def _workers(snapshot: Snapshot) -> Iterator[_WorkerProgress]:
    for host, reports in by_host(snapshot).items():
        later = {
            (first.session, first.pid): (second, second.step - first.step, interval_s)
            for first, second, interval_s in pairs(reports, "ray_logs", "session", "pid", "path")
            if first.step is not None and second.step is not None
        }
        logs: list[RayLog] = distinct(reports, "ray_logs", "session", "pid", "path")
        for log in logs:
            latest, advanced, interval_s = later.get((log.session, log.pid), (log, None, 0.0))
            if log.component == "worker" and latest.step is not None:
                read_at = reports[0].collected_at or None
                yield _WorkerProgress(host, latest, latest.step, advanced, interval_s, read_at)


def _behind(group: Sequence[_WorkerProgress]) -> list[_WorkerProgress]:
    """Those that stopped, or are slow, while the others, being more, went on."""
    durations = [w.log.step_duration_s for w in group if w.log.step_duration_s]
    step_s = median(durations) if durations else None
    stride = max((w.log.step_stride for w in group if w.log.step_stride), default=None)
    slow = _apart(group, stride)
    others = [worker for worker in group if worker not in slow]
    found = []
    # Half lines at the end show that output is held back, a few kilobytes at a time: then how far
    # a log has come says little about the worker.
    held_back = sum(worker.log.buffered for worker in group)
    if slow and stride and 2 * held_back <= len(group):
        line_s = step_s and step_s * stride
        found = [w for w in slow if not _is_newer(w, others) and _fell_back(w, others, line_s)]
    pause_s = max(_LONG_PAUSE_S, _PAUSE_STEPS * (step_s or 0) * (stride or 1))
    moving = [w for w in group if w.advanced or _age_s(w, pause_s) < pause_s / 2]
    if 2 * len(moving) > len(group) or (len(group) == 2 and len(moving) == 1):
        reached = median(worker.step for worker in moving)
        for worker in group:
            still = worker not in moving and _age_s(worker) >= pause_s
            if still and worker.step <= reached - _LEAST_STEPS and worker not in found:
                found.append(worker)
    return found


def _apart(group: Sequence[_WorkerProgress], stride: int | None) -> list[_WorkerProgress]:
    """The lower ones, fewer than half, below a gap that is wider than what the others span.

    Of two workers the lower one, where the other goes on and it does not.
    """
    ordered = sorted(group, key=lambda worker: worker.step)
    steps = [worker.step for worker in ordered]
    least = max(_LEAST_STEPS, _LEAST_LINES * (stride or 1))
    if len(group) == 2:
        only_one_moves = bool(ordered[1].advanced) and not ordered[0].advanced
        return ordered[:1] if only_one_moves and steps[1] - steps[0] >= least else []
    gap, count = max(
        ((steps[n] - steps[n - 1], n) for n in range(1, (len(steps) + 1) // 2)), default=(0, 0)
    )
    return ordered[:count] if count and gap >= max(least, steps[-1] - steps[count]) else []


def _is_newer(worker: _WorkerProgress, others: Sequence[_WorkerProgress]) -> bool:
    """Whether a later start may explain why it is behind."""
    ages = [w.log.process_age_s for w in others if w.log.process_age_s is not None]
    own = worker.log.process_age_s
    return bool(ages) and own is not None and own < median(ages) - _NEWER_S


def _fell_back(
    worker: _WorkerProgress, others: Sequence[_WorkerProgress], line_s: float | None
) -> bool:
    """Whether a worker that is behind has stopped, or is behind by too much time.

    `line_s` is the time from one step line to the next; None: it is not known.
    """
    pause_s = max(_PAUSE_S, _PAUSE_STEPS * line_s) if line_s else _UNTIMED_PAUSE_S
    if _age_s(worker) >= pause_s:
        return True
    if line_s is None:
        return False
    if _stood_still(worker, others) and worker.interval_s >= 3 * line_s:
        return True
    lines = (min(w.step for w in others) - worker.step) / (worker.log.step_stride or 1)
    return lines * line_s >= max(_BEHIND_S, 10 * line_s)


def _stood_still(worker: _WorkerProgress, others: Sequence[_WorkerProgress]) -> bool:
    """Seen in the two samples: it made no step, and most of the others did."""
    went_on = sum(1 for other in others if other.advanced)
    return worker.advanced == 0 and 2 * went_on > len(others)


def _age_s(worker: _WorkerProgress, unknown: float = 0.0) -> float:
    """Since its last step; `unknown` where nothing dates that."""
    return unknown if worker.log.step_age_s is None else worker.log.step_age_s


def _finding(
    host: str, workers: Sequence[_WorkerProgress], others: Sequence[_WorkerProgress]
) -> Finding:
    steps = sorted(worker.step for worker in others)
    span = f"{steps[0]} to {steps[-1]}" if steps[0] < steps[-1] else f"{steps[0]}"
    ages = [age for worker in workers if (age := worker.log.step_age_s) is not None]
    read_at = workers[0].read_at
    onset = read_at - max(ages) if read_at and ages else None
    logs = [worker.log for worker in workers]
    still = any(_stood_still(worker, others) for worker in workers)
    own = [
        Evidence(log.path, log.step_line, value=float(log.step or 0), time=onset)
        for log in logs[:_MOST_EVIDENCE]
    ]
    ahead = max(others, key=lambda worker: worker.step)
    hosts = len({worker.host for worker in others})
    text = f"{len(others)} other workers on {hosts} hosts are at step {span}: {ahead.log.step_line}"
    return Finding(
        "straggler",
        host=host,
        pid=logs[0].pid if len(logs) == 1 else None,
        task=(logs[0].title or None) if len(logs) == 1 else (logs[0].actor or None),
        onset=onset,
        confidence=Confidence.CONFIRMED if still else Confidence.LIKELY,
        evidence=(*own, Evidence(f"{ahead.host}:{ahead.log.path}", text, value=float(ahead.step))),
    )
