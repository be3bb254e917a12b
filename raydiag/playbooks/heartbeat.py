"""Playbook: a heartbeat timed out. Dead hosts, a hang, or a false alarm?

Judged at the time when heartbeats stopped, the error minus the timeout, not at the error. The hang
test comes first: a job whose steps had stopped long before was not killed for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from raydiag.model import Confidence, Window
from raydiag.playbooks.rccl_hang.host_states import ACTIVE, host_states
from raydiag.playbooks.registry import playbook
from raydiag.playbooks.report_writer import Period, ReportWriter
from raydiag.timeline import known_values
from raydiag.timeline.context import SAVE
from raydiag.timeline.queries import DIRTY, IO_FULL, LISTEN, MEM_USED
from raydiag.timeline.run_timeline import RunTimeline
from raydiag.timeline.threshold_spans import first_spans, present

_AROUND_S = 120.0
_STALLED_BEFORE_S = 300.0  # before the error: steps that stop then were stopped by it
_LATE_STEPS, _LATE_S = 10.0, 60.0  # before the error: no step for longer than that is no training
_NAMED = 4  # hosts in the evidence


@dataclass(frozen=True)
class _Measure:
    """What says that the accused trained."""

    query: str
    text: str
    value: Callable[[HostActivity], float | None]
    gpus: str


_BY_UTILISATION = _Measure("gpu-utilisation", "busiest GPU", attrgetter("busiest"), "busy GPUs")
_BY_POWER = _Measure(
    "gpu-power", "mean power of its GPUs", attrgetter("watts"), "GPUs at training power"
)
_AT_REST = "GPUs as busy as on hosts that nobody accused"


@playbook("heartbeat")
def heartbeat(timeline: RunTimeline, report: ReportWriter) -> str:
    """Nothing to judge where the log has no heartbeat timeout."""
    job = timeline.job
    if "heartbeat-timeout" not in (job.primary, *job.cascade):
        report.row("heartbeat", False, "no heartbeat timeout in the log")
        return "Not judged: no heartbeat timeout in the log."
    if job.crash_time is None:
        report.row("heartbeat", None, "its time is not known")
        return "Not judged: its time is not known."
    stop = job.crash_time - (job.heartbeat_timeout_s or 0.0)
    text = "time of the error minus the timeout"
    report.row("heartbeats-stopped", True, text, value=stop, unit="s")
    _report_circumstances(timeline, report, stop)
    start = max(timeline.window.start, stop - _AROUND_S)
    window = Window(start, min(job.crash_time, stop + _AROUND_S))
    return _Timeout(timeline, report, stop, job.crash_time, window).verdict()


@dataclass(frozen=True)
class _Timeout:
    """A heartbeat timeout: when heartbeats stopped, and the time around it."""

    timeline: RunTimeline
    report: ReportWriter
    stop: float
    crash: float
    window: Window

    def verdict(self) -> str:
        """The first of hang, trouble and false alarm that fits, as a sentence."""
        all_hosts, job = self.timeline.context.hosts, self.timeline.job
        accused = [host for host in job.accused if host in all_hosts]
        not_accused = [host for host in all_hosts if host not in accused]
        judged = accused or not_accused
        if self._is_hang():
            return "The job hung; the heartbeat only ended it."
        guilty = hosts_in_trouble(self.report, judged, self.crash)
        if guilty:
            return f"The timeout was justified: {', '.join(guilty)}."
        controls = dict.fromkeys(not_accused[:1])
        if job.coordinator and job.coordinator not in judged:
            controls[job.coordinator] = None
        accused_activities = self._activities(judged, controls)
        return self._by_activity(accused_activities, self._activities(controls, controls))

    def _activities(self, hosts: Iterable[str], controls: Collection[str]) -> list[HostActivity]:
        activities = []
        for host in hosts:
            activity = host_activity(self.timeline, host, self.window, self.crash)
            text, watts = activity.description, activity.watts
            role = "control" if host in controls else "accused"
            self.report.row(role, True, text, [host], watts)
            activities.append(activity)
        return activities

    def _by_activity(
        self, accused: Sequence[HostActivity], controls: Sequence[HostActivity]
    ) -> str:
        measured = [host for host in accused if host.busiest is not None]
        if not measured:
            if drew_training_power(self.timeline, accused):
                return self._false_alarm(accused, False)
            text = "utilisation of the accused: metric absent"
            self.report.row("undecided", None, text, _names(accused))
            return "Undecided: no utilisation of the accused."
        at_rest = are_as_idle_as(controls, measured)
        low = _names(filter(attrgetter("is_idle"), measured))
        if not low or at_rest:
            return self._false_alarm(measured, at_rest)
        text = "not training when heartbeats stopped: the timeout may be justified"
        self.report.row("low-utilisation", True, text, low)
        return f"Possibly justified: {', '.join(low)} did not train."

    def _is_hang(self) -> bool:
        """Steps stopped long before the error, and GPUs do not compute."""
        stall = self.timeline.stall
        if stall is None or self.crash - stall.start <= _STALLED_BEFORE_S:
            self._report_steps()
            return False
        states = host_states(self.timeline, stall.settled)
        if set(map(attrgetter("power"), states.values())) == {ACTIVE}:
            text = "no steps, but GPUs draw training power: not a hang"
            self.report.row("hang-test", False, text, sorted(states))
            return False
        before = self.crash - stall.start
        text = f"steps stopped {before:.0f} s before the error, and GPUs do not compute"
        self.report.row("hang-test", True, text)
        self.report.rule_out("heartbeat-false-positive", text)
        return True

    @property
    def _steps_went_on(self) -> bool:
        """Up to the error: whom the others had waited for would not have let them."""
        _, last = self.timeline.last_step
        late_s = max(_LATE_STEPS * self.timeline.step_time_s, _LATE_S)
        return last is not None and self.crash - last <= late_s

    def _report_steps(self) -> None:
        step, time = self.timeline.last_step
        if time is None:
            self.report.row("hang-test", None, "no time of a step is known", query="training")
            return
        text = f"step {step} ended {self.crash - time:.0f} s before the error: steps went on"
        self.report.row("hang-test", False, text, query="training")

    def _false_alarm(self, hosts: Sequence[HostActivity], at_rest: bool) -> str:
        """The accused trained, so heartbeats were lost elsewhere."""
        measure = _BY_UTILISATION
        if None in map(attrgetter("busiest"), hosts):
            measure = _BY_POWER
        gpus = _AT_REST if at_rest and measure is _BY_UTILISATION else measure.gpus
        row, text = _false_alarm_row(hosts, gpus)
        names = _names(hosts)
        self.report.row(row, True, text, names, query=measure.query)
        evidence = []
        for host in hosts[:_NAMED]:
            fact, value = f"{host.host}: {measure.text}", measure.value(host)
            evidence.append(self.report.evidence(measure.query, fact, value, self.stop))
        is_clean = row == "false-alarm" and all(map(attrgetter("is_complete"), hosts))
        is_sure = measure is _BY_UTILISATION and not at_rest
        certain = is_clean and is_sure and self._steps_went_on
        confidence = Confidence.CONFIRMED if certain else Confidence.LIKELY
        for name in names:
            self.report.observe(
                row,
                evidence,
                host=name,
                period=Period(self.stop, uncertainty_s=self.timeline.context.resolution_s()),
                confidence=confidence,
                explanation=(
                    f"At the time heartbeats stopped the accused trained: {text}. Heartbeats "
                    "share one channel with everything else of the coordination service, and "
                    "that channel stalled."
                ),
            )
        return f"{confidence.value.capitalize()} false alarm: {text}."


def _names(hosts: Iterable[HostActivity]) -> list[str]:
    return list(map(attrgetter("host"), hosts))


def _false_alarm_row(hosts: Sequence[HostActivity], gpus: str) -> tuple[str, str]:
    """Id of the row, and what set the alarm off."""
    noisy = any(map(attrgetter("has_tcp_retransmits"), hosts))
    if any(map(attrgetter("waits_for_storage"), hosts)):
        text = f"{gpus}; writing back a checkpoint triggered it"
        if noisy:
            text += ", with TCP retransmits of the same writes"
        return "false-alarm-storage", text
    if noisy:
        return "false-alarm-network", f"{gpus}; a network transient triggered it"
    return "false-alarm", f"{gpus}, a clean network and no I/O pressure"


def _report_circumstances(timeline: RunTimeline, report: ReportWriter, stop: float) -> None:
    """Coordinator's queue, memory, and saves: what could have set it off or only followed."""
    _report_coordinator(timeline, report, stop)
    window = Window(stop - _AROUND_S, stop + _AROUND_S)
    for metric, query in ((DIRTY, "storage"), (MEM_USED, "memory")):
        for host, value in timeline.table(query).pick(metric).medians(window).items():
            if host in timeline.job.accused:
                report.row("beside", True, metric, [host], value, "bytes", query)
    later = [save.start for save in timeline.job.saves if save.start and save.start > stop]
    if later:
        text = "a checkpoint began after heartbeats had stopped: so it is not the cause"
        report.row("save-after", True, text, value=later[0], unit="s")


