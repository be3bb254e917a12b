"""EXPLAIN: a cluster at one moment -> what is wrong, what caused what, and what was not seen.

What the rules find is merged first, so that each fault is one finding.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import replace
from operator import attrgetter

from raydiag import catalog, model
from raydiag.catalog.completion import complete
from raydiag.explain.chains import chains
from raydiag.explain.merge import fault_of, merge
from raydiag.explain.names import Names
from raydiag.model import Coverage, Diagnosis, Finding, HostUnread, Snapshot, Status
from raydiag.rules import judge
from raydiag.rules.machines import machine_names, machines
from raydiag.rules.nodes import NODE_TABLE, departed
from raydiag.rules.ranks import Ranks

_UNSEEN = (Status.DENIED, Status.TIMEOUT, Status.ERROR)
NODES = "nodes"
# Each names the rank that is late, and none knows of the others: logs, flight recorder, RAS.
_LATE_WITNESSES = frozenset({"stragglers", "late_by_recorder", "late_by_ras"})
_STRAGGLER, _MOST_DOUBTS = "straggler", 2
_LATE = "hang"  # as a note: no step for longer than usual


def explain(snapshot: Snapshot) -> Diagnosis:
    """Judge a snapshot and put what was found in order."""
    collected = filter(None, map(attrgetter("collected_at"), snapshot.nodes))
    window = model.Window(snapshot.time, max(collected, default=snapshot.time))
    return of_findings(judge_nodes(snapshot), coverage(snapshot, window))


def of_findings(findings: Iterable[Finding], covered: Coverage) -> Diagnosis:
    """Findings of nodes, or of one kernel log, completed, in order and in chains."""
    ordered = complete(findings)
    observations = [model.Observation(finding, NODES, finding.failure_class) for finding in ordered]
    return Diagnosis(ordered, chains(observations), covered)


def exit_code(diagnosis: Diagnosis) -> int:
    """1: a problem was found; 3: none, but not everything was seen; 0: none, all seen.

    Whether a job goes on whose next step is late is not seen.
    """
    if diagnosis.problems:
        return 1
    is_late = _LATE in map(attrgetter("failure_class"), diagnosis.findings)
    return 0 if diagnosis.coverage.complete and not is_late else 3


def coverage(snapshot: Snapshot, window: model.Window | None = None) -> Coverage:
    """What the answer rests on. A dead node that rejoined, or that Ray ended, is not missed."""
    absent = departed(snapshot)
    expected = [report for report in snapshot.nodes if report.node.node_id not in absent]
    blind = tuple(_blind_nodes(expected))
    # Several Ray nodes of one machine miss the same file.
    unread: dict[tuple[str, str, str], HostUnread] = {}
    for report in expected:
        for source in _unread_sources(report):
            unread.setdefault((*report.node.machine, source.source), source)
    answered = len(expected) - len(blind)
    return Coverage(len(expected), answered, blind, tuple(unread.values()), window)


def _blind_nodes(reports: Iterable[model.NodeReport]) -> Iterator[model.Blind]:
    """Nodes that did not answer, with the reason."""
    for report in reports:
        if report.status not in (model.NodeStatus.OK, model.NodeStatus.PARTIAL):
            reasons = (report.status.value, report.reason or report.node.death_reason)
            yield model.Blind(report.node.host, ": ".join(filter(None, reasons)))


def _unread_sources(report: model.NodeReport) -> Iterator[HostUnread]:
    """Stuck sources first: they say more than the timeout that they caused.

    A probe as a whole stands in only where no source of its own says as much.
    """
    host = report.node.host
    for reader in report.stuck:
        symbol = f" in {reader.wchan}" if reader.wchan else ""
        reason = f"reader {reader.pid} has been stuck{symbol} for {reader.seconds:.0f} s"
        yield HostUnread(host, reader.source, Status.TIMEOUT, reason)
    stuck_probes = set(map(attrgetter("probe"), report.stuck))
    for result in report.probes.values():
        if _stands_for_its_sources(result) and result.probe not in stuck_probes:
            yield HostUnread(host, result.probe, result.status, result.reason)
        for source in result.unread:
            if source.status in _UNSEEN:
                yield HostUnread(host, source.source, source.status, source.reason)


def _stands_for_its_sources(result: model.ProbeResult) -> bool:
    """Whether a probe failed in a way that none of its sources tells."""
    is_told = result.status in map(attrgetter("status"), result.unread)
    return result.status in _UNSEEN and not is_told


def judge_nodes(snapshot: Snapshot) -> list[Finding]:
    """Every finding that the records of a snapshot support, each fault once, not yet completed."""
    names = Names(snapshot)
    addresses = {name: machine for machine, name in machine_names(snapshot).items()}
    ranks = {machine.name: Ranks(machine, snapshot) for machine in machines(snapshot)}
    observations = [
        model.Observation(names.named(finding), NODES, rule) for rule, finding in judge(snapshot)
    ]
    signs = _signs(observations)
    accused = _accused(observations)
    findings = []
    for merged in merge(observations, by_process=True):
        finding = merged.finding
        weighed = _weighed(finding, signs.get(fault_of(finding, by_process=True), set()))
        weighed = _as_witnessed(weighed, accused)
        placed = _with_address(_with_rank(names.named(weighed), ranks), addresses)
        findings.append(placed)
    return findings if snapshot.known is None else _as_known(findings, snapshot)


def _as_known(findings: Iterable[Finding], snapshot: Snapshot) -> list[Finding]:
    """With what earlier probes say of each, as a resident agent remembers it."""
    by_key = {known.key: known for known in snapshot.known or ()}
    told = []
    for finding in findings:
        is_new = model.KnownFinding(*finding.key, "", snapshot.time, snapshot.time, times=0)
        told.append(replace(finding, known=by_key.get(finding.key, is_new)))
    return told


def _with_rank(finding: Finding, ranks: Mapping[str, Ranks]) -> Finding:
    """What is wrong with a GPU, with the rank that runs on it and its last step, in one line."""
    of_host = ranks.get(finding.host or "")
    rank = of_host.on_gpu(finding.gpu) if of_host and finding.gpu is not None else None
    if rank is None or finding.task not in (None, rank.task):
        return finding
    text = f"GPU {finding.gpu} ({finding.device}) of {finding.host} runs {rank.text} ({rank.why})"
    evidence = (model.Evidence(f"/proc/{rank.pid}", text), *finding.evidence)
    return replace(finding, task=rank.task, evidence=evidence)


def _signs(observations: list[model.Observation]) -> Mapping[Hashable, set[str]]:
    """By fault the rules that show it; a hint is no sign."""
    signs: dict[Hashable, set[str]] = {}
    for observation in observations:
        if observation.finding.confidence is not model.Confidence.POSSIBLE:
            fault = fault_of(observation.finding, by_process=True)
            signs.setdefault(fault, set()).add(observation.row)
    return signs


def _weighed(finding: Finding, signs: set[str]) -> Finding:
    """Some classes need two independent signs, as kernel log and stuck tasks, to be confirmed."""
    if not catalog.failure(finding.failure_class).needs_two_signs:
        return finding
    if len(signs) > 1:
        return replace(finding, confidence=model.Confidence.CONFIRMED)
    return replace(finding, confidence=finding.confidence.at_most(model.Confidence.LIKELY))


def _accused(observations: Iterable[model.Observation]) -> Mapping[str, list[Finding]]:
    """By witness of late ranks whom it names."""
    accused: dict[str, list[Finding]] = {}
    for observation in observations:
        if observation.row in _LATE_WITNESSES:
            accused.setdefault(observation.row, []).append(observation.finding)
    return accused


def _as_witnessed(finding: Finding, accused: Mapping[str, list[Finding]]) -> Finding:
    """A late rank is confirmed by a second witness, and doubtful where that names others only."""
    if finding.failure_class != _STRAGGLER or not accused:
        return finding
    naming, others = set(), []
    for witness, findings in accused.items():
        if any(_is_same_rank(finding, each) for each in findings):
            naming.add(witness)
        else:
            others += findings
    if len(naming) > 1:
        return replace(finding, confidence=model.Confidence.CONFIRMED)
    if not naming or not others:
        return finding
    doubt = [_contradiction(other) for other in others[:_MOST_DOUBTS]]
    confidence = finding.confidence.at_most(model.Confidence.POSSIBLE)
    return replace(finding, confidence=confidence, evidence=(*finding.evidence, *doubt))


def _is_same_rank(finding: Finding, other: Finding) -> bool:
    """Of one host, unless both name a process, which then must be the same."""
    if finding.host != other.host:
        return False
    return None in (finding.pid, other.pid) or finding.pid == other.pid


def _contradiction(other: Finding) -> model.Evidence:
    """What another witness says, as evidence against a finding."""
    who = " on ".join(filter(None, (other.task or "a rank", other.host)))
    sign = next(iter(other.evidence), model.Evidence("another witness"))
    return replace(sign, text=f"contradicts: {who} is late: {sign.text}")


def _with_address(finding: Finding, addresses: Mapping[str, tuple[str, str]]) -> Finding:
    """The finding with its short host name; where machines share that, with the address as well."""
    if finding.host is None or finding.host not in addresses:
        return finding
    host, address = addresses[finding.host]
    if finding.host == host:
        return finding
    text = f"this is {host} at {address}; another machine has the same name"
    evidence = (model.Evidence(NODE_TABLE, text), *finding.evidence)
    return replace(finding, host=host, address=address, evidence=evidence)
