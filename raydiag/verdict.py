"""EXPLAIN: what a job's log and its series show -> what caused what, and one verdict.

A correlated symptom is never the verdict, nor is anything that came after what it should explain. A
cause may stand on one host and be felt on others, because collectives wait for the slowest. Where
nothing explains a failure, the verdict says what failed; where not all was seen, it is not healthy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Optional

from raydiag import catalog, diagnosis
from raydiag.model import Chain, Confidence, Coverage, Diagnosis, Finding, Severity
from raydiag.playbooks.observed import Observation, RuledOut

HEALTHY, UNKNOWN = "healthy", "unknown"
_FAILING = ("failed", "hanging", "cancelled")
_HANGS = ("rccl-hang", "hang")

# What follows from something else until that is ruled out, and explains nothing by itself.
SYMPTOMS = frozenset(
    {
        "gpu-power-outlier",
        "gpu-clock-drop",
        "gpu-underutilised",
        "tgs-degradation",
        "tcp-retransmits",
        "vram-pressure",
        "checkpoint-effect",
    }
)
# Shown by hosts that wait for another one: the cause may be elsewhere.
_FELT_BY_PEERS = frozenset(
    {
        "gpu-power-outlier",
        "gpu-clock-drop",
        "gpu-underutilised",
        "tcp-retransmits",
        "tcp-aborts",
        "rdma-degraded",
        "rdma-retry-exhausted",
        "network-congestion",
    }
)
# About what watches the job, not about the job.
OBSERVABILITY = frozenset(
    {
        "tsdb-empty",
        "tsdb-gap",
        "tsdb-wrong-job",
        "exporter-down",
        "exporter-plugin-timeout",
        "exporter-plugin-skipped",
        "exporter-restarting",
        "ghost-data",
        "tb-bridge-gap",
        "ray-metrics-missing",
        "host-missing",
    }
)
# Of one device at one time the first says more than the second, which is its evidence.
_MORE_SPECIFIC = (
    ("rdma-port-down", "rdma-retry-exhausted"),
    ("rdma-port-down", "rdma-degraded"),
    ("rdma-retry-exhausted", "rdma-degraded"),
    ("pcie-fatal", "pcie-degraded"),
    ("gpu-memory-error", "gpu-memory-degrading"),
)
_OVER_S = 600.0  # what ended so long before an effect did not cause it
_NEAR_S = 120.0  # causes that are all so near to an effect are told apart by how grave they are
_SLACK_S = 60.0  # times of one event differ by so much between sources


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
class Case:
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


def explain(case: Case) -> Explained:
    """Findings in causal order, and one verdict."""
    observed = _ordered(case.observations)
    findings = [one.finding for one in observed]
    causes = [_cause(index, observed, case) for index in range(len(observed))]
    chains = [_in_time(chain) for chain in diagnosis.chains(findings, causes)]
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


def exit_code(explained: Explained, case: Case) -> int:
    """1: a problem was found; 3: none, but not everything could be seen or told; 0: all is well."""
    if any(one.severity is not Severity.INFO for one in explained.diagnosis.findings):
        return 1
    return 0 if case.coverage.complete and case.told else 3


def _ordered(observations: Iterable[Observation]) -> list[Observation]:
    """Completed, one for each fault and place, the gravest and earliest first."""
    best: dict[tuple[object, ...], Observation] = {}
    for one in observations:
        one = replace(one, finding=diagnosis.filled(one.finding))
        found = one.finding
        key = (found.failure_class, found.host, found.gpu, found.device)
        known = best.get(key)
        best[key] = one if known is None else _merged(known, one)
    return sorted(_specific(best.values()), key=lambda one: diagnosis.order(one.finding))


def _specific(observations: Iterable[Observation]) -> list[Observation]:
    """One fault of one device is one finding, of the class that says most about it."""
    left = list(observations)
    for special, general in _MORE_SPECIFIC:
        for one in [o for o in left if o.finding.failure_class == special]:
            same = [
                other
                for other in left
                if other.finding.failure_class == general
                and _place(other.finding) == _place(one.finding)
                and other.before_job == one.before_job
            ]
            for other in same:
                left.remove(other)
                left[left.index(one)] = one = _absorbed(one, other)
    return left


def _place(finding: Finding) -> tuple[object, ...]:
    return finding.host, finding.gpu, finding.device


def _absorbed(one: Observation, other: Observation) -> Observation:
    """The specific one, dated from the first sign, with the evidence of both."""
    onsets = [o.finding.onset for o in (one, other) if o.finding.onset is not None]
    evidence = (*one.finding.evidence, *other.finding.evidence)
    finding = replace(one.finding, onset=min(onsets, default=None), evidence=evidence)
    return replace(one, finding=finding, uncertainty_s=max(one.uncertainty_s, other.uncertainty_s))


def _merged(one: Observation, other: Observation) -> Observation:
    """Two that mean the same, as a log and a series do: the graver, with the evidence of both."""
    first, second = sorted((one, other), key=lambda o: diagnosis.order(o.finding))
    finding = first.finding
    onsets = [o.finding.onset for o in (one, other) if o.finding.onset is not None]
    extra = [item for item in second.finding.evidence if item not in finding.evidence]
    sure = max(first.finding.confidence, second.finding.confidence, key=_certainty)
    finding = replace(
        finding,
        onset=min(onsets, default=None),
        evidence=(*finding.evidence, *extra),
        confidence=sure,
    )
    return replace(
        first,
        finding=finding,
        recovered=one.recovered and other.recovered,
        facts={**second.facts, **first.facts},
    )


def _certainty(confidence: Confidence) -> int:
    return list(Confidence).index(confidence)


def _cause(index: int, observed: Sequence[Observation], case: Case) -> Optional[int]:
    """Position of what most likely caused a finding; None for a root."""
    effect = observed[index]
    able = [
        number
        for number, cause in enumerate(observed)
        if number != index and _can_cause(cause, effect, case)
    ]
    return min(able, key=lambda number: _distance(observed[number], effect), default=None)


def _can_cause(cause: Observation, effect: Observation, case: Case) -> bool:
    """Whether class, place and time allow it."""
    one, other = cause.finding, effect.finding
    if other.failure_class not in catalog.failures()[one.failure_class].can_cause:
        return False
    if cause.before_job and not effect.before_job:
        return False  # the job went well with it
    here = one.host is None or other.host is None or one.host == other.host
    if not here and other.failure_class not in _FELT_BY_PEERS:
        return False
    apart = one.gpu is not None and other.gpu is not None and one.gpu != other.gpu
    if here and apart and other.failure_class not in SYMPTOMS:
        return False
    if one.onset is None or other.onset is None:
        return True
    slack = max(cause.uncertainty_s, effect.uncertainty_s, _SLACK_S)
    if other.failure_class in _HANGS:
        slack += case.step_time_s or 0.0  # a hang dates from the last step, its cause from the next
    if one.onset > other.onset + slack:
        return False
    return cause.until is None or not cause.recovered or cause.until >= other.onset - _OVER_S


def _distance(cause: Observation, effect: Observation) -> tuple[bool, float, int, float]:
    """Sorts causes: dated, near, grave, then the earlier one."""
    one, other = cause.finding, effect.finding
    if one.onset is None or other.onset is None:
        return one.onset is None, 0.0, -_rank(one), one.onset or 0.0
    moments = [one.onset, float(cause.facts.get("kill_time", one.onset))]
    apart = min(abs(other.onset - moment) for moment in moments)
    return False, apart if apart > _NEAR_S else 0.0, -_rank(one), one.onset


def _rank(finding: Finding) -> int:
    return (finding.severity or Severity.WARNING).rank


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
    chains: Sequence[Chain], observed: dict[int, Observation], case: Case
) -> Optional[Chain]:
    """The chain whose root is the verdict; None when there is nothing that could be one."""

    def weight(chain: Chain) -> tuple[int, bool, bool, int, float]:
        root = observed[id(chain.findings[0])]
        return (
            _tier(root, alone=len(chain.findings) == 1),
            not _explains_failure(chain, case),
            root.recovered,
            -_rank(root.finding),
            root.finding.onset if root.finding.onset is not None else float("inf"),
        )

    able = [one for one in chains if _may_be_root(observed[id(one.findings[0])])]
    return min(able, key=weight, default=None)


def _may_be_root(observation: Observation) -> bool:
    """Remarks stay without a verdict."""
    return observation.finding.severity is not Severity.INFO


def _tier(root: Observation, alone: bool) -> int:
    """Causes first; a symptom without cause or effect later; what watches the job last."""
    name = root.finding.failure_class
    if name in OBSERVABILITY:
        return 3
    if name == "tgs-degradation":
        return 2
    return int(_is_symptom(root) and alone)


def _is_symptom(one: Observation) -> bool:
    return one.symptom or one.finding.failure_class in SYMPTOMS


def _explains_failure(chain: Chain, case: Case) -> bool:
    """Whether what the job died of, or hangs in, is part of it."""
    if case.status not in _FAILING and case.primary is None:
        return True
    ends = {case.primary, *_HANGS} if case.primary in _HANGS else {case.primary}
    if case.primary == "heartbeat-timeout":
        ends |= {"heartbeat-false-positive", *_HANGS}
    if case.primary is None or case.primary == "cancelled":
        ends |= set(_HANGS)
    return any(finding.failure_class in ends for finding in chain.findings)


def _verdict(
    chosen: Optional[Chain],
    chains: Sequence[Chain],
    observed: dict[int, Observation],
    case: Case,
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
    if name in _HANGS and onset is None:
        onset = case.last_step_at
    confidence = root.finding.confidence
    if _is_symptom(root) or (case.log_only and name not in OBSERVABILITY):
        confidence = min(confidence, Confidence.LIKELY, key=_certainty)
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


def _without_cause(chains: Sequence[Chain], case: Case) -> JobVerdict:
    """Healthy only when all was seen and nothing is wrong."""
    problems = [f for chain in chains for f in chain.findings if f.severity is not Severity.INFO]
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


def _sentence(root: Finding, hosts: Sequence[str], chain: Chain, case: Case) -> str:
    where = f" on {', '.join(hosts[:4])}" if hosts else ""
    more = f" and {len(hosts) - 4} more" if len(hosts) > 4 else ""
    effects = dict.fromkeys(one.title for one in chain.findings[1:] if one.title != root.title)
    then = f" It accounts for: {'; '.join(effects)}." if effects else ""
    only = f" By the log alone: {case.log_only}." if case.log_only else ""
    return f"{root.title}{where}{more}.{then}{only}"