def _report_coordinator(timeline: RunTimeline, report: ReportWriter, stop: float) -> None:
    errors, coordinator = timeline.table("tcp-errors"), timeline.job.coordinator
    refusing = []
    for metric in LISTEN:
        for subject, row in errors.pick(metric):
            if any(span.start <= stop + _AROUND_S for span in present(errors, row)):
                refusing.append(subject.host)
    hosts, holds = refusing, bool(refusing)
    if coordinator:
        hosts, holds = [coordinator], coordinator in refusing
    text = "its queue of new connections overflowed" if holds else "no connection was refused"
    report.row("coordinator", holds, text, hosts)


# ---- what hosts did around the time when heartbeats stopped

HIGH_PERCENT = 50.0
IO_PERCENT = 10.0
TCP_PER_S = 10.0
_ALIKE = 0.75  # of what the others' busiest GPU does


@dataclass(frozen=True)
class HostActivity:
    """One host around the time when heartbeats stopped; None: nothing says."""

    host: str
    busiest: float | None  # % of its busiest GPU
    watts: float | None
    tcp_per_s: float | None
    io_percent: float | None

    @property
    def has_tcp_retransmits(self) -> bool:
        """More of them than usual."""
        return self.tcp_per_s is not None and self.tcp_per_s > TCP_PER_S

    @property
    def waits_for_storage(self) -> bool:
        """Its I/O pressure is high."""
        return self.io_percent is not None and self.io_percent > IO_PERCENT

    @property
    def is_idle(self) -> bool:
        """Its GPUs are used too little for training; also where nothing says."""
        return (self.busiest or 0.0) <= HIGH_PERCENT

    @property
    def is_complete(self) -> bool:
        """Whether the network and storage were measured."""
        return self.tcp_per_s is not None and self.io_percent is not None

    @property
    def description(self) -> str:
        """For a person."""
        parts = (
            _measured(self.busiest, "utilisation {:.0f} %", "utilisation absent"),
            _measured(self.tcp_per_s, "{:.1f} TCP retransmits/s", "TCP absent"),
            _measured(self.io_percent, "I/O pressure {:.0f} %", "I/O absent"),
        )
        return ", ".join(parts)


