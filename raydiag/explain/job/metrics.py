"""A job's metrics, as far as they can be had: of a server, of the job's directory, or none."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from raydiag.errors import CannotRun
from raydiag.explain.job import event_files
from raydiag.explain.job.logged import lines_on_no_samples, logged
from raydiag.explain.job.query import SeenMetrics, query
from raydiag.explain.job.request import DiagnosisRequest, TriagedJob
from raydiag.model import HostUnread, Status, Window
from raydiag.playbooks import observability
from raydiag.tsdb.connection import Connection, EmptyTsdb, connect, open_directory

_LONGEST_S = 30.0  # for one query
_ROUNDS = 6  # that a server which stalls can make last so long, one after the other
_NO_RAY = "the job ran without Ray (RAY=0), which has no metrics; RAY=1 records them"


def look(job: TriagedJob, request: DiagnosisRequest) -> SeenMetrics:
    """The metrics; without any, the steps of the event file.

    Raises CannotRun when a server that was named does not answer, and there is nothing else.
    """
    metrics = _metrics(job, request)
    if metrics.metrics is not None or request.no_log:
        return metrics
    return _with_steps_of_event_file(metrics, job)


def _metrics(job: TriagedJob, request: DiagnosisRequest) -> SeenMetrics:
    if not job.has_metrics_directory:
        if request.no_metrics:
            return SeenMetrics(log_only=request.no_metrics)
        if request.prometheus is None and not job.facts.header.ray:
            return SeenMetrics(log_only=_NO_RAY)
    try:
        source = _source(job, request)
    except CannotRun as error:
        return _unavailable(job, request, error)
    try:
        with _opened(source, job, request) as connection:
            metrics = query(connection, job, request)
    except EmptyTsdb as error:
        empty = observability.empty(str(error), lines_on_no_samples(job))
        reason = "the job's Prometheus directory holds no samples"
        metrics = SeenMetrics(log_only=reason, observations=(empty,))
    except CannotRun as error:
        if request.prometheus is None or source.notes:
            metrics = _directory_unreadable(job, error)
        else:
            metrics = _unavailable(job, request, error)
    return replace(metrics, notes=(*source.notes, *metrics.notes))


# ---- where metrics come from


@dataclass(frozen=True)
class _Source:
    """Where the metrics are read."""

    connection: Connection | None = None  # None: the job's directory is opened
    notes: tuple[str, ...] = ()  # why not the server that was named


def _source(job: TriagedJob, request: DiagnosisRequest) -> _Source:
    """The server that was named; where it does not answer, what is in the directory."""
    if request.connection is not None:
        if request.prometheus is None or request.connection.live:
            return _Source(request.connection)
        return _Source(request.connection, (_instead(f"{request.prometheus} does not answer"),))
    if request.prometheus is None:
        if job.directory is None:
            raise CannotRun("there is no job directory beside the log, so no metrics")
        return _Source()
    try:
        server = connect(request.prometheus, min(_LONGEST_S, request.deadline_s / _ROUNDS))
    except CannotRun as error:
        if not job.has_metrics_directory:
            raise
        return _Source(notes=(_instead(error),))
    return _Source(replace(server, origin=request.origin) if request.origin else server)


def _instead(reason: object) -> str:
    return f"{reason}: the job's directory was read instead"


@contextlib.contextmanager
def _opened(source: _Source, job: TriagedJob, request: DiagnosisRequest) -> Iterator[Connection]:
    if source.connection is not None:
        yield source.connection
        return
    request.say("opening the metrics ...")
    with open_directory(str(job.directory)) as connection:
        yield connection


# ---- where there are none


def _unavailable(job: TriagedJob, request: DiagnosisRequest, error: CannotRun) -> SeenMetrics:
    """No server, or one that was named and answers with nonsense."""
    if request.prometheus is None:
        return _directory_unreadable(job, error)
    if job.has_metrics_directory:
        metrics = _metrics(job, replace(request, prometheus=None, connection=None))
        return replace(metrics, notes=(_instead(error), *metrics.notes))
    if request.nodes is None:
        raise error
    unread = HostUnread("", request.prometheus, Status.ERROR, str(error))
    return SeenMetrics(log_only=str(error), unread=(unread,))


def _directory_unreadable(job: TriagedJob, error: CannotRun) -> SeenMetrics:
    if job.has_metrics_directory:
        unread = HostUnread("", str(job.metrics_directory), Status.ERROR, str(error))
        return SeenMetrics(log_only=str(error), unread=(unread,))
    reason = f"{job.metrics_directory or 'the job'}: there is no such directory"
    empty = observability.empty(reason, lines_on_no_samples(job))
    return SeenMetrics(log_only="the job has no Prometheus directory", observations=(empty,))


def _with_steps_of_event_file(metrics: SeenMetrics, job: TriagedJob) -> SeenMetrics:
    """Without metrics, when training did its last step is told by what it wrote itself."""
    events = event_files.read(job.facts, None, job.moment.alive)
    unread = map(HostUnread.without_host, events.unread)
    metrics = replace(metrics, unread=(*metrics.unread, *unread))
    steps = event_files.alone(events, _logged_losses(job))
    if not len(steps) or steps.last_at is None:
        return metrics
    note = (
        f"there are no metrics: that step {steps.last} was the last, and when, is told by "
        f"{events.files[-1]}"
    )
    metrics = replace(metrics, steps=steps, notes=(*metrics.notes, note))
    if job.end is None:
        return metrics
    window = Window(float(steps.ended_at[0]), max(job.end, steps.last_at))
    return replace(metrics, window=window)


def _logged_losses(job: TriagedJob) -> dict[int, float]:
    """By step."""
    log = logged(job.facts)
    return {
        step: loss for step, loss in zip(log.steps, log.losses, strict=True) if np.isfinite(loss)
    }
