"""Playbook: steps stopped. A collective that spins, a dead node, a straggler, or no hang at all?

Utilisation says that a kernel is there, power says that it computes: a collective that waits keeps
a GPU at 100 % and near idle power. Not every GPU must spin.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from operator import attrgetter

from raydiag.model import Confidence, Evidence, Window
from raydiag.playbooks.network_health.tcp import TCP_PER_S
from raydiag.playbooks.node_deaths import judge_node_deaths
from raydiag.playbooks.rccl_hang.host_states import (
    ACTIVE,
    AWAY,
    IDLE,
    QUIET_PERCENT,
    UNKNOWN,
    HostState,
    absentees,
    host_states,
    lone_workers,
    stragglers,
)
from raydiag.playbooks.registry import playbook
from raydiag.playbooks.report_writer import Period, ReportWriter, likely_if
from raydiag.timeline import follow_up, known_values
from raydiag.timeline.queries import DMESG, PROCESSES, TCP_RETX, UTILISATION
from raydiag.timeline.rdma_events import BEFORE_STALL_S
from raydiag.timeline.run_timeline import RunTimeline
from raydiag.timeline.step_stalls import BUSY_PERCENT, StepStall
from raydiag.timeline.threshold_spans import Span, above, first_spans
from raydiag.tsdb.series import Query

_ENDED = ("completed", "failed", "cancelled")
_MOST = 0.9  # of the hosts
_LATE_STEPS = 10.0
_SOON_S = 60.0  # after GPUs have finished what they had
_BUSY_POINTS = 60
# Query and metric of what would show the trigger of a hang on a host.
_RDMA, _KERNEL_LOG = ("rdma-retransmits", None), ("driver", DMESG)


def busy_gpus(timeline: RunTimeline) -> Iterator[Query]:
    """How many GPUs spin in a stall: it need not be all of them."""
    stall, context = timeline.stall, timeline.context
    if stall is None or not context.discovery.has(UTILISATION):
        return
    length = max(stall.end - stall.start, 1.0)
    affordable = max(1, len(context.hosts)) * length / follow_up.MAX_POINTS
    step = max(context.resolution_s(), length / _BUSY_POINTS, affordable)
    promql = f"sum by (instance, ip) ({UTILISATION} >= bool {BUSY_PERCENT:.0f})"
    start = stall.end - math.floor(length / step) * step
    yield Query("gpu-busy", promql, Window(start, stall.end, step))
    settled_s = max(stall.end - stall.settled.start, step)
    usual = f"quantile_over_time(0.5, {UTILISATION}[{math.ceil(settled_s)}s])"
    yield Query.at("gpu-idle", f"{usual} < {QUIET_PERCENT:.0f}", stall.end)


@playbook("rccl-hang", busy_gpus)
def rccl_hang(timeline: RunTimeline, report: ReportWriter) -> str:
    """Rows of the interpretation table; at most one of them is the verdict."""
    judge_node_deaths(timeline, report)
    stall = timeline.stall
    if stall is None:
        return _no_stall(timeline, report)
    length = stall.end - stall.start
    after = ", and none before" if stall.step is None else f" after step {stall.step}"
    report.row("stall", True, f"no step for {length:.0f} s{after}", value=length, unit="s")
    left_at = _processes_left_at(timeline, stall)
    soon = stall.settled.start + max(timeline.step_time_s, _SOON_S)
    late = [time for time in left_at.values() if time > soon]
    judged = Window(stall.settled.start, min((stall.settled.end, *late)))
    left_first = frozenset(host for host, time in left_at.items() if time <= soon)
    hang = _Hang(timeline, report, stall, judged, host_states(timeline, judged), left_first)
    hang.report_measurements()
    return hang.verdict()


def _no_stall(timeline: RunTimeline, report: ReportWriter) -> str:
    step, time = timeline.last_step
    if time is None:
        report.row("stall", None, "no time of a step is known", query="training")
        return "Undecided: no step is dated."
    silent_s = timeline.window.end - time
    text = f"no stall: step {step} ended {silent_s:.0f} s before the end"
    report.row("stall", False, text, query="training")
    late = _late_hosts(timeline, time)
    for host in late:
        text = f"a GPU lies idle since step {step}, {silent_s:.0f} s ago; those of the others spin"
        report.finding("late", text, host=host, period=Period(time, uncertainty_s=_SOON_S))
    if late:
        return f"The next step is late; the others wait for {', '.join(late)}."
    report.rule_out("rccl-hang", text)
    return "Steps did not stop."


def _late_hosts(timeline: RunTimeline, time: float) -> list[str]:
    """Hosts that the others wait for, when the next step is late and no stall yet."""
    late_s = max(_LATE_STEPS * timeline.step_time_s, _SOON_S, timeline.next_step_s)
    since = Window(time + late_s, timeline.window.end)
    if timeline.job.status in _ENDED or since.end - since.start < _SOON_S:
        return []
    # The first rank saves and evaluates while the others wait for it.
    first = timeline.job.coordinator or next(iter(timeline.context.hosts), "")
    return [host for host in absentees(timeline, since, time) if host != first]


def _processes_left_at(timeline: RunTimeline, stall: StepStall) -> dict[str, float]:
    """When most GPU processes of a host were gone, of the hosts that lost them in the stall."""
    table = timeline.table("driver").pick(PROCESSES)
    before = table.medians(Window(timeline.window.start, stall.start))
    in_stall = table.between(stall.start, stall.end)
    left_at = {}
    for subject, row in in_stall:
        left = in_stall.times[row < 0.5 * before.get(subject.host, 0.0)]
        if left.size:
            left_at[subject.host] = float(left[0])
    return left_at


@dataclass(frozen=True)
class _Hang:
    """A stall of steps, and what each host did in it."""

    timeline: RunTimeline
    report: ReportWriter
    stall: StepStall
    judged: Window  # of it, until somebody ended processes: that did not stop the steps
    states: Mapping[str, HostState]
    left_first: Set[str]  # hosts that GPU processes left as steps stopped

    def report_measurements(self) -> None:
        """What was measured, for a person: one row a host, and what is absent."""
        window = self.judged
        for query in ("gpu-power", "gpu-utilisation", "rdma-retransmits", "tcp-retransmits"):
            reason = self.timeline.answers.missing(query)
            if reason:
                self.report.row("measured", None, reason, query=query)
        busy_gpu_counts = self.timeline.table("gpu-busy").medians(window)
        for state in self.states.values():
            text = f"{state.power} power"
            if state.host in busy_gpu_counts:
                count = busy_gpu_counts[state.host]
                text += f", {count:.0f} GPUs at {BUSY_PERCENT:.0f} % or more"
            elif state.busiest is not None:
                text += f", busiest GPU at {state.busiest:.0f} %"
            self.report.row("measured", True, text, [state.host], state.watts)

    def verdict(self) -> str:
        """The row of the table that fits, as a sentence."""
        states = list(self.states.values())
        triggers = network_triggers(self.timeline, self.stall)
        report_network(self.report, self.stall, triggers)
        powers = set(map(attrgetter("power"), states)) - {UNKNOWN}
        with_utilisation = [state for state in states if state.busiest is not None]
        if not powers or not with_utilisation:
            return self._without_utilisation(states)
        absent = self._absent_hosts()
        if absent:
            return absent
        busy = list(filter(attrgetter("is_busy"), states))
        if powers == {ACTIVE} and busy and len(busy) >= _MOST * len(with_utilisation):
            return self._computing()
        away = absentees(self.timeline, self.judged, self.stall.start)
        slow = [self.states[host] for host in away if host in self.states] or stragglers(states)
        if slow:
            return self._straggler(slow)
        if busy and powers == {IDLE}:
            return self._busy_wait(busy, triggers)
        return self._inconclusive("power and utilisation match no known pattern")

    def _without_utilisation(self, states: Sequence[HostState]) -> str:
        lone = lone_workers(states)
        return self._straggler(lone) if lone else self._without_levels()

    def _absent_hosts(self) -> str:
        """The verdict where hosts died, or processes left their GPUs; "" where none did."""
        latest = self.stall.start + BEFORE_STALL_S
        dead = [silent.host for silent in self.timeline.silent_hosts if silent.time <= latest]
        if dead:
            return f"Nodes died: {', '.join(dead)}."
        if self._no_process_left():
            return self._inconclusive("no process uses a GPU any more: the job had ended")
        away = [host for host, state in self.states.items() if state.role == AWAY]
        hosts = list(filter(self.left_first.__contains__, away))
        if not hosts:
            return ""
        text = "its processes left its GPUs as steps stopped, and the others wait for them"
        self.report.row("process-gone", True, text, hosts)
        return f"Processes ended on {', '.join(hosts)}; the others wait."

    def _computing(self) -> str:
        text = "GPUs are busy at training power: not a hang; look at triage again"
        self.report.row("not-a-hang", True, text, sorted(self.states))
        self.report.rule_out("rccl-hang", text)
        return text.capitalize() + "."

    def _without_levels(self) -> str:
        """Steps stopped, and nothing tells what GPUs do: it hangs, where is not known."""
        reason, stall = "power or utilisation is not known", self.stall
        ended = self.timeline.job.status in _ENDED and not self._cancelled_while_running()
        if not ended and not self._no_process_left():
            text = f"no step for {stall.end - stall.start:.0f} s, and {reason}"
            self.report.observe(
                "inconclusive",
                [self.report.evidence("training", text, time=stall.start)],
                period=self._period(self.timeline.next_step_s),
            )
        return self._inconclusive(reason)

    def _inconclusive(self, reason: str) -> str:
        self.report.row("inconclusive", True, reason, sorted(self.states))
        return f"Inconclusive: {reason}."

    def _busy_wait(self, busy: Sequence[HostState], triggers: Sequence[str]) -> str:
        watts = _median_watts(self.states.values()) or 0.0
        levels = self.timeline.levels
        description = levels.description if levels else "levels unknown"
        hosts_spinning = f"{len(busy)} of {len(self.states)} hosts"
        text = f"GPUs spin on {hosts_spinning} at {watts:.0f} W without computing ({description})"
        row, rejected, prefix = "busy-wait", "network-triggered", "Confirmed: "
        if triggers:
            row, rejected, prefix = "network-triggered", "busy-wait", "Triggered by the network: "
            text += f", after {'; '.join(triggers)}"
        else:
            text += self._network_in_words()
        hosts = sorted(map(attrgetter("host"), busy))
        self.report.row(row, True, text, hosts, watts)
        self.report.row(rejected, False, "see the other row", query="")
        busiest = known_values.median(list(map(attrgetter("busiest"), busy)))
        evidence = [
            self.report.evidence("gpu-power", f"{watts:.0f} W in the stall", watts),
        ]
        if busiest is not None:
            text_of_busiest = f"busiest GPUs at {busiest:.0f} % in the stall"
            evidence.append(self.report.evidence("gpu-utilisation", text_of_busiest, busiest))
        self._observe_hang(row, evidence, text)
        return f"{prefix}{text}."

    def _straggler(self, slow: Sequence[HostState]) -> str:
        names = list(map(attrgetter("host"), slow))
        waiting = [state for state in self.states.values() if state.host not in names]
        wait_watts = _median_watts(waiting) or 0.0
        step_s = self.timeline.step_time_s or self.timeline.context.resolution_s()
        for state in slow:
            use = "unknown" if state.busiest is None else f"{state.busiest:.0f} %"
            idle = self._idle_gpus(state.host)
            if idle and state.is_busy:
                use += f", idle GPU {', '.join(map(str, idle))}"
            wait = f"the others wait at {wait_watts:.0f} W"
            text = f"{state.watts or 0:.0f} W, busiest GPU {use}; {wait}"
            self.report.row("straggler", True, text, [state.host], state.watts)
            at = self.stall.settled.start
            self.report.observe(
                "straggler",
                [self.report.evidence("gpu-power", text, state.watts, at)],
                host=state.host,
                gpu=idle[0] if len(idle) == 1 else None,
                period=self._period(step_s),
                confidence=likely_if(state.busiest is not None),
                explanation=f"The other hosts wait for {state.host}: {text}.",
            )
        text = f"hosts wait at {wait_watts:.0f} W for {', '.join(names)}"
        self._observe_hang("straggler", [self.report.evidence("gpu-power", text, wait_watts)], text)
        return f"Straggler: {text}."

    def _idle_gpus(self, host: str) -> list[int]:
        """GPUs of a host that ran no kernel in most of the stall."""
        table = self.timeline.table("gpu-idle").pick(hosts=[host])
        return sorted(subject.gpu for subject in table.subjects if subject.gpu is not None)

    def _observe_hang(self, row: str, evidence: Sequence[Evidence], text: str) -> None:
        timeline = self.timeline
        all_seen = not timeline.unseen_hosts and not timeline.missing("gpu-utilisation")
        # A host whose GPUs fell silent may be the one that the others wait for.
        all_seen = all_seen and UNKNOWN not in map(attrgetter("power"), self.states.values())
        # Nor is anybody cleared by series that others have and this host has not.
        all_seen = all_seen and not (self._lacking(*_RDMA) or self._lacking(*_KERNEL_LOG))
        self.report.observe(
            row,
            evidence,
            failure_class="rccl-hang",
            period=self._period(timeline.next_step_s),
            confidence=Confidence.CONFIRMED if all_seen else Confidence.LIKELY,
            explanation=text,
            facts={"step": float(self.stall.step or 0)},
        )

    def _network_in_words(self) -> str:
        lacking = self._lacking(*_RDMA)
        if lacking:
            return f", and the network is clean where it was seen: not on {', '.join(lacking)}"
        return ", and the network is clean"

    def _lacking(self, query: str, metric: str | None) -> list[str]:
        """Hosts without a series that others have; what nobody has was never installed."""
        having = set(self.timeline.table(query).pick(metric).hosts)
        return sorted(self.states.keys() - having) if having else []

    def _period(self, uncertainty_s: float) -> Period:
        return Period(self.stall.start, self.stall.end, uncertainty_s=uncertainty_s)

    def _no_process_left(self) -> bool:
        counts = self._process_counts
        return bool(counts) and max(counts.values()) == 0

    @property
    def _process_counts(self) -> dict[str, float]:
        return self.timeline.table("driver").pick(PROCESSES).medians(self.judged)

    def _cancelled_while_running(self) -> bool:
        """A job that was cancelled, and whose processes had their GPUs on every host till then."""
        counts = self._process_counts
        alive = [
            host for host in self.timeline.context.hosts if host not in self.timeline.dead_hosts
        ]
        held = bool(alive) and min(counts.get(host, 0.0) for host in alive) > 0
        return self.timeline.job.status == "cancelled" and held


def _median_watts(states: Iterable[HostState]) -> float | None:
    return known_values.median([state.watts for state in states if state.watts])


def network_triggers(timeline: RunTimeline, stall: StepStall) -> list[str]:
    """Retransmits, ports and errors that may have set a hang off, each once, for a person."""
    return list(dict.fromkeys(_triggers(timeline, stall)))


def _triggers(timeline: RunTimeline, stall: StepStall) -> Iterator[str]:
    for event in timeline.rdma_events:
        timed_out = event.timeouts_per_s > 0 and _touches_start(event.span, stall)
        if timed_out or timeline.is_before_stall(event.span):
            yield f"RDMA retransmits on {event.host}"
    latest = stall.start + BEFORE_STALL_S
    for subject, first in first_spans(timeline.table("rdma-ports-down")):
        if stall.start - BEFORE_STALL_S <= first.start <= latest:
            yield f"port {subject.device} down on {subject.host}"
    for subject, first in first_spans(timeline.table("rdma-errors")):
        if first.start <= latest:
            yield f"RDMA errors on {subject.host}"


def _touches_start(span: Span, stall: StepStall) -> bool:
    earliest, latest = stall.start - BEFORE_STALL_S, stall.start + BEFORE_STALL_S
    return earliest <= span.end and span.start <= latest


def report_network(report: ReportWriter, stall: StepStall, triggers: Sequence[str]) -> None:
    """Rows about RDMA, and about TCP, which alone does not stop a collective."""
    if report.timeline.answers.missing("rdma-retransmits"):
        report.row("network", None, "RDMA retransmits: metric absent", query="rdma-retransmits")
    elif triggers:
        report.row("network", True, "; ".join(triggers), query="rdma-retransmits")
    else:
        report.row("network", False, "RDMA clean before and in the stall")
    table = report.timeline.outside_saves("tcp-retransmits")
    before = table.between(stall.start - BEFORE_STALL_S, stall.start)
    noisy = [subject.host for subject, row in before if above(before, row, TCP_PER_S)]
    if noisy:
        text = f"{TCP_RETX} rose before the stall, which alone does not stop a collective"
        report.row("network-tcp", True, text, noisy)
