"""A job's Prometheus data as JSON; `raydiag/schemas/tsdb.json` states the shape.

The four actions make one kind of document, told apart by `action`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Optional

import numpy as np

from raydiag.model import Coverage, Diagnosis, HostUnread, Unread, Window
from raydiag.render import document
from raydiag.tsdb.connection import Connection
from raydiag.tsdb.discovery_types import Discovery
from raydiag.tsdb.identity import TsdbIdentity
from raydiag.tsdb.series import AskedQuery, QueryResult, Series


def info_document(discovery: Discovery, live: bool) -> dict[str, Any]:
    """What discovery found."""
    return _document("info", Diagnosis((), (), discovery.coverage)) | {
        "origin": discovery.origin,
        "live": live,
        "window": document.window(discovery.window),
        **document.picked(discovery, "nnodes", "expected", "missing", "foreign", "families"),
        "hosts": list(map(_host, discovery.hosts)),
        "targets": document.plain(discovery.targets),
    }


def query_document(
    origin: str, answer: QueryResult, data: Optional[Window], unread: Iterable[Unread]
) -> dict[str, Any]:
    """All samples of one query; NaN and infinity as text, as Prometheus writes them."""
    return _document("query", _only_coverage(data, unread)) | {
        "origin": origin,
        "query": document.plain(AskedQuery.of(answer)),
        "warnings": list(answer.warnings),
        "series": list(map(_series, answer.series)),
    }


def verify_document(
    discovery: Discovery, identity: TsdbIdentity, diagnosis: Diagnosis
) -> dict[str, Any]:
    """The identity check."""
    return _document("verify", diagnosis) | {
        "origin": discovery.origin,
        "identity": document.picked(
            identity, "belief", "reason", "compared", "agreeing", "examples"
        ),
    }


def view_document(servers: Sequence[tuple[str, Connection]]) -> dict[str, Any]:
    """The servers that run, each with the job that it shows."""
    unread: list[Unread] = []
    opened = []
    for job, connection in servers:
        unread += connection.unread
        place = {"url": connection.client.url, "origin": connection.origin}
        opened.append({"job": job, **place, "stored": document.window(connection.stored)})
    return _document("view", _only_coverage(None, unread)) | {"servers": opened}


def _document(action: str, diagnosis: Diagnosis) -> dict[str, Any]:
    head = document.head("tsdb", time.time())
    return {**head, "action": action, **document.findings_and_coverage(diagnosis)}


def _only_coverage(window: Optional[Window], unread: Iterable[Unread]) -> Diagnosis:
    gaps = tuple(map(HostUnread.without_host, unread))
    return Diagnosis((), (), Coverage(0, 0, (), gaps, window))


def _host(host: Any) -> dict[str, Any]:
    sights = {prefix: dict(vars(sight)) for prefix, sight in sorted(host.sample_ranges.items())}
    names = ("name", "labels", "instances", "ips", "is_head", "gpus")
    return {**document.picked(host, *names), "sights": sights}


def _series(series: Series) -> dict[str, Any]:
    return {"labels": dict(series.labels), "samples": list(_samples(series))}


def _samples(series: Series) -> Iterator[tuple[float, Any]]:
    samples = list(zip(series.times.tolist(), series.values.tolist(), strict=True))
    samples += [(time_s, float("nan")) for time_s in series.nan_times.tolist()]
    for time_s, value in sorted(samples, key=lambda sample: sample[0]):
        yield time_s, value if np.isfinite(value) else _not_finite(value)


def _not_finite(value: float) -> str:
    if np.isnan(value):
        return "NaN"
    return "+Inf" if value > 0 else "-Inf"
