"""EXPLAIN: what a job's log and its series show -> what caused what, and one verdict.

A correlated symptom is never the verdict, nor is anything that came after what it should explain. A
cause may stand on one host and be felt on others, because collectives wait for the slowest. Where
nothing explains a failure, the verdict says what failed; where not all was seen, it is not healthy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Optional

from raydiag import catalog
from raydiag.explain import diagnosis
from raydiag.explain.causes import causes, certainty, ordered, rank
from raydiag.model import Chain, Confidence, Coverage, Diagnosis, Finding, Severity
from raydiag.playbooks.observations import Observation, RuledOut

HEALTHY, UNKNOWN = "healthy", "unknown"
_FAILING = ("failed", "hanging", "cancelled")


@dataclass(frozen=True)
class JobVerdict:
    """The one answer. `failure_class` is a class id, `healthy`, or `unknown`."""

    failure_class: str
    summary: str
    confidence: Confidence
    hosts: tuple[str, ...] = ()
    gpus: tuple[tuple[str, int], ...] = ()
    devices: tuple[tuple[str, str], ...] = ()
    onset: Optional[float] = None
    uncertainty_s: Optional[float] = None
    recovered: bool = False
    kill_time: Optional[float] = None  # of oom-host
    pattern: Optional[str] = None  # of oom-host: leak, spike, checkpoint, all-nodes


@dataclass(frozen=True)
class JobCase:
    """All that a verdict rests on."""

    observations: Sequence[Observation]  # of the log, the playbooks, the observability stack
    coverage: Coverage
    status: str = "unknown"  # of the job, by triage
    primary: Optional[str] = None  # class that triage names
    last_step_at: Optional[float] = None
    step_time_s: Optional[float] = None
    ruled_out: Sequence[RuledOut] = ()
    told: bool = True  # False: not even the status of the job is known
    log_only: str = ""  # why there are no series; "" where there are


@dataclass(frozen=True)
class Explained:
    """The verdict, with everything that was found in the order in which it hangs together."""

    verdict: JobVerdict
    diagnosis: Diagnosis
    ruled_out: tuple[RuledOut, ...] = ()
    observations: tuple[Observation, ...] = field(default=())  # in the order of the findings


def explain(case: JobCase) -> Explained:
    """Findings in causal order, and one verdict."""
    observed = ordered(case.observations)
    findings = [one.finding for one in observed]
    parents = causes(observed, case.step_time_s)
    chains = [_in_time(chain) for chain in diagnosis.chains(findings, parents)]
    by_finding = {id(one.finding): one for one in observed}
    chosen = _chosen(chains, by_finding, case)
    if chosen is not None:
        chains = [chosen, *(one for one in chains if one is not chosen)]
    listed = [finding for chain in chains for finding in chain.findings]
    verdict = _verdict(chosen, chains, by_finding, case)
    return Explained(
        verdict,
        Diagnosis(listed, chains, case.coverage),
        tuple(one for one in case.ruled_out if one.failure_class != verdict.failure_class),
        tuple(by_finding[id(finding)] for finding in listed),
    )


def exit_code(explained: Explained, case: JobCase) -> int:
    """1: a problem was found; 3: none, but not everything could be seen or told; 0: all is well."""
    if any(one.severity is not Severity.INFO for one in explained.diagnosis.findings):
        return 1
    return 0 if case.coverage.complete and case.told else 3


def _in_time(chain: Chain) -> Chain:
    """Root first, then by onset; what has no date comes last."""
    root, *others = chain.findings
    known = catalog.failures()

    def moment(one: Finding) -> tuple[bool, float, int]:
        # Of one moment, what can have more effects is nearer to the root.
        reach = len(known[one.failure_class].can_cause)
        return one.onset is None, one.onset or 0.0, -reach

    return Chain((root, *sorted(others, key=moment)), chain.confidence)


def _chosen(
    chains: Sequence[Chain], observed: dict[int, Observation], case: JobCase
) -> Optional[Chain]:
    """The chain whose root is the verdict; None when there is nothing that could be one."""

    def weight(chain: Chain) -> tuple[int, bool, bool, int, float]:
        root = observed[id(chain.findings[0])]
        return (
            _tier(root, alone=len(chain.findings) == 1),
            not _explains_failure(chain, case),
            root.recovered,
            -rank(root.finding),
            root.finding.onset if root.finding.onset is not None else float("inf"),
        )

    sick = case.status in ("failed", "hanging")
    able = [one for one in chains if _may_be_root(observed[id(one.findings[0])], sick)]
    return min(able, key=weight, default=None)


def _may_be_root(observation: Observation, sick: bool = False) -> bool:
    """Remarks stay without a verdict, and what watches a job has not made it fail or hang."""
    found = observation.finding
    if sick and catalog.failure(found.failure_class).of_monitoring:
        return False
    return found.severity is not Severity.INFO


def _tier(root: Observation, alone: bool) -> int:
    """Causes first; a symptom without cause or effect later; what watches the job last."""
    name = root.finding.failure_class
    if catalog.failure(name).of_monitoring:
        return 3
    if name == "tgs-degradation":
        return 2
    return int((_is_symptom(root) and alone) or bool(root.facts.get("cleared")))


def _is_symptom(one: Observation) -> bool:
    return one.symptom or catalog.failure(one.finding.failure_class).symptom


def _explains_failure(chain: Chain, case: JobCase) -> bool:
    """Whether what the job died of, or hangs in, is part of it."""
    if case.status not in _FAILING and case.primary is None:
        return True
    if case.primary is None:
        return any(catalog.failure(one.failure_class).hang for one in chain.findings)
    ends = (case.primary, *catalog.failure(case.primary).ends)
    return any(finding.failure_class in ends for finding in chain.findings)


def _verdict(
    chosen: Optional[Chain],
    chains: Sequence[Chain],
    observed: dict[int, Observation],
    case: JobCase,
) -> JobVerdict:
    if chosen is None:
        return _without_cause(chains, case)
    root = observed[id(chosen.findings[0])]
    name = root.finding.failure_class
    alike = [root]
    for chain in chains:
        other = observed[id(chain.findings[0])]
        same = other is not root and other.finding.failure_class == name
        if same and other.before_job == root.before_job and _may_be_root(other):
            alike.append(other)
    found = [one.finding for one in alike]
    first = min(alike, key=lambda one: (one.finding.onset is None, one.finding.onset or 0.0))
    onset = first.finding.onset
    if catalog.failure(name).hang and onset is None:
        onset = case.last_step_at
    confidence = root.finding.confidence
    if _is_symptom(root) or (case.log_only and not catalog.failure(name).of_monitoring):
        confidence = min(confidence, Confidence.LIKELY, key=certainty)
    hosts = tuple(sorted({one.host for one in found if one.host is not None}))
    pattern, kill_time = _memory(alike)
    return JobVerdict(
        name,
        _sentence(root.finding, hosts, chosen, case),
        confidence,
        hosts,
        tuple(sorted({(f.host, f.gpu) for f in found if f.host and f.gpu is not None})),
        tuple(sorted({(f.host, f.device) for f in found if f.host and f.device})),
        onset,
        first.uncertainty_s or None,
        all(one.recovered for one in alike),
        kill_time,
        pattern,
    )


def _memory(alike: Iterable[Observation]) -> tuple[Optional[str], Optional[float]]:
    """Pattern, and time of the first kill."""
    facts = [one.facts for one in alike]
    patterns = [str(one["pattern"]) for one in facts if "pattern" in one]
    kills = [float(one["kill_time"]) for one in facts if "kill_time" in one]
    return (patterns[0] if patterns else None), min(kills, default=None)


def _without_cause(chains: Sequence[Chain], case: JobCase) -> JobVerdict:
    """Healthy only when all was seen and nothing is wrong."""
    problems = [
        finding
        for chain in chains
        for finding in chain.findings
        if finding.severity is not Severity.INFO
        and not catalog.failure(finding.failure_class).of_monitoring
    ]
    if problems:
        first = min(problems, key=lambda one: (one.onset is None, one.onset or 0.0))
        text = f"{first.title}, and nothing that was seen explains it."
        return JobVerdict(UNKNOWN, text, Confidence.POSSIBLE, onset=first.onset)
    if not case.told:
        text = "How the job stands is not known, and nothing wrong was found."
        return JobVerdict(UNKNOWN, text, Confidence.POSSIBLE)
    if case.status in ("failed", "hanging"):
        text = "The job failed, and neither its log nor its metrics say why."
        return JobVerdict(UNKNOWN, text, Confidence.POSSIBLE)
    if not case.coverage.complete:
        text = "Nothing wrong was found, but not everything could be seen."
        return JobVerdict(UNKNOWN, text, Confidence.POSSIBLE)
    if case.log_only:
        text = f"Nothing wrong in the job's log, which is all there is: {case.log_only}."
        return JobVerdict(HEALTHY, text, Confidence.LIKELY)
    return JobVerdict(HEALTHY, "Nothing is wrong; everything was seen.", Confidence.CONFIRMED)


def _sentence(root: Finding, hosts: Sequence[str], chain: Chain, case: JobCase) -> str:
    where = f" on {', '.join(hosts[:4])}" if hosts else ""
    more = f" and {len(hosts) - 4} more" if len(hosts) > 4 else ""
    effects = dict.fromkeys(one.title for one in chain.findings[1:] if one.title != root.title)
    then = f" It accounts for: {'; '.join(effects)}." if effects else ""
    only = f" By the log alone: {case.log_only}." if case.log_only else ""
    return f"{root.title}{where}{more}.{then}{only}"
