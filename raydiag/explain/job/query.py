"""One job's metrics: discover what is there, verify whose it is, query, judge by the playbooks."""

import itertools
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter

import numpy as np

from raydiag import catalog, playbooks
from raydiag.explain.job import event_files, logged
from raydiag.explain.job.request import DiagnosisRequest, TriagedJob
from raydiag.model import Coverage, HostUnread, Observation, Status, Window
from raydiag.playbooks import observability
from raydiag.playbooks.observability.stack import Stack, observation
from raydiag.playbooks.observations import PlaybookOutcome, Report
from raydiag.timeline import masks
from raydiag.timeline import steps as training_steps
from raydiag.timeline.answers import Answers
from raydiag.timeline.context import GHOST, Context
from raydiag.timeline.run_timeline import RunTimeline
from raydiag.timeline.steps import MetricSteps
from raydiag.timeline.training_series import TrainingSeries
from raydiag.triage.verdict import Moment
from raydiag.tsdb.connection import Connection
from raydiag.tsdb.discovery import discover
from raydiag.tsdb.discovery_types import Discovery, short_name
from raydiag.tsdb.identity import Belief, TsdbIdentity, check
from raydiag.tsdb.series import AskedQuery, Query, QueryResult

_RECENT_S = 3600.0
_TAIL_S = 60.0  # of samples after the end that Ray tells
_FRESH_S = 300.0  # samples that are no older may be of a job that lives
_LONGEST_RUN_S = 30 * 86400.0


@dataclass(frozen=True)
class Metrics:
    """What the job's Prometheus said."""

    context: Context
    discovery: Discovery
    identity: TsdbIdentity
    outcome: PlaybookOutcome
    reports: tuple[Report, ...]  # of the playbooks that fit, or of all
    asked: tuple[AskedQuery, ...]
    origin: str


@dataclass(frozen=True)
class SeenMetrics:
    """What the metrics add to a case."""

    observations: tuple[Observation, ...] = ()
    unread: tuple[HostUnread, ...] = ()
    log_only: str = ""
    metrics: Metrics | None = None
    coverage: Coverage | None = None
    steps: MetricSteps = field(default_factory=MetricSteps)
    window: Window | None = None
    notes: tuple[str, ...] = ()
    training: str = ""  # where the training series come from, where not all are the metrics' own
    timeline: RunTimeline | None = None


def query(connection: Connection, job: TriagedJob, request: DiagnosisRequest) -> SeenMetrics:
    """What the metrics show; nothing of them is believed unless they are this job's."""
    client = _TimedClient(connection, request, time.monotonic() + request.deadline_s)
    now = job.moment.now if job.moment.now is not None else time.time()
    discovery = _discovered(connection, job, request, now)
    unread = tuple(map(HostUnread.without_host, discovery.unread))
    if discovery.window is None:
        metrics = _without_window(connection, job)
        return replace(metrics, unread=(*unread, *metrics.unread))
    hosts = job.facts.header.nodelist or request.live.hosts
    identity = check(connection.client, discovery, replace(logged.logged(job.facts), hosts=hosts))
    if identity.belief is Belief.WRONG:
        wrong = observability.wrong_job(connection.origin, identity.reason)
        reason = "the metrics belong to another job"
        return SeenMetrics((wrong,), unread, reason)
    names = tuple(dict.fromkeys(map(short_name, hosts)))
    window = _window(discovery.window, job, now)
    context = Context(
        logged.job_of(job.facts, job.triage),
        window,
        now,
        discovery,
        names or tuple(map(attrgetter("name"), discovery.hosts)),
    )
    metrics = _judged(client, context, identity, job)
    return replace(metrics, unread=(*unread, *metrics.unread))


def _discovered(
    connection: Connection, job: TriagedJob, request: DiagnosisRequest, now: float
) -> Discovery:
    request.say("looking at what the metrics hold ...")
    header = job.facts.header
    start = since(connection, job.moment, now, request)
    hosts = header.nodelist or request.live.hosts
    return discover(connection, now, hosts, header.nnodes, request.live.addresses, start)


