"""Was storage worse at the save that failed than at those that went well?

For 1800 s from each save on, every 30 s: I/O pressure, TCP retransmits and blocked tasks of each
host. A save that follows sooner ends the time that is looked at.
"""

import itertools
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter

import numpy as np

from raydiag import catalog
from raydiag.explain.comparison.side import Side, steps_of_logged_saves
from raydiag.model import Evidence, Finding, HostUnread, Window
from raydiag.playbooks.observations import RuledOut
from raydiag.timeline.answers import Answers
from raydiag.timeline.queries import BLOCKED, IO_FULL, TCP_RETX
from raydiag.timeline.steps import MetricSteps
from raydiag.tsdb.series import Query
from raydiag.tsdb.unread import unanswered

CLASS = "checkpoint-fs-error"
WINDOW_S, STEP_S = 1800.0, 30.0
_GOOD = 3  # saves to compare with
_STEPS_ON = 3  # beyond the last completed one, a save may be that failed
_STEP_IN_PATH = re.compile(r"(?:checkpoints?|ckpts?)/(\d{1,12})(?=[/.\s]|$)")
_NAMED = 8
_WORSE = 1.5


@dataclass(frozen=True)
class StorageLoad:
    """One of the three questions."""

    metric: str
    promql: str
    unit: str
    least: float  # more than at any good save, to mean something
    explains: bool  # blocked tasks are what storage does, not what it is


LOADS = (
    StorageLoad(IO_FULL, f"max by (host) ({IO_FULL})", "%", 10.0, True),
    StorageLoad(TCP_RETX, f"sum by (host) (rate({TCP_RETX}[5m]))", "/s", 200.0, True),
    StorageLoad(BLOCKED, f"max by (host) ({BLOCKED})", "tasks", 8.0, False),
)


@dataclass(frozen=True)
class SaveLoad:
    """Peaks of one save by metric and host."""

    step: int
    failed: bool
    window: Window
    peaks: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Saves:
    """The saves of one job that were looked at."""

    loads: tuple[SaveLoad, ...] = ()
    findings: tuple[Finding, ...] = ()
    ruled_out: tuple[RuledOut, ...] = ()
    notes: tuple[str, ...] = ()
    unread: tuple[HostUnread, ...] = ()


def failed_steps(side: Side) -> dict[int, float | None]:
    """Saves that failed by the log: step, and the time that is printed there."""
    times: dict[int, float | None] = {}
    for save in side.facts.saves:
        if save.event == "failed" and save.step is not None:
            times[save.step] = save.time
    for match in (*side.facts.matches, *side.facts.worker_logs.matches):
        if match.failure_class != CLASS or match.role == "harmless":
            continue
        named = _STEP_IN_PATH.search(match.raw)
        if named:
            times.setdefault(int(named[1]), match.time)
        elif side.period and match.last_step is not None:
            step = (match.last_step + 1) // side.period * side.period
            times.setdefault(step, match.time)
    return times


def compare(side: Side, is_alone: bool, deadline_s: float) -> Saves:
    """Compare failed saves with good ones near them; `is_alone`: also where none failed."""
    failed = failed_steps(side)
    metrics = side.examined.metrics
    if side.connection is None or metrics is None or not (failed or is_alone):
        return Saves()
    chosen = list(_chosen(side, failed, metrics.context.window.end))
    if not chosen:
        return Saves(notes=(f"job {side.label}: no save whose time is known",))
    measured = [load for load in LOADS if metrics.discovery.has(load.metric)]
    queries = []
    for save, load in itertools.product(chosen, measured):
        name = f"save-{save.step}-{load.metric}"
        queries.append(Query.over(name, load.promql, save.window, STEP_S))
    answers = side.ask(queries, deadline_s)
    peaks = Answers(answers, metrics.discovery)
    loads = tuple(replace(save, peaks=_peaks(save.step, peaks)) for save in chosen)
    return _judged(side, loads, tuple(unanswered(answers)))


def _chosen(side: Side, failed: Mapping[int, float | None], limit: float) -> Iterator[SaveLoad]:
    """Failed saves, and good ones before them; the start-up is none to compare with."""
    run = side.run
    if run.first is None or run.last is None:
        return
    saved = {*steps_of_logged_saves(side.facts), *run.periodic_saves(side.period)}
    good = sorted(step for step in saved - set(failed) if run.first < step <= run.last)
    begins = {step: _begin(run.dated, step) for step in (*saved, *failed)}
    steps = _near_failed(good, sorted(failed)[-_GOOD:])
    dated = {step: begins[step] or failed.get(step) for step in steps}
    times = sorted(filter(None, (*dated.values(), *map(begins.get, saved))))
    for step, start in sorted(dated.items()):
        if start is None or start >= limit:
            continue
        following = times[bisect_right(times, start + STEP_S) :]
        end = min([start + WINDOW_S, limit, *following[:1]])
        yield SaveLoad(step, step in failed, Window(start, end))