def _measured(value: float | None, text: str, absent: str) -> str:
    return absent if value is None else text.format(value)


def host_activity(timeline: RunTimeline, host: str, window: Window, crash: float) -> HostActivity:
    """Around the time; where all of it is a save, in which GPUs rest, from then to the error."""

    def _usual(query_id: str, metric: str) -> float | None:
        table = timeline.of_host(query_id, host, metric)
        working = timeline.without(table, SAVE)
        until_crash = Window(window.start, crash)
        for part, span in ((working, window), (working, until_crash), (table, window)):
            median = part.medians(span).get(host)
            if median is not None:
                return median
        return None

    def _peak(query_id: str, metric: str | None = None) -> float | None:
        table = timeline.of_host(query_id, host, metric).between(window.start, window.end)
        return known_values.highest(table.values)

    return HostActivity(
        host,
        _usual("gpu-utilisation", "max"),
        _usual("gpu-power", "avg"),
        _peak("tcp-retransmits"),
        _peak("storage", IO_FULL),
    )


def drew_training_power(timeline: RunTimeline, hosts: Sequence[HostActivity]) -> bool:
    """Where utilisation is not known: all of them drew the power of training."""
    levels = timeline.levels
    if levels is None or not hosts:
        return False
    return all(host.watts is not None and host.watts >= levels.active_watts for host in hosts)


def are_as_idle_as(controls: Sequence[HostActivity], accused: Sequence[HostActivity]) -> bool:
    """Hosts that nobody accused did as little, as in a save: low utilisation says nothing then."""
    utilisations = [host.busiest for host in controls if host.busiest is not None]
    busiest = max(utilisations, default=100.0)
    if busiest > HIGH_PERCENT:
        return False
    return all((host.busiest or 0.0) >= _ALIKE * busiest for host in accused)


def hosts_in_trouble(report: ReportWriter, judged: Sequence[str], crash: float) -> list[str]:
    """Accused hosts that really were in trouble: silent, killed for memory, GPU errors."""
    reasons = _reasons(report.timeline, crash)
    guilty = list(reasons)
    if judged:
        guilty = list(filter(reasons.__contains__, judged))
    for host in guilty:
        report.row("true-alarm", True, reasons[host], [host])
        report.rule_out("heartbeat-false-positive", f"{host}: {reasons[host]}")
    if not guilty:
        report.row("true-alarm", False, "the accused were alive, and no kill or GPU error there")
    return guilty


def _reasons(timeline: RunTimeline, crash: float) -> dict[str, str]:
    reasons: dict[str, str] = {}
    for silent in timeline.silent_hosts:
        if silent.time < crash:
            reasons[silent.host] = "its series ended before the error"
    for subject, kill in first_spans(timeline.table("oom-kills")):
        if kill.start <= crash:
            reasons.setdefault(subject.host, "its kernel killed a process for memory")
    errors = timeline.table("gpu-errors")
    for subject, error in first_spans(errors):
        if errors.asked_from + errors.step_s < error.start <= crash:
            reasons.setdefault(subject.host, f"GPU {subject.gpu} counted {subject.metric}")
    return reasons
