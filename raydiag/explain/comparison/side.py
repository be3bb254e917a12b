"""One job of a comparison: its log, its diagnosis, its steps, and a way to ask its metrics.

A job that runs is asked in place: no second Prometheus is started over its directory. A finished
one gets a temporary server, each job its own.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from raydiag.errors import CannotRun
from raydiag.explain.comparison import settings, steps, worker_logs
from raydiag.explain.comparison.settings import JobSettings
from raydiag.explain.comparison.steps import TrainingRun
from raydiag.explain.comparison.worker_logs import WorkerLogCounts
from raydiag.explain.job import DiagnosisRequest, ExaminedJob, Metrics, event_files, examine
from raydiag.explain.job.event_files import Bridge
from raydiag.joblog.facts import JobFacts
from raydiag.model import HostUnread
from raydiag.timeline.answers import Answers
from raydiag.timeline.queries import TRAINING, query
from raydiag.timeline.steps import inferred_rhythm, steps_of
from raydiag.timeline.training_series import TrainingSeries
from raydiag.triage.progress import reference_steps
from raydiag.triage.verdict import Moment
from raydiag.tsdb import live
from raydiag.tsdb.connection import Connection, connect, open_directory
from raydiag.tsdb.discovery_types import short_name
from raydiag.tsdb.series import AskedQuery, Query, QueryResult
from raydiag.tsdb.unread import unanswered

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
    prometheus: str | None = None


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
    period: int | None  # steps between saves
    saves: tuple[int, ...]  # steps that paid for one
    workers: WorkerLogCounts
    bridge: Bridge
    connection: Connection | None = None
    unread: tuple[HostUnread, ...] = ()

    @property
    def start(self) -> str | None:
        """How training began: afresh or restored; None where nothing tells."""
        return self.examined.triage.progress.start

    @property
    def restored(self) -> bool | None:
        """Whether it went on from a checkpoint; None where nothing tells."""
        return None if self.start is None else self.start.startswith("restored")

    @property
    def hosts(self) -> tuple[str, ...]:
        """Short names of the hosts of the job."""
        queried = self.examined.metrics
        if queried is not None:
            return queried.context.hosts
        return tuple(map(short_name, self.facts.header.nodelist))

    @property
    def asked_besides(self) -> tuple[AskedQuery, ...]:
        """What was asked for the comparison; the diagnosis before it lists its own questions."""
        queried = self.examined.metrics
        if self.connection is None or queried is None:
            return ()
        return tuple(self.connection.client.asked[len(queried.asked) :])

    def ask(self, queries: Sequence[Query], deadline_s: float) -> list[QueryResult]:
        """Nothing where there are no metrics."""
        if self.connection is None:
            return []
        return list(self.connection.client.ask_all(queries, deadline_s).values())


@contextlib.contextmanager
def opened(
    jobs: Sequence[AskedJob], deadline_s: float, say: Callable[[str], None]
) -> Iterator[list[Side]]:
    """All jobs, the logs of all first, each with its own way to ask while the block runs."""
    with contextlib.ExitStack() as stack:
        sides = []
        for label, job in zip(labels(jobs), jobs, strict=True):
            say(f"looking at job {label} ...")
            sides.append(_side(label, job, deadline_s, stack))
        yield sides


def labels(jobs: Sequence[AskedJob]) -> list[str]:
    """Job ids where they are known and tell the jobs apart."""
    names = list(map(_short_label, jobs))
    return [
        label if names.count(label) == 1 else job.name
        for label, job in zip(names, jobs, strict=True)
    ]


def _short_label(job: AskedJob) -> str:
    return job.facts.resolved.job_id or job.facts.header.job_id or PurePath(job.name).stem


def _side(label: str, job: AskedJob, deadline_s: float, stack: contextlib.ExitStack) -> Side:
    examined, connection = _examined(job, deadline_s, stack)
    unread: list[HostUnread] = []
    bridged, versions, window = TrainingRun(), dict[str, Any](), None
    if examined.metrics is not None and connection is not None:
        bridged, versions = _from_metrics(examined.metrics, connection, deadline_s, unread)
        window = examined.metrics.context.window
    events = event_files.read(job.facts, window, job.moment.alive)
    logged, _ = reference_steps(job.facts)
    run = steps.merged([bridged, steps.of_events(events), steps.of_log(logged)])
    rhythm = inferred_rhythm(run.dated)
    period = examined.triage.progress.checkpoint_period or (rhythm.period if rhythm else None)
    header = job.facts.header
    saved = {*steps_of_logged_saves(job.facts), *run.periodic_saves(period, beyond=1)}
    return Side(
        label,
        job.name,
        job.facts,
        examined,
        _source(connection),
        settings.read(job.facts, versions),
        run,
        period,
        tuple(sorted(steps.slowed_by_saves(saved, header.async_checkpointing))),
        worker_logs.read(job.facts.resolved, next(iter(header.nodelist), None)),
        event_files.compared(events, bridged.numbers, bridged.dated.last_at, bool(connection)),
        connection,
        tuple(unread),
    )


def _examined(
    job: AskedJob, deadline_s: float, stack: contextlib.ExitStack
) -> tuple[ExaminedJob, Connection | None]:
    """The diagnosis of one job, and where its metrics are asked; None where it has none."""
    url, connection = _server(job), None
    # Where there is no way, the examination says why. One server serves both.
    with contextlib.suppress(CannotRun):
        connection = _connected(job, url, stack)
    request = DiagnosisRequest(url, False, deadline_s, connection=connection)
    examined = examine(job.facts, job.moment, request)
    if examined.metrics is None:
        return examined, None
    if connection is None or examined.metrics.origin != connection.origin:
        # What answered first had nothing to say.
        connection = _connected(job, None, stack)
    return examined, connection


def _source(connection: Connection | None) -> str:
    if connection is None:
        return LOG_ONLY
    return LIVE if connection.live else STORED


def steps_of_logged_saves(facts: JobFacts) -> set[int]:
    """The steps whose saves the log names."""
    return {save.step for save in facts.saves if save.step is not None}


def _server(job: AskedJob) -> str | None:
    """URL to ask instead of the directory: what was named, or the job's own while it lives."""
    if job.prometheus is not None:
        return job.prometheus
    place = job.facts.resolved.job_dir
    if not place or job.moment.alive is False:
        return None
    data = Path(place) / "prometheus"
    ports = filter(None, [job.facts.dashboards.prometheus_port])
    return live.find(data, list(ports)) if data.is_dir() else None


