"""One job, from its directory to a verdict: its log, its metrics, the playbooks, what they mean.

The order: triage reads the log; the metrics are opened, and believed only when they are this job's;
all questions are asked at once; what stands out is asked for again; then everything is judged.
"""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Optional

import numpy as np

from raydiag import playbooks, triage, verdict
from raydiag.errors import CannotRun
from raydiag.joblog.facts import JobFacts
from raydiag.joblog.facts import Save as LoggedSave
from raydiag.model import Coverage, Evidence, Finding, HostUnread, Status, Window
from raydiag.playbooks import masks, observability
from raydiag.playbooks.answers import Answers
from raydiag.playbooks.context import GHOST, Context, Job, Save
from raydiag.playbooks.masks import Steps
from raydiag.playbooks.observability import Stack
from raydiag.playbooks.observed import Observation, Outcome, Report, RuledOut
from raydiag.triage.progress import longest_save_s, reference_steps
from raydiag.triage.verdict import JobStatus, Moment
from raydiag.triage.verdict import Verdict as Triage
from raydiag.tsdb import stack_logs
from raydiag.tsdb.connection import Connection, EmptyTsdb, connect, open_directory
from raydiag.tsdb.discovered import Discovery, short_name
from raydiag.tsdb.discovery import discover
from raydiag.tsdb.identity import Belief, Identity, Logged, check
from raydiag.tsdb.series import Answer, Asked, Query
from raydiag.tsdb.stack_logs import StackLogs

DEADLINE_S = 120.0  # for all questions together
_STALL_STEPS, _STALL_S = 10.0, 300.0
_START_UP_S = 1800.0  # until the first step: set-up and compilation
# Classes that only a host's exporter tells of: while it repeats itself, it tells nothing.
_OF_EXPORTERS = verdict.SYMPTOMS | {"straggler", "thermal-throttling", "storage-stall"}
_ENDED = (JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELLED)
_NO_RAY = "the job ran without Ray (RAY=0), which has no metrics; RAY=1 records them"

Say = Callable[[str], None]


@dataclass(frozen=True)
class Request:
    """What is asked."""

    prometheus: Optional[str] = None  # URL of a server to ask instead of the directory
    every_playbook: bool = False
    deadline_s: float = DEADLINE_S
    say: Say = lambda text: None  # progress


@dataclass(frozen=True)
class Metrics:
    """What the job's Prometheus said."""

    context: Context
    discovery: Discovery
    identity: Identity
    outcome: Outcome
    reports: tuple[Report, ...]  # of the playbooks that fit, or of all
    asked: tuple[Asked, ...]
    origin: str


@dataclass(frozen=True)
class Examined:
    """Everything about one job; `log_only` says why there are no metrics."""

    triage: Triage
    case: verdict.Case
    explained: verdict.Explained
    log_only: str = ""
    metrics: Optional[Metrics] = None
    notes: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        return verdict.exit_code(self.explained, self.case)


@dataclass
class _Seen:
    """What the metrics add to a case."""

    observations: list[Observation] = field(default_factory=list)
    unread: list[HostUnread] = field(default_factory=list)
    log_only: str = ""
    metrics: Optional[Metrics] = None
    coverage: Optional[Coverage] = None
    steps: Steps = field(default_factory=Steps)
    window: Optional[Window] = None
    notes: list[str] = field(default_factory=list)


def examine(facts: JobFacts, moment: Moment, request: Request) -> Examined:
    """Judge one job. Raises CannotRun when a server that was named does not answer."""
    judged = triage.judge(facts, moment)
    seen = _look(facts, judged, moment, request)
    status = _status(judged, seen, moment)
    told = [*_told(judged, seen, status), *seen.observations]
    coverage = _coverage(judged, seen)
    progress = judged.progress
    case = verdict.Case(
        observations=told,
        coverage=coverage,
        status=status,
        primary=None if _refuted(judged, status) else judged.primary,
        last_step_at=seen.steps.last_at if len(seen.steps) else progress.last_step_time,
        step_time_s=seen.steps.step_time_s or progress.step_time_s,
        ruled_out=_ruled_out(judged, seen, status),
        told=status != "unknown" and not _never_began(judged, seen, status),
        log_only=seen.log_only,
    )
    explained = verdict.explain(case)
    notes = (*judged.notes, *seen.notes)
    return Examined(judged, case, explained, seen.log_only, seen.metrics, notes)


# ---- the metrics


