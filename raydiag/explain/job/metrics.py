"""A job's metrics: opened, believed only when they are its own, asked, judged by the playbooks."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Optional

import numpy as np

from raydiag import catalog, playbooks
from raydiag.errors import CannotRun
from raydiag.explain.job import event_files
from raydiag.explain.job.logged import job_of, logged, placed_by_power, start_of, with_log
from raydiag.explain.job.nodes import LiveNodes
from raydiag.joblog.facts import JobFacts
from raydiag.model import Coverage, Evidence, HostUnread, Observation, Status, Window
from raydiag.playbooks import observability
from raydiag.playbooks.observability.stack import Stack, observation
from raydiag.playbooks.observations import PlaybookOutcome, Report
from raydiag.timeline import masks
from raydiag.timeline import steps as training_steps
from raydiag.timeline.answers import Answers
from raydiag.timeline.context import GHOST, Context
from raydiag.timeline.steps import MetricSteps
from raydiag.timeline.training_series import TrainingSeries
from raydiag.triage.verdict import JobStatus, Moment
from raydiag.triage.verdict import Verdict as Triage
from raydiag.tsdb import stack_logs
from raydiag.tsdb.connection import Connection, EmptyTsdb, connect, open_directory
from raydiag.tsdb.discovery import discover
from raydiag.tsdb.discovery_types import Discovery, short_name
from raydiag.tsdb.identity import Belief, TsdbIdentity, check
from raydiag.tsdb.series import AskedQuery, Query, QueryResult
from raydiag.tsdb.stack_logs import StackLogs

DEADLINE_S = 120.0  # for all questions together
_LONGEST_S = 30.0  # for one question
_ROUNDS = 6  # that a server which stalls can make last so long, one after the other
_RECENT_S = 3600.0
_TAIL_S = 60.0  # of samples after the end that Ray tells
_FRESH_S = 300.0  # samples that are no older may be of a job that lives
_ENDED = (JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELLED)
_NO_RAY = "the job ran without Ray (RAY=0), which has no metrics; RAY=1 records them"
Say = Callable[[str], None]


@dataclass(frozen=True)
class DiagnosisRequest:
    """What is asked."""

    prometheus: Optional[str] = None  # URL of a server to ask instead of the directory
    every_playbook: bool = False
    deadline_s: float = DEADLINE_S
    say: Say = lambda text: None  # progress
    connection: Optional[Connection] = None  # that is open, and stays so
    origin: str = ""  # what people call the server, where the URL is a tunnel's
    no_metrics: str = ""  # why there is no server to ask; "": look for what there is
    no_log: str = ""  # why there is no log
    nodes: Optional[LiveNodes] = None  # of the live cluster, where they were asked
    unread: tuple[HostUnread, ...] = ()  # what could not be reached before all this
    nodelist: tuple[str, ...] = ()  # of the job, as its log says
    notes: tuple[str, ...] = ()

    @property
    def hosts(self) -> tuple[str, ...]:
        return self.nodes.hosts if self.nodes is not None else ()


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


@dataclass
class SeenMetrics:
    """What the metrics add to a case."""

    observations: list[Observation] = field(default_factory=list)
    unread: list[HostUnread] = field(default_factory=list)
    log_only: str = ""
    metrics: Optional[Metrics] = None
    coverage: Optional[Coverage] = None
    steps: MetricSteps = field(default_factory=MetricSteps)
    window: Optional[Window] = None
    notes: list[str] = field(default_factory=list)
    training: str = ""  # where the training series come from, where not all are the metrics' own


def look(facts: JobFacts, judged: Triage, moment: Moment, request: DiagnosisRequest) -> SeenMetrics:
    """The metrics, as far as they can be had; without any, the steps of the event file."""
    seen = _look(facts, judged, moment, request)
    if seen.metrics is not None or request.no_log:
        return seen
    events = event_files.read(facts, None, moment.alive)
    seen.unread += [HostUnread("", one.source, one.status, one.reason) for one in events.unread]
    told = logged(facts)
    losses = {s: x for s, x in zip(told.steps, told.losses, strict=True) if np.isfinite(x)}
    steps = event_files.alone(events, losses)
    if not len(steps) or steps.last_at is None:
        return seen
    seen.steps = steps
    seen.notes.append(
        f"there are no metrics: that step {steps.last} was the last, and when, is told by "
        f"{events.files[-1]}"
    )
    ended = facts.summary.time if facts.summary is not None else None
    now = facts.last_time if moment.log_end else moment.now
    end = ended if ended is not None else now
    if end is not None:
        seen.window = Window(float(steps.ended_at[0]), max(end, steps.last_at))
    return seen


def _look(
    facts: JobFacts, judged: Triage, moment: Moment, request: DiagnosisRequest
) -> SeenMetrics:
    """The metrics."""
    seen = SeenMetrics()
    directory = facts.resolved.job_dir
    data = Path(directory) / "prometheus" if directory else None
    if request.no_metrics and not (data and data.is_dir()):
        seen.log_only = request.no_metrics
        return seen
    if request.prometheus is None and not facts.header.ray and not (data and data.is_dir()):
        seen.log_only = _NO_RAY
        return seen
    logs = stack_logs.read(Path(directory)) if directory else StackLogs()
    try:
        with _opened(directory, request, seen) as connection:
            _ask(connection, facts, judged, moment, request, logs, seen)
    except EmptyTsdb as error:
        seen.log_only = "the job's Prometheus directory holds no samples"
        seen.observations.append(observability.empty(str(error), _why_empty(facts, logs)))
    except CannotRun as error:
        if request.prometheus is not None and not seen.notes:
            if data is not None and data.is_dir():
                return _from_directory(facts, judged, moment, request, str(error))
            if request.nodes is None:
                raise
            seen.log_only = str(error)
            seen.unread.append(HostUnread("", request.prometheus, Status.ERROR, str(error)))
            return seen
        missing = data is None or not data.is_dir()
        seen.log_only = "the job has no Prometheus directory" if missing else str(error)
        if missing:
            why = f"{data or 'the job'}: there is no such directory"
            seen.observations.append(observability.empty(why, _why_empty(facts, logs)))
        else:
            source = str(data or "prometheus")
            seen.unread.append(HostUnread("", source, Status.ERROR, str(error)))
    return seen


def _from_directory(
    facts: JobFacts, judged: Triage, moment: Moment, request: DiagnosisRequest, why: str
) -> SeenMetrics:
    """Where the server that was named answers with nonsense."""
    seen = _look(facts, judged, moment, replace(request, prometheus=None, connection=None))
    seen.notes.insert(0, f"{why}: the job's directory was read instead")
    return seen


@contextlib.contextmanager
def _opened(
    directory: Optional[str], request: DiagnosisRequest, seen: SeenMetrics
) -> Iterator[Connection]:
    """The server that was named; where it does not answer, what lies in the directory."""
    if request.connection is not None:
        if request.prometheus is not None and not request.connection.live:
            seen.notes.append(
                f"{request.prometheus} does not answer: the job's directory was read instead"
            )
        yield request.connection
        return
    if request.prometheus is not None:
        try:
            live = connect(request.prometheus, min(_LONGEST_S, request.deadline_s / _ROUNDS))
        except CannotRun as error:
            if directory is None or not (Path(directory) / "prometheus").is_dir():
                raise
            seen.notes.append(f"{error}: the job's directory was read instead")
        else:
            yield replace(live, origin=request.origin) if request.origin else live
            return
    if directory is None:
        raise CannotRun("there is no job directory beside the log, so no metrics")
    request.say("opening the metrics ...")
    with open_directory(directory) as connection:
        yield connection


def _why_empty(facts: JobFacts, logs: StackLogs) -> list[Evidence]:
    lines = [
        Evidence(f"{one.file}:{one.line}", one.text, time=one.time)
        for one in (*logs.of("no-server"), *logs.of("port-taken"), *logs.of("gave-up"))
    ]
    head = [line for line in facts.head if line.startswith("[Prometheus]")]
    log = facts.files[0].path if facts.files else facts.resolved.asked
    return [*lines, *(Evidence(log, line) for line in head[:3])]


def _ask(
    connection: Connection,
    facts: JobFacts,
    judged: Triage,
    moment: Moment,
    request: DiagnosisRequest,
    logs: StackLogs,
    seen: SeenMetrics,
) -> None:
    """Discover, verify, ask, judge; what comes of it goes into `seen`."""
    limit = time.monotonic() + request.deadline_s
    now = moment.now if moment.now is not None else time.time()
    hosts = facts.header.nodelist or request.hosts
    addresses = request.nodes.addresses if request.nodes is not None else {}
    request.say("looking at what the metrics hold ...")
    start = since(connection, moment, now, request)
    found = discover(connection, now, hosts, facts.header.nnodes, addresses, start)
    seen.unread += [HostUnread("", u.source, u.status, u.reason) for u in found.unread]
    failed = [one for one in connection.client.asked if one.status is not Status.OK]
    if found.window is None and failed:
        seen.log_only = f"the metrics cannot be read: {failed[0].reason}"
        seen.unread += [HostUnread("", one.id, one.status, one.reason) for one in failed]
        return
    if found.window is None:
        why = f"{connection.origin}: no sample of any host in the time of the job"
        seen.log_only = "the job's Prometheus holds no samples"
        seen.observations.append(observability.empty(why, _why_empty(facts, logs)))
        return
    identity = check(connection.client, found, replace(logged(facts), hosts=hosts))
    if identity.belief is Belief.WRONG:
        seen.log_only = "the metrics belong to another job"
        seen.observations.append(observability.wrong_job(connection.origin, identity.reason))
        return
    window = _window(found.window, judged, moment, now)
    names = tuple(dict.fromkeys(short_name(one) for one in hosts))
    hosts_seen = names or tuple(one.name for one in found.hosts)
    context = Context(job_of(facts, judged), window, now, found, hosts_seen)

    def progress(done: int, all_: int) -> None:
        request.say(f"{done} of {all_} questions answered")

    def ask(queries: Sequence[Query]) -> list[QueryResult]:
        left = max(limit - time.monotonic(), 1.0)
        return list(connection.client.ask_all(queries, left, progress).values())

    told = Answers(ask(playbooks.plan(context)), found)
    own = training_steps.steps_of(told)
    answers = _with_event_files(told, facts, window, moment, seen, connection.origin)
    seen.steps = training_steps.steps_of(answers)
    every, slack_s = with_log(seen.steps, facts), 0.0
    if not len(every):
        placed = placed_by_power(answers, facts)
        every, slack_s = placed.steps, placed.slack_s
        context = _trained(context, every)
    context = replace(context, job=replace(context.job, start=start_of(facts, every)))
    context = replace(context, masks=masks.of_job(context, answers, every, slack_s))
    left = playbooks.MAX_QUERIES - len(connection.client.asked)
    answers = answers.also(ask(playbooks.follow_up(context, answers, max(left, 0))))
    with warnings.catch_warnings():
        # Of a row without any sample numpy warns, and gives the NaN that is wanted.
        warnings.simplefilter("ignore", RuntimeWarning)
        outcome = playbooks.run(context, answers)
    stack = Stack(context, answers, logs, own, judged.progress.last_step, facts.header.ray)
    watched, report = observability.judge(stack)
    dead = {
        one.finding.host
        for one in outcome.observations
        if one.finding.failure_class == "node-death" and one.finding.host
    }
    seen.observations += [one for one in outcome.observations if not _haunted(one, context)]
    seen.observations += watched
    seen.coverage = observability.coverage(stack, dead)
    seen.window = window
    seen.metrics = Metrics(
        context,
        found,
        identity,
        outcome,
        _fitting(judged, outcome, report, request),
        tuple(connection.client.asked),
        connection.origin,
    )


def _with_event_files(
    told: Answers, facts: JobFacts, window: Window, moment: Moment, seen: SeenMetrics, origin: str
) -> Answers:
    """Also the steps that training wrote and the metrics lack, and that they lack them."""
    events = event_files.read(facts, window, moment.alive)
    training = TrainingSeries.of(told)
    last_at = float(training.times[-1]) if training.times.size else None
    missing = event_files.compared(events, np.unique(training.steps), last_at)
    seen.unread += missing.unread
    seen.observations += [
        observation("tb-bridge-gap", "event-file", one.evidence, onset=one.onset, until=window.end)
        for one in missing.findings(origin)
    ]
    if not missing.missing:
        return told
    seen.training = (
        f"{missing.missing_total} of {missing.steps} steps are missing in the metrics and were "
        f"read from {', '.join(missing.files)}"
    )
    return event_files.filled(told, events, missing)


def since(
    connection: Connection, moment: Moment, now: float, request: DiagnosisRequest
) -> Optional[Window]:
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


def _trained(context: Context, steps: MetricSteps) -> Context:
    """With what is known of training from steps that have no series."""
    if not len(steps):
        return context
    start, end = float(steps.ended_at[0]), float(steps.ended_at[-1])
    job = context.job
    if job.last_step_time is None and job.last_step == steps.last:
        job = replace(job, last_step_time=end)
    return replace(context, job=job, trained=Window(start, end))


def _haunted(observation: Observation, context: Context) -> bool:
    """Whether it rests on samples that an exporter only repeated."""
    found = observation.finding
    if not catalog.failure(found.failure_class).exporter_only:
        return False  # while the exporter repeats itself, other sources go on
    if found.host is None or found.onset is None:
        return False
    return not context.judged(np.array([found.onset]), found.host, "hw_", GHOST).all()


def _window(found: Window, judged: Triage, moment: Moment, now: float) -> Window:
    """The run: to `now` while it lives, else to its end, else to the last sample."""
    start, end = found.start, found.end
    known = judged.progress.last_step_time
    if judged.status not in _ENDED and (moment.alive or moment.now is not None):
        alive = moment.alive is not False and not moment.log_end
        # A directory that was copied long ago is judged as of its last sample.
        end = now if alive and (moment.alive or now - end < _FRESH_S) else end
    if known is not None:
        start = max(start, min(known, end) - 30 * 86400.0)
    return Window(start, max(end, start))


def _fitting(
    judged: Triage, outcome: PlaybookOutcome, stack: Report, request: DiagnosisRequest
) -> tuple[Report, ...]:
    """Reports to show: all where all were asked for, or where what fits explains nothing."""
    wanted = set(playbooks.chosen(judged.primary, judged.cascade))
    found = {one.playbook for one in outcome.observations}
    if request.every_playbook or not found & wanted:
        return (*outcome.reports, stack)
    return (*(one for one in outcome.reports if one.playbook in wanted | found), stack)
