"""What makes a module of this package a playbook, and the list of all of them.

What a playbook is called and what it asks stands in `playbooks.yaml`, which classes of a log it
fits in `catalog/failures.yaml`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import resources
from typing import Optional

from raydiag.catalog.rows import CatalogRow, loaded, rows
from raydiag.playbooks.observations import Report
from raydiag.playbooks.report_writer import ReportWriter
from raydiag.timeline.run_timeline import RunTimeline
from raydiag.tsdb.series import Query

Judgement = Callable[[RunTimeline, ReportWriter], str]
FollowUps = Callable[[RunTimeline], Iterator[Query]]

_FILE = "playbooks.yaml"
_TABLE = CatalogRow(
    loaded(resources.files(__package__).joinpath(_FILE).read_text("utf-8"), _FILE), _FILE, _FILE
)
_ROWS = {row.name: row for row in rows(_TABLE.take("playbooks"), _FILE, "id")}
_FOLLOW_UPS = _TABLE.texts("follow_ups")
CLASS_OF_COUNTER = _TABLE.mapping("class_of_counter")
COMPARED, COUNTED = _TABLE.take("compared"), _TABLE.take("counted")


@dataclass(frozen=True)
class Playbook:
    """A registered playbook: what it asks, and how it judges."""

    id: str
    title: str
    analysis: str  # "Analysis type" of the report
    queries: tuple[str, ...]  # ids of all that it reads, follow-ups among them
    judge: Judgement
    follow_ups: Optional[FollowUps]  # second queries about what stands out

    def report(self, timeline: RunTimeline, writer: ReportWriter) -> Report:
        """Judge; what was seen and ruled out is in the writer then."""
        verdict = self.judge(timeline, writer)
        about = (self.id, self.title, self.analysis, timeline.window, self.queries)
        exclude, block = tuple(writer.exclusions), tuple(writer.summary)
        return Report(*about, tuple(writer.rows), verdict, exclude, block)


_registered: dict[str, Playbook] = {}


def playbook(
    playbook_id: str, follow_ups: Optional[FollowUps] = None
) -> Callable[[Judgement], Judgement]:
    """Register the decorated function, which writes rows and observations and returns a sentence.

    Raises KeyError for a playbook without a row in the table, CatalogError for a row that is
    not understood.
    """
    row = _ROWS[playbook_id]
    about = (playbook_id, row.text("title"), row.text("analysis", playbook_id))
    queries = row.texts("queries")
    row.end()

    def decorate(judge: Judgement) -> Judgement:
        _registered[playbook_id] = Playbook(*about, queries, judge, follow_ups)
        return judge

    return decorate


def playbooks() -> list[Playbook]:
    """All playbooks, in the order of their reports."""
    return list(map(_registered.__getitem__, _ROWS))


def follow_up_queries(timeline: RunTimeline) -> list[Query]:
    """Second queries of all playbooks, each once; what decides more comes first."""
    queries: dict[str, Query] = {}
    for candidate in playbooks():
        if candidate.follow_ups is not None:
            queries.update((query.id, query) for query in candidate.follow_ups(timeline))
    return sorted(queries.values(), key=lambda query: _FOLLOW_UPS.index(query.id))
