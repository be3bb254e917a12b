"""All that is known of a job -> what caused what, and one verdict.

How a verdict is chosen:

1. Findings of all sources are merged (`merge`) and put in chains of cause and effect (`chains`).
2. The root of the best chain is the verdict (`_chosen`): a cause before a symptom, a chain that
   explains why the job failed before one that does not, and what watches the job last. What is
   only worth a note is no verdict.
3. Without such a chain it is `healthy`, if all could be seen and the job is known to go well, else
   `unknown` with the reason (`_without_cause`).

A correlated symptom is never the verdict, nor is anything that came after what it should explain. A
cause may be on one host and be felt on others, because collectives wait for the slowest.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, Optional

from raydiag import catalog
from raydiag.catalog.completion import completed, order, severity_of
from raydiag.explain.chains import Reach, chains
from raydiag.explain.merge import merge, with_most_specific
from raydiag.explain.node_findings import NODES
from raydiag.model import Chain, Confidence, Coverage, Diagnosis, Finding, Observation, Severity
from raydiag.playbooks.observations import RuledOut

HEALTHY, UNKNOWN = "healthy", "unknown"
_BROKEN = ("failed", "hanging")
_ENDED_BADLY = (*_BROKEN, "cancelled")
_HOSTS_NAMED = 4
_LATE_STEPS, _LATE_S = 10.0, 30.0  # a step later than that is no sign of health


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

    observations: Sequence[Observation]  # of the log, the playbooks, the nodes, the monitoring
    coverage: Coverage
    status: str = "unknown"  # of the job, by triage
    primary: Optional[str] = None  # class that triage names
    last_step_at: Optional[float] = None
    step_time_s: Optional[float] = None  # the usual one
    silent_s: Optional[float] = None  # from the last step to now, or to the end of the job
    ruled_out: Sequence[RuledOut] = ()
    told: bool = True  # False: not even the status of the job is known
    no_log: str = ""  # why there is no log; "" where there is one
    no_metrics: str = ""  # why there are no series; "" where there are
    of_cluster: bool = False  # the nodes of a live cluster were probed
    shared_cluster: bool = False  # other jobs run there, and which nodes are this one's is unknown
    asides: Sequence[Observation] = ()  # true of the nodes, and no cause of what the job does

    @property
    def log_only(self) -> str:
        """Why the log is all there is; "" where it is not."""
        return "" if self.of_cluster else self.no_metrics

    @property
    def is_late(self) -> bool:
        """Whether the next step did not come when it should have."""
        limit_s = max(_LATE_STEPS * (self.step_time_s or 0.0), _LATE_S)
        return self.silent_s is not None and self.silent_s > limit_s

    @property
    def is_broken(self) -> bool:
        """Whether the job failed or hangs."""
        return self.status in _BROKEN


@dataclass(frozen=True)
class Explained:
    """The verdict, with everything that was found in the order in which it hangs together."""

    verdict: JobVerdict
    diagnosis: Diagnosis
    ruled_out: tuple[RuledOut, ...] = ()
    observations: tuple[Observation, ...] = field(default=())  # in the order of the findings


@dataclass(frozen=True)
class _CauseChain:
    """Observations as cause and effects, the root first."""

    observations: Sequence[Observation]
    confidence: Confidence

    @property
    def root(self) -> Observation:
        """The cause."""
        return self.observations[0]

    @property
    def findings(self) -> list[Finding]:
        """The findings, the root first."""
        return _findings(self.observations)

    @property
    def chain(self) -> Chain:
        """The same as a plain chain of findings."""
        return Chain(tuple(self.findings), self.confidence)


def explain(case: JobCase) -> Explained:
    """Findings in causal order, and one verdict."""
    asides = case.asides
    if not case.is_broken and not any(map(_is_problem, case.observations)):
        # Nothing else is wrong: then a node that needs repair is the answer.
        case = replace(case, observations=(*case.observations, *asides), asides=())
        asides = ()
    ordered = _cause_chains(case)
    chosen = _chosen(ordered, case)
    if chosen is not None:
        ordered = [chosen, *(chain for chain in ordered if chain is not chosen)]
    verdict = _verdict(chosen, ordered, case) if chosen else _without_cause(ordered, case)
    ordered += map(_alone, asides)
    observations = tuple(_observations(ordered))
    chained = list(map(attrgetter("chain"), ordered))
    diagnosis = Diagnosis(_findings(observations), chained, case.coverage)
    of_others = [out for out in case.ruled_out if out.failure_class != verdict.failure_class]
    return Explained(verdict, diagnosis, tuple(of_others), observations)


def _observations(ordered: Iterable[_CauseChain]) -> Iterator[Observation]:
    return itertools.chain.from_iterable(map(attrgetter("observations"), ordered))


def _findings(observations: Iterable[Observation]) -> list[Finding]:
    return list(map(attrgetter("finding"), observations))


def exit_code(explained: Explained) -> int:
    """1: a problem was found; 3: none, but not everything could be seen or told; 0: healthy."""
    if explained.diagnosis.problems:
        return 1
    return 0 if explained.verdict.failure_class == HEALTHY else 3


# ---- chains


def _cause_chains(case: JobCase) -> list[_CauseChain]:
    """One finding for each fault, in chains; those with the most severe finding come first."""
    merged = list(map(_completed, with_most_specific(merge(case.observations))))
    merged.sort(key=lambda observation: order(observation.finding))
    by_finding = {id(observation.finding): observation for observation in merged}
    reach = Reach(of_job=True, step_time_s=case.step_time_s)
    return [_in_time(chain, by_finding) for chain in chains(merged, reach)]


def _in_time(chain: Chain, by_finding: Mapping[int, Observation]) -> _CauseChain:
    """Root first, then by onset; what has no date comes last."""
    root, *effects = chain.findings
    effects.sort(key=_time_order)
    return _CauseChain([by_finding[id(finding)] for finding in (root, *effects)], chain.confidence)


def _time_order(finding: Finding) -> tuple[bool, float, int]:
    """Of one moment, what can have more effects is nearer to the root."""
    reach = len(catalog.failure(finding.failure_class).can_cause)
    return finding.onset is None, finding.onset or 0.0, -reach


def _completed(observation: Observation) -> Observation:
    return replace(observation, finding=completed(observation.finding))


def _alone(aside: Observation) -> _CauseChain:
    return _CauseChain([_completed(aside)], aside.finding.confidence)


# ---- which chain


def _chosen(candidates: Sequence[_CauseChain], case: JobCase) -> Optional[_CauseChain]:
    """The chain whose root is the verdict; None when there is nothing that could be one."""

    def weight(chain: _CauseChain) -> tuple[int, bool, bool, int, bool, float]:
        root = chain.root
        return (
            _tier(chain),
            not _explains_failure(chain, case),
            root.recovered,
            -severity_of(root.finding).rank,
            *_dated_first(root),
        )

    able = [chain for chain in candidates if _may_be_verdict(chain.root, case)]
    return min(able, key=weight, default=None)


def _may_be_verdict(root: Observation, case: JobCase) -> bool:
    """Notes never are, and what watches a job has not made it fail or hang."""
    return _is_problem(root) and not (case.is_broken and _is_of_monitoring(root))


def _tier(chain: _CauseChain) -> int:
    """0: a cause; 1: a symptom alone, or what ended; 2: a slow job; 3: what watches the job."""
    if _is_of_monitoring(chain.root):
        return 3
    if chain.root.finding.failure_class == "tgs-degradation":
        return 2
    is_lone_symptom = _is_symptom(chain.root) and len(chain.observations) == 1
    return int(is_lone_symptom or bool(chain.root.facts.get("cleared")))


def _is_symptom(observation: Observation) -> bool:
    return observation.symptom or catalog.failure(observation.finding.failure_class).symptom


def _is_of_monitoring(observation: Observation) -> bool:
    return catalog.failure(observation.finding.failure_class).of_monitoring


def _is_problem(observation: Observation) -> bool:
    return severity_of(observation.finding) is not Severity.INFO


def _explains_failure(chain: _CauseChain, case: JobCase) -> bool:
    """Whether what the job died of, or hangs in, is part of it."""
    if case.primary is not None:
        ends = {case.primary, *catalog.failure(case.primary).ends}
        return not ends.isdisjoint(map(attrgetter("failure_class"), chain.findings))
    if case.status not in _ENDED_BADLY:
        return True
    return any(catalog.failure(finding.failure_class).hang for finding in chain.findings)


# ---- what is said of it


def _verdict(chosen: _CauseChain, ordered: Iterable[_CauseChain], case: JobCase) -> JobVerdict:
    """The root's class, with all places and times where it is the root of a chain."""
    root = chosen.root
    alike = _alike(root, ordered)
    first = min(alike, key=_dated_first)
    findings = _findings(alike)
    on_hosts = [finding for finding in findings if finding.host is not None]
    hosts = tuple(sorted(set(map(attrgetter("host"), on_hosts))))
    onset = first.finding.onset
    if onset is None and catalog.failure(root.finding.failure_class).hang:
        onset = case.last_step_at
    return JobVerdict(
        root.finding.failure_class,
        _summary(chosen, hosts, case),
        _confidence(chosen, case),
        hosts,
        _parts(on_hosts, "gpu"),
        _parts(on_hosts, "device"),
        onset,
        first.uncertainty_s or None,
        all(map(attrgetter("recovered"), alike)),
        min(map(float, _facts(alike, "kill_time")), default=None),
        next(map(str, _facts(alike, "pattern")), None),
    )


