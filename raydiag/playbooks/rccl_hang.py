"""Playbook: steps stopped. A collective that spins, a dead node, a straggler, or no hang at all?

Utilisation says that a kernel is there, power says that it computes: a collective that waits keeps
a GPU at 100 % and near idle power. Not every GPU must spin.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

import numpy as np

from raydiag.model import Confidence, Evidence, Window
from raydiag.playbooks import rdma, tcp
from raydiag.playbooks.context import LOADED
from raydiag.playbooks.observations import ObservationRecorder, Report
from raydiag.playbooks.queries import DMESG, PROCESSES, TCP_RETX
from raydiag.playbooks.spans import above
from raydiag.playbooks.timeline import BUSY_PERCENT, Levels, RunTimeline, medians, middle

ID, TITLE, ANALYSIS = "rccl-hang", "Hang of a collective", "hang"
QUESTIONS = (
    "gpu-utilisation",
    "gpu-busy",
    "gpu-power",
    "tcp-retransmits",
    "rdma-retransmits",
    "rdma-timeouts",
    "rdma-ports-down",
    "rdma-cnp",
    "rdma-sent",
    "driver",
    "gpu-errors",
    "alive",
    "training",
)
QUIET_PERCENT = 20.0
IDLE, ACTIVE, MIXED, UNKNOWN = "idle", "active", "mixed", "unknown"
_ENDED = ("completed", "failed", "cancelled")
_BEFORE_S = rdma.BEFORE_STALL_S


@dataclass(frozen=True)
class HangState:
    """One host while steps stand still."""

    host: str
    power: str  # idle, active, mixed or unknown
    watts: Optional[float]  # mean of its GPUs
    busiest: Optional[float]  # % of its busiest GPU
    usual: Optional[float]  # % on average


def states(scene: RunTimeline, window: Window) -> dict[str, HangState]:
    """Power and utilisation of every host that lives, as medians of a window."""
    power, use = scene.table("gpu-power"), scene.table("gpu-utilisation")
    means, lows, highs = (medians(power.pick(stat), window) for stat in ("avg", "min", "max"))
    tops, usual = (medians(use.pick(stat), window) for stat in ("max", "avg"))
    found = {}
    for host in scene.context.hosts:
        if host in scene.dead or (host not in means and host not in tops):
            continue
        kind = _power(scene.levels, lows.get(host), means.get(host), highs.get(host))
        found[host] = HangState(host, kind, means.get(host), tops.get(host), usual.get(host))
    return found


def _power(
    levels: Optional[Levels], low: Optional[float], mean: Optional[float], high: Optional[float]
) -> str:
    if levels is None or low is None or mean is None or high is None:
        return UNKNOWN
    if high < levels.idle_watts:
        return IDLE
    if low >= levels.idle_watts and mean >= levels.active_watts:
        return ACTIVE
    return MIXED


def run(scene: RunTimeline, record: ObservationRecorder) -> Report:
    """Rows of the interpretation table; at most one of them is the verdict."""
    deaths(scene, record)
    stall = scene.stall
    if stall is None:
        step, time = scene.last_step
        if time is None:
            record.row("stall", None, "no time of a step is known", question="training")
            verdict = "Undecided: no step is dated."
        else:
            text = f"no stall: step {step} ended {scene.window.end - time:.0f} s before the end"
            record.row("stall", False, text, question="training")
            record.rule_out("rccl-hang", text)
            verdict = "Steps did not stop."
        return _report(record, verdict)
    length = stall.end - stall.start
    text = f"no step for {length:.0f} s"
    text += f" after step {stall.step}" if stall.step is not None else ", and none before"
    record.row("stall", True, text, value=length, unit="s")
    window = stall.settled
    seen = states(scene, window)
    _values(scene, record, seen, window)
    return _report(record, _decide(scene, record, seen))


def _report(record: ObservationRecorder, verdict: str) -> Report:
    return Report(ID, TITLE, ANALYSIS, record.window, QUESTIONS, tuple(record.rows), verdict)


def _values(
    scene: RunTimeline, record: ObservationRecorder, seen: dict[str, HangState], window: Window
) -> None:
    """What was measured, for a person: one row a host, and what is absent."""
    for question in ("gpu-power", "gpu-utilisation", "rdma-retransmits", "tcp-retransmits"):
        why = scene.answers.missing(question)
        if why:
            record.row("measured", None, why, question=question, window=window)
    busy = medians(scene.table("gpu-busy"), window)
    for state in seen.values():
        text = f"{state.power} power"
        if state.host in busy:
            text += f", {busy[state.host]:.0f} GPUs at {BUSY_PERCENT:.0f} % or more"
        elif state.busiest is not None:
            text += f", busiest GPU at {state.busiest:.0f} %"
        record.row(
            "measured", True, text, [state.host], state.watts, "W", "gpu-power", window=window
        )


def _decide(scene: RunTimeline, record: ObservationRecorder, seen: dict[str, HangState]) -> str:
    busy = [s for s in seen.values() if s.busiest is not None and s.busiest > BUSY_PERCENT]
    with_use = [s for s in seen.values() if s.busiest is not None]
    powers = {s.power for s in seen.values() if s.power != UNKNOWN}
    trigger = triggers(scene)
    _network_row(scene, record, trigger)
    assert scene.stall is not None
    if powers and not with_use and (slow := _lone_workers(seen)):
        return _straggler(scene, record, seen, slow)
    if not powers or not with_use:
        return _blind_hang(scene, record, seen)
    gone = [one.host for one in scene.deaths if one.time <= scene.stall.start + _BEFORE_S]
    if gone:
        return "Nodes died: " + ", ".join(gone) + "."
    if _processes_gone(scene):
        return _inconclusive(record, seen, "no process uses a GPU any more: the job had ended")
    left = _left(scene, seen)
    if left:
        text = "its processes left its GPUs as steps stopped, and the others wait for them"
        record.row("process-gone", True, text, left, question="driver")
        return f"Processes ended on {', '.join(left)}; the others wait."
    slow = _stragglers(scene, seen)
    if busy and powers == {ACTIVE} and len(busy) >= 0.9 * len(with_use):
        text = "GPUs are busy at the power of training: not a hang; look at triage again"
        record.row("not-a-hang", True, text, sorted(seen), question="gpu-power")
        record.rule_out("rccl-hang", text)
        return text.capitalize() + "."
    if slow:
        return _straggler(scene, record, seen, slow)
    if busy and powers == {IDLE}:
        return _busy_wait(scene, record, seen, busy, trigger)
    return _inconclusive(record, seen, "power and utilisation fit no row")


def _blind_hang(scene: RunTimeline, record: ObservationRecorder, seen: dict[str, HangState]) -> str:
    """Steps stopped, and nothing tells what GPUs do: it hangs, in what is not known."""
    assert scene.stall is not None
    why = "power or utilisation is not known"
    ended = scene.job.status in _ENDED and not _held_on(scene)
    if ended or _processes_gone(scene):
        return _inconclusive(record, seen, why)
    text = f"no step for {scene.stall.end - scene.stall.start:.0f} s, and {why}"
    record.observe(
        "inconclusive",
        "hang",
        [Evidence(scene.answers.promql("training"), text, time=scene.stall.start)],
        onset=scene.stall.start,
        confidence=Confidence.POSSIBLE,
        until=scene.stall.end,
        uncertainty_s=scene.next_step_s,
    )
    return _inconclusive(record, seen, why)


def _inconclusive(record: ObservationRecorder, seen: dict[str, HangState], why: str) -> str:
    record.row("inconclusive", True, why, sorted(seen))
    return f"Inconclusive: {why}."


def _processes_gone(scene: RunTimeline) -> bool:
    """No process on any GPU of any host, where that is counted."""
    assert scene.stall is not None
    held = medians(scene.table("driver").pick(PROCESSES), scene.stall.settled)
    return bool(held) and max(held.values()) == 0


def _held_on(scene: RunTimeline) -> bool:
    """A job that was cancelled, and whose processes had their GPUs on every host till then."""
    assert scene.stall is not None
    held = medians(scene.table("driver").pick(PROCESSES), scene.stall.settled)
    known = [held.get(host, 0.0) for host in scene.context.hosts if host not in scene.dead]
    return scene.job.status == "cancelled" and bool(known) and min(known) > 0


def _lone_workers(seen: dict[str, HangState]) -> list[HangState]:
    """By power alone: the few that compute while all others rest. One that is away looks alike."""
    known = [state for state in seen.values() if state.power != UNKNOWN]
    busy = [state for state in known if state.power == ACTIVE]
    if {state.power for state in known} != {IDLE, ACTIVE}:
        return []
    alone = len(busy) == 1 and len(known) == 2
    return busy if alone or len(busy) * 2 < len(known) else []


def _left(scene: RunTimeline, seen: dict[str, HangState]) -> list[str]:
    """Idle hosts of which most GPU processes are gone, while other hosts keep theirs."""
    assert scene.stall is not None
    table = scene.table("driver").pick(PROCESSES)
    before = medians(table, Window(scene.window.start, scene.stall.start))
    after = medians(table, scene.stall.settled)
    return [
        host
        for host, state in seen.items()
        if _role(state) == "away" and after.get(host, 1.0) < 0.5 * before.get(host, 0.0)
    ]


def _busy_wait(
    scene: RunTimeline,
    record: ObservationRecorder,
    seen: dict[str, HangState],
    busy: list[HangState],
    trigger: list[str],
) -> str:
    assert scene.stall is not None
    watts = middle([s.watts for s in seen.values() if s.watts is not None]) or 0.0
    clean = not trigger
    row = "busy-wait" if clean else "network-triggered"
    text = (
        f"GPUs spin on {len(busy)} of {len(seen)} hosts at {watts:.0f} W, which is no computing "
        f"({_levels(scene)})"
    )
    text += ", and the network is clean" if clean else f", after {'; '.join(trigger)}"
    record.row(row, True, text, sorted(s.host for s in busy), watts, "W", "gpu-power")
    record.row("network-triggered" if clean else "busy-wait", False, "see the other row")
    evidence = [
        Evidence(scene.answers.promql("gpu-power"), f"{watts:.0f} W in the stall", watts),
        Evidence(
            scene.answers.promql("gpu-utilisation"),
            "busiest GPUs in the stall",
            middle([s.busiest for s in busy if s.busiest is not None]),
        ),
    ]
    _hang(scene, record, row, evidence, text)
    return ("Confirmed: " if clean else "Set off by the network: ") + text + "."


def _hang(
    scene: RunTimeline, record: ObservationRecorder, row: str, evidence: list[Evidence], text: str
) -> None:
    assert scene.stall is not None
    seen = not scene.unseen and not scene.missing("gpu-utilisation")
    record.observe(
        row,
        "rccl-hang",
        evidence,
        onset=scene.stall.start,
        confidence=Confidence.CONFIRMED if seen else Confidence.LIKELY,
        explanation=text,
        until=scene.stall.end,
        uncertainty_s=scene.next_step_s,
        facts={"step": float(scene.stall.step or 0)},
    )


def _levels(scene: RunTimeline) -> str:
    levels = scene.levels
    if levels is None:
        return "levels unknown"
    usual = f"usual {levels.usual_watts:.0f} W, " if levels.usual_watts else ""
    return f"{usual}idle below {levels.idle_watts:.0f} W by {levels.source}"


def triggers(scene: RunTimeline) -> list[str]:
    """What the network did just before steps stopped. Never TCP, which collectives do not use."""
    stall = scene.stall
    if stall is None:
        return []
    found = [
        f"RDMA retransmits on {one.host}"
        for one in rdma.events(scene)
        if rdma.before_stall(scene, one.span) or _timed_out(one, stall.start)
    ]
    for where, row in scene.table("rdma-ports-down"):
        times = scene.table("rdma-ports-down").times[~np.isnan(row)]
        if times.size and stall.start - _BEFORE_S <= times[0] <= stall.start + _BEFORE_S:
            found.append(f"port {where.device} down on {where.host}")
    for where, row in scene.table("rdma-errors"):
        times = scene.table("rdma-errors").times[~np.isnan(row)]
        if times.size and times[0] <= stall.start + _BEFORE_S:
            found.append(f"RDMA errors on {where.host}")
    return list(dict.fromkeys(found))


def _timed_out(event: rdma.Event, start: float) -> bool:
    near = start - _BEFORE_S <= event.span.end and event.span.start <= start + _BEFORE_S
    return near and event.timeouts_per_s > 0


def _network_row(scene: RunTimeline, record: ObservationRecorder, trigger: list[str]) -> None:
    stall = scene.stall
    assert stall is not None
    if scene.answers.missing("rdma-retransmits"):
        record.row("network", None, "RDMA retransmits: metric absent", question="rdma-retransmits")
    elif trigger:
        record.row("network", True, "; ".join(trigger), question="rdma-retransmits")
    else:
        record.row("network", False, "RDMA clean before and in the stall")
    everything = scene.without(scene.table("tcp-retransmits"), *LOADED, question="tcp-retransmits")
    table = everything.between(stall.start - _BEFORE_S, stall.start)
    loud = [
        where.host
        for where, row in table
        if any(s.peak > tcp.TCP_PER_S for s in above(table, row, tcp.TCP_PER_S))
    ]
    if loud:
        text = f"{TCP_RETX} rose before the stall, which alone stops no collective"
        record.row("network-tcp", True, text, loud, question="tcp-retransmits")


def _stragglers(scene: RunTimeline, seen: dict[str, HangState]) -> list[HangState]:
    """The few that are not where the others are: they compute, or have not joined in."""
    known = [s for s in seen.values() if s.power != UNKNOWN]
    if len(known) < 2:
        return []
    groups: dict[str, list[HangState]] = {}
    for state in known:
        groups.setdefault(_role(state), []).append(state)
    most = max(groups.values(), key=len)
    if set(groups) == {IDLE, ACTIVE} and len(groups[IDLE]) == len(groups[ACTIVE]):
        most = groups[IDLE]  # as many of both: those that compute wait for nobody
    odd = [state for name, group in groups.items() if group is not most for state in group]
    if not odd or len(odd) * 2 > len(known) or (len(odd) * 2 == len(known) and len(odd) > 1):
        return []
    waiting = sum(1 for s in most if s.busiest is not None and s.busiest > BUSY_PERCENT)
    return odd if waiting >= len(most) / 2 else []


def _role(state: HangState) -> str:
    """What a host does in the stall: one that is idle in both senses waits for nothing."""
    if state.power == IDLE and state.busiest is not None and state.busiest < QUIET_PERCENT:
        return "away"
    return state.power


def _straggler(
    scene: RunTimeline,
    record: ObservationRecorder,
    seen: dict[str, HangState],
    slow: list[HangState],
) -> str:
    assert scene.stall is not None
    names = [state.host for state in slow]
    others = middle([s.watts for s in seen.values() if s.host not in names and s.watts]) or 0.0
    source = scene.answers.promql("gpu-power")
    for state in slow:
        use = "unknown" if state.busiest is None else f"{state.busiest:.0f} %"
        text = f"{state.watts or 0:.0f} W, busiest GPU {use}; the others wait at {others:.0f} W"
        record.row("straggler", True, text, [state.host], state.watts, "W", "gpu-power")
        record.observe(
            "straggler",
            "straggler",
            [Evidence(source, text, state.watts, scene.stall.settled.start)],
            state.host,
            scene.stall.start,
            Confidence.POSSIBLE if state.busiest is None else Confidence.LIKELY,
            explanation=f"The other hosts wait for {state.host}: {text}.",
            until=scene.stall.end,
            uncertainty_s=scene.training.step_time_s or scene.context.resolution_s(),
        )
    text = f"hosts wait at {others:.0f} W for {', '.join(names)}"
    _hang(scene, record, "straggler", [Evidence(source, text, others)], text)
    return f"Straggler: {text}."


def deaths(scene: RunTimeline, record: ObservationRecorder) -> None:
    """Nodes whose series ended: no sample is not 0 %, and neither is it health."""
    if scene.answers.missing("alive"):
        record.row("node-death", None, scene.answers.missing("alive"), question="alive")
        return
    source = scene.answers.promql("alive")
    for death in scene.deaths:
        signs = [f"all its series ({', '.join(death.sources)}) end there"]
        signs += _last_words(scene, death.host, death.time)
        record.row("node-death", True, "; ".join(signs), [death.host], death.time, "s", "alive")
        record.observe(
            "node-death",
            "node-death",
            [Evidence(source, text, None, death.time) for text in signs],
            death.host,
            death.time,
            Confidence.CONFIRMED if len(death.sources) > 1 else Confidence.POSSIBLE,
            uncertainty_s=scene.context.resolution_s(),
        )
    if not scene.deaths:
        record.row("node-death", False, "every host with series has them to the end")
        if not scene.unseen:
            record.rule_out("node-death", "every host has series to the end of the window")


def _last_words(scene: RunTimeline, host: str, time: float) -> list[str]:
    """GPU errors in the kernel log and in counters of a node that died."""
    found = []
    table = scene.table("driver")
    row = table.row(host, DMESG)
    if row is not None:
        lines = row[(table.times <= time) & ~np.isnan(row)]
        if lines.size and lines[-1] > 0:
            found.append(f"{lines[-1]:.0f} GPU errors in its kernel log")
    errors = scene.table("gpu-errors")
    for where, values in errors.pick(hosts=[host]):
        known = values[~np.isnan(values)]
        if known.size:
            found.append(f"GPU {where.gpu}: {where.metric} {known[-1]:.0f}")
    return found
