"""Playbook: is the network, above all RDMA, what slows or stops training?

TCP alone never is: it carries storage and coordination, not collectives.
"""

from __future__ import annotations

import numpy as np

from raydiag.model import Confidence, Evidence, Severity
from raydiag.playbooks import rdma, tcp
from raydiag.playbooks.observations import Exclusion, ObservationRecorder, Report
from raydiag.playbooks.queries import CQE, RETRY
from raydiag.playbooks.spans import above, growths, present
from raydiag.playbooks.timeline import RunTimeline, middle

ID, TITLE, ANALYSIS = "network-health", "Network health", "network-health"
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
_CNP_PER_S, _CNP_FACTOR = 100.0, 10.0
_MANY_SHARE, _MANY_HOSTS = 0.3, 3
_SPARE_NODES = 2  # TCP-only nodes are worth no more spares


def run(scene: RunTimeline, record: ObservationRecorder) -> Report:
    """Every row; findings for what is wrong beyond noise."""
    hosts: dict[int, list[tuple[str, str]]] = {1: [], 2: [], 3: [], 4: []}
    hosts[1] += [(one, "retries exhausted") for one in _errors(scene, record)]
    _ports(scene, record)
    happened = _retransmits(scene, record)
    hosts[2] += happened
    hosts[3] += [(one, "congestion notifications") for one in _congestion(scene, record)]
    only = tcp.retransmits(scene, record, {host for host, _ in happened})
    hosts[4] += [(one, "TCP retransmits only; keep it unless spares abound") for one in only]
    _phases(scene, record)
    tcp.connections(scene, record)
    tcp.cards(scene, record)
    _collectives(scene, record)
    clear = not any(one.finding.severity is not Severity.INFO for one in record.observations)
    verdict = "No sign of a network fault." if clear else _sentence(record)
    return Report(
        ID, TITLE, ANALYSIS, record.window, QUESTIONS, tuple(record.rows), verdict, _order(hosts)
    )


def _sentence(record: ObservationRecorder) -> str:
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


def _errors(scene: RunTimeline, record: ObservationRecorder) -> list[str]:
    """Retries that ran out, and completions with an error."""
    if scene.undecided(record, "retry-exhausted", "rdma-errors"):
        return []
    table, source = scene.table("rdma-errors"), scene.answers.promql("rdma-errors")
    lost = list(growths(table, RETRY))
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
            recovered=scene.over(hit.span),
            uncertainty_s=table.step_s,
        )
    if not lost:
        record.row(
            "retry-exhausted", False, "no request ran out of retries", question="rdma-errors"
        )
        record.rule_out("rdma-retry-exhausted", "no request ran out of retries on any host")
    failed = [
        hit for hit in growths(table, CQE) if hit.where.host not in {h.where.host for h in lost}
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
            recovered=scene.over(hit.span),
            uncertainty_s=table.step_s,
        )
    if not failed:
        record.row(
            "completion-errors", False, "no further completion errors", question="rdma-errors"
        )
    return list(dict.fromkeys(hit.where.host for hit in lost))


def _ports(scene: RunTimeline, record: ObservationRecorder) -> None:
    """A port that is not active; one that nobody uses is down everywhere."""
    if scene.undecided(record, "port-down", "rdma-ports-down"):
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
            recovered=scene.over(first),
            uncertainty_s=table.step_s,
            before_job=before,
        )
    if unused:
        names = ", ".join(sorted(unused))
        record.row("port-unused", True, f"{names}: down on most hosts all along, so not in use")
    if not count:
        record.row("port-down", False, "no port went down", question="rdma-ports-down")
        record.rule_out("rdma-port-down", "no RDMA port went down on any host")


def _retransmits(scene: RunTimeline, record: ObservationRecorder) -> list[tuple[str, str]]:
    """Retransmits and ACK timeouts, by host and port, with what training did meanwhile."""
    if scene.undecided(record, "rdma-retransmits", "rdma-retransmits"):
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
            recovered=scene.over(own[-1].span),
            uncertainty_s=table.step_s,
            facts={"peak_per_s": worst.span.peak, "cleared": float(_cleared(scene, own))},
        )
        if serious:
            bad.append((host, "sustained retransmits" if worst.span.sustained else "retransmits"))
    if not first:
        record.row(
            "rdma-retransmits", False, "no retransmits beyond noise", question="rdma-retransmits"
        )
        record.rule_out("rdma-degraded", f"no RDMA retransmits on {len(table.hosts)} hosts")
    return bad


def _is_serious(scene: RunTimeline, own: list[rdma.Event]) -> bool:
    """More than a burst that nothing followed."""
    if any(one.span.sustained and one.span.peak >= rdma.BURST_PER_S for one in own):
        return True
    if any(rdma.is_slower(one.slower) for one in own):
        return True
    return any(rdma.before_stall(scene, one.span) for one in own)


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


def _cleared(scene: RunTimeline, own: list[rdma.Event]) -> bool:
    """Whether throughput stayed low after they ended, so that something else keeps it there."""
    back = [one.came_back for one in own if one.came_back is not None]
    return bool(back) and not any(back) and not any(rdma.before_stall(scene, o.span) for o in own)


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


def _phases(scene: RunTimeline, record: ObservationRecorder) -> None:
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


def _congestion(scene: RunTimeline, record: ObservationRecorder) -> list[str]:
    """Congestion notifications: on many nodes it is the switch."""
    if scene.undecided(record, "congestion", "rdma-cnp"):
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
            Severity.WARNING,  # sustained, so it may have slowed or stopped the job
            until=span.end,
            recovered=scene.over(span),
            uncertainty_s=table.step_s,
        )
    return sorted(spans)


def _collectives(scene: RunTimeline, record: ObservationRecorder) -> None:
    """Where the card counts collectives apart: their share of retransmitted packets."""
    table = scene.table("rdma-collectives")
    for where, row in table:
        highest = float(np.nanmax(row)) if not np.isnan(row).all() else 0.0
        if highest > 0:
            text = f"{100 * highest:.3f} % of the collectives' own packets were sent again"
            record.row("collectives", True, text, [where.host], highest, "", "rdma-collectives")
