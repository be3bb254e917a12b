"""A job's Prometheus data as text and as JSON; `raydiag/schemas/tsdb.json` has the shape.

The four actions make one kind of document, told apart by `action`.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Optional
from urllib.parse import urlsplit

import numpy as np

from raydiag import __version__
from raydiag.model import Coverage, Diagnosis, HostUnread, Unread, Window
from raydiag.render import document
from raydiag.render.escape import terminal
from raydiag.render.layout import count, hosts, number, utc
from raydiag.tsdb.connection import Connection
from raydiag.tsdb.discovery_types import Discovery, Family
from raydiag.tsdb.identity import Belief, TsdbIdentity
from raydiag.tsdb.series import AskedQuery, QueryResult, Series

SCHEMA = "raydiag.tsdb/1"
_OPENED = Sequence[tuple[str, Connection]]
_SHOWN_ROWS = 400


@dataclass(frozen=True)
class VerifiedJob:
    """An identity check and what it means."""

    seen: Discovery
    identity: TsdbIdentity
    diagnosis: Diagnosis


# ---- JSON


def info_document(seen: Discovery, live: bool) -> dict[str, Any]:
    """What discovery found."""
    families = [
        {**vars(one), "metrics": list(one.metrics), "hosts": list(one.hosts)}
        for one in seen.families
    ]
    return _document("info", Diagnosis((), (), seen.coverage)) | {
        "origin": seen.origin,
        "live": live,
        "window": _window(seen.window),
        "nnodes": seen.nnodes,
        "expected": list(seen.expected),
        "missing": list(seen.missing),
        "foreign": list(seen.foreign),
        "families": families,
        "hosts": [_host(one) for one in seen.hosts],
        "targets": [dict(vars(one)) for one in seen.targets],
    }


def _host(one: Any) -> dict[str, Any]:
    sights = {prefix: dict(vars(sight)) for prefix, sight in sorted(one.sights.items())}
    lists = {name: list(getattr(one, name)) for name in ("labels", "instances", "ips")}
    return {"name": one.name, **lists, "is_head": one.is_head, "gpus": one.gpus, "sights": sights}


def query_document(
    origin: str, answer: QueryResult, whole: Optional[Window], unread: Iterable[Unread]
) -> dict[str, Any]:
    """All samples of one query; NaN and infinity as text, as Prometheus writes them."""
    return _document("query", _only_coverage(whole, unread)) | {
        "origin": origin,
        "query": {**vars(AskedQuery.of(answer)), "status": answer.status.value},
        "warnings": list(answer.warnings),
        "series": [
            {"labels": dict(one.labels), "samples": list(_samples(one))} for one in answer.series
        ],
    }


def _samples(series: Series) -> Iterator[list[Any]]:
    found = list(zip(series.times.tolist(), series.values.tolist(), strict=True))
    found += [(time_, float("nan")) for time_ in series.nan_times.tolist()]
    for when, value in sorted(found, key=lambda sample: sample[0]):
        yield [when, value if np.isfinite(value) else _special(value)]


def _special(value: float) -> str:
    return "NaN" if np.isnan(value) else "+Inf" if value > 0 else "-Inf"


def verify_document(told: VerifiedJob) -> dict[str, Any]:
    """The identity check."""
    identity = told.identity
    return _document("verify", told.diagnosis) | {
        "origin": told.seen.origin,
        "identity": {
            "belief": identity.belief.value,
            "reason": identity.reason,
            "compared": identity.compared,
            "agreeing": identity.agreeing,
            "examples": [dict(vars(one)) for one in identity.examples],
        },
    }


def view_document(opened: _OPENED) -> dict[str, Any]:
    """The servers that stand."""
    unread = [item for _, connection in opened for item in connection.unread]
    return _document("view", _only_coverage(None, unread)) | {
        "servers": [
            {"job": job, "url": one.client.url, "origin": one.origin, "stored": _window(one.stored)}
            for job, one in opened
        ]
    }


def _document(action: str, diagnosis: Diagnosis) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "raydiag_version": __version__,
        "generated_at": document.rfc3339(time.time()),
        "action": action,
        **document.findings_and_coverage(diagnosis),
    }


def _only_coverage(window: Optional[Window], unread: Iterable[Unread]) -> Diagnosis:
    items = tuple(HostUnread("", one.source, one.status, one.reason) for one in unread)
    return Diagnosis((), (), Coverage(0, 0, (), items, window))


def _window(window: Optional[Window]) -> Optional[dict[str, float]]:
    return {"start": window.start, "end": window.end} if window is not None else None


# ---- text


def info_text(seen: Discovery) -> Iterator[str]:
    """The report for people."""
    yield f"{terminal(seen.origin)}\n"
    if seen.window is None:
        yield "  no samples\n"
    else:
        span = seen.window.end - seen.window.start
        yield f"  {utc(seen.window.start)} to {utc(seen.window.end)} ({_length(span)})\n"
    yield f"  {_host_counts(seen)}\n"
    yield from _host_troubles(seen)
    rows = [_family_row(one, seen) for one in seen.families]
    yield from _table(["family", "metrics", "hosts", "last", "resolution", "refresh"], rows)
    yield from _targets(seen)
    yield from _not_read(seen.unread)


def _host_counts(seen: Discovery) -> str:
    gpus = sum(one.gpus for one in seen.hosts)
    told = count(len(seen.hosts), "host")
    if seen.nnodes is not None or seen.expected:
        told = f"{len(seen.hosts)} of the job's {seen.nnodes or len(seen.expected)} hosts"
    return told + (f", {count(gpus, 'GPU')}" if gpus else "")


def _host_troubles(seen: Discovery) -> Iterator[str]:
    if seen.missing:
        yield f"  without any series: {hosts(seen.missing)}\n"
    if seen.foreign:
        yield f"  not on the node list: {hosts(seen.foreign)}\n"
    for prefix in ("hw_", "ray_"):
        there = [one for one in seen.hosts if one.sight(prefix) is not None]
        if there and len(there) < len(seen.hosts):
            names = hosts(one.name for one in seen.hosts if one not in there)
            yield f"  without {prefix}* series: {names}\n"
    needed = ("hw_gpu_", "hw_tcp_", "hw_rdma_", "ray_node_", "tb_")
    absent = [one for one in needed if seen.family(one) is None]
    if absent:
        yield f"  absent: {', '.join(f'{one}*' for one in absent)}\n"


def _family_row(one: Family, seen: Discovery) -> list[str]:
    lag = "-" if one.lag_s is None else "at the end" if one.lag_s < 1 else f"-{_length(one.lag_s)}"
    return [
        terminal(f"{one.prefix}*" if one.prefix.endswith("_") else one.prefix),
        str(len(one.metrics)),
        str(len(one.hosts))
        + (f" of {len(seen.hosts)}" if len(one.hosts) < len(seen.hosts) else ""),
        lag,
        _seconds(one.resolution_s),
        _seconds(one.refresh_s),
    ]


def _targets(seen: Discovery) -> Iterator[str]:
    jobs: dict[str, list[Any]] = {}
    for one in seen.targets:
        jobs.setdefault(one.job, []).append(one)
    for job, own in sorted(jobs.items()):
        down = [one.host or one.instance for one in own if not one.up]
        told = f"; down at the last scrape: {hosts(down)}" if down else ""
        yield f"  scrape job {terminal(job)}: {len(own) - len(down)} of {len(own)} up{told}\n"


def query_text(
    answer: QueryResult, whole: Optional[Window], unread: Sequence[Unread]
) -> Iterator[str]:
    """A value for each series, or its extent over the range."""
    if not answer.series:
        reach = f"; samples reach to {utc(whole.end)}" if whole is not None else ""
        when = f"at {utc(answer.query.window.end)}"
        yield f"No such series {when}{reach}.\n"
    elif all(one.sampled_at.size <= 1 for one in answer.series):
        rows = [[_name(one), _value(one)] for one in answer.series]
        yield from _table(["series", "value"], rows)
    else:
        rows = [[_name(one), *_extent(one)] for one in answer.series]
        yield from _table(["series", "min", "max", "mean", "last", "samples", "NaN"], rows)
    for warning in answer.warnings:
        yield f"warning: {terminal(warning)}\n"
    yield from _not_read(unread)


def _name(one: Series) -> str:
    labels = ", ".join(f"{k}={v}" for k, v in sorted(one.labels.items()) if k != "__name__")
    return terminal(f"{one.metric}{{{labels}}}")


def _value(one: Series) -> str:
    return number(one.last) if one.last is not None else "NaN"


def _extent(one: Series) -> list[str]:
    known = one.values
    told = [number(float(f(known))) for f in (np.min, np.max, np.mean)] if known.size else ["-"] * 3
    return [*told, _value(one), str(one.sampled_at.size), str(one.nan_times.size)]


def verify_text(told: VerifiedJob) -> Iterator[str]:
    """The belief, why, and the steps that show it."""
    words = {
        Belief.VERIFIED: "These are the job's own series",
        Belief.UNVERIFIED: "It cannot be told whether these are the job's series",
        Belief.WRONG: "THESE ARE NOT THE JOB'S SERIES",
    }
    identity = told.identity
    yield f"{terminal(told.seen.origin)}\n"
    yield f"{words[identity.belief]}: {terminal(identity.reason)}.\n"
    rows = [
        [str(one.step), utc(one.time), number(one.logged), number(one.stored)]
        for one in identity.examples
    ]
    if rows:
        yield from _table(["step", "stored at", "loss in the log", "stored loss"], rows)
    yield from _not_read(told.seen.unread)


def view_text(opened: _OPENED) -> Iterator[str]:
    """Where to look, from here and from elsewhere."""
    for job, connection in opened:
        yield f"{terminal(job)}\n  Open {connection.client.url}\n"
        if connection.stored is not None:
            start, end = utc(connection.stored.start), utc(connection.stored.end)
            more = " and later" if connection.has_log else ""
            yield f"  data from {start} to {end}{more}: set that time in the page\n"
        yield from _not_read(connection.unread)
    ports = " ".join(
        f"-L {port}:127.0.0.1:{port}" for port in (urlsplit(c.client.url).port for _, c in opened)
    )
    yield f"From another machine first: ssh {ports} {terminal(socket.gethostname())}\n"
    yield "Ctrl-C ends it and leaves nothing behind.\n"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    shown = rows[:_SHOWN_ROWS]
    widths = [max(len(row[i]) for row in [head, *shown]) for i in range(len(head))]
    for row in [head, *shown]:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield f"  {'  '.join(cells).rstrip()}\n"
    if len(rows) > len(shown):
        yield f"  and {len(rows) - len(shown)} more: --format json has all\n"


def _not_read(unread: Iterable[Unread]) -> Iterator[str]:
    items = list(unread)
    if items:
        yield "NOT READ\n"
    for item in items:
        yield f"  {terminal(item.source)}: {terminal(item.reason)}\n"


def _length(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _seconds(value: Optional[float]) -> str:
    return "-" if value is None else f"{value:.3g} s"
