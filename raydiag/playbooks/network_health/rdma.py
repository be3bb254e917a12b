"""RDMA: lost packets, ports that go down, retransmits, and congestion."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from operator import attrgetter

from raydiag.model import Confidence, Severity
from raydiag.playbooks.report_writer import ReportWriter, likely_if, remark_unless
from raydiag.timeline import known_values
from raydiag.timeline.answers import ResultTable, Subject
from raydiag.timeline.queries import CQE, LINK_ERRORS, RETRY
from raydiag.timeline.rdma_events import RdmaEvent, is_slower, slowdown
from raydiag.timeline.run_timeline import RunTimeline
from raydiag.timeline.threshold_spans import Span, first_spans, growths, sustained_by_host

_CNP_PER_S, _CNP_FACTOR = 100.0, 10.0
_EARLY_SAMPLES = 4  # and of more, the first third: what came before
_MANY_SHARE, _MANY_HOSTS = 0.3, 3
_AT_START_S = 60.0
_FEW_LINK_ERRORS = 10
_NAMED = 8


def judge_errors(timeline: RunTimeline, report: ReportWriter) -> list[str]:
    """Retries that ran out, and completions with an error. Returns the hosts of the former."""
    if report.cannot_judge("retry-exhausted"):
        return []
    query, row = "rdma-errors", "completion-errors"
    table = timeline.table(query)
    hosts = _judge_exhausted_retries(report, table)
    failed = [growth for growth in growths(table, CQE) if growth.host not in hosts]
    for growth in failed:
        text = f"{growth.total:.0f} requests completed with an error"
        report.row(row, True, text, [growth.host], growth.total)
        report.observe(
            row,
            [report.evidence(query, text, growth.total, growth.span.start)],
            host=growth.host,
            period=report.period(growth.span, table.step_s),
            device=growth.subject.device,
        )
    if not failed:
        report.row(row, False, "no further completion errors")
    _judge_link_errors(timeline, report, table)
    return hosts


def _judge_link_errors(timeline: RunTimeline, report: ReportWriter, table: ResultTable) -> None:
    """What the link itself counts: symbols it could not read, recoveries, damaged packets."""
    counted = chain.from_iterable(map(partial(growths, table), LINK_ERRORS))
    for growth in sorted(counted, key=attrgetter("total"), reverse=True)[:_NAMED]:
        span, slow = growth.span, timeline.slowdown
        felt = slow is not None and slow.overlaps(span.start, span.end)
        report.finding(
            "link-errors",
            f"{growth.subject.metric} grew by {growth.total:.0f} on {growth.subject.device}",
            host=growth.host,
            value=growth.total,
            period=report.period(span, table.step_s),
            severity=remark_unless(felt and growth.total >= _FEW_LINK_ERRORS),
            confidence=likely_if(span.sustained),
            device=growth.subject.device,
        )


def _judge_exhausted_retries(report: ReportWriter, table: ResultTable) -> list[str]:
    lost = list(growths(table, RETRY))
    for growth in lost:
        report.finding(
            "retry-exhausted",
            f"{growth.total:.0f} requests gave up after all retries: packets are lost permanently",
            host=growth.host,
            value=growth.total,
            period=report.period(growth.span, table.step_s),
            device=growth.subject.device,
        )
    if not lost:
        text = "no request ran out of retries"
        report.row("retry-exhausted", False, text)
        report.rule_out("rdma-retry-exhausted", f"{text} on any host")
    return list(dict.fromkeys(map(attrgetter("host"), lost)))


def judge_ports(timeline: RunTimeline, report: ReportWriter) -> None:
    """A port that is not active; one that nobody uses is down everywhere."""
    if report.cannot_judge("port-down"):
        return
    fine = timeline.table("rdma-ports-down-fine")
    table = fine if len(fine) else timeline.table("rdma-ports-down")
    unused = _unused_ports(timeline, table)
    any_down = False
    for subject, span in first_spans(table):
        before_job = span.start <= timeline.window.start + max(table.step_s, _AT_START_S)
        if not before_job or subject.device not in unused:
            any_down = True
            _report_port(report, subject, span, table.step_s, before_job)
    if unused:
        names = ", ".join(sorted(unused))
        report.row("port-unused", True, f"{names}: down on most hosts throughout, so not in use")
    if not any_down:
        report.row("port-down", False, "no port went down")
        report.rule_out("rdma-port-down", "no RDMA port went down on any host")


def _unused_ports(timeline: RunTimeline, table: ResultTable) -> set[str]:
    """Ports that are down on most hosts."""
    hosts_by_port: dict[str, set[str]] = {}
    for subject in table.subjects:
        hosts_by_port.setdefault(subject.device or "", set()).add(subject.host)
    count = len(timeline.context.hosts)
    if count <= 1:
        return set()
    return {port for port, hosts in hosts_by_port.items() if len(hosts) > max(1, count // 2)}


def _report_port(
    report: ReportWriter, subject: Subject, span: Span, step_s: float, before_job: bool
) -> None:
    text = f"port {subject.device} is not active"
    if before_job:
        text += " and was not when the job began"
    report.finding(
        "port-down",
        text,
        host=subject.host,
        value=0.0,
        period=replace(report.period(span, step_s), before_job=before_job),
        severity=Severity.WARNING if before_job else None,
        device=subject.device,
    )


def judge_retransmits(timeline: RunTimeline, report: ReportWriter) -> dict[str, str]:
    """Retransmits and ACK timeouts, by host and port. Returns what is serious, by host."""
    query = "rdma-retransmits"
    if report.cannot_judge(query):
        return {}
    by_host: dict[str, list[RdmaEvent]] = {}
    for event in timeline.notable_rdma_events:
        by_host.setdefault(event.host, []).append(event)
    serious = {}
    for host, events in by_host.items():
        worst = max(events, key=attrgetter("span.sustained", "span.peak"))
        is_serious = _is_serious(timeline, events)
        _report_host(report, events, worst, is_serious)
        if is_serious:
            serious[host] = "sustained retransmits" if worst.span.sustained else "retransmits"
    if not by_host:
        report.row(query, False, "no retransmits beyond noise")
        hosts = len(timeline.table(query).hosts)
        report.rule_out("rdma-degraded", f"no RDMA retransmits on {hosts} hosts")
    return serious


def _report_host(
    report: ReportWriter, events: Sequence[RdmaEvent], worst: RdmaEvent, is_serious: bool
) -> None:
    query, peak, text = "rdma-retransmits", worst.span.peak, ", ".join(_facts(worst))
    evidence = [report.evidence(query, text, peak)]
    timeouts_per_s = max(map(attrgetter("timeouts_per_s"), events))
    if timeouts_per_s:
        evidence.append(report.evidence("rdma-timeouts", "ACK timeouts/s", timeouts_per_s))
    first = next((event for event in events if event.span.sustained or is_serious), worst)
    step_s, onset = report.timeline.table(query).step_s, first.span.start
    report.finding(
        query,
        text,
        value=peak,
        evidence=evidence,
        host=worst.host,
        period=report.period(events[-1].span, step_s, onset),
        confidence=_confidence(events),
        severity=remark_unless(is_serious),
        device=worst.device,
        facts={"peak_per_s": peak, "cleared": float(_cleared(report.timeline, events))},
    )


def _is_serious(timeline: RunTimeline, events: Sequence[RdmaEvent]) -> bool:
    """More than a burst that nothing followed."""
    for event in events:
        if event.lasts or is_slower(event.slower) or timeline.is_before_stall(event.span):
            return True
    return False


def _confidence(events: Sequence[RdmaEvent]) -> Confidence:
    """The recovery test decides: the same cause brings the same effect and takes it away."""
    if any(is_slower(event.slower) and event.came_back for event in events):
        return Confidence.CONFIRMED
    if False in _recoveries(events):
        return Confidence.POSSIBLE
    return likely_if(
        any(event.timeouts_per_s > 0 or event.span.sustained or event.lasts for event in events)
    )


def _cleared(timeline: RunTimeline, events: Sequence[RdmaEvent]) -> bool:
    """Whether throughput stayed low after they ended, so that something else keeps it there."""
    spans = map(attrgetter("span"), events)
    return _recoveries(events) == {False} and not any(map(timeline.is_before_stall, spans))


def _recoveries(events: Sequence[RdmaEvent]) -> set[bool | None]:
    """Whether throughput recovered after the events for which that is known."""
    return set(map(attrgetter("came_back"), events)) - {None}


def _facts(event: RdmaEvent) -> Iterator[str]:
    yield f"{event.span.peak:.1f} packets/s retransmitted at most"
    yield "sustained" if event.lasts or event.span.sustained else "in a burst"
    if event.timeouts_per_s:
        yield f"up to {event.timeouts_per_s:.2f} ACK timeouts/s: cable, port or switch"
    if event.slower is not None:
        yield f"throughput {-100 * event.slower:+.0f} % meanwhile"
    if event.came_back is not None:
        yield "back within two steps" if event.came_back else "not back after it ended"


def report_phases(timeline: RunTimeline, report: ReportWriter) -> None:
    """Does throughput go with the retransmits, host after host?"""
    events = timeline.notable_rdma_events
    if not events:
        return
    table = timeline.table("rdma-retransmits")
    slower = slowdown(
        timeline,
        [(event.span.start - table.step_s, event.span.end - table.lookback_s) for event in events],
    )
    if slower is None:
        report.row("phases", None, "no throughput during retransmits and without them to compare")
        return
    hosts = tuple(dict.fromkeys(map(attrgetter("host"), events)))
    text = f"throughput is {-100 * slower:+.1f} % while hosts retransmit, against the other steps"
    report.row("phases", is_slower(slower), text, hosts, 100 * slower, "%", "training")
    recoveries = _recoveries(events)
    if not recoveries:
        text = "no retransmits ended in time to see throughput after them"
        report.row("recovery", None, text)
        return
    recovered = False not in recoveries
    after = "recovers within two steps" if recovered else "does not recover: another cause"
    report.row("recovery", recovered, f"throughput {after}", hosts, query="training")


def judge_congestion(timeline: RunTimeline, report: ReportWriter) -> list[str]:
    """Congestion notifications: on many nodes it is the switch. Returns the hosts."""
    if report.cannot_judge("congestion"):
        return []
    table = timeline.table("rdma-cnp")
    early = table.values[:, : max(_EARLY_SAMPLES, table.times.size // 3)]
    usual = known_values.median(early.ravel()) or 0.0
    floor = max(_CNP_PER_S, _CNP_FACTOR * usual)
    spans = sustained_by_host(table, floor)
    if spans:
        _report_congestion(report, table, spans)
        return sorted(spans)
    text = f"no port above {floor:.0f} notifications/s (usual: {usual:.1f})"
    report.row("congestion", False, text, value=usual)
    report.rule_out("network-congestion", text)
    return []


def _report_congestion(report: ReportWriter, table: ResultTable, spans: dict[str, Span]) -> None:
    hosts, meaning = len(table.hosts), "their path is congested"
    by_host: dict[str | None, Span] = dict(spans.items())
    if len(spans) >= max(_MANY_HOSTS, _MANY_SHARE * hosts):
        meaning = "the switch is congested, look at its ECN settings"
        by_host = {None: min(spans.values(), key=attrgetter("start"))}
    text = f"{len(spans)} of {hosts} hosts: {meaning}"
    peak = max(map(attrgetter("peak"), spans.values()))
    report.row("congestion", True, text, sorted(spans), peak)
    for host, span in by_host.items():
        report.observe(
            "congestion",
            [report.evidence("rdma-cnp", text, span.peak, span.peak_time)],
            host=host,
            period=report.period(span, table.step_s),
            severity=Severity.WARNING,  # sustained, so it may have slowed or stopped the job
        )


def report_collectives(timeline: RunTimeline, report: ReportWriter) -> None:
    """Where the card counts collectives apart: their share of retransmitted packets."""
    for subject, row in timeline.table("rdma-collectives"):
        highest = known_values.highest(row)
        if highest is not None and highest > 0:
            text = f"{100 * highest:.3f} % of the collectives' own packets were sent again"
            report.row("collectives", True, text, [subject.host], highest)
