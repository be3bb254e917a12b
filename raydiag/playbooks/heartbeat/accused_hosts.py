"""What hosts did around the time when heartbeats stopped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from raydiag.model import Window
from raydiag.playbooks.report_writer import ReportWriter
from raydiag.timeline import known_values
from raydiag.timeline.context import SAVE
from raydiag.timeline.queries import IO_FULL
from raydiag.timeline.run_timeline import RunTimeline
from raydiag.timeline.threshold_spans import first_spans

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


def hosts_in_trouble(
    timeline: RunTimeline, report: ReportWriter, judged: Sequence[str], crash: float
) -> list[str]:
    """Accused hosts that really were in trouble: silent, killed for memory, GPU errors."""
    reasons = _reasons(timeline, crash)
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
