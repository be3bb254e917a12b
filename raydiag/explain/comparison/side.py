"""One job of a comparison: its log, its diagnosis, its steps, and a way to ask its metrics.

A job that runs is asked in place: no second Prometheus is started over its directory. A finished
one gets a throw-away server, each job its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Optional

from raydiag.errors import CannotRun
from raydiag.explain import job
from raydiag.explain.comparison import settings, worker_logs
from raydiag.explain.comparison.settings import JobSettings, Versions
from raydiag.explain.comparison.steps import (
    TrainingRun,
    merged,
    of_events,
    of_log,
    of_series,
    slowed_by_saves,
)
from raydiag.explain.comparison.worker_logs import WorkerLogCounts
from raydiag.explain.job import ExaminedJob, event_files
from raydiag.explain.job.event_files import Bridge
from raydiag.joblog.facts import JobFacts
from raydiag.model import HostUnread
from raydiag.timeline import steps as training_steps
from raydiag.timeline.answers import Answers
from raydiag.timeline.queries import TRAINING, query
from raydiag.timeline.training_series import TrainingSeries
from raydiag.triage.progress import reference_steps
from raydiag.triage.verdict import Moment
from raydiag.tsdb import live
from raydiag.tsdb.connection import Connection, connect, open_directory
from raydiag.tsdb.discovery_types import short_name
from raydiag.tsdb.series import AskedQuery as Question
from raydiag.tsdb.series import Query, QueryResult

LIVE, STORED, LOG_ONLY = "live", "directory", "log only"
_VERSIONS = (
    "count by (Version, GpuDeviceName) (ray_node_gpus_utilization) "
    "or count by (Version) (ray_node_mem_used)"
)


@dataclass(frozen=True)
class AskedJob:
    """One job as the user names it."""

    name: str
    facts: JobFacts
    moment: Moment
    prometheus: Optional[str] = None


@dataclass(frozen=True, eq=False)
class Side:
    """One job, looked at."""

    label: str  # job id, or the name of its log
    asked: str
    facts: JobFacts
    examined: ExaminedJob
    source: str  # of its metrics: one of the constants above
    settings: JobSettings
    run: TrainingRun
    period: Optional[int]  # steps between saves
    saves: tuple[int, ...]  # steps that paid for one
    workers: WorkerLogCounts
    bridge: Bridge
    connection: Optional[Connection] = None
    unread: tuple[HostUnread, ...] = ()

    @property
    def restored(self) -> Optional[bool]:
        """Whether it went on from a checkpoint; None where nothing tells."""
        start = self.examined.triage.progress.start
        return None if start is None else start.startswith("restored")

    @property
    def hosts(self) -> tuple[str, ...]:
        seen = self.examined.metrics
        if seen is not None:
            return seen.context.hosts
        return tuple(short_name(one) for one in self.facts.header.nodelist)

    @property
    def asked_besides(self) -> tuple[Question, ...]:
        """What was asked for the comparison; the diagnosis before it lists its own questions."""
        seen = self.examined.metrics
        if self.connection is None or seen is None:
            return ()
        return tuple(self.connection.client.asked[len(seen.asked) :])

    def ask(self, queries: Sequence[Query], deadline_s: float) -> list[QueryResult]:
        """Nothing where there are no metrics."""
        if self.connection is None:
            return []
        return list(self.connection.client.ask_all(queries, deadline_s).values())


@contextlib.contextmanager
def opened(
    asked: Sequence[AskedJob], deadline_s: float, say: Callable[[str], None]
) -> Iterator[list[Side]]:
    """All jobs, the logs of all first, each with its own way to ask while the block runs."""
    with contextlib.ExitStack() as stack:
        sides = []
        for label, one in zip(labels(asked), asked, strict=True):
            say(f"looking at job {label} ...")
            sides.append(_side(label, one, deadline_s, stack))
        yield sides


def labels(asked: Sequence[AskedJob]) -> list[str]:
    """Job ids where they are known and tell the jobs apart."""
    found = [
        one.facts.resolved.job_id or one.facts.header.job_id or PurePath(one.name).stem
        for one in asked
    ]
    return [
        label if found.count(label) == 1 else one.name
        for label, one in zip(found, asked, strict=True)
    ]


def _side(label: str, one: AskedJob, deadline_s: float, stack: contextlib.ExitStack) -> Side:
    url = _server(one)
    connection = None
    # Where there is no way, the examination says why. One server serves both.
    with contextlib.suppress(CannotRun):
        connection = _connected(one, url, stack)
    request = job.DiagnosisRequest(url, False, deadline_s, connection=connection)
    examined = job.examine(one.facts, one.moment, request)
    seen = examined.metrics
    if seen is None:
        connection = None
    elif connection is None or seen.origin != connection.origin:
        # What answered first had nothing to say.
        connection = _connected(one, None, stack)
    unread: list[HostUnread] = []
    told, versions = TrainingRun(), Versions()
    if examined.metrics is not None and connection is not None:
        told, versions = _from_metrics(examined, connection, deadline_s, unread)
    window = examined.metrics.context.window if examined.metrics is not None else None
    events = event_files.read(one.facts, window, one.moment.alive)
    last_at = float(told.ended_at[-1]) if len(told) else None
    logged, _ = reference_steps(one.facts)
    run = merged([told, of_events(events), of_log(logged)])
    progress = examined.triage.progress
    period = progress.checkpoint_period or training_steps.inferred_period(run.dated)
    header = one.facts.header
    saved = {save.step for save in one.facts.saves if save.step is not None}
    if period and run.first is not None and run.last is not None:
        saved |= set(range(-(-run.first // period) * period, run.last + 2, period))
    head = header.nodelist[0] if header.nodelist else None
    source = LOG_ONLY if connection is None else LIVE if connection.live else STORED
    return Side(
        label,
        one.name,
        one.facts,
        examined,
        source,
        settings.read(one.facts, versions),
        run,
        period,
        tuple(sorted(slowed_by_saves(saved, header.async_checkpointing))),
        worker_logs.read(one.facts.resolved, head),
        event_files.compared(events, told.numbers, last_at, connection is not None),
        connection,
        tuple(unread),
    )


def _server(one: AskedJob) -> Optional[str]:
    """URL to ask instead of the directory: what was named, or the job's own while it lives."""
    if one.prometheus is not None:
        return one.prometheus
    place = one.facts.resolved.job_dir
    data = Path(place) / "prometheus" if place else None
    if data is None or not data.is_dir() or one.moment.alive is False:
        return None
    port = one.facts.dashboards.prometheus_port
    return live.find(data, [port] if port else [])