def _without_window(connection: Connection, job: TriagedJob) -> SeenMetrics:
    """No sample of any host: queries failed, or there is none."""
    failed = [query for query in connection.client.asked if query.status is not Status.OK]
    if failed:
        unread = tuple(HostUnread("", query.id, query.status, query.reason) for query in failed)
        reason = f"the metrics cannot be read: {failed[0].reason}"
        return SeenMetrics(unread=unread, log_only=reason)
    reason = f"{connection.origin}: no sample of any host in the time of the job"
    empty = observability.empty(reason, logged.lines_on_no_samples(job))
    return SeenMetrics((empty,), log_only="the job's Prometheus holds no samples")


# ---- queries


@dataclass(frozen=True)
class _TimedClient:
    """Sends queries until the deadline of the request."""

    connection: Connection
    request: DiagnosisRequest
    deadline: float  # of time.monotonic

    def ask(self, queries: Sequence[Query]) -> list[QueryResult]:
        """The answers, in the order of the queries."""
        seconds = max(self.deadline - time.monotonic(), 1.0)
        answers = self.connection.client.ask_all(queries, seconds, self._say_progress)
        return list(answers.values())

    @property
    def queries_left(self) -> int:
        """How many more of the run's queries may be asked."""
        return max(playbooks.MAX_QUERIES - len(self.connection.client.asked), 0)

    def _say_progress(self, answered: int, number: int) -> None:
        self.request.say(f"{answered} of {number} queries answered")


def _judged(
    client: _TimedClient, context: Context, identity: TsdbIdentity, job: TriagedJob
) -> SeenMetrics:
    """Query what the playbooks need, then let them judge."""
    origin = client.connection.origin
    first = Answers(client.ask(playbooks.plan(context)), context.discovery)
    filled, files = _from_event_files(first, job, context.window, origin)
    context, known = _with_masks(context, filled, job)
    answers = known.also(client.ask(playbooks.follow_up(context, known, client.queries_left)))
    outcome = _outcome(context, answers)
    last_step, ray = job.triage.progress.last_step, job.facts.header.ray
    stack = Stack(
        context, answers, logged.logs_of(job), training_steps.steps_of(first), last_step, ray
    )
    watched, report = observability.judge(stack)
    fresh = itertools.filterfalse(partial(_is_repeated, context), outcome.observations)
    reports = _fitting_reports(job, outcome, report, client.request)
    queries = tuple(client.connection.client.asked)
    return replace(
        files,
        observations=(*files.observations, *fresh, *watched),
        metrics=Metrics(context, context.discovery, identity, outcome, reports, queries, origin),
        coverage=observability.coverage(stack, _dead_hosts(outcome)),
        steps=training_steps.steps_of(filled),
        window=context.window,
        timeline=RunTimeline(context, answers),
    )


def _outcome(context: Context, answers: Answers) -> PlaybookOutcome:
    with warnings.catch_warnings():
        # Of a row without any sample numpy warns, and gives the NaN that is wanted.
        warnings.simplefilter("ignore", RuntimeWarning)
        return playbooks.run(context, answers)


def _dead_hosts(outcome: PlaybookOutcome) -> set[str]:
    findings = map(attrgetter("finding"), outcome.observations)
    return {death.host for death in findings if death.failure_class == "node-death" and death.host}


def _is_repeated(context: Context, observation: Observation) -> bool:
    """Whether it rests on samples that an exporter only repeated."""
    finding = observation.finding
    if not catalog.failure(finding.failure_class).exporter_only:
        return False  # while the exporter repeats itself, other sources go on
    if finding.host is None or finding.onset is None:
        return False
    return not context.judged(np.array([finding.onset]), finding.host, "hw_", GHOST).all()