def _connected(job: AskedJob, url: str | None, stack: contextlib.ExitStack) -> Connection:
    if url is not None:
        with contextlib.suppress(CannotRun):  # then the directory is read
            return connect(url)
    place = job.facts.resolved.job_dir
    if place is None:
        raise CannotRun("there is no job directory beside the log, so no metrics")
    return stack.enter_context(open_directory(place))


def _from_metrics(
    metrics: Metrics, connection: Connection, deadline_s: float, unread: list[HostUnread]
) -> tuple[TrainingRun, dict[str, Any]]:
    """Steps and scalars as the bridge tells them, without fills; what the job ran on."""
    discovery = metrics.discovery
    questions = [Query.at("versions", _VERSIONS, metrics.context.window.end)]
    if discovery.has("tb_step"):
        questions.append(query(TRAINING, metrics.context))
    answers = connection.client.ask_all(questions, deadline_s)
    unread += unanswered(answers.values())
    query_answers = Answers(answers.values(), discovery)
    gpus = {host.gpus for host in discovery.hosts if host.gpus}
    versions = {
        "GPUs per node": gpus.pop() if len(gpus) == 1 else None,
        "GPU model": _values(answers["versions"], "GpuDeviceName"),
        "Ray version": _values(answers["versions"], "Version"),
    }
    run = steps.of_series(steps_of(query_answers), TrainingSeries.of(query_answers))
    return run, versions


def _values(answer: QueryResult, label: str) -> str | None:
    values = {series.labels.get(label) for series in answer.series}
    return ", ".join(sorted(filter(None, values))) or None
