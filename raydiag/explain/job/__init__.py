"""One job, from its directory to a verdict: its log, its metrics, the playbooks, what they mean.

The order: triage reads the log; the metrics are opened, and believed only when they are this job's;
all questions are asked at once; what stands out is asked for again; then everything is judged. Of
a live cluster what its nodes show comes on top, and log or metrics may be missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Optional

from raydiag import triage
from raydiag.explain import diagnosis, verdict
from raydiag.explain.job import nodes as _nodes
from raydiag.explain.job.contradictions import contradictions
from raydiag.explain.job.join import join
from raydiag.explain.job.metrics import DiagnosisRequest, Metrics, SeenMetrics, look
from raydiag.explain.job.nodes import LiveNodes
from raydiag.joblog.facts import JobFacts
from raydiag.model import Blind, Coverage, Diagnosis, Finding, HostUnread, Observation, Status
from raydiag.playbooks.observations import RuledOut
from raydiag.triage.verdict import JobStatus, Moment
from raydiag.triage.verdict import Verdict as Triage

__all__ = ["DiagnosisRequest", "ExaminedJob", "LiveNodes", "Metrics", "examine"]

_STALL_STEPS, _STALL_S = 10.0, 300.0
_START_UP_S = 1800.0  # until the first step: set-up and compilation
_ENDED = (JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELLED)


@dataclass(frozen=True)
class ExaminedJob:
    """Everything about one job; `log_only` says why there are no metrics, `no_log` why no log."""

    triage: Triage
    case: verdict.JobCase
    explained: verdict.Explained
    log_only: str = ""
    metrics: Optional[Metrics] = None
    notes: tuple[str, ...] = ()
    no_log: str = ""
    nodes: Optional[LiveNodes] = None
    training: str = ""  # where training series come from that the metrics lack

    @property
    def exit_code(self) -> int:
        return verdict.exit_code(self.explained, self.case)


def examine(facts: JobFacts, moment: Moment, request: DiagnosisRequest) -> ExaminedJob:
    """Judge one job. Raises CannotRun when a server that was named does not answer."""
    # Without a log nobody has seen steps: that the job lives does not make it well.
    seen_alive = replace(moment, alive=None) if request.no_log else moment
    judged = triage.judge(facts, seen_alive)
    request, probed = _probed(facts, request)
    seen = look(facts, judged, moment, request)
    case = _case(judged, seen, moment, request, probed)
    explained = verdict.explain(case)
    of_nodes = request.nodes.notes if request.nodes is not None else ()
    notes = (*judged.notes, *seen.notes, *request.notes, *of_nodes)
    return ExaminedJob(
        judged,
        case,
        explained,
        seen.log_only,
        seen.metrics,
        notes,
        request.no_log,
        request.nodes,
        seen.training,
    )


def _case(
    judged: Triage,
    seen: SeenMetrics,
    moment: Moment,
    request: DiagnosisRequest,
    probed: Optional[Diagnosis],
) -> verdict.JobCase:
    """All sources in one: what they tell, and what they leave open."""
    status = _status(judged, seen, moment)
    told = [*_told(judged, seen, status), *seen.observations]
    coverage = _coverage(judged, seen, request)
    if probed is not None and request.nodes is not None:
        missing = _nodes.absent(request.nodes, request.nodelist)
        told, coverage = _with_nodes(told, coverage, seen, request.nodes, probed, missing)
    idle = request.nodes is not None and request.nodes.idle and status == "unknown"
    progress = judged.progress
    asides = [one for one in told if request.nodes and _nodes.is_aside(one, request.nodes)]
    return verdict.JobCase(
        observations=[one for one in told if one not in asides],
        coverage=coverage,
        status="idle" if idle else status,
        primary=None if _refuted(judged, status) else judged.primary,
        last_step_at=seen.steps.last_at if len(seen.steps) else progress.last_step_time,
        step_time_s=seen.steps.step_time_s or progress.step_time_s,
        ruled_out=_ruled_out(judged, seen, status),
        told=idle or (status != "unknown" and not _never_began(judged, seen, status)),
        no_log=request.no_log,
        no_metrics=seen.log_only,
        of_cluster=request.nodes is not None,
        shared_cluster=request.nodes is not None and request.nodes.unplaced,
        asides=asides,
    )


def _with_nodes(
    told: list[Observation],
    coverage: Coverage,
    seen: SeenMetrics,
    own: LiveNodes,
    probed: Diagnosis,
    missing: Sequence[Blind],
) -> tuple[list[Observation], Coverage]:
    """With what the nodes themselves show, and where they contradict."""
    at_odds = tuple(contradictions(told, own.snapshot))
    coverage = replace(coverage, unread=(*coverage.unread, *at_odds))
    whole = _nodes.coverage(probed.coverage, seen.coverage, coverage, own.hosts, missing)
    return join(told, _nodes.observed(probed), own.snapshot), whole


def _probed(
    facts: JobFacts, request: DiagnosisRequest
) -> tuple[DiagnosisRequest, Optional[Diagnosis]]:
    """What the nodes show, when they are the job's; else why nothing of them is used."""
    if request.nodes is None:
        return request, None
    nodelist = facts.header.nodelist
    other = _nodes.foreign(request.nodes, nodelist)
    if other:
        source = str(request.nodes.cluster.get("address") or "the cluster")
        item = HostUnread("", source, Status.NO_DATA, other)
        return replace(request, nodes=None, unread=(*request.unread, item)), None
    own = _nodes.of_job(request.nodes, nodelist, facts.first_time)
    return replace(request, nodes=own, nodelist=tuple(nodelist)), diagnosis.explain(own.snapshot)


