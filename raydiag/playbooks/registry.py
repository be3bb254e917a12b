"""What makes a module of this package a playbook, and the list of all of them.

What a playbook is called and what it asks stands in `playbooks.yaml`, which classes of a log it
fits in `catalog/failures.yaml`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from raydiag.playbooks.observations import Report
from raydiag.playbooks.report_writer import ReportWriter
from raydiag.playbooks.tables import FOLLOW_UPS, PLAYBOOKS
from raydiag.timeline.run_timeline import RunTimeline
from raydiag.tsdb.series import Query

Judgement = Callable[[RunTimeline, ReportWriter], str]
FollowUps = Callable[[RunTimeline], Iterator[Query]]


@dataclass(frozen=True)
class Playbook:
    """A registered playbook: what it asks, and how it judges."""

    id: str
    title: str
    analysis: str  # "Analysis type" of the report
    queries: tuple[str, ...]  # ids of all that it reads, follow-ups among them
    judge: Judgement
    follow_ups: FollowUps | None  # second queries about what stands out

    def report(self, timeline: RunTimeline, writer: ReportWriter) -> Report:
        """Judge; what was seen and ruled out is in the writer then."""
        verdict = self.judge(timeline, writer)
        about = (self.id, self.title, self.analysis, timeline.window, self.queries)
        exclude, block = tuple(writer.exclusions), tuple(writer.summary)
        return Report(*about, tuple(writer.rows), verdict, exclude, block)


_registered: dict[str, Playbook] = {}


def playbook(
    playbook_id: str, follow_ups: FollowUps | None = None
) -> Callable[[Judgement], Judgement]:
    """Register the decorated function, which writes rows and observations and returns a sentence.

    Raises KeyError for a playbook without a row in the table, CatalogError for a row that is
    not understood.
    """
    row = PLAYBOOKS[playbook_id]
    about = (playbook_id, row.text("title"), row.text("analysis", playbook_id))
    queries = row.texts("queries")
    row.end()

    def decorate(judge: Judgement) -> Judgement:
        _registered[playbook_id] = Playbook(*about, queries, judge, follow_ups)
        return judge

    return decorate


def playbooks() -> list[Playbook]:
    """All playbooks, in the order of their reports."""
    return list(map(_registered.__getitem__, PLAYBOOKS))


def follow_up_queries(timeline: RunTimeline) -> list[Query]:
    """Second queries of all playbooks, each once; what decides more comes first."""
    queries: dict[str, Query] = {}
    for candidate in playbooks():
        if candidate.follow_ups is not None:
            queries.update((query.id, query) for query in candidate.follow_ups(timeline))
    return sorted(queries.values(), key=lambda query: FOLLOW_UPS.index(query.id))