def _look(facts: JobFacts, judged: Triage, moment: Moment, request: Request) -> _Seen:
    """The metrics, as far as they can be had."""
    seen = _Seen()
    directory = facts.resolved.job_dir
    data = Path(directory) / "prometheus" if directory else None
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
            raise
        missing = data is None or not data.is_dir()
        seen.log_only = "the job has no Prometheus directory" if missing else str(error)
        if missing:
            why = f"{data or 'the job'}: there is no such directory"
            seen.observations.append(observability.empty(why, _why_empty(facts, logs)))
        else:
            source = str(data or "prometheus")
            seen.unread.append(HostUnread("", source, Status.ERROR, str(error)))
    return seen


@contextlib.contextmanager
def _opened(directory: Optional[str], request: Request, seen: _Seen) -> Iterator[Connection]:
    """The server that was named; where it does not answer, what lies in the directory."""
    if request.prometheus is not None:
        try:
            live = connect(request.prometheus)
        except CannotRun as error:
            if directory is None or not (Path(directory) / "prometheus").is_dir():
                raise
            seen.notes.append(f"{error}: the job's directory was read instead")
        else:
            yield live
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
    request: Request,
    logs: StackLogs,
    seen: _Seen,
) -> None:
    """Discover, verify, ask, judge; what comes of it goes into `seen`."""
    limit = time.monotonic() + request.deadline_s
    now = moment.now if moment.now is not None else time.time()
    hosts = facts.header.nodelist
    request.say("looking at what the metrics hold ...")
    found = discover(connection, now, hosts, facts.header.nnodes)
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
    identity = check(connection.client, found, _logged(facts))
    if identity.belief is Belief.WRONG:
        seen.log_only = "the metrics belong to another job"
        seen.observations.append(observability.wrong_job(connection.origin, identity.reason))
        return
    window = _window(found.window, judged, moment, now)
    names = tuple(dict.fromkeys(short_name(one) for one in hosts))
    hosts_seen = names or tuple(one.name for one in found.hosts)
    context = Context(_job(facts, judged), window, now, found, hosts_seen)

    def progress(done: int, all_: int) -> None:
        request.say(f"{done} of {all_} questions answered")

    def ask(queries: Sequence[Query]) -> list[Answer]:
        left = max(limit - time.monotonic(), 1.0)
        return list(connection.client.ask_all(queries, left, progress).values())

    answers = Answers(ask(playbooks.plan(context)), found)
    seen.steps = masks.steps_of(answers)
    every = _with_log(seen.steps, facts)
    context = replace(context, job=replace(context.job, start=_start(facts, every)))
    context = replace(context, masks=masks.of_job(context, answers, every))
    finer = ask(playbooks.drill(context, answers))
    answers = Answers([*answers, *finer], found)
    with warnings.catch_warnings():
        # Of a row without any sample numpy warns, and gives the NaN that is wanted.
        warnings.simplefilter("ignore", RuntimeWarning)
        outcome = playbooks.run(context, answers)
    stack = Stack(context, answers, logs, seen.steps, judged.progress.last_step, facts.header.ray)
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


def _haunted(observation: Observation, context: Context) -> bool:
    """Whether it rests on samples that an exporter only repeated."""
    found = observation.finding
    if found.host is None or found.onset is None or found.failure_class not in _OF_EXPORTERS:
        return False
    return not context.judged(np.array([found.onset]), found.host, "hw_", GHOST).all()


def _window(found: Window, judged: Triage, moment: Moment, now: float) -> Window:
    """The run: to `now` while it lives, else to its end, else to the last sample."""
    start, end = found.start, found.end
    known = judged.progress.last_step_time
    if judged.status not in _ENDED and (moment.alive or moment.now is not None):
        alive = moment.alive is not False and not moment.log_end
        # A directory that was copied long ago is judged as of its last sample.
        end = now if alive and (moment.alive or now - end < _STALL_S) else end
    if known is not None:
        start = max(start, min(known, end) - 30 * 86400.0)
    return Window(start, max(end, start))


def _logged(facts: JobFacts) -> Logged:
    steps, _ = reference_steps(facts)
    hosts = facts.header.nodelist
    window = None
    if facts.first_time is not None and facts.last_time is not None:
        window = Window(facts.first_time, facts.last_time)
    if steps is None:
        return Logged(hosts=hosts, window=window)
    numbers = [int(one) for one in steps.series.step]
    return Logged(numbers, list(steps.series.loss), hosts, window)


