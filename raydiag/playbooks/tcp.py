"""TCP and network cards: what they count, and why it seldom matters to training.

Storage and coordination run over TCP, collectives do not: thousands of retransmits a second go with
full throughput, and while checkpoints are saved they are normal.
"""

from __future__ import annotations

from raydiag.model import Confidence, Evidence, Severity
from raydiag.playbooks.context import LOADED
from raydiag.playbooks.observations import ObservationRecorder
from raydiag.playbooks.queries import LISTEN, TCP_ABORTS, TCP_RESETS
from raydiag.playbooks.spans import Span, above, growths
from raydiag.playbooks.timeline import RunTimeline

TCP_PER_S = 10.0
_FEW_ERRORS = 10.0
_NAMED = 8  # hosts that get a finding of their own; more are one of the whole job


def retransmits(scene: RunTimeline, record: ObservationRecorder, rdma_hosts: set[str]) -> list[str]:
    """TCP retransmits outside saves; alone they are storage or coordination."""
    if scene.undecided(record, "tcp-retransmits", "tcp-retransmits"):
        return []
    everything = scene.table("tcp-retransmits")
    table = scene.without(everything, *LOADED, question="tcp-retransmits")
    spans: dict[str, Span] = {}
    for where, row in table:
        held = [one for one in above(table, row, TCP_PER_S) if one.sustained]
        if held:
            spans[where.host] = held[0]
    in_saves = [
        where.host
        for where, row in everything
        if where.host not in spans and any(s.sustained for s in above(everything, row, TCP_PER_S))
    ]
    if in_saves:
        record.row("tcp-in-saves", True, "only while checkpoints are saved: normal", in_saves)
    if not spans:
        record.row(
            "tcp-retransmits", False, "not sustained outside saves", question="tcp-retransmits"
        )
        return []
    only = sorted(host for host in spans if host not in rdma_hosts)
    text = "RDMA is clean there: storage or coordination traffic, which does not slow training"
    peak = max(span.peak for span in spans.values())
    record.row(
        "tcp-retransmits", True, text if only else "beside RDMA", sorted(spans), peak, "segments/s"
    )
    groups = dict(spans.items()) if len(spans) <= _NAMED else {None: next(iter(spans.values()))}
    for host, span in groups.items():
        record.observe(
            "tcp-retransmits",
            "tcp-retransmits",
            [Evidence(scene.answers.promql("tcp-retransmits"), text, span.peak, span.peak_time)],
            host,
            span.start,
            Confidence.CONFIRMED,
            Severity.INFO,
            symptom=True,
            until=span.end,
            recovered=scene.over(span),
            uncertainty_s=table.step_s,
        )
    return only


def connections(scene: RunTimeline, record: ObservationRecorder) -> None:
    """Connections that timed out or were reset, and a server that cannot accept."""
    if scene.undecided(record, "tcp-aborts", "tcp-errors"):
        return
    table, source = scene.table("tcp-errors"), scene.answers.promql("tcp-errors")
    aborts = {hit.where.host: hit for hit in growths(table, TCP_ABORTS)}
    for host, hit in list(aborts.items())[:_NAMED]:
        text = f"{hit.total:.0f} connections given up after unanswered retransmits: a path died"
        record.row("tcp-aborts", True, text, [host], hit.total, "connections", "tcp-errors")
        record.observe(
            "tcp-aborts",
            "tcp-aborts",
            [Evidence(source, text, hit.total, hit.span.start)],
            host,
            hit.span.start,
            Confidence.CONFIRMED,
            symptom=True,
            until=hit.span.end,
            recovered=scene.over(hit.span),
            uncertainty_s=table.step_s,
        )
    if not aborts:
        record.row("tcp-aborts", False, "no connection timed out", question="tcp-errors")
    resets = [hit for hit in growths(table, TCP_RESETS) if hit.where.host not in aborts]
    for hit in resets[:_NAMED]:
        text = f"{hit.total:.0f} connections reset and none timed out: the other side closed them"
        record.row("tcp-resets", True, text, [hit.where.host], hit.total, "", "tcp-errors")
    if not resets:
        # Exporters that read the field from the wrong file always say 0.
        record.row("tcp-resets", None, "no resets counted, which some exporters cannot")
    refused = [hit for metric in LISTEN for hit in growths(table, metric)]
    for hit in refused[:_NAMED]:
        text = f"{hit.total:.0f} connections not accepted: the queue of a server there is full"
        record.row("listen-queue", True, text, [hit.where.host], hit.total, "", "tcp-errors")
    for host in dict.fromkeys(hit.where.host for hit in refused):
        own = [hit for hit in refused if hit.where.host == host]
        total = max(hit.total for hit in own)
        big = total >= _FEW_ERRORS
        record.observe(
            "listen-queue",
            "coordinator-overload",
            [Evidence(source, "connections not accepted", total, own[0].span.start)],
            host,
            min(hit.span.start for hit in own),
            Confidence.LIKELY if host == scene.job.coordinator else Confidence.POSSIBLE,
            None if big else Severity.INFO,
            until=max(hit.span.end for hit in own),
            uncertainty_s=table.step_s,
        )
    if not refused:
        record.row("listen-queue", False, "no connection was refused", question="tcp-errors")


def cards(scene: RunTimeline, record: ObservationRecorder) -> None:
    """Errors that network cards count."""
    if scene.undecided(record, "nic-errors", "nic-errors"):
        return
    table = scene.table("nic-errors")
    hits = list(growths(table))
    for hit in hits[:_NAMED]:
        text = f"{hit.where.metric} grew by {hit.total:.0f} on {hit.where.device}"
        record.row("nic-errors", True, text, [hit.where.host], hit.total, "", "nic-errors")
        record.observe(
            "nic-errors",
            "nic-errors",
            [Evidence(scene.answers.promql("nic-errors"), text, hit.total, hit.span.start)],
            hit.where.host,
            hit.span.start,
            Confidence.LIKELY,
            None if hit.total >= _FEW_ERRORS else Severity.INFO,
            device=hit.where.device,
            until=hit.span.end,
            uncertainty_s=table.step_s,
        )
    if not hits:
        record.row("nic-errors", False, "no card counted an error", question="nic-errors")
