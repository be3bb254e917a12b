"""What the network did just before steps stopped. Never TCP, which collectives do not use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from raydiag.playbooks.network_health.tcp import TCP_PER_S
from raydiag.playbooks.report_writer import ReportWriter
from raydiag.timeline.queries import TCP_RETX
from raydiag.timeline.rdma_events import BEFORE_STALL_S
from raydiag.timeline.run_timeline import RunTimeline
from raydiag.timeline.step_stalls import StepStall
from raydiag.timeline.threshold_spans import Span, above, first_spans


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


def report_network(
    timeline: RunTimeline, report: ReportWriter, stall: StepStall, triggers: Sequence[str]
) -> None:
    """Rows about RDMA, and about TCP, which alone does not stop a collective."""
    if timeline.answers.missing("rdma-retransmits"):
        report.row("network", None, "RDMA retransmits: metric absent", query="rdma-retransmits")
    elif triggers:
        report.row("network", True, "; ".join(triggers), query="rdma-retransmits")
    else:
        report.row("network", False, "RDMA clean before and in the stall")
    table = timeline.outside_saves("tcp-retransmits")
    before = table.between(stall.start - BEFORE_STALL_S, stall.start)
    noisy = [subject.host for subject, row in before if above(before, row, TCP_PER_S)]
    if noisy:
        text = f"{TCP_RETX} rose before the stall, which alone does not stop a collective"
        report.row("network-tcp", True, text, noisy, query="tcp-retransmits")