def _job(facts: JobFacts, judged: Triage) -> Job:
    """What triage says, as the playbooks want it."""
    header, progress = facts.header, judged.progress
    steps, _ = reference_steps(facts)
    beats = facts.heartbeats
    accused = [facts.hosts.get(task) for task in (beats.accused if beats is not None else ())]
    crash = None
    if judged.origin is not None:
        crash = judged.origin.time
    if beats is not None and beats.time is not None:
        crash = beats.time
    return Job(
        status=judged.status.value,
        primary=judged.primary,
        cascade=judged.cascade,
        end=facts.summary.time if facts.summary is not None else None,
        first_step=progress.first_step,
        last_step=progress.last_step,
        total_steps=progress.total_steps,
        last_step_time=progress.last_step_time,
        step_time_s=progress.step_time_s,
        longest_save_s=longest_save_s(facts, steps, progress.checkpoint_period) or None,
        crash_time=crash,
        heartbeat_timeout_s=header.heartbeat_timeout_s,
        accused=tuple(dict.fromkeys(short_name(one) for one in accused if one)),
        coordinator=short_name(header.nodelist[0]) if header.nodelist else None,
        checkpoint_period=progress.checkpoint_period,
        async_saves=header.async_checkpointing,
        saves=tuple(_saves(facts.saves)),
        config={**header.config, **header.passthrough},
    )


def _with_log(steps: Steps, facts: JobFacts) -> Steps:
    """Steps of the metrics, and those that only the log has: saves are placed by them."""
    logged, _ = reference_steps(facts)
    if logged is None:
        return steps
    series = logged.series
    return masks.with_log(steps, np.array(series.step), np.array(series.seconds))


def _start(facts: JobFacts, steps: Steps) -> Optional[float]:
    """The first time in the log, when that is one from before training: mostly the only one."""
    begun = facts.first_time
    if begun is None or not len(steps) or begun > float(steps.ended_at[0]):
        return None
    return begun


def _saves(logged: Sequence[LoggedSave]) -> Iterator[Save]:
    """Saves that the log dates; a start and its end are one."""
    begun: dict[Optional[int], LoggedSave] = {}
    for one in logged:
        if one.event == "started":
            begun[one.step] = one
            continue
        start = begun.pop(one.step, None)
        since = start.time if start is not None else None
        if since is None and one.time is not None and one.seconds is not None:
            since = one.time - one.seconds
        yield Save(one.step, since, one.time, one.event == "failed")


def _fitting(
    judged: Triage, outcome: Outcome, stack: Report, request: Request
) -> tuple[Report, ...]:
    """Reports to show: all where all were asked for, or where what fits explains nothing."""
    wanted = set(playbooks.chosen(judged.primary, judged.cascade))
    found = {one.playbook for one in outcome.observations}
    if request.every_playbook or not found & wanted:
        return (*outcome.reports, stack)
    return (*(one for one in outcome.reports if one.playbook in wanted | found), stack)


# ---- log and metrics together


def _status(judged: Triage, seen: _Seen, moment: Moment) -> str:
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


def _never_began(judged: Triage, seen: _Seen, status: str) -> bool:
    """It is said to run, and after so long there is not one step: nobody can call that well."""
    if status != "running" or seen.window is None or len(seen.steps):
        return False
    waited = seen.window.end - seen.window.start
    return judged.progress.last_step is None and waited > _START_UP_S


def _told(judged: Triage, seen: _Seen, status: str) -> Iterator[Observation]:
    """What triage found, as observations; a hang that the metrics refute is none."""
    for one in judged.diagnosis.findings:
        if one.failure_class == "hang" and _refuted(judged, status):
            continue
        yield Observation(_dated(one, judged, seen), "triage", judged.rule)


def _refuted(judged: Triage, status: str) -> bool:
    """Whether the metrics speak against the hang that the log seems to show."""
    return judged.primary == "hang" and status in ("running", "unknown")


def _dated(finding: Finding, judged: Triage, seen: _Seen) -> Finding:
    """A hang begins with the last step, whose time mostly only the metrics know."""
    if finding.onset is None and finding.failure_class == "hang":
        return replace(finding, onset=seen.steps.last_at or judged.progress.last_step_time)
    return finding


def _ruled_out(judged: Triage, seen: _Seen, status: str) -> tuple[RuledOut, ...]:
    found = list(seen.metrics.outcome.ruled_out) if seen.metrics is not None else []
    if _refuted(judged, status):
        found.append(RuledOut("hang", "steps go on to the last sample of the metrics", "triage"))
    return tuple(found)


def _coverage(judged: Triage, seen: _Seen) -> Coverage:
    """Of the metrics, with what could not be read of the log."""
    log = judged.diagnosis.coverage
    own = seen.coverage or Coverage(0, 0, window=log.window)
    unread = dict.fromkeys((*own.unread, *seen.unread, *log.unread))
    return replace(own, unread=tuple(unread))
