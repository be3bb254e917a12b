"""TCP and network cards: what they count, and why it seldom matters to training.

Storage and coordination run over TCP, collectives do not: thousands of retransmits a second go with
full throughput, and while checkpoints are saved they are normal.
"""

from collections.abc import Collection, Mapping
from itertools import islice
from operator import attrgetter

from raydiag.model import Confidence, Severity
from raydiag.playbooks.report_writer import Period, ReportWriter, likely_if, remark_unless
from raydiag.timeline.answers import ResultTable
from raydiag.timeline.queries import LISTEN, TCP_ABORTS, TCP_RESETS
from raydiag.timeline.run_timeline import RunTimeline
from raydiag.timeline.threshold_spans import Growth, Span, growths, sustained_by_host

TCP_PER_S = 10.0
_FEW_ERRORS = 10.0
_AT_ONCE_S = 120.0  # a rate lags
_NAMED = 8  # hosts that get a finding of their own; more are one of the whole job


def judge_retransmits(report: ReportWriter, rdma_hosts: Collection[str]) -> list[str]:
    """TCP retransmits outside saves; alone they are storage or coordination. Returns such hosts."""
    query = "tcp-retransmits"
    if report.cannot_judge(query):
        return []
    table = report.timeline.outside_saves(query)
    spans = sustained_by_host(table, TCP_PER_S)
    at_any_time = sustained_by_host(report.timeline.table(query), TCP_PER_S)
    in_saves = [host for host in at_any_time if host not in spans]
    if in_saves:
        report.row("tcp-in-saves", True, "only while checkpoints are saved: normal", in_saves)
    if not spans:
        report.row(query, False, "not sustained outside saves")
        return []
    only_tcp = sorted(set(spans).difference(rdma_hosts))
    text = "RDMA is clean there: storage or coordination traffic, which does not slow training"
    peak = max(map(attrgetter("peak"), spans.values()))
    meaning = text if only_tcp else "together with RDMA retransmits"
    report.row(query, True, meaning, sorted(spans), peak, query="")
    rdma = map(report.timeline.answers.missing, ("rdma-retransmits", "rdma-sent"))
    has_rdma = any(reason != "metric absent" for reason in rdma)
    for host, span in _by_host_or_job(spans).items():
        slows = _slows_training(report.timeline, span)
        congests = slows and not has_rdma
        report.observe(
            query,
            [report.evidence(query, text, span.peak, span.peak_time)],
            host=host,
            period=report.period(span, table.step_s),
            # Without RDMA the collectives run over TCP as well.
            failure_class="network-congestion" if congests else "tcp-retransmits",
            # An RDMA fabric that nobody measures looks the same.
            confidence=Confidence.LIKELY if congests else Confidence.CONFIRMED,
            severity=Severity.WARNING if congests else remark_unless(slows),
        )
    return only_tcp


def _slows_training(timeline: RunTimeline, span: Span) -> bool:
    """Training got slower just when it began: then it carries what training waits for."""
    slow = timeline.slowdown
    return slow is not None and abs(slow.start - span.start) <= _AT_ONCE_S


def _by_host_or_job(spans: Mapping[str, Span]) -> Mapping[str | None, Span]:
    """One finding a host; one of the whole job (None) where there are many."""
    if len(spans) > _NAMED:
        return {None: next(iter(spans.values()))}
    return dict(spans.items())


def judge_connections(timeline: RunTimeline, report: ReportWriter) -> None:
    """Connections that timed out or were reset, and a server that cannot accept."""
    if report.cannot_judge("tcp-aborts"):
        return
    table = timeline.table("tcp-errors")
    aborts = {growth.host: growth for growth in growths(table, TCP_ABORTS)}
    _judge_aborts(report, table, aborts)
    resets = [growth for growth in growths(table, TCP_RESETS) if growth.host not in aborts]
    for growth in resets[:_NAMED]:
        text = (
            f"{growth.total:.0f} connections reset and none timed out: the other side closed them"
        )
        report.row("tcp-resets", True, text, [growth.host], growth.total)
    if not resets:
        # Exporters that read the field from the wrong file always say 0.
        report.row(
            "tcp-resets", None, "no resets counted; some exporters cannot count them", query=""
        )
    _judge_refused(timeline, report, table)


def _judge_aborts(report: ReportWriter, table: ResultTable, aborts: Mapping[str, Growth]) -> None:
    for growth in islice(aborts.values(), _NAMED):
        report.finding(
            "tcp-aborts",
            f"{growth.total:.0f} connections aborted after unanswered retransmits: a path failed",
            host=growth.host,
            value=growth.total,
            period=report.period(growth.span, table.step_s),
            symptom=True,
        )
    if not aborts:
        report.row("tcp-aborts", False, "no connection timed out")


def _judge_refused(timeline: RunTimeline, report: ReportWriter, table: ResultTable) -> None:
    refused: list[Growth] = []
    for metric in LISTEN:
        refused += growths(table, metric)
    for growth in refused[:_NAMED]:
        text = f"{growth.total:.0f} connections not accepted: the queue of a server there is full"
        report.row("listen-queue", True, text, [growth.host], growth.total)
    by_host: dict[str, list[Growth]] = {}
    for growth in refused:
        by_host.setdefault(growth.host, []).append(growth)
    for host, of_host in by_host.items():
        total = max(map(attrgetter("total"), of_host))
        onset = min(map(attrgetter("span.start"), of_host))
        until = max(map(attrgetter("span.end"), of_host))
        first, text = of_host[0].span.start, "connections not accepted"
        report.observe(
            "listen-queue",
            [report.evidence("tcp-errors", text, total, first)],
            host=host,
            period=Period(onset, until, uncertainty_s=table.step_s),
            confidence=likely_if(host == timeline.job.coordinator),
            severity=remark_unless(total >= _FEW_ERRORS),
        )
    if not refused:
        report.row("listen-queue", False, "no connection was refused")


def judge_network_cards(timeline: RunTimeline, report: ReportWriter) -> None:
    """Errors that network cards count."""
    query = "nic-errors"
    if report.cannot_judge(query):
        return
    table = timeline.table(query)
    errors = list(growths(table))
    for growth in errors[:_NAMED]:
        subject, span = growth.subject, growth.span
        report.finding(
            query,
            f"{subject.metric} grew by {growth.total:.0f} on {subject.device}",
            host=growth.host,
            value=growth.total,
            period=Period(span.start, span.end, uncertainty_s=table.step_s),
            severity=remark_unless(growth.total >= _FEW_ERRORS),
            device=subject.device,
        )
    if not errors:
        report.row(query, False, "no card counted an error")