def _near_failed(good: Sequence[int], failed: Sequence[int]) -> list[int]:
    """Steps of the saves to compare: the failed ones and the last good ones before them."""
    if not failed:
        return list(good[-_NAMED:])
    before = good[: bisect_left(good, failed[0])]
    return [*(before or good)[-_GOOD:], *failed]


def _begin(steps: MetricSteps, step: int) -> float | None:
    """When the step before it ended; a save that fails may be beyond the last completed step."""
    ended_at = steps.at(step - 1)
    if ended_at is not None or steps.last is None or steps.last_at is None:
        return ended_at
    beyond = step - 1 - steps.last
    if not 0 < beyond <= _STEPS_ON or steps.step_time_s is None:
        return None
    return steps.last_at + beyond * steps.step_time_s


def _peaks(step: int, answers: Answers) -> dict[str, dict[str, float]]:
    """By metric and host, the highest value around the save of a step."""
    peaks: dict[str, dict[str, float]] = {}
    for load in LOADS:
        for place, row in answers.table(f"save-{step}-{load.metric}"):
            values = row[np.isfinite(row)]
            if values.size:
                peaks.setdefault(load.metric, {})[place.host] = float(values.max())
    return peaks


def _judged(side: Side, loads: tuple[SaveLoad, ...], unread: tuple[HostUnread, ...]) -> Saves:
    wrong = list(filter(attrgetter("failed"), loads))
    good = list(itertools.filterfalse(attrgetter("failed"), loads))
    looked = Saves(loads, unread=unread)
    if not wrong:
        return looked
    if not good:
        note = f"job {side.label}: no save succeeded before, so nothing says what is usual"
        return replace(looked, notes=(note,))
    explained = _explaining_hosts(wrong, good)
    if not explained:
        steps = ", ".join(map("{0.step}".format, wrong))
        reason = f"storage was no busier at the failed save ({steps}) than at good ones"
        return replace(looked, ruled_out=(RuledOut("storage-stall", reason, "comparison"),))
    start = min(map(attrgetter("window.start"), wrong))
    named = list(explained.items())[:_NAMED]
    findings = tuple(_finding(side, host, evidence, start) for host, evidence in named)
    return replace(looked, findings=findings)


def _explaining_hosts(
    wrong: Sequence[SaveLoad], good: Sequence[SaveLoad]
) -> dict[str, list[Evidence]]:
    """Evidence by host, of hosts where storage was busier in a way that explains a failed save."""
    worse: dict[str, list[Evidence]] = {}
    explained: set[str] = set()
    for failed in wrong:
        for host, load, evidence in _worse(failed, good):
            worse.setdefault(host, []).append(evidence)
            if load.explains:
                explained.add(host)
    return {host: evidence for host, evidence in worse.items() if host in explained}


def _worse(
    wrong: SaveLoad, good: Sequence[SaveLoad]
) -> Iterator[tuple[str, StorageLoad, Evidence]]:
    for load in LOADS:
        for host, peak in wrong.peaks.get(load.metric, {}).items():
            usual = _highest(load.metric, host, good)
            if usual is None or peak <= _WORSE * usual or peak - usual < load.least:
                continue
            text = f"save of step {wrong.step} failed: {load.metric} to {peak:.4g} {load.unit}"
            text += f", {usual:.4g} {load.unit} at most at {len(good)} good saves"
            yield host, load, Evidence(load.promql, text, peak, wrong.window.start)


def _highest(metric: str, host: str, good: Iterable[SaveLoad]) -> float | None:
    peaks = (load.peaks.get(metric, {}).get(host) for load in good)
    return max((peak for peak in peaks if peak is not None), default=None)


def _finding(side: Side, host: str, evidence: Sequence[Evidence], start: float) -> Finding:
    coordinators, variant = side.facts.header.nodelist[:1], "failed-save"
    if coordinators and coordinators[0].split(".")[0] == host:
        variant = "failed-save-of-coordinator"
    known = catalog.variant("storage-stall", variant)
    return Finding("storage-stall", host, onset=start, evidence=tuple(evidence), **known)
