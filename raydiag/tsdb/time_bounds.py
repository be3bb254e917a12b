"""When a server may hold samples at all: between which times to look.

The blocks on disk and the head block tell it; a server that runs somewhere is searched.
"""

from operator import attrgetter
from typing import Any, Optional

from raydiag.model import Unread, Window
from raydiag.tsdb.client import Client
from raydiag.tsdb.connection import Connection
from raydiag.tsdb.series import MAX_POINTS, Query

SEARCH_STEP_S = 300.0
# Looked through one after the other for the first sample of a server that runs.
_SEARCHED_S = {
    "discovery-oldest": 86_400.0,
    "discovery-oldest-6d": 6 * 86_400.0,
    "discovery-oldest-38d": (MAX_POINTS - 1) * SEARCH_STEP_S,
}
_EARLIEST_S, _LATEST_S = 1e9, 1e11


def bounds(connection: Connection, now: float, unread: list[Unread]) -> Optional[Window]:
    """A window that holds all samples, some empty time at its ends included."""
    status = connection.client.metadata("status/tsdb")
    windows = [connection.stored, head(status.data) if status.ok else None]
    if connection.live:
        oldest = _oldest(connection.client, now)
        if oldest is None and windows == [None, None]:
            return None
        windows.append(Window(now if oldest is None else oldest, now))
    elif not status.ok:
        unread.append(Unread("status/tsdb", status.status, status.reason))
    known_windows = list(filter(None, windows))
    if not known_windows:
        return None
    return Window(
        min(map(attrgetter("start"), known_windows)), max(map(attrgetter("end"), known_windows))
    )


def head(data: Any) -> Optional[Window]:
    """Times of the head block; older servers have them one level higher."""
    holder = data.get("headStats", data) if isinstance(data, dict) else {}
    try:
        start, end = float(holder["minTime"]) / 1000, float(holder["maxTime"]) / 1000
        series = int(holder.get("numSeries", 1))
    except (KeyError, TypeError, ValueError):
        return None
    return Window(start, end) if series and _EARLIEST_S < start <= end < _LATEST_S else None


def _oldest(client: Client, now: float) -> Optional[float]:
    """When a server that runs got its first samples, five minutes more or less.

    Most jobs are young: a grid over all of a long retention would be the most expensive query, so
    it grows only while the index knows of something older.
    """
    query = 'count({__name__=~"up|tb_step|hw_scrape_duration_seconds|ray_node_mem_used"})'
    oldest: Optional[float] = None
    for name, span in _SEARCHED_S.items():
        begin = now - span
        answer = client.ask(Query.over(name, query, Window(begin, now), SEARCH_STEP_S))
        for series in filter(len, answer.series):
            oldest = min(float(series.times[0]) - SEARCH_STEP_S, oldest or now)
        if not answer.ok or not _older(client, begin):
            break
    return oldest


def _older(client: Client, time: float) -> bool:
    """Whether there may be samples before `time`; a server that does not tell may have them."""
    ago = time - (MAX_POINTS - 1) * SEARCH_STEP_S
    names = client.metadata("label/__name__/values", {"start": f"{ago:.3f}", "end": f"{time:.3f}"})
    return not names.ok or bool(names.data)
