"""JUDGE: series -> observations, rows and findings; one module or package for each playbook.

A playbook is a function marked with `@playbook`. `playbooks.yaml` names the queries that it reads,
among them follow-ups that look closer at what stands out. It judges by a `RunTimeline`, writes
rows, observations by keyword and what it rules out to a `ReportWriter`, and returns its verdict.

The order of a run: `plan` gives the first queries; with their answers `follow_up` gives those about
the hosts that stand out; `run` judges. Nothing here talks to a server:

    answers = Answers(ask(plan(context)), context.discovery)
    answers = answers.also(ask(follow_up(context, answers, MAX_QUERIES - asked)))
    outcome = run(context, answers)
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable

from raydiag import catalog
from raydiag.model import Observation
from raydiag.playbooks.observations import PlaybookOutcome, Report, RuledOut
from raydiag.playbooks.registry import follow_up_queries, playbooks
from raydiag.playbooks.report_writer import ReportWriter
from raydiag.timeline.answers import Answers
from raydiag.timeline.context import Context
from raydiag.timeline.queries import plan
from raydiag.timeline.run_timeline import RunTimeline
from raydiag.tsdb.series import Query

__all__ = ["MAX_QUERIES", "chosen", "follow_up", "plan", "run"]

MAX_QUERIES = 40  # of one run, discovery and all playbooks together

for _module in pkgutil.iter_modules(__path__, f"{__name__}."):
    importlib.import_module(_module.name)  # a playbook registers itself, with its queries


def chosen(primary: str | None, cascade: Iterable[str] = ()) -> tuple[str, ...]:
    """Ids of the playbooks that fit what the log says; all of them where it names nothing."""
    fitting: set[str] = set()
    for name in filter(None, (primary, *cascade)):
        fitting.update(catalog.failure(name).playbooks)
    all_ids = tuple(playbook.id for playbook in playbooks())
    return tuple(filter(fitting.__contains__, all_ids)) or all_ids


def follow_up(context: Context, answers: Answers, most: int | None = None) -> list[Query]:
    """What to ask about the hosts that stand out in the first answers; `most`: so many at most."""
    return follow_up_queries(RunTimeline(context, answers))[:most]


def run(context: Context, answers: Answers, only: Iterable[str] | None = None) -> PlaybookOutcome:
    """Judge by the playbooks of `only`, or by all; several of them may observe the same fault.

    The cheap part is asking: what was asked for one playbook serves all, so all may run.
    """
    only_ids = None if only is None else frozenset(only)
    timeline = RunTimeline(context, answers)
    reports: list[Report] = []
    ruled_out: list[RuledOut] = []
    observations: list[Observation] = []
    for playbook in playbooks():
        if only_ids is None or playbook.id in only_ids:
            writer = ReportWriter(playbook.id, timeline)
            reports.append(playbook.report(timeline, writer))
            ruled_out += writer.ruled_out
            observations += writer.observations
    observed = {observation.finding.failure_class for observation in observations}
    still_ruled_out = {
        cause.failure_class: cause for cause in ruled_out if cause.failure_class not in observed
    }
    return PlaybookOutcome(tuple(observations), tuple(reports), tuple(still_ruled_out.values()))