def _parts(on_hosts: Iterable[Finding], attribute: str) -> tuple[tuple[str, Any], ...]:
    """Host and GPU, or host and device, of the findings that name one."""
    places = set(map(attrgetter("host", attribute), on_hosts))
    return tuple(sorted((host, part) for host, part in places if host and part not in (None, "")))


def _facts(alike: Iterable[Observation], name: str) -> Iterator[float | str]:
    """Values of one fact, of the observations that have it."""
    for observation in alike:
        if name in observation.facts:
            yield observation.facts[name]


def _alike(root: Observation, ordered: Iterable[_CauseChain]) -> list[Observation]:
    """The root, and the roots of other chains that are the same fault elsewhere."""
    kind = (root.finding.failure_class, root.before_job)
    alike = [root]
    for candidate in map(attrgetter("root"), ordered):
        candidate_kind = (candidate.finding.failure_class, candidate.before_job)
        if candidate is not root and candidate_kind == kind and _is_problem(candidate):
            alike.append(candidate)
    return alike


def _dated_first(observation: Observation) -> tuple[bool, float]:
    return observation.finding.onset is None, observation.finding.onset or 0.0


def _confidence(chosen: _CauseChain, case: JobCase) -> Confidence:
    """That of the root, as far as the sources allow."""
    root = chosen.root
    confidence = root.finding.confidence
    if _is_symptom(root) or (case.log_only and not _is_of_monitoring(root)):
        confidence = confidence.at_most(Confidence.LIKELY)
    has_effects = len(chosen.observations) > 1
    is_undated_cause = has_effects and root.finding.onset is None
    if root.playbook == NODES and (is_undated_cause or case.shared_cluster):
        # It may be older than what it explains, or of a node that is another job's.
        return Confidence.POSSIBLE
    return confidence


