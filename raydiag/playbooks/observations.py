"""What a playbook hands back: rows for a person to read, observations for the verdict."""

from collections.abc import Sequence
from dataclasses import dataclass

from raydiag.model import Observation, Window


@dataclass(frozen=True)
class ReportRow:
    """One row of an interpretation table, with the values that it was decided from."""

    row: str  # id of the row, e.g. "busy-wait"
    holds: bool | None  # None: it cannot be decided, and `interpretation` says why
    interpretation: str
    hosts: tuple[str, ...] = ()
    gpu: int | None = None
    device: str | None = None
    value: float | None = None
    unit: str = ""
    query_id: str = ""  # id of the query that the value comes from


@dataclass(frozen=True)
class RuledOut:
    """A cause that the series speak against."""

    failure_class: str
    why: str
    playbook: str


@dataclass(frozen=True)
class Exclusion:
    """A node to leave out of the next job, the most urgent first."""

    host: str
    priority: int  # 1: lost packets for good, 2: retransmits and timeouts, 3: congestion, 4: TCP
    reason: str


@dataclass(frozen=True)
class Report:
    """One playbook's run: everything that it looked at, hits or not."""

    playbook: str
    title: str
    analysis: str  # "Analysis type" of the report: hang, heartbeat, oom, hardware, ...
    window: Window
    queries: tuple[str, ...]  # ids of the queries that it read
    rows: tuple[ReportRow, ...]
    verdict: str = ""  # one sentence
    exclude: tuple[Exclusion, ...] = ()
    block: tuple[str, ...] = ()  # lines of the health summary, where the playbook has one


@dataclass(frozen=True)
class PlaybookOutcome:
    """What all playbooks that ran found."""

    observations: Sequence[Observation]
    reports: Sequence[Report]
    ruled_out: Sequence[RuledOut] = ()
