"""All that is known of a job -> what caused what, and one verdict.

`choice` finds the cause; what has none is `healthy`, if all could be seen and the job is known to
go well, else `unknown` with the reason (`_without_cause`).

A correlated symptom is never the verdict, nor is anything that came after what it should explain. A
cause may be on one host and be felt on others, because collectives wait for the slowest.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

from raydiag import catalog
from raydiag.explain.choice import (
    Candidate,
    CauseChain,
    Choice,
    alone,
    cause_chains,
    choose,
    dated_first,
    findings_of,
    is_beside_the_job,
    is_problem,
    is_symptom,
    observations_of,
)
from raydiag.explain.diagnosis import NODES
from raydiag.explain.job_case import JobCase
from raydiag.model import Confidence, Diagnosis, Finding, Observation
from raydiag.playbooks.observations import RuledOut
from raydiag.rules.grades import confirmed_if

__all__ = ["Explained", "JobCase", "JobVerdict", "exit_code", "explain"]

HEALTHY, UNKNOWN = "healthy", "unknown"
_HOSTS_NAMED = 4


@dataclass(frozen=True)
class JobVerdict:
    """The one answer. `failure_class` is a class id, `healthy`, or `unknown`."""

    failure_class: str
    summary: str
    confidence: Confidence
    hosts: tuple[str, ...] = ()
    gpus: tuple[tuple[str, int], ...] = ()
    devices: tuple[tuple[str, str], ...] = ()
    onset: float | None = None
    uncertainty_s: float | None = None
    recovered: bool = False
    kill_time: float | None = None  # of oom-host
    pattern: str | None = None  # of oom-host: leak, spike, checkpoint, all-nodes


@dataclass(frozen=True)
class Explained:
    """The verdict, with everything that was found in the order in which it hangs together."""

    verdict: JobVerdict
    diagnosis: Diagnosis
    ruled_out: tuple[RuledOut, ...] = ()
    observations: tuple[Observation, ...] = field(default=())  # in the order of the findings
    candidates: tuple[
        Candidate, ...
    ] = ()  # the cause and its best rival, where it explains something


def explain(case: JobCase) -> Explained:
    """Findings in causal order, and one verdict."""
    asides = case.asides
    if not case.is_broken and not any(map(is_problem, case.observations)):
        # Nothing else is wrong: then a node that needs repair is the answer.
        case = replace(case, observations=(*case.observations, *asides), asides=())
        asides = ()
    ordered, ruled_out = cause_chains(case), list(case.ruled_out)
    choice = choose(ordered, case)
    candidates: tuple[Candidate, ...] = ()
    if choice is None:
        verdict = _without_cause(ordered, case)
    else:
        candidates = tuple(choice.best_two())
        ordered = [choice.chosen, *choice.others]
        verdict = _verdict(choice, case)
        ruled_out[:0] = choice.rejected()
    ordered += map(alone, asides)
    observations = tuple(observations_of(ordered))
    chained = list(map(attrgetter("chain"), ordered))
    diagnosis = Diagnosis(findings_of(observations), chained, case.coverage)
    others = [out for out in ruled_out if out.failure_class != verdict.failure_class]
    return Explained(verdict, diagnosis, tuple(others), observations, candidates)


def exit_code(explained: Explained) -> int:
    """1: a problem was found; 3: none, but not everything could be seen or told; 0: healthy."""
    if explained.diagnosis.problems:
        return 1
    is_told = explained.verdict.failure_class != UNKNOWN and explained.diagnosis.coverage.complete
    return 0 if explained.verdict.failure_class == HEALTHY or is_told else 3


# ---- what is said of it


def _verdict(choice: Choice, case: JobCase) -> JobVerdict:
    """The root's class, with all places and times where it is the cause."""
    root, alike = choice.chosen.root, choice.alike
    first = min(alike, key=dated_first)
    findings = findings_of(alike)
    on_hosts = [finding for finding in findings if finding.host is not None]
    hosts = tuple(sorted(set(map(attrgetter("host"), on_hosts))))
    onset = first.finding.onset
    if onset is None and catalog.failure(root.finding.failure_class).hang:
        onset = case.last_step_at
    return JobVerdict(
        root.finding.failure_class,
        _summary(choice.chosen, hosts, case),
        _confidence(choice.chosen, case).at_most(choice.limit),
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


def _confidence(chosen: CauseChain, case: JobCase) -> Confidence:
    """That of the root, as far as the sources allow."""
    root = chosen.root
    confidence, entry = root.finding.confidence, catalog.failure(root.finding.failure_class)
    if entry.slow:
        return Confidence.POSSIBLE  # it is slower, and nobody knows why
    is_notice = entry.late_notice or entry.mechanism  # of what was not seen
    if is_notice or is_symptom(root) or (case.log_only and not is_beside_the_job(root)):
        confidence = confidence.at_most(Confidence.LIKELY)
    if entry.of_monitoring and not case.told:
        confidence = confidence.at_most(Confidence.LIKELY)  # the job may have died of something
    if entry.hang and any(map(_may_have_ended_first, chosen.observations[1:])):
        confidence = confidence.at_most(Confidence.LIKELY)
    has_effects = len(chosen.observations) > 1
    is_undated_cause = has_effects and root.finding.onset is None
    if root.playbook == NODES and (is_undated_cause or case.shared_cluster):
        # It may be older than what it explains, or of a node that is another job's.
        return Confidence.POSSIBLE
    return confidence


def _may_have_ended_first(effect: Observation) -> bool:
    """The log's first error is how a process ended, and has no time: it may have come first."""
    is_how = catalog.failure(effect.finding.failure_class).mechanism
    return is_how and effect.finding.onset is None and bool(effect.facts.get("first_in_log"))


def _summary(chosen: CauseChain, hosts: Sequence[str], case: JobCase) -> str:
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


def _without_cause(ordered: Iterable[CauseChain], case: JobCase) -> JobVerdict:
    """Healthy only when all was seen and nothing is wrong."""
    unexplained = [
        observation
        for observation in observations_of(ordered)
        if is_problem(observation) and not is_beside_the_job(observation)
    ]
    if unexplained:
        first = min(unexplained, key=dated_first).finding
        text = f"{first.title}, and nothing that was seen explains it."
        return replace(_unknown(text), onset=first.onset)
    if case.primary not in (None, case.status):
        return _of_note(ordered, case)
    if not case.told:
        return _unknown("The status of the job is not known, and nothing wrong was found.")
    if case.is_broken:
        return _unknown("The job failed, and neither its log nor its metrics say why.")
    if case.is_late:
        return _unknown(_lateness(case))
    if not case.coverage.complete:
        return _unknown("Nothing wrong was found, but not everything could be seen.")
    if case.is_cut_undated and not case.log_only:
        return _unknown("The job was cancelled; whether it had stalled, no dated step tells.")
    return _healthy(case)


def _of_note(ordered: Iterable[CauseChain], case: JobCase) -> JobVerdict:
    """What the log tells of the end is no problem: it came after all was done."""
    for observation in observations_of(ordered):
        finding = observation.finding
        if finding.failure_class == case.primary:
            text = f"{finding.title}. {finding.explanation}"
            return JobVerdict(case.primary, text, finding.confidence, onset=finding.onset)
    return _unknown("The job failed, and neither its log nor its metrics say why.")


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
        if case.status == "cancelled" and case.silent_s is None:
            text = "Nothing is wrong; when the last step was is known within minutes."
            return JobVerdict(HEALTHY, text, Confidence.LIKELY)
        return JobVerdict(HEALTHY, "Nothing is wrong; everything was seen.", Confidence.CONFIRMED)
    text = f"Nothing is wrong {' and '.join(_places(case))}"
    confidence = confirmed_if(not case.log_only)
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