def _summary(chosen: _CauseChain, hosts: Sequence[str], case: JobCase) -> str:
    title, *effects = dict.fromkeys(map(attrgetter("title"), chosen.findings))
    summary: str = title
    if hosts:
        summary += f" on {', '.join(hosts[:_HOSTS_NAMED])}"
    if len(hosts) > _HOSTS_NAMED:
        summary += f" and {len(hosts) - _HOSTS_NAMED} more"
    summary += "."
    if effects:
        summary += f" It caused: {'; '.join(effects)}."
    if case.log_only:
        summary += f" By the log alone: {case.log_only}."
    return summary


# ---- without a cause


def _without_cause(ordered: Iterable[_CauseChain], case: JobCase) -> JobVerdict:
    """Healthy only when all was seen and nothing is wrong."""
    unexplained = [
        observation
        for observation in _observations(ordered)
        if _is_problem(observation) and not _is_of_monitoring(observation)
    ]
    if unexplained:
        first = min(unexplained, key=_dated_first).finding
        text = f"{first.title}, and nothing that was seen explains it."
        return replace(_unknown(text), onset=first.onset)
    if not case.told:
        return _unknown("The status of the job is not known, and nothing wrong was found.")
    if case.is_broken:
        return _unknown("The job failed, and neither its log nor its metrics say why.")
    if case.is_late:
        return _unknown(_lateness(case))
    if not case.coverage.complete:
        return _unknown("Nothing wrong was found, but not everything could be seen.")
    return _healthy(case)


def _lateness(case: JobCase) -> str:
    usual = f"; a step takes usually {case.step_time_s:.3g} s" if case.step_time_s else ""
    if case.status == "cancelled":
        return f"The job was cancelled {case.silent_s:.0f} s after its last step{usual}."
    return f"The last step was {case.silent_s:.0f} s ago{usual}, and nothing explains it."


def _unknown(text: str) -> JobVerdict:
    return JobVerdict(UNKNOWN, text, Confidence.POSSIBLE)


def _healthy(case: JobCase) -> JobVerdict:
    """Healthy, as certain as the sources allow: what was not there to be read proves nothing."""
    if not case.of_cluster and not case.no_log:
        if case.log_only:
            text = f"Nothing wrong in the job's log, which is all there is: {case.log_only}."
            return JobVerdict(HEALTHY, text, Confidence.LIKELY)
        return JobVerdict(HEALTHY, "Nothing is wrong; everything was seen.", Confidence.CONFIRMED)
    text = f"Nothing is wrong {' and '.join(_places(case))}"
    confidence = Confidence.LIKELY if case.log_only else Confidence.CONFIRMED
    if case.status == "idle":
        return JobVerdict(HEALTHY, f"{text}; no job runs here.", confidence)
    missing = []
    if case.no_log:
        missing.append(f"no log: {case.no_log}")
    if case.no_metrics:
        missing.append(f"no metrics: {case.no_metrics}")
    if not missing:
        return JobVerdict(HEALTHY, f"{text}.", confidence)
    return JobVerdict(HEALTHY, f"{text}; there is {'; '.join(missing)}.", Confidence.LIKELY)


def _places(case: JobCase) -> Iterable[str]:
    """Where nothing is wrong."""
    if case.of_cluster:
        number = case.coverage.answered
        yield f"on {number} node{'' if number == 1 else 's'}"
    if not case.no_metrics:
        yield "in the metrics"
    if not case.no_log:
        yield "in the job's log"