def _connected(one: AskedJob, url: Optional[str], stack: contextlib.ExitStack) -> Connection:
    if url is not None:
        with contextlib.suppress(CannotRun):  # then the directory is read
            return connect(url)
    place = one.facts.resolved.job_dir
    if place is None:
        raise CannotRun("there is no job directory beside the log, so no metrics")
    return stack.enter_context(open_directory(place))


def _from_metrics(
    examined: ExaminedJob, connection: Connection, deadline_s: float, unread: list[HostUnread]
) -> tuple[TrainingRun, Versions]:
    """Steps and scalars as the bridge tells them, without fills; what the job ran on."""
    metrics = examined.metrics
    assert metrics is not None
    found = metrics.discovery
    questions = [Query.at("versions", _VERSIONS, metrics.context.window.end)]
    if found.has("tb_step"):
        questions.append(query(TRAINING, metrics.context))
    answers = connection.client.ask_all(questions, deadline_s)
    unread += [
        HostUnread("", one.query.id, one.status, one.reason)
        for one in answers.values()
        if not one.ok
    ]
    told = Answers(answers.values(), found)
    gpus = {one.gpus for one in found.hosts if one.gpus}
    versions = Versions(
        gpus.pop() if len(gpus) == 1 else None,
        _values(answers["versions"], "GpuDeviceName"),
        _values(answers["versions"], "Version"),
    )
    return of_series(training_steps.steps_of(told), TrainingSeries.of(told)), versions


def _values(answer: QueryResult, label: str) -> tuple[str, ...]:
    return tuple(sorted({one.labels[label] for one in answer.series if one.labels.get(label)}))


def without_connection(side: Side) -> Side:
    """For everything after the servers have gone."""
    return replace(side, connection=None)
