"""Playbook: is the network, above all RDMA, what slows or stops training?

TCP alone never is: it carries storage and coordination, not collectives.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Optional

import numpy as np

from raydiag.model import Confidence, Evidence, Severity
from raydiag.playbooks import rdma
from raydiag.playbooks.answers import Table, Where
from raydiag.playbooks.context import LOADED
from raydiag.playbooks.observed import Exclusion, Record, Report
from raydiag.playbooks.questions import (
    CQE,
    LISTEN,
    RETRY,
    TCP_ABORTS,
    TCP_RESETS,
)
from raydiag.playbooks.scene import Scene, middle
from raydiag.playbooks.spans import Span, above, present

ID, TITLE, ANALYSIS = "network-health", "Network health", "network-health"
TRIGGERS = ("nccl-timeout", "nccl-error", "tgs-degradation")
QUESTIONS = (
    "tcp-retransmits",
    "rdma-retransmits",
    "rdma-timeouts",
    "rdma-ports-down",
    "rdma-cnp",
    "rdma-errors",
    "rdma-ports",
    "rdma-collectives",
    "nic-errors",
    "tcp-errors",
    "training",
)
TCP_PER_S = 10.0
_CNP_PER_S, _CNP_FACTOR = 100.0, 10.0
_MANY_SHARE, _MANY_HOSTS = 0.3, 3
_SPARE_NODES = 2  # TCP-only nodes are worth no more spares
_FEW_ERRORS = 10.0
_NAMED = 8  # hosts that get a finding of their own; more are one of the whole job
_BEFORE_STALL_S, _INTO_STALL_S = 300.0, 120.0


def run(scene: Scene, record: Record) -> Report:
    """Every row; findings for what is wrong beyond noise."""
    hosts: dict[int, list[tuple[str, str]]] = {1: [], 2: [], 3: [], 4: []}
    hosts[1] += [(one, "retries exhausted") for one in _errors(scene, record)]
    _ports(scene, record)
    happened = _retransmits(scene, record)
    hosts[2] += happened
    hosts[3] += [(one, "congestion notifications") for one in _congestion(scene, record)]
    tcp = _tcp(scene, record, {host for host, _ in happened})
    hosts[4] += [(one, "TCP retransmits only; keep it unless spares abound") for one in tcp]
    _phases(scene, record)
    _tcp_errors(scene, record)
    _nic(scene, record)
    _collectives(scene, record)
    clear = not any(one.finding.severity is not Severity.INFO for one in record.observations)
    verdict = "No sign of a network fault." if clear else _sentence(record)
    return Report(
        ID, TITLE, ANALYSIS, record.window, QUESTIONS, tuple(record.rows), verdict, _order(hosts)
    )


def _sentence(record: Record) -> str:
    classes = dict.fromkeys(one.finding.failure_class for one in record.observations)
    return "Seen: " + ", ".join(classes) + "."


def _order(hosts: dict[int, list[tuple[str, str]]]) -> tuple[Exclusion, ...]:
    """Each host once, at its most urgent; few of those that are only noisy on TCP."""
    found: dict[str, Exclusion] = {}
    for priority, named in hosts.items():
        kept = named if priority < 4 else named[:_SPARE_NODES]
        for host, reason in kept:
            found.setdefault(host, Exclusion(host, priority, reason))
    return tuple(found.values())


def _missing(scene: Scene, record: Record, row: str, question: str) -> bool:
    """Writes that a row cannot be decided; True when so."""
    why = scene.answers.missing(question)
    # A question that keeps only what is wrong is answered by nothing when all is well.
    asked = scene.answers.answer(question)
    if why == "metric absent" and asked is not None:
        metrics = [m for m in _metrics(question) if scene.context.discovery.has(m)]
        why = "" if metrics else why
    if why:
        record.row(row, None, why, question=question)
    return bool(why)


def _metrics(question: str) -> tuple[str, ...]:
    from raydiag.playbooks.questions import QUESTIONS as asked

    return next((one.metrics for one in asked if one.id == question), ())


@dataclass(frozen=True)
class _Hit:
    where: Where
    span: Span
    total: float


def _hits(table: Table, metric: Optional[str] = None) -> Iterator[_Hit]:
    """Rows of a question that keeps what grew, with all that they grew by."""
    for where, row in table.pick(metric):
        for span in present(table, row)[:1]:
            overlap = max(1.0, table.span_s / table.step_s) if table.step_s else 1.0
            yield _Hit(where, span, float(np.nansum(row)) / overlap)


def _errors(scene: Scene, record: Record) -> list[str]:
    """Retries that ran out, and completions with an error."""
    if _missing(scene, record, "retry-exhausted", "rdma-errors"):
        return []
    table, source = scene.table("rdma-errors"), scene.answers.promql("rdma-errors")
    lost = list(_hits(table, RETRY))
    for hit in lost:
        text = f"{hit.total:.0f} requests gave up after all retries: packets are lost for good"
        record.row(
            "retry-exhausted",
            True,
            text,
            [hit.where.host],
            hit.total,
            "errors",
            "rdma-errors",
            device=hit.where.device,
        )
        record.observe(
            "retry-exhausted",
            "rdma-retry-exhausted",
            [Evidence(source, text, hit.total, hit.span.start)],
            hit.where.host,
            hit.span.start,
            Confidence.CONFIRMED,
            device=hit.where.device,
            until=hit.span.end,
            recovered=_over(scene, hit.span),
            uncertainty_s=table.step_s,
        )
    if not lost:
        record.row(
            "retry-exhausted", False, "no request ran out of retries", question="rdma-errors"
        )
        record.rule_out("rdma-retry-exhausted", "no request ran out of retries on any host")
    failed = [
        hit for hit in _hits(table, CQE) if hit.where.host not in {h.where.host for h in lost}
    ]
    for hit in failed:
        text = f"{hit.total:.0f} requests completed with an error"
        record.row(
            "completion-errors", True, text, [hit.where.host], hit.total, "errors", "rdma-errors"
        )
        record.observe(
            "completion-errors",
            "rdma-degraded",
            [Evidence(source, text, hit.total, hit.span.start)],
            hit.where.host,
            hit.span.start,
            Confidence.LIKELY,
            device=hit.where.device,
            until=hit.span.end,
            recovered=_over(scene, hit.span),
            uncertainty_s=table.step_s,
        )
    if not failed:
        record.row(
            "completion-errors", False, "no further completion errors", question="rdma-errors"
        )
    return list(dict.fromkeys(hit.where.host for hit in lost))


def _over(scene: Scene, span: Span) -> bool:
    """It ended while the job went on."""
    return not span.open and span.end < scene.window.end - 120


def _ports(scene: Scene, record: Record) -> None:
    """A port that is not active; one that nobody uses is down everywhere."""
    if _missing(scene, record, "port-down", "rdma-ports-down"):
        return
    fine = scene.table("rdma-ports-down-fine")
    table = fine if len(fine) else scene.table("rdma-ports-down")
    source = scene.answers.promql("rdma-ports-down")
    hosts = max(1, len(scene.context.hosts))
    down: dict[str, set[str]] = {}
    for where, _ in table:
        down.setdefault(where.device or "", set()).add(where.host)
    unused = {device for device, on in down.items() if hosts > 1 and len(on) > max(1, hosts // 2)}
    count = 0
    for where, row in table:
        first = next(iter(present(table, row)), None)
        if first is None:
            continue
        before = first.start <= scene.window.start + max(table.step_s, 60.0)
        if before and where.device in unused:
            continue
        count += 1
        text = f"port {where.device} is not active" + (
            " and was not when the job began" if before else ""
        )
        record.row(
            "port-down", True, text, [where.host], 0.0, "", "rdma-ports-down", device=where.device
        )
        record.observe(
            "port-down",
            "rdma-port-down",
            [Evidence(source, text, 0.0, first.start)],
            where.host,
            first.start,
            Confidence.CONFIRMED,
            Severity.WARNING if before else None,
            device=where.device,
            until=first.end,
            recovered=_over(scene, first),
            uncertainty_s=table.step_s,
            before_job=before,
        )
    if unused:
        names = ", ".join(sorted(unused))
        record.row("port-unused", True, f"{names}: down on most hosts all along, so not in use")
    if not count:
        record.row("port-down", False, "no port went down", question="rdma-ports-down")
        record.rule_out("rdma-port-down", "no RDMA port went down on any host")


def _retransmits(scene: Scene, record: Record) -> list[tuple[str, str]]:
    """Retransmits and ACK timeouts, by host and port, with what training did meanwhile."""
    if _missing(scene, record, "rdma-retransmits", "rdma-retransmits"):
        return []
    table = scene.table("rdma-retransmits")
    found = [one for one in rdma.events(scene) if one.notable]
    first: dict[str, list[rdma.Event]] = {}
    for one in found:
        first.setdefault(one.host, []).append(one)
    bad = []
    for host, own in first.items():
        worst = max(own, key=lambda one: (one.span.sustained, one.span.peak))
        serious = _is_serious(scene, own)
        begin = next((one for one in own if one.span.sustained or serious), worst)
        text = _told(worst)
        record.row(
            "rdma-retransmits",
            True,
            text,
            [host],
            worst.span.peak,
            "packets/s",
            "rdma-retransmits",
            device=worst.device,
        )
        sources = [Evidence(scene.answers.promql("rdma-retransmits"), text, worst.span.peak)]
        if any(one.timeouts_per_s for one in own):
            highest = max(one.timeouts_per_s for one in own)
            sources.append(
                Evidence(scene.answers.promql("rdma-timeouts"), "ACK timeouts/s", highest)
            )
        record.observe(
            "rdma-retransmits",
            "rdma-degraded",
            sources,
            host,
            begin.span.start,
            _certainty(own),
            None if serious else Severity.INFO,
            device=worst.device,
            until=own[-1].span.end,
            recovered=_over(scene, own[-1].span),
            uncertainty_s=table.step_s,
            facts={"peak_per_s": worst.span.peak},
        )
        if serious:
            bad.append((host, "sustained retransmits" if worst.span.sustained else "retransmits"))
    if not first:
        record.row(
            "rdma-retransmits", False, "no retransmits beyond noise", question="rdma-retransmits"
        )
        record.rule_out("rdma-degraded", f"no RDMA retransmits on {len(table.hosts)} hosts")
    return bad


def _is_serious(scene: Scene, own: list[rdma.Event]) -> bool:
    """More than a burst that nothing followed."""
    if any(one.span.sustained and one.span.peak >= rdma.BURST_PER_S for one in own):
        return True
    if any(rdma.is_slower(one.slower) for one in own):
        return True
    return any(before_stall(scene, one.span) for one in own)


def before_stall(scene: Scene, span: Span) -> bool:
    """A burst just before steps stopped."""
    stall = scene.stall
    if stall is None:
        return False
    near = stall.start - _BEFORE_STALL_S <= span.end and span.start <= stall.start + _INTO_STALL_S
    return near and span.peak >= rdma.BURST_PER_S


def _certainty(own: list[rdma.Event]) -> Confidence:
    """The recovery test decides: the same cause brings the same effect and takes it away."""
    if any(rdma.is_slower(one.slower) and one.came_back for one in own):
        return Confidence.CONFIRMED
    if any(one.came_back is False for one in own):
        return Confidence.POSSIBLE
    timed_out = any(one.timeouts_per_s > 0 for one in own)
    return (
        Confidence.LIKELY
        if timed_out or any(o.span.sustained for o in own)
        else Confidence.POSSIBLE
    )


def _told(event: rdma.Event) -> str:
    parts = [f"{event.span.peak:.1f} packets/s retransmitted at most"]
    parts.append("sustained" if event.span.sustained else "in a burst")
    if event.timeouts_per_s:
        parts.append(f"up to {event.timeouts_per_s:.2f} ACK timeouts/s: cable, port or switch")
    if event.slower is not None:
        parts.append(f"throughput {-100 * event.slower:+.0f} % meanwhile")
    if event.came_back is not None:
        parts.append("back within two steps" if event.came_back else "not back after it ended")
    return ", ".join(parts)


def _phases(scene: Scene, record: Record) -> None:
    """Does throughput go with the retransmits, host after host?"""
    found = [one for one in rdma.events(scene) if one.notable]
    if not found:
        return
    table = scene.table("rdma-retransmits")
    stretches = [(e.span.start - table.step_s, e.span.end - table.span_s) for e in found]
    slower = rdma.slowdown(scene, stretches)
    if slower is None:
        record.row("phases", None, "no throughput during retransmits and without them to compare")
        return
    hosts = tuple(dict.fromkeys(one.host for one in found))
    holds = rdma.is_slower(slower)
    text = f"throughput is {-100 * slower:+.1f} % while hosts retransmit, against the other steps"
    record.row("phases", holds, text, hosts, 100 * slower, "%", "training")
    back = [one.came_back for one in found if one.came_back is not None]
    if back:
        told = "comes back within two steps" if all(back) else "does not come back: another cause"
        record.row("recovery", all(back), f"throughput {told}", hosts, question="training")
    else:
        record.row("recovery", None, "no retransmits ended in time to see throughput after them")


def _congestion(scene: Scene, record: Record) -> list[str]:
    """Congestion notifications: on many nodes it is the switch."""
    if _missing(scene, record, "congestion", "rdma-cnp"):
        return []
    table = scene.table("rdma-cnp")
    usual = middle(table.values.ravel()) or 0.0
    floor = max(_CNP_PER_S, _CNP_FACTOR * usual)
    found = {
        where.host: next((s for s in above(table, row, floor) if s.sustained), None)
        for where, row in table
    }
    spans = {host: span for host, span in found.items() if span is not None}
    if not spans:
        text = f"no port above {floor:.0f} notifications/s (usual: {usual:.1f})"
        record.row("congestion", False, text, question="rdma-cnp", value=usual, unit="packets/s")
        record.rule_out("network-congestion", text)
        return []
    many = len(spans) >= max(_MANY_HOSTS, _MANY_SHARE * len(table.hosts))
    text = f"{len(spans)} of {len(table.hosts)} hosts: " + (
        "the switch is congested, look at its ECN settings" if many else "their path is congested"
    )
    peak = max(span.peak for span in spans.values())
    record.row("congestion", True, text, sorted(spans), peak, "packets/s", "rdma-cnp")
    groups = {None: min(spans.values(), key=lambda s: s.start)} if many else dict(spans.items())
    for host, span in groups.items():
        record.observe(
            "congestion",
            "network-congestion",
            [Evidence(scene.answers.promql("rdma-cnp"), text, span.peak, span.peak_time)],
            host,
            span.start,
            Confidence.LIKELY,
            until=span.end,
            recovered=_over(scene, span),
            uncertainty_s=table.step_s,
        )
    return sorted(spans)


def _tcp(scene: Scene, record: Record, rdma_hosts: set[str]) -> list[str]:
    """TCP retransmits outside saves; alone they are storage or coordination."""
    if _missing(scene, record, "tcp-retransmits", "tcp-retransmits"):
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
            recovered=_over(scene, span),
            uncertainty_s=table.step_s,
        )
    return only


def _tcp_errors(scene: Scene, record: Record) -> None:
    """Connections that timed out or were reset, and a server that cannot accept."""
    if _missing(scene, record, "tcp-aborts", "tcp-errors"):
        return
    table, source = scene.table("tcp-errors"), scene.answers.promql("tcp-errors")
    aborts = {hit.where.host: hit for hit in _hits(table, TCP_ABORTS)}
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
            recovered=_over(scene, hit.span),
            uncertainty_s=table.step_s,
        )
    if not aborts:
        record.row("tcp-aborts", False, "no connection timed out", question="tcp-errors")
    resets = [hit for hit in _hits(table, TCP_RESETS) if hit.where.host not in aborts]
    for hit in resets[:_NAMED]:
        text = f"{hit.total:.0f} connections reset and none timed out: the other side closed them"
        record.row("tcp-resets", True, text, [hit.where.host], hit.total, "", "tcp-errors")
    if not resets:
        # Exporters that read the field from the wrong file always say 0.
        record.row("tcp-resets", None, "no resets counted, which some exporters cannot")
    refused = [hit for metric in LISTEN for hit in _hits(table, metric)]
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


def _nic(scene: Scene, record: Record) -> None:
    """Errors that network cards count."""
    if _missing(scene, record, "nic-errors", "nic-errors"):
        return
    table = scene.table("nic-errors")
    hits = list(_hits(table))
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


def _collectives(scene: Scene, record: Record) -> None:
    """Where the card counts collectives apart: their share of retransmitted packets."""
    table = scene.table("rdma-collectives")
    for where, row in table:
        highest = float(np.nanmax(row)) if not np.isnan(row).all() else 0.0
        if highest > 0:
            text = f"{100 * highest:.3f} % of the collectives' own packets were sent again"
            record.row("collectives", True, text, [where.host], highest, "", "rdma-collectives")
