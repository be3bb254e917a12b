"""JUDGE: series -> observations, rows and findings; one file per question.

The order of a run: `plan` says what to ask first; with those answers `follow_up` says what to ask
about the hosts that stand out; `run` judges. Nothing here talks to a server:

    answers = Answers(ask(plan(context)), context.discovery)
    answers = answers.also(ask(follow_up(context, answers, MOST_QUERIES - asked)))
    outcome = run(context, answers)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Optional, Protocol

from raydiag import catalog
from raydiag.playbooks import (
    follow_up_queries,
    gpu_health,
    heartbeat,
    host_oom,
    network_health,
    node_failure,
    rccl_hang,
    training_stability,
)
from raydiag.playbooks.context import Context, Mask, SaveWindow, TrainingJob
from raydiag.playbooks.observations import (
    Exclusion,
    Observation,
    ObservationRecorder,
    PlaybookOutcome,
    Report,
    ReportRow,
    RuledOut,
)
from raydiag.playbooks.queries import plan
from raydiag.playbooks.query_results import Answers, ResultTable, Where
from raydiag.playbooks.timeline import RunTimeline
from raydiag.tsdb.series import Query

__all__ = [
    "MOST_QUERIES",
    "Answers",
    "Context",
    "Exclusion",
    "TrainingJob",
    "Mask",
    "Observation",
    "PlaybookOutcome",
    "Report",
    "ReportRow",
    "RuledOut",
    "SaveWindow",
    "ResultTable",
    "Where",
    "chosen",
    "follow_up",
    "plan",
    "run",
]


MOST_QUERIES = 40  # of one run, discovery and all playbooks together


class Playbook(Protocol):
    """A module of this package that answers one question."""

    @property
    def ID(self) -> str: ...

    def run(self, scene: RunTimeline, record: ObservationRecorder, /) -> Report:
        """Judges; what it finds goes to `record`."""


PLAYBOOKS: tuple[Playbook, ...] = (
    rccl_hang,
    heartbeat,
    host_oom,
    node_failure,
    gpu_health,
    network_health,
    training_stability,
)


def chosen(primary: Optional[str], cascade: Iterable[str] = ()) -> tuple[str, ...]:
    """Ids of the playbooks that fit what the log says; all of them where it names nothing."""
    named = filter(None, (primary, *cascade))
    fitting = {playbook for name in named for playbook in catalog.failure(name).playbooks}
    every = tuple(one.ID for one in PLAYBOOKS)
    return tuple(name for name in every if name in fitting) or every


def follow_up(context: Context, answers: Answers, most: Optional[int] = None) -> list[Query]:
    """What to ask about the hosts that stand out in the first answers; `most`: so many at most."""
    return follow_up_queries.follow_up(RunTimeline(context, answers), most)


def run(
    context: Context, answers: Answers, only: Optional[Iterable[str]] = None
) -> PlaybookOutcome:
    """Judge by the playbooks of `only`, or by all; several of them may observe the same fault.

    The cheap part is asking: what was asked for one playbook serves all, so all may run.
    """
    wanted = None if only is None else frozenset(only)
    scene = RunTimeline(context, answers)
    reports: list[Report] = []
    ruled_out: list[RuledOut] = []
    observations: list[Observation] = []
    for playbook in PLAYBOOKS:
        if wanted is not None and playbook.ID not in wanted:
            continue
        record = ObservationRecorder(playbook.ID, context.window)
        reports.append(playbook.run(scene, record))
        ruled_out += record.ruled_out
        observations += record.observations
    found = {one.finding.failure_class for one in observations}
    kept = {one.failure_class: one for one in ruled_out if one.failure_class not in found}
    return PlaybookOutcome(tuple(observations), tuple(reports), tuple(kept.values()))
