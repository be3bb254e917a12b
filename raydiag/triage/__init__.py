"""JUDGE: what a job's logs say -> status, failure class, first cause, progress, what was lost.

Pure functions over `joblog.facts.JobFacts`. A wrong cause is worse than none: where nothing
decides, the answer is "unknown", with what was seen.
"""

import importlib
import inspect
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any

from raydiag.joblog.facts import JobFacts
from raydiag.model import Chain, Diagnosis, Finding, Severity
from raydiag.triage import details
from raydiag.triage.attempts import attempts, main_log
from raydiag.triage.decision import TriageOutcome, examined
from raydiag.triage.findings import findings
from raydiag.triage.progress import project
from raydiag.triage.status import decide
from raydiag.triage.story import story
from raydiag.triage.verdict import JobStatus, Moment, Verdict


class _CallablePackage(ModuleType):
    """This package hides the API's function of its name once it has been imported: it stands in."""

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return _api_function()(*arguments, **keywords)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(_api_function())

    def __reduce__(self) -> tuple[Any, ...]:
        return importlib.import_module, (__name__,)


def _api_function() -> Any:
    return importlib.import_module("raydiag.api").triage


importlib.import_module(__name__).__class__ = _CallablePackage

_LIVE = (JobStatus.RUNNING, JobStatus.HANGING)


def judge(facts: JobFacts, moment: Moment) -> Verdict:
    """The verdict on one job, at one moment."""
    progress = project(facts, moment.now)
    case = examined(facts, moment, progress)
    outcome = decide(case)
    sentences = story(case, outcome)
    reported = findings(case, outcome, sentences)
    if outcome.stall is not None and outcome.stall.basis != "wall time":
        progress = replace(progress, stalled_s=outcome.stall.since_s)
    live = outcome.status in _LIVE
    runs = [*_earlier_runs(facts), (facts, outcome)]
    return Verdict(
        resolved=facts.resolved,
        log=main_log(facts),
        job_id=facts.resolved.job_id or facts.header.job_id,
        job_name=facts.header.job_name or facts.resolved.name,
        status=outcome.status,
        primary=outcome.primary,
        stage=details.stage(facts, outcome),
        cascade=outcome.cascade,
        rule=outcome.rule,
        story=sentences,
        progress=progress,
        tasks=details.tasks(facts),
        diagnosis=Diagnosis(reported, _chains(reported, outcome), details.coverage(facts)),
        origin=outcome.origin.match if outcome.origin is not None else None,
        tunnels=facts.dashboards.tunnels,
        dashboards=details.dashboards(facts, live),
        live=live,
        phase=case.phase,
        attempts=attempts(facts, runs, moment),
        notes=tuple(details.notes(case)),
        next_steps=tuple(reported[0].next_steps) if outcome.primary else (),
    )


def exit_code(verdict: Verdict) -> int:
    """1: a problem was found; 3: none, but not everything could be seen or decided; 0: healthy."""
    diagnosis = verdict.diagnosis
    if any(finding.severity is not Severity.INFO for finding in diagnosis.findings):
        return 1
    is_decided = verdict.status is not JobStatus.UNKNOWN
    if is_decided and diagnosis.coverage.complete:
        return 0
    return 3


def _earlier_runs(facts: JobFacts) -> Iterator[tuple[JobFacts, TriageOutcome]]:
    """Earlier attempts and what was decided on each."""
    for run in facts.attempts:
        # Of an attempt that another one followed, it is known that it ended.
        moment = Moment(run.last_time, alive=False, source="a later attempt")
        yield run, decide(examined(run, moment, project(run, run.last_time)))


def _chains(reported: Sequence[Finding], outcome: TriageOutcome) -> list[Chain]:
    """The cascade is one chain; what it does not explain stands alone."""
    linked = [finding for finding in reported if finding.failure_class in outcome.cascade]
    chains = [Chain(tuple(linked), outcome.confidence)] if linked else []
    for finding in reported:
        if finding not in linked:
            chains.append(Chain((finding,), finding.confidence))
    return chains
