"""What all sources tell of one job, put together: the case that a verdict rests on."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import attrgetter

from raydiag.explain.driver_fault.signs import with_series
from raydiag.explain.job import nodes
from raydiag.explain.job.join import contradictions, join
from raydiag.explain.job.nodes import LiveNodes
from raydiag.explain.job.query import SeenMetrics
from raydiag.explain.job.request import DiagnosisRequest, TriagedJob
from raydiag.explain.job_case import JobCase
from raydiag.explain.names import by_name
from raydiag.explain.weighing import TRIAGE
from raydiag.model import Coverage, Diagnosis, Finding, HostUnread, Observation, Severity, Window
from raydiag.playbooks.observations import RuledOut
from raydiag.rules.progress import Pace
from raydiag.triage.verdict import JobStatus

_STALL_STEPS, _STALL_S = 10.0, 300.0
_UNDATED_S = 60.0  # how well an end without a time of its own is dated
_START_UP_S = 1200.0  # without a step so long, nobody knows yet whether it is well


def case_of(
    job: TriagedJob,
    metrics: SeenMetrics,
    request: DiagnosisRequest,
    probed: Diagnosis | None,
    recorded: Sequence[Observation] = (),
) -> JobCase:
    """All sources in one: what they tell, and what they leave open.

    `recorded`: what the job's own records of its collectives tell.
    """
    own_nodes = request.nodes
    paces = request.live.paces
    status = _status(job, metrics)
    if paces and status == "unknown" and request.no_log and job.moment.alive:
        status = "running"  # its workers have made steps; when, is judged below
    is_refuted = _is_refuted(job, status)
    hosts = metrics.metrics and metrics.metrics.discovery.hosts
    observations = by_name(
        (*_of_triage(job, metrics, is_refuted), *metrics.observations, *recorded), hosts or ()
    )
    began = _first_step_at(job, metrics)
    observations = [_history(observation, began) for observation in observations]
    coverage = _coverage(job, metrics, request)
    if probed is not None and own_nodes is not None:
        odds = (
            *contradictions(observations, own_nodes.snapshot),
            *nodes.unscraped(own_nodes, metrics.log_only),
        )
        coverage = _with_nodes(coverage, odds, metrics, request, own_nodes, probed)
        series = metrics.metrics.driver_signs if metrics.metrics is not None else ()
        of_nodes = with_series(nodes.observed(probed), series)
        observations = join(observations, of_nodes, own_nodes.snapshot)
    asides: list[Observation] = []
    if own_nodes is not None:
        asides = [aside for aside in observations if nodes.is_aside(aside, own_nodes)]
    is_idle = request.live.idle and status == "unknown"
    is_told = is_idle or (status != "unknown" and not _never_began(job, metrics, status))
    progress = job.triage.progress
    step_s = next((pace.step_s for pace in paces), None)
    return JobCase(
        observations=[observation for observation in observations if observation not in asides],
        coverage=coverage,
        status="idle" if is_idle else status,
        primary=None if is_refuted else job.triage.primary,
        last_step_at=_last_step_at(job, metrics),
        step_time_s=metrics.steps.step_time_s or progress.step_time_s or step_s,
        silent_s=_silent_s(job, metrics, status, paces),
        ruled_out=_ruled_out(metrics, is_refuted),
        told=is_told,
        no_log=request.no_log,
        no_metrics=metrics.log_only,
        of_cluster=own_nodes is not None,
        shared_cluster=request.live.unplaced,
        asides=asides,
    )


def _with_nodes(
    coverage: Coverage,
    odds: tuple[HostUnread, ...],
    metrics: SeenMetrics,
    request: DiagnosisRequest,
    own_nodes: LiveNodes,
    probed: Diagnosis,
) -> Coverage:
    """With the nodes that did not answer, and where nodes contradict their series."""
    missing = nodes.absent(own_nodes, request.nodelist)
    coverage = replace(coverage, unread=(*coverage.unread, *odds))
    of_series = metrics.coverage or Coverage(0, 0)
    return nodes.coverage(probed.coverage, of_series, coverage, own_nodes.hosts, missing)


# ---- the status of the job


def _status(job: TriagedJob, metrics: SeenMetrics) -> str:
    """Where the log alone does not tell, steps in the metrics say whether the job goes on.

    Steps up to the last sample show life only when that sample is of now; where they do, and
    samples end with them, it was no hang either.
    """
    status, moment = job.triage.status.value, job.moment
    steps, window = metrics.steps, metrics.window
    if job.has_ended or window is None or not len(steps):
        return status
    if "rccl-hang" in map(attrgetter("finding.failure_class"), metrics.observations):
        return "hanging"
    silent_s = window.end - (steps.last_at or window.start)
    if silent_s > max(_STALL_STEPS * (steps.step_time_s or 0.0), _STALL_S):
        return status
    if moment.log_end or moment.now is None or moment.now - window.end <= _STALL_S:
        return "running"
    return status if moment.alive else "unknown"


def _never_began(job: TriagedJob, metrics: SeenMetrics, status: str) -> bool:
    """It is said to run, and after so long there is not one step: it may be healthy or not."""
    if status != "running" or metrics.window is None or len(metrics.steps):
        return False
    waited_s = metrics.window.end - metrics.window.start
    return job.triage.progress.last_step is None and waited_s > _START_UP_S


def _first_step_at(job: TriagedJob, metrics: SeenMetrics) -> float | None:
    """By the metrics, where they have it, else by the power that GPUs drew."""
    first = job.triage.progress.first_step
    if len(metrics.steps) and (first is None or metrics.steps.numbers[0] <= first + _STALL_STEPS):
        return float(metrics.steps.ended_at[0])
    computed = metrics.metrics.context.trained if metrics.metrics is not None else None
    return computed.start if computed is not None else None


def _history(observation: Observation, began: float | None) -> Observation:
    """A note of what was over before the job's first step."""
    until = observation.until
    if not observation.recovered or until is None or began is None or until > began - _UNDATED_S:
        return observation
    return replace(observation, finding=replace(observation.finding, severity=Severity.INFO))


