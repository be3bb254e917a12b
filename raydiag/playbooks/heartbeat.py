"""Playbook: a heartbeat timed out. Were the accused dead, did the job hang, or was all well?

Judged at the time when heartbeats stopped, the error minus the timeout, not at the error. The hang
test comes first: a job whose steps had stopped long before was not killed for nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional

import numpy as np

from raydiag.model import Confidence, Evidence, Window
from raydiag.playbooks import rccl_hang
from raydiag.playbooks.context import SAVE
from raydiag.playbooks.observations import ObservationRecorder, Report
from raydiag.playbooks.queries import DIRTY, IO_FULL, LISTEN, MEM_USED
from raydiag.playbooks.spans import present
from raydiag.playbooks.timeline import RunTimeline, medians

ID, TITLE, ANALYSIS = "heartbeat", "Heartbeat timeout", "heartbeat"
QUESTIONS = (
    "gpu-utilisation",
    "gpu-power",
    "memory",
    "storage",
    "tcp-retransmits",
    "tcp-errors",
    "gpu-errors",
    "oom-kills",
    "alive",
    "training",
)
HIGH_PERCENT = 50.0
IO_PERCENT = 10.0
TCP_PER_S = 10.0
_AROUND_S = 120.0
_ALIKE = 0.75  # of what the others' busiest GPU does
_STALLED_BEFORE_S = 300.0  # before the error: steps that stop then were stopped by it


@dataclass(frozen=True)
class _Seen:
    """One host around the time when heartbeats stopped; None: nothing says."""

    host: str
    busiest: Optional[float]
    watts: Optional[float]
    tcp_per_s: Optional[float]
    io_percent: Optional[float]


def run(scene: RunTimeline, record: ObservationRecorder) -> Report:
    """Nothing to judge where the log tells of no heartbeat."""
    crash, timeout = scene.job.crash_time, scene.job.heartbeat_timeout_s
    told = "heartbeat-timeout" in (scene.job.primary, *scene.job.cascade)
    if not told or crash is None:
        why = "no heartbeat timeout in the log" if not told else "its time is not known"
        record.row("heartbeat", None if told else False, why)
        return _report(record, f"Not judged: {why}.")
    stop = crash - (timeout or 0.0)
    window = Window(max(scene.window.start, stop - _AROUND_S), min(crash, stop + _AROUND_S))
    record.row(
        "heartbeats-stopped", True, "time of the error minus the timeout", value=stop, unit="s"
    )
    _context(scene, record, stop)
    return _report(record, _decide(scene, record, stop, crash, window))


def _report(record: ObservationRecorder, verdict: str) -> Report:
    return Report(ID, TITLE, ANALYSIS, record.window, QUESTIONS, tuple(record.rows), verdict)


def _decide(
    scene: RunTimeline, record: ObservationRecorder, stop: float, crash: float, window: Window
) -> str:
    accused = [host for host in scene.job.accused if host in scene.context.hosts]
    others = [host for host in scene.context.hosts if host not in accused]
    judged = accused or others
    if _hung(scene, record, crash):
        return "The job hung; the heartbeat only ended it."
    lost = _lost(scene, record, judged, crash)
    if lost:
        return f"The alarm was right about {', '.join(lost)}."
    seen = [_look(scene, host, window, crash) for host in judged]
    coordinator = [host for host in (scene.job.coordinator,) if host and host not in judged]
    beside = dict.fromkeys([*others[:1], *coordinator])
    control = [_look(scene, host, window, crash) for host in beside]
    for one in (*seen, *control):
        _measured(record, one, one in control, window)
    known = [one for one in seen if one.busiest is not None]
    if not known and _computed(scene, seen):
        return _false_alarm(scene, record, seen, stop, window, False)
    if not known:
        record.row("undecided", None, "utilisation of the accused: metric absent", judged)
        return "Undecided: no utilisation of the accused."
    at_rest = _at_rest(known, control)
    low = [one.host for one in known if (one.busiest or 0.0) <= HIGH_PERCENT]
    if low and not at_rest:
        text = "not training when heartbeats stopped: the alarm may have been right"
        record.row("low-utilisation", True, text, low, question="gpu-utilisation", window=window)
        return f"Possibly right: {', '.join(low)} did not train."
    return _false_alarm(scene, record, known, stop, window, at_rest)


def _computed(scene: RunTimeline, seen: Sequence[_Seen]) -> bool:
    """Where utilisation is not known: all of them drew the power of training."""
    levels = scene.levels
    if levels is None or not seen:
        return False
    return all(one.watts is not None and one.watts >= levels.active_watts for one in seen)


def _at_rest(known: Sequence[_Seen], control: Sequence[_Seen]) -> bool:
    """Hosts that nobody accused did as little, as in a save: little use says nothing then."""
    beside = [one.busiest for one in control if one.busiest is not None]
    if not beside or max(beside) > HIGH_PERCENT:
        return False
    return all((one.busiest or 0.0) >= _ALIKE * max(beside) for one in known)


def _hung(scene: RunTimeline, record: ObservationRecorder, crash: float) -> bool:
    """Steps stopped long before the error, and GPUs do not compute."""
    stall = scene.stall
    if stall is None or crash - stall.start <= _STALLED_BEFORE_S:
        step, time = scene.last_step
        if time is None:
            record.row("hang-test", None, "no time of a step is known", question="training")
        else:
            text = f"step {step} ended {crash - time:.0f} s before the error: steps went on"
            record.row("hang-test", False, text, question="training")
        return False
    seen = rccl_hang.states(scene, stall.settled)
    computing = [one for one in seen.values() if one.power == rccl_hang.ACTIVE]
    if seen and len(computing) == len(seen):
        text = "no steps, but GPUs draw the power of training: not a hang"
        record.row("hang-test", False, text, sorted(seen), question="gpu-power")
        return False
    text = f"steps stopped {crash - stall.start:.0f} s before the error, and GPUs do not compute"
    record.row("hang-test", True, text, question="gpu-power", window=stall.settled)
    record.rule_out("heartbeat-false-positive", text)
    return True


def _lost(
    scene: RunTimeline, record: ObservationRecorder, judged: Sequence[str], crash: float
) -> list[str]:
    """Accused hosts that really were in trouble: silent, killed for memory, GPU errors."""
    found: dict[str, str] = {}
    for death in scene.deaths:
        if death.time < crash:
            found[death.host] = "its series ended before the error"
    table = scene.table("oom-kills")
    for where, row in table:
        spans = present(table, row)
        if spans and spans[0].start <= crash:
            found.setdefault(where.host, "its kernel killed a process for memory")
    errors = scene.table("gpu-errors")
    for where, row in errors:
        spans = present(errors, row)
        fresh = spans and spans[0].start > errors.first + errors.step_s
        if fresh and spans[0].start <= crash:
            found.setdefault(where.host, f"GPU {where.gpu} counted {where.metric}")
    guilty = [host for host in judged if host in found] or (list(found) if not judged else [])
    for host in guilty:
        record.row("true-alarm", True, found[host], [host])
        record.rule_out("heartbeat-false-positive", f"{host}: {found[host]}")
    if not guilty:
        record.row("true-alarm", False, "the accused were alive, and no kill or GPU error there")
    return guilty


def _look(scene: RunTimeline, host: str, window: Window, crash: float) -> _Seen:
    """Around the time; where all of it is a save, in which GPUs rest, from then to the error."""

    def value(question: str, metric: Optional[str] = None) -> Optional[float]:
        part = scene.table(question).pick(metric, [host])
        working = scene.without(part, SAVE, question=question)
        for table, span in (
            (working, window),
            (working, Window(window.start, crash)),
            (part, window),
        ):
            found = medians(table, span).get(host)
            if found is not None:
                return found
        return None

    def peak(question: str, metric: Optional[str] = None) -> Optional[float]:
        part = scene.table(question).pick(metric, [host]).between(window.start, window.end)
        known = part.values[~np.isnan(part.values)]
        return float(known.max()) if known.size else None

    return _Seen(
        host,
        value("gpu-utilisation", "max"),
        value("gpu-power", "avg"),
        peak("tcp-retransmits"),
        peak("storage", IO_FULL),
    )


def _measured(record: ObservationRecorder, one: _Seen, control: bool, window: Window) -> None:
    parts = [
        f"utilisation {one.busiest:.0f} %" if one.busiest is not None else "utilisation absent",
        f"{one.tcp_per_s:.1f} TCP retransmits/s" if one.tcp_per_s is not None else "TCP absent",
        f"I/O pressure {one.io_percent:.0f} %" if one.io_percent is not None else "I/O absent",
    ]
    who = "control" if control else "accused"
    record.row(who, True, ", ".join(parts), [one.host], one.watts, "W", "gpu-power", window=window)


def _false_alarm(
    scene: RunTimeline,
    record: ObservationRecorder,
    known: list[_Seen],
    stop: float,
    window: Window,
    at_rest: bool,
) -> str:
    noisy = [one for one in known if one.tcp_per_s is not None and one.tcp_per_s > TCP_PER_S]
    loaded = [one for one in known if one.io_percent is not None and one.io_percent > IO_PERCENT]
    by_power = any(one.busiest is None for one in known)
    blind = by_power or any(one.tcp_per_s is None or one.io_percent is None for one in known)
    gpus = "GPUs as busy as on hosts that nobody accused" if at_rest else "busy GPUs"
    if by_power:
        gpus = "GPUs at the power of training"
    question = "gpu-power" if by_power else "gpu-utilisation"
    row, text = "false-alarm", f"{gpus}, a clean network and no I/O pressure"
    if noisy:
        row, text = "false-alarm-network", f"{gpus}; a network transient set it off"
    if loaded:
        row, text = "false-alarm-storage", f"{gpus}; writing back a checkpoint set it off"
        if noisy:
            text += ", with TCP retransmits of the same writes"
    certain = not (noisy or loaded or blind or at_rest) and scene.stall is None
    hosts = [one.host for one in known]
    record.row(row, True, text, hosts, question=question, window=window)
    explanation = (
        f"At the time heartbeats stopped the accused trained: {text}. Heartbeats share one channel "
        "with everything else of the coordination service, and that channel stalled."
    )
    evidence = [
        Evidence(
            scene.answers.promql(question),
            f"{one.host}: " + ("mean power of its GPUs" if by_power else "busiest GPU"),
            one.watts if by_power else one.busiest,
            stop,
        )
        for one in known[:4]
    ]
    for host in hosts:
        record.observe(
            row,
            "heartbeat-false-positive",
            evidence,
            host,
            stop,
            Confidence.CONFIRMED if certain else Confidence.LIKELY,
            explanation=explanation,
            uncertainty_s=scene.context.resolution_s(),
        )
    return ("Confirmed" if certain else "Likely") + f" false alarm: {text}."


def _context(scene: RunTimeline, record: ObservationRecorder, stop: float) -> None:
    """Coordinator's queue, memory, and saves: what could have set it off or only followed."""
    errors = scene.table("tcp-errors")
    refused = [
        where.host
        for metric in LISTEN
        for where, row in errors.pick(metric)
        if any(span.start <= stop + _AROUND_S for span in present(errors, row))
    ]
    here = scene.job.coordinator
    holds = here in refused if here else bool(refused)
    text = "its queue of new connections overflowed" if holds else "no connection was refused"
    record.row("coordinator", holds, text, [here] if here else refused, question="tcp-errors")
    for metric, question in ((DIRTY, "storage"), (MEM_USED, "memory")):
        window = Window(stop - _AROUND_S, stop + _AROUND_S)
        for host, value in medians(scene.table(question).pick(metric), window).items():
            if host in scene.job.accused:
                record.row("beside", True, metric, [host], value, "bytes", question, window=window)
    later = [save.start for save in scene.job.saves if save.start and save.start > stop]
    if later:
        text = "a checkpoint began after heartbeats had stopped: it follows, it did not cause"
        record.row("save-after", True, text, value=later[0], unit="s")
