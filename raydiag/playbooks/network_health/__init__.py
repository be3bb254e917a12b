"""Playbook: is the network, above all RDMA, what slows or stops training?

TCP alone never is: it carries storage and coordination, not collectives.
"""

from collections.abc import Iterator
from operator import attrgetter

from raydiag.model import Severity
from raydiag.playbooks.network_health import rdma, tcp
from raydiag.playbooks.observations import Exclusion
from raydiag.playbooks.rated_levels import PORT_ROWS, judge_rated
from raydiag.playbooks.registry import playbook
from raydiag.playbooks.report_writer import ReportWriter
from raydiag.timeline import follow_up
from raydiag.timeline.queries import RDMA_PORT, RDMA_RETX, RDMA_TIMEOUTS
from raydiag.timeline.run_timeline import RunTimeline
from raydiag.timeline.threshold_spans import first_spans
from raydiag.tsdb.series import Query

_SPARE_NODES = 2  # TCP-only nodes are worth no more spares
_TCP_ONLY = "TCP retransmits only; keep it unless spares abound"


def fine_ports(timeline: RunTimeline) -> Iterator[Query]:
    """By port: retransmits, and when ports went down."""
    yield from _retransmits_by_port(timeline)
    yield from _port_states(timeline)


def _retransmits_by_port(timeline: RunTimeline) -> Iterator[Query]:
    context = timeline.context
    events = timeline.notable_rdma_events
    worst_first = sorted(events, key=attrgetter("span.peak"), reverse=True)
    hosts = follow_up.first_hosts(map(attrgetter("host"), worst_first))
    lookback = follow_up.lookback(context)
    promql = " or ".join(
        f"label_replace(sum by (host, device, port) (rate({metric}{{$match}}[{lookback}])) > 0, "
        f'"metric", "{metric}", "", "")'
        for metric in (RDMA_RETX, RDMA_TIMEOUTS)
    )
    around = events[0].span.start if events else None
    yield from follow_up.fine_query(
        context, "rdma-ports", promql, hosts, 2 * follow_up.PER_HOST, around
    )


def _port_states(timeline: RunTimeline) -> Iterator[Query]:
    down = first_spans(timeline.table("rdma-ports-down"))
    starts = {subject.host: span.start for subject, span in down}
    hosts = follow_up.first_hosts(starts)
    promql, first = (
        f"min by (host, device, port) ({RDMA_PORT}{{$match}}) == 0",
        min(starts.values(), default=None),
    )
    yield from follow_up.fine_query(
        timeline.context, "rdma-ports-down-fine", promql, hosts, follow_up.PER_HOST, first
    )


@playbook("network-health", fine_ports)
def network_health(timeline: RunTimeline, report: ReportWriter) -> str:
    """Every row; findings for what is wrong beyond noise."""
    lost_packets = rdma.judge_errors(timeline, report)
    rdma.judge_ports(timeline, report)
    judge_rated(timeline, report, PORT_ROWS)
    retransmitting = rdma.judge_retransmits(timeline, report)
    congested = rdma.judge_congestion(timeline, report)
    tcp_only = tcp.judge_retransmits(report, retransmitting)
    exclusions: dict[str, Exclusion] = {}
    for priority, reasons in (
        (1, dict.fromkeys(lost_packets, "retries exhausted")),
        (2, retransmitting),
        (3, dict.fromkeys(congested, "congestion notifications")),
        (4, dict.fromkeys(tcp_only[:_SPARE_NODES], _TCP_ONLY)),
    ):
        for host, reason in reasons.items():
            exclusions.setdefault(host, Exclusion(host, priority, reason))
    report.exclusions = tuple(exclusions.values())
    rdma.report_phases(timeline, report)
    tcp.judge_connections(timeline, report)
    tcp.judge_network_cards(timeline, report)
    rdma.report_collectives(timeline, report)
    severities = set(map(attrgetter("finding.severity"), report.observations))
    if severities <= {Severity.INFO}:
        return "No sign of a network fault."
    return f"Seen: {', '.join(report.observed_classes)}."