def _status(judged: Triage, seen: SeenMetrics, moment: Moment) -> str:
    """Where the log alone does not tell, steps in the metrics say whether the job goes on.

    Steps up to the last sample show life only when that sample is of now; where they do, and
    samples end with them, it was no hang either.
    """
    status = judged.status.value
    steps, window = seen.steps, seen.window
    if judged.status in _ENDED or window is None or not len(steps):
        return status
    if any(one.finding.failure_class == "rccl-hang" for one in seen.observations):
        return "hanging"
    usual = steps.step_time_s or 0.0
    silent = window.end - (steps.last_at or window.start)
    fresh = moment.log_end or moment.now is None or moment.now - window.end <= _STALL_S
    if silent > max(_STALL_STEPS * usual, _STALL_S):
        return status
    if fresh:
        return "running"
    return status if moment.alive else "unknown"


def _never_began(judged: Triage, seen: SeenMetrics, status: str) -> bool:
    """It is said to run, and after so long there is not one step: nobody can call that well."""
    if status != "running" or seen.window is None or len(seen.steps):
        return False
    waited = seen.window.end - seen.window.start
    return judged.progress.last_step is None and waited > _START_UP_S


def _told(judged: Triage, seen: SeenMetrics, status: str) -> Iterator[Observation]:
    """What triage found, as observations; a hang that the metrics refute is none."""
    for one in judged.diagnosis.findings:
        if one.failure_class == "hang" and _refuted(judged, status):
            continue
        yield Observation(_dated(one, judged, seen), "triage", judged.rule)


def _refuted(judged: Triage, status: str) -> bool:
    """Whether the metrics speak against the hang that the log seems to show."""
    return judged.primary == "hang" and status in ("running", "unknown")


def _dated(finding: Finding, judged: Triage, seen: SeenMetrics) -> Finding:
    """A hang begins with the last step, whose time mostly only the metrics know."""
    if finding.onset is None and finding.failure_class == "hang":
        return replace(finding, onset=seen.steps.last_at or judged.progress.last_step_time)
    return finding


def _ruled_out(judged: Triage, seen: SeenMetrics, status: str) -> tuple[RuledOut, ...]:
    found = list(seen.metrics.outcome.ruled_out) if seen.metrics is not None else []
    if _refuted(judged, status):
        sample = "sample of the metrics" if seen.metrics is not None else "one of the event file"
        found.append(RuledOut("hang", f"steps go on to the last {sample}", "triage"))
    return tuple(found)


def _coverage(judged: Triage, seen: SeenMetrics, request: DiagnosisRequest) -> Coverage:
    """Of the metrics, with what could not be read of the log, or not be reached at all."""
    log = judged.diagnosis.coverage
    own = seen.coverage or Coverage(0, 0, window=log.window)
    unread = dict.fromkeys((*request.unread, *own.unread, *seen.unread, *log.unread))
    return replace(own, unread=tuple(unread))
