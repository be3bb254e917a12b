"""What the diagnosis of a job rests on: how many nodes, of which time, and what was not there."""

from collections.abc import Iterable, Iterator

from raydiag.explain.job import ExaminedJob
from raydiag.model import HostUnread
from raydiag.render.coverage import blind_lines
from raydiag.render.formats import count, grouped, hosts_of, utc


def missing_lines(examined: ExaminedJob) -> Iterator[str]:
    """Which kind of source is not there."""
    if examined.no_log:
        yield f"Log: none. {_sentence(examined.no_log)}"
    if examined.log_only:
        yield f"Metrics: none. {_sentence(examined.log_only)}"


def untold_lines(examined: ExaminedJob) -> list[str]:
    """Of `missing_lines`, what the verdict's summary does not say."""
    is_told = examined.log_only and examined.log_only in examined.explained.verdict.summary
    return [] if is_told else list(missing_lines(examined))


def seen_lines(examined: ExaminedJob) -> Iterator[str]:
    """How many nodes, of which time; and what could not be read."""
    coverage = examined.explained.diagnosis.coverage
    seen = []
    if coverage.asked:
        seen.append(f"{coverage.answered} of {count(coverage.asked, 'node')} seen")
    if coverage.window is not None:
        seen.append(f"window {utc(coverage.window.start)} to {utc(coverage.window.end)}")
    yield ", ".join(seen)
    if examined.training:
        yield f"training series: {examined.training}"
    yield from blind_lines(coverage)
    yield from _unread(examined, coverage.unread)


def _unread(examined: ExaminedJob, unread: Iterable[HostUnread]) -> Iterator[str]:
    """Equal reasons share a line; why there are no metrics is said above."""
    untold = [gap for gap in unread if gap.reason != examined.log_only]
    for reason, gaps in grouped(untold, "{0.source}: {0.reason}".format).items():
        yield ": ".join(filter(None, ["unread", hosts_of(gaps), reason]))


def _sentence(reason: str) -> str:
    """The reason with a capital, unless it starts with a name that has none."""
    if reason.startswith(("http", "/")):
        return f"{reason}."
    return f"{reason[:1].upper()}{reason[1:]}."
