"""What is asked of one job, and what triage said of it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from raydiag.explain.job.nodes import LiveNodes
from raydiag.joblog.facts import JobFacts
from raydiag.model import HostUnread, Snapshot
from raydiag.triage.verdict import JobStatus, Moment
from raydiag.triage.verdict import Verdict as Triage
from raydiag.tsdb.connection import Connection

DEADLINE_S = 120.0  # for all queries together
_ENDED = (JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELLED)
Say = Callable[[str], None]


@dataclass(frozen=True)
class DiagnosisRequest:
    """What is asked."""

    prometheus: str | None = None  # URL of a server to query instead of the directory
    every_playbook: bool = False
    deadline_s: float = DEADLINE_S
    say: Say = lambda text: None  # progress
    connection: Connection | None = None  # that is open, and stays so
    origin: str = ""  # what people call the server, where the URL is a tunnel's
    no_metrics: str = ""  # why there is no server to query; "": look for what there is
    no_log: str = ""  # why there is no log
    nodes: LiveNodes | None = None  # of the live cluster, where they were probed
    unread: tuple[HostUnread, ...] = ()  # what could not be reached before all this
    nodelist: tuple[str, ...] = ()  # of the job, as its log says
    notes: tuple[str, ...] = ()

    @property
    def live(self) -> LiveNodes:
        """The live cluster; one without nodes where none was probed."""
        return self.nodes or LiveNodes(Snapshot((), 0.0))


@dataclass(frozen=True)
class TriagedJob:
    """A job's log, and what triage makes of it."""

    facts: JobFacts
    triage: Triage
    moment: Moment

    @property
    def has_ended(self) -> bool:
        """Whether the log says so."""
        return self.triage.status in _ENDED

    @property
    def ended_at(self) -> float | None:
        """When a job that is over ended by its own log, Unix seconds; None where it has no time."""
        return self.facts.summary_time or self.facts.last_time

    @property
    def end(self) -> float | None:
        """Until when the job is judged, Unix seconds; None where nobody tells."""
        if self.moment.log_end or self.facts.summary_time is not None:
            return self.ended_at
        return self.moment.now

    @property
    def directory(self) -> Path | None:
        """The job's directory; None where the log lies alone."""
        path = self.facts.resolved.job_dir
        return Path(path) if path else None

    @property
    def metrics_directory(self) -> Path | None:
        """Where the job's Prometheus is, or would be."""
        return self.directory / "prometheus" if self.directory is not None else None

    @property
    def has_metrics_directory(self) -> bool:
        """Whether the job left data of a Prometheus."""
        return self.metrics_directory is not None and self.metrics_directory.is_dir()
