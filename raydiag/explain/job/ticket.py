"""What a report on a job decides besides the verdict: where to read on, what triage is worth."""

from collections.abc import Sequence
from enum import Enum
from functools import cache

from raydiag import catalog
from raydiag.explain import verdict
from raydiag.explain.job import ExaminedJob
from raydiag.model import Confidence, Finding
from raydiag.playbooks.observations import Report
from raydiag.triage.verdict import JobStatus
from raydiag.tsdb.series import AskedQuery

# Causes in the job's own software: reading its source is the next step.
_IN_SOFTWARE = frozenset(
    ("rccl-communicator-leak", "rccl-hang", "thread-oversubscription", "unknown")
)
_LOG_ONLY, _JOB_HEALTH = "log only", "job health"


class Correlation(Enum):
    """How the verdict relates to what triage said by the log alone."""

    NO_LOG = "there is no log"
    LOG_ALONE = "there is nothing but the log"
    NO_FAILURE = "the log shows no failure"
    CONFIRMED = "the verdict is what triage said"
    EXPLAINED = "what triage said is a consequence of the verdict"
    CONTRADICTED = "the verdict is confirmed and speaks against triage"
    UNCONFIRMED = "what was seen does not show what triage said"


def asked_queries(examined: ExaminedJob) -> Sequence[AskedQuery]:
    """Everything that Prometheus was asked; empty without metrics."""
    return examined.metrics.asked if examined.metrics is not None else ()


def playbook_reports(examined: ExaminedJob) -> Sequence[Report]:
    """What each playbook found that is to be shown; empty without metrics."""
    return examined.metrics.reports if examined.metrics is not None else ()


def verdict_chain(examined: ExaminedJob) -> Sequence[Finding]:
    """What the verdict led to, the verdict's own finding first; empty where it has none."""
    chains = examined.explained.diagnosis.chains
    root = examined.explained.verdict.failure_class
    if not chains or chains[0].findings[0].failure_class != root:
        return ()
    return chains[0].findings


def next_steps(examined: ExaminedJob) -> Sequence[str]:
    """Those of the verdict's root; of the most severe problem where there is none."""
    leading = [*verdict_chain(examined), *examined.explained.diagnosis.problems]
    return leading[0].next_steps if leading else ()


def analysis_type(examined: ExaminedJob) -> str:
    """That of the playbook that observed the verdict's root, such as `hang` or `hardware`."""
    observations = examined.explained.observations
    if verdict_chain(examined) and observations:
        for report in playbook_reports(examined):
            if report.playbook == observations[0].playbook:
                return report.analysis
    return _LOG_ONLY if examined.log_only else _JOB_HEALTH


def needs_source_trace(examined: ExaminedJob) -> bool:
    """Whether the cause is in the job's software, so that its source is to be read."""
    return examined.explained.verdict.failure_class in _IN_SOFTWARE


def correlation(examined: ExaminedJob) -> Correlation:
    """Compare the verdict with what triage said."""
    verdict, primary = examined.explained.verdict, examined.triage.primary
    if examined.no_log:
        return Correlation.NO_LOG
    if examined.log_only and examined.nodes is None:
        return Correlation.LOG_ALONE
    if primary is None:
        return Correlation.NO_FAILURE
    if primary == verdict.failure_class:
        return Correlation.CONFIRMED
    if any(finding.failure_class == primary for finding in verdict_chain(examined)):
        return Correlation.EXPLAINED
    if verdict.confidence is Confidence.CONFIRMED and verdict.failure_class != "unknown":
        return Correlation.CONTRADICTED
    return Correlation.UNCONFIRMED


@cache
def own_words() -> frozenset[str]:
    """Classes and statuses. A job or a host may be called so; then these stay what they are."""
    names = {status.value for status in JobStatus} | catalog.failures().keys()
    return frozenset(names | {verdict.HEALTHY, verdict.UNKNOWN, "idle"})
