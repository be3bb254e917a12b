"""EXPLAIN: findings from everywhere -> what caused what, and what was not seen.

Pure functions over a snapshot and its findings; the catalog's `can_cause` edges are all it knows
about causes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Optional

from raydiag import catalog
from raydiag.model import (
    Blind,
    Chain,
    Confidence,
    Coverage,
    Diagnosis,
    Finding,
    HostUnread,
    NodeReport,
    NodeStatus,
    Severity,
    Snapshot,
    Status,
    Window,
)
from raydiag.rules import judge
from raydiag.rules.nodes import departed

_UNSEEN = (Status.DENIED, Status.TIMEOUT, Status.ERROR)
_CERTAINTY = (Confidence.POSSIBLE, Confidence.LIKELY, Confidence.CONFIRMED)


def explain(snapshot: Snapshot) -> Diagnosis:
    """Judge a snapshot and put what was found in order."""
    findings = complete(judge(snapshot))
    collected = [report.collected_at for report in snapshot.nodes if report.collected_at]
    window = Window(snapshot.time, max(collected, default=snapshot.time))
    return Diagnosis(findings, chains(findings), coverage(snapshot, window))


def exit_code(diagnosis: Diagnosis) -> int:
    """1: a problem was found; 3: none, but not everything was seen; 0: none, all seen."""
    if any(finding.severity is not Severity.INFO for finding in diagnosis.findings):
        return 1
    return 0 if diagnosis.coverage.complete else 3


def complete(findings: Iterable[Finding]) -> list[Finding]:
    """Findings with what the catalog knows of their class, the most severe and earliest first."""
    return sorted(map(filled, findings), key=order)


def classes() -> frozenset[str]:
    """Everything that can be found."""
    return frozenset(catalog.failures())


def filled(finding: Finding) -> Finding:
    """A finding with what the catalog knows of its class."""
    entry = catalog.failures()[finding.failure_class]
    return replace(
        finding,
        title=finding.title or entry.title,
        severity=finding.severity or entry.severity,
        explanation=finding.explanation or entry.explanation,
        next_steps=tuple(finding.next_steps or entry.next_steps),
    )


def coverage(snapshot: Snapshot, window: Optional[Window] = None) -> Coverage:
    """What the answer rests on. A dead node that rejoined, or that Ray ended, is not missed."""
    absent = departed(snapshot)
    wanted = [report for report in snapshot.nodes if report.node.node_id not in absent]
    reasons = [(report.node.host, _blind_reason(report)) for report in wanted]
    blind = [Blind(host, reason) for host, reason in reasons if reason]
    # Several Ray nodes of one machine miss the same file.
    unread: dict[tuple[str, str, str], HostUnread] = {}
    for report in wanted:
        for item in _unread(report):
            unread.setdefault((*report.node.machine, item.source), item)
    return Coverage(
        len(wanted), len(wanted) - len(blind), tuple(blind), tuple(unread.values()), window
    )


def _blind_reason(report: NodeReport) -> str:
    """Why nothing could be seen of a node; empty when it answered."""
    if report.status in (NodeStatus.OK, NodeStatus.PARTIAL):
        return ""
    told = report.reason or report.node.death_reason
    return f"{report.status.value}: {told}" if told else report.status.value


def _unread(report: NodeReport) -> Iterator[HostUnread]:
    """Stuck sources first: they say more than the timeout that they caused.

    A probe as a whole stands in only where no source of its own says as much.
    """
    host = report.node.host
    stuck = {reader.probe for reader in report.stuck}
    for reader in report.stuck:
        where = f" in {reader.wchan}" if reader.wchan else ""
        reason = f"reader {reader.pid} has been stuck{where} for {reader.seconds:.0f} s"
        yield HostUnread(host, reader.source, Status.TIMEOUT, reason)
    for result in report.probes.values():
        told = any(item.status == result.status for item in result.unread)
        if result.status in _UNSEEN and not told and result.probe not in stuck:
            yield HostUnread(host, result.probe, result.status, result.reason)
        for item in result.unread:
            if item.status in _UNSEEN:
                yield HostUnread(host, item.source, item.status, item.reason)


def chains(
    findings: Sequence[Finding], causes: Optional[Sequence[Optional[int]]] = None
) -> list[Chain]:
    """Completed, ordered findings as causes and effects: each in exactly one chain, root first.

    A root is what no other present finding could have caused. The chains stand in the order of
    their gravest finding, which need not be the root. `causes` are positions, where the caller
    knows more of times and places than the findings say.
    """
    causes = _causes(findings) if causes is None else causes
    effects: dict[Optional[int], list[int]] = {}
    for effect, cause in enumerate(causes):
        effects.setdefault(cause, []).append(effect)
    built: dict[int, Chain] = {}
    for root in effects.get(None, ()):
        members = [root]
        for member in members:  # grows as it is walked: what is nearest to the root comes first
            members.extend(effects.get(member, ()))
        built[min(members)] = _chain([findings[member] for member in members])
    return [built[gravest] for gravest in sorted(built)]


def _chain(members: Sequence[Finding]) -> Chain:
    """Without a time for each member, the order is a guess and the chain only possible."""
    confidence = min((member.confidence for member in members), key=_CERTAINTY.index)
    if len(members) > 1 and any(member.onset is None for member in members):
        confidence = Confidence.POSSIBLE
    return Chain(tuple(members), confidence)


def _causes(findings: Sequence[Finding]) -> list[Optional[int]]:
    """For each finding, the position of the one that most likely caused it; None for a root.

    Classes cannot cause each other in a circle (the catalog refuses that), so neither can these.
    """
    known = catalog.failures()
    on_machine: dict[tuple[Optional[str], Optional[str]], list[int]] = {}
    for index, finding in enumerate(findings):
        on_machine.setdefault((finding.host, finding.address), []).append(index)

    def best_cause(effect: Finding) -> Optional[int]:
        # A finding without a host concerns all of them.
        near: Sequence[int] = range(len(findings))
        if effect.host is not None:
            near = on_machine[effect.host, effect.address] + on_machine.get((None, None), [])
        able = [
            index
            for index in near
            if effect.failure_class in known[findings[index].failure_class].can_cause
            and not _is_later(findings[index], effect)
        ]
        return min(able, key=lambda index: _distance(findings[index], effect), default=None)

    return [best_cause(finding) for finding in findings]


def _is_later(cause: Finding, effect: Finding) -> bool:
    return cause.onset is not None and effect.onset is not None and cause.onset > effect.onset


def _distance(cause: Finding, effect: Finding) -> tuple[bool, bool, int, float]:
    """Sorts causes: of the same device, then dated, then graver, then earlier."""
    same_gpu = cause.gpu is not None and cause.gpu == effect.gpu
    same_device = cause.device is not None and cause.device == effect.device
    onset = float("inf") if cause.onset is None else cause.onset
    return not (same_gpu or same_device), cause.onset is None, -_rank(cause), onset


def order(finding: Finding) -> tuple[int, bool, float, str, str, str]:
    """Most severe first, then earliest (undated last), then by host; the rest keeps it stable."""
    onset = finding.onset
    return (
        -_rank(finding),
        onset is None,
        onset or 0.0,
        finding.host or "",
        finding.failure_class,
        finding.device or "",
    )


def _rank(finding: Finding) -> int:
    return (finding.severity or Severity.INFO).rank
