"""When a server may hold samples at all: between which times to look.

The blocks on disk and the head block tell it; a server that runs somewhere is searched.
"""

from __future__ import annotations

from typing import Any, Optional

from raydiag.model import Unread, Window
from raydiag.tsdb.client import Client
from raydiag.tsdb.connection import Connection
from raydiag.tsdb.series import MAX_POINTS, Query

SEARCH_STEP_S = 300.0
# Looked through one after the other for the first sample of a server that runs.
_SEARCHED_S = (86_400.0, 6 * 86_400.0, (MAX_POINTS - 1) * SEARCH_STEP_S)
_EARLIEST_S, _LATEST_S = 1e9, 1e11


def extent(connection: Connection, now: float) -> Optional[Window]:
    """Where samples may be, without looking at them: for a query of the user's own."""
    return bounds(connection, now, [])


def bounds(connection: Connection, now: float, unread: list[Unread]) -> Optional[Window]:
    """A window that holds all samples, some empty time at its ends included."""
    found = [connection.stored] if connection.stored is not None else []
    told = connection.client.metadata("status/tsdb")
    if told.ok and (span := head(told.data)) is not None:
        found.append(span)
    if connection.live:
        found.append(Window(now, now))
        if (start := _oldest(connection.client, now)) is not None:
            found.append(Window(start, start))
        elif len(found) == 1:
            return None
    elif not told.ok:
        unread.append(Unread("status/tsdb", told.status, told.reason))
    if not found:
        return None
    return Window(min(one.start for one in found), max(one.end for one in found))


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

    Most jobs are young: a grid over all of a long retention would be the dearest query of all, so
    it grows only while the index knows of something older.
    """
    query = 'count({__name__=~"up|tb_step|hw_scrape_duration_seconds|ray_node_mem_used"})'
    found: Optional[float] = None
    for span in _SEARCHED_S:
        begin = now - span
        name = f"discovery-oldest{'' if span == _SEARCHED_S[0] else f'-{span / 86400:.0f}d'}"
        answer = client.ask(Query.over(name, query, Window(begin, now), SEARCH_STEP_S))
        starts = [float(one.times[0]) for one in answer.series if len(one)]
        found = min(starts) - SEARCH_STEP_S if starts else found
        if not answer.ok or not _older(client, begin):
            break
    return found


def _older(client: Client, time: float) -> bool:
    """Whether there may be samples before `time`; a server that does not tell may have them."""
    ago = time - (MAX_POINTS - 1) * SEARCH_STEP_S
    names = client.metadata("label/__name__/values", {"start": f"{ago:.3f}", "end": f"{time:.3f}"})
    return not names.ok or bool(names.data)