def _last_step_at(job: TriagedJob, metrics: SeenMetrics) -> float | None:
    """By the metrics, by the log, else by the power that GPUs drew."""
    if len(metrics.steps):
        return metrics.steps.last_at
    computed = metrics.metrics.context.trained if metrics.metrics is not None else None
    return job.triage.progress.last_step_time or (computed.end if computed is not None else None)


def _silent_s(
    job: TriagedJob, metrics: SeenMetrics, status: str, paces: Sequence[Pace]
) -> float | None:
    """From the last step to now, or to the end of the job; None where nobody can tell.

    What the workers' own files say now is newer than any log that is brought together.
    """
    if paces and status == "running":
        return paces[0].silent_s
    at = job.triage.progress.last_step_time
    if at is None or status not in ("running", "cancelled"):
        return None  # what the metrics know of steps comes minutes late
    last = max(at, metrics.steps.last_at or at)
    ends = [job.end if status == "running" else job.ended_at]
    if status == "running" and metrics.window is not None:
        ends.append(metrics.window.end)  # its nodes went on, whenever its log was copied
    end = max(filter(None, ends), default=None)
    return end - last if end is not None else None


def _is_refuted(job: TriagedJob, status: str) -> bool:
    """Whether the metrics speak against the hang that the log seems to show."""
    return job.triage.primary == "hang" and status in ("running", "unknown")


# ---- what triage found


def _of_triage(job: TriagedJob, metrics: SeenMetrics, is_refuted: bool) -> Iterator[Observation]:
    """What triage found, as observations; a hang that the metrics refute is none."""
    for finding in job.triage.diagnosis.findings:
        if finding.failure_class != "hang":
            first = {"first_in_log": 1.0} if finding.failure_class == job.triage.primary else {}
            dated = _dated_end(finding, job, metrics)
            # The log may tell of the end some steps late; how late, nobody says.
            unsure_s = _UNDATED_S * (dated is not finding)
            yield Observation(dated, TRIAGE, job.triage.rule, uncertainty_s=unsure_s, facts=first)
        elif not is_refuted:
            yield Observation(_dated_hang(finding, job, metrics), TRIAGE, job.triage.rule)


def _dated_hang(hang: Finding, job: TriagedJob, metrics: SeenMetrics) -> Finding:
    """A hang begins with the last step, whose time mostly only the metrics know."""
    if hang.onset is not None:
        return hang
    return replace(hang, onset=metrics.steps.last_at or job.triage.progress.last_step_time)


def _dated_end(finding: Finding, job: TriagedJob, metrics: SeenMetrics) -> Finding:
    """What a log without times says a job died of came after the last step that samples show."""
    at, window = metrics.steps.last_at or job.triage.progress.last_step_time, metrics.window
    if finding.onset is not None or finding.failure_class != job.triage.primary:
        return finding
    has_died = job.triage.status in (JobStatus.FAILED, JobStatus.UNKNOWN)
    if at is None or window is None or not has_died:
        return finding
    if window.end - at > _STALL_S:
        return finding  # steps had stopped before, nobody knows how long
    return replace(finding, onset=min(at + (metrics.steps.step_time_s or 0.0), window.end))


def _ruled_out(metrics: SeenMetrics, is_refuted: bool) -> tuple[RuledOut, ...]:
    by_playbooks: Sequence[RuledOut] = ()
    sample = "one of the event file"
    if metrics.metrics is not None:
        by_playbooks, sample = metrics.metrics.outcome.ruled_out, "sample of the metrics"
    if not is_refuted:
        return tuple(by_playbooks)
    return (*by_playbooks, RuledOut("hang", f"steps go on to the last {sample}", "triage"))


def _coverage(job: TriagedJob, metrics: SeenMetrics, request: DiagnosisRequest) -> Coverage:
    """Of the metrics, with what could not be read of the log, or not be reached at all."""
    log = job.triage.diagnosis.coverage
    of_metrics = metrics.coverage or Coverage(0, 0, window=_without_metrics(log.window, request))
    unread = dict.fromkeys((*request.unread, *of_metrics.unread, *metrics.unread, *log.unread))
    return replace(of_metrics, unread=tuple(unread))


def _without_metrics(of_log: Window | None, request: DiagnosisRequest) -> Window | None:
    """What was looked at: the log's time, and of a live cluster's job all of it until now.

    Many a log has one time only, where it begins.
    """
    own_nodes = request.nodes
    if own_nodes is None:
        return of_log
    known_starts = [own_nodes.snapshot.job_start, of_log.start if of_log is not None else None]
    start = min(filter(None, known_starts), default=None)
    if start is None:
        return of_log
    asked_at = own_nodes.snapshot.time
    return Window(start, max(start, asked_at if own_nodes.ended is None else own_nodes.ended))
