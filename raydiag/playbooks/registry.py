"""What makes a module of this package a playbook, and the list of all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Optional, Union

from raydiag.playbooks.observations import Report
from raydiag.playbooks.report_writer import ReportWriter
from raydiag.timeline.queries import QueryTemplate, register
from raydiag.timeline.run_timeline import RunTimeline
from raydiag.tsdb.series import Query

Judgement = Callable[[RunTimeline, ReportWriter], str]
FollowUps = Callable[[RunTimeline], Iterator[Query]]

# The order of reports; of two equal observations the first playbook's counts. Others come last.
_ORDER = (
    "rccl-hang",
    "heartbeat",
    "host-oom",
    "node-failure",
    "gpu-health",
    "network-health",
    "training-stability",
)
# Follow-up queries that decide more come first, for they may be cut. Others come last.
_FOLLOW_UP_ORDER = (
    "rdma-ports",
    "rdma-ports-down-fine",
    "gpu-errors-fine",
    "gpu-busy",
    "memory-fine",
    "storage-fine",
    "gpu-temperature-fine",
    "gpu-clock-fine",
    "gpu-vram-fine",
    "gpu-power-fine",
    "gpu-corrected-fine",
)


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
        return Report(
            self.id,
            self.title,
            self.analysis,
            timeline.window,
            self.queries,
            tuple(writer.rows),
            verdict,
            tuple(writer.exclusions),
            tuple(writer.summary),
        )


_registered: dict[str, Playbook] = {}


def playbook(
    playbook_id: str,
    title: str,
    queries: Iterable[Union[str, QueryTemplate]],
    analysis: str = "",
    follow_ups: Optional[FollowUps] = None,
) -> Callable[[Judgement], Judgement]:
    """Register the decorated function, which writes rows and observations and returns a sentence.

    `queries` are ids of shared queries, of follow-ups, and templates of what it alone reads. Which
    classes of a log a playbook fits stands in `catalog/failures.yaml`.
    """
    query_ids = tuple(map(_query_id, queries))

    def decorate(judge: Judgement) -> Judgement:
        analysis_type = analysis or playbook_id
        _registered[playbook_id] = Playbook(
            playbook_id, title, analysis_type, query_ids, judge, follow_ups
        )
        return judge

    return decorate


def _query_id(query: Union[str, QueryTemplate]) -> str:
    if isinstance(query, QueryTemplate):
        register(query)
        return query.id
    return query


def playbooks() -> list[Playbook]:
    """All playbooks, in the order of their reports."""
    return sorted(_registered.values(), key=lambda candidate: _rank(candidate.id, _ORDER))


def follow_up_queries(timeline: RunTimeline) -> list[Query]:
    """Second queries of all playbooks, each once; what decides more comes first."""
    queries: dict[str, Query] = {}
    for candidate in playbooks():
        if candidate.follow_ups is not None:
            queries.update((query.id, query) for query in candidate.follow_ups(timeline))
    return sorted(queries.values(), key=lambda query: _rank(query.id, _FOLLOW_UP_ORDER))


def _rank(name: str, order: tuple[str, ...]) -> int:
    return order.index(name) if name in order else len(order)