def _fitting_reports(
    job: TriagedJob, outcome: PlaybookOutcome, stack: Report, request: DiagnosisRequest
) -> tuple[Report, ...]:
    """Reports to show: all where all were asked for, or where what fits explains nothing."""
    fitting = set(playbooks.chosen(job.triage.primary, job.triage.cascade))
    observing = set(map(attrgetter("playbook"), outcome.observations))
    if request.every_playbook or not observing & fitting:
        return (*outcome.reports, stack)
    listed = fitting | observing
    return (*(report for report in outcome.reports if report.playbook in listed), stack)


# ---- steps


def _from_event_files(
    answers: Answers, job: TriagedJob, window: Window, origin: str
) -> tuple[Answers, SeenMetrics]:
    """Answers with the steps that the metrics lack, and that they lack them."""
    events = event_files.read(job.facts, window, job.moment.alive)
    training = TrainingSeries.of(answers)
    last_at = next(map(float, training.times[::-1]), None)
    missing = event_files.compared(events, np.unique(training.steps), last_at)
    gaps = tuple(
        observation("event-file", gap.evidence, onset=gap.onset, until=window.end)
        for gap in missing.findings(origin)
    )
    if not missing.missing:
        return answers, SeenMetrics(gaps, missing.unread)
    text = (
        f"{missing.missing_total} of {missing.steps} steps are missing in the metrics and were "
        f"read from {', '.join(missing.files)}"
    )
    filled = event_files.filled(answers, events, missing)
    return filled, SeenMetrics(gaps, missing.unread, training=text)


def _with_masks(context: Context, answers: Answers, job: TriagedJob) -> tuple[Context, Answers]:
    """With the times that playbooks leave out, as start-up and saves, and with the log's steps."""
    steps, slack_s = logged.with_log(training_steps.steps_of(answers), job.facts), 0.0
    if not len(steps):
        from_log = logged.placed(answers, job.facts, context.job)
        steps, slack_s = from_log.steps, from_log.slack_s
        context = _trained(context, steps)
    answers = logged.with_logged_training(answers, job.facts, steps)
    started = replace(context.job, start=logged.start_of(job.facts, steps))
    context = replace(context, job=started)
    return replace(context, masks=masks.of_job(context, answers, steps, slack_s)), answers


def _trained(context: Context, steps: MetricSteps) -> Context:
    """With what is known of training from steps that have no series."""
    if not len(steps):
        return context
    start, end = float(steps.ended_at[0]), float(steps.ended_at[-1])
    job = context.job
    if job.last_step_time is None and job.last_step == steps.last:
        job = replace(job, last_step_time=end)
    return replace(context, job=job, trained=Window(start, end))


# ---- times


def since(
    connection: Connection, moment: Moment, now: float, request: DiagnosisRequest
) -> Window | None:
    """Of a server that runs longer than the job, the time from when Ray started the job."""
    if request.nodes is None:
        return None
    start, ended = request.nodes.snapshot.job_start, request.nodes.ended
    if connection.live and start is None and request.no_log:
        # Without a job the question is how the cluster is now, not how it ever was.
        return Window(now - _RECENT_S, now)
    over = request.nodes.job and ended is not None  # Ray itself knows both times
    if not connection.live or start is None or start >= now or not (moment.alive or over):
        return None
    return Window(start, min(ended + _TAIL_S, now) if ended is not None else now)


def _window(sampled: Window, job: TriagedJob, now: float) -> Window:
    """The run: to `now` while it lives, else to its end, else to the last sample."""
    start, end = sampled.start, sampled.end
    if _goes_on_after(end, job, now):
        end = now
    last_step_time = job.triage.progress.last_step_time
    if last_step_time is not None:
        start = max(start, min(last_step_time, end) - _LONGEST_RUN_S)
    return Window(start, max(end, start))


def _goes_on_after(last_sample: float, job: TriagedJob, now: float) -> bool:
    moment = job.moment
    if job.has_ended or moment.log_end or moment.alive is False:
        return False
    if moment.alive:
        return True
    # A directory that was copied long ago is judged as of its last sample.
    return moment.now is not None and now - last_sample < _FRESH_S
