"""One job, from its directory to a verdict: its log, its metrics, the playbooks, what they mean.

The way: triage reads the log (`triage`); rules judge the nodes of a live cluster, if it is the
job's (`_probed`); the metrics are discovered, verified, queried and judged (`look`); all of it
becomes one case (`case_of`), and the case a verdict (`verdict.explain`), beside which stands what
there is to draw (`picture`). Log or metrics may be missing. Each stage hands on values and changes
none.
"""

from dataclasses import dataclass, field, replace

from raydiag.explain import diagnosis, verdict
from raydiag.explain.job import flight_records, nodes
from raydiag.explain.job.case import case_of
from raydiag.explain.job.metrics import look
from raydiag.explain.job.nodes import LiveNodes
from raydiag.explain.job.picture import RunPicture, picture_of
from raydiag.explain.job.query import Metrics
from raydiag.explain.job.request import DiagnosisRequest, TriagedJob
from raydiag.joblog.facts import JobFacts
from raydiag.model import Diagnosis, HostUnread, Status
from raydiag.triage import judge
from raydiag.triage.verdict import JobStatus, Moment
from raydiag.triage.verdict import Verdict as Triage

__all__ = ["DiagnosisRequest", "ExaminedJob", "LiveNodes", "Metrics", "examine"]


@dataclass(frozen=True)
class ExaminedJob:
    """Everything about one job; `log_only` says why there are no metrics, `no_log` why no log."""

    triage: Triage
    case: verdict.JobCase
    explained: verdict.Explained
    log_only: str = ""
    metrics: Metrics | None = None
    notes: tuple[str, ...] = ()
    no_log: str = ""
    nodes: LiveNodes | None = None
    training: str = ""  # where training series come from that the metrics lack
    picture: RunPicture = field(default_factory=RunPicture)

    @property
    def exit_code(self) -> int:
        """1: a problem was found; 3: none, but not everything could be seen or told; 0: healthy."""
        return verdict.exit_code(self.explained)


def examine(facts: JobFacts, moment: Moment, request: DiagnosisRequest) -> ExaminedJob:
    """Judge one job. Raises CannotRun when a server that was named does not answer."""
    # Without a log nobody has seen steps: that the job lives does not make it healthy.
    seen_alive = replace(moment, alive=None) if request.no_log else moment
    job = TriagedJob(facts, judge(facts, seen_alive), moment)
    request, probed = _probed(facts, request)
    metrics = look(job, request)
    records = flight_records.FlightRecords()
    if job.triage.status is not JobStatus.COMPLETED:
        records = flight_records.read(facts)
    request = replace(request, unread=(*request.unread, *records.unread))
    case = case_of(job, metrics, request, probed, records.observations)
    explained = verdict.explain(case)
    return ExaminedJob(
        job.triage,
        case,
        explained,
        metrics.log_only,
        metrics.metrics,
        (*job.triage.notes, *metrics.notes, *request.notes, *request.live.notes),
        request.no_log,
        request.nodes,
        metrics.training,
        picture_of(metrics.timeline, metrics.steps, metrics.window, explained),
    )


def _probed(
    facts: JobFacts, request: DiagnosisRequest
) -> tuple[DiagnosisRequest, Diagnosis | None]:
    """What the nodes show, when they are the job's; else why nothing of them is used."""
    if request.nodes is None:
        return request, None
    nodelist = facts.header.nodelist
    reason = nodes.foreign(request.nodes, nodelist)
    if reason:
        source = str(request.nodes.cluster.get("address") or "the cluster")
        unread = HostUnread("", source, Status.NO_DATA, reason)
        return replace(request, nodes=None, unread=(*request.unread, unread)), None
    own_nodes = nodes.of_job(request.nodes, nodelist, facts.first_time)
    return replace(request, nodes=own_nodes, nodelist=tuple(nodelist)), diagnosis.explain(
        own_nodes.snapshot
    )
