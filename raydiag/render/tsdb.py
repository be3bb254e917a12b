"""A job's Prometheus data as reports and as JSON: what there is, answers to queries, whose it is.

The four actions make one kind of document, told apart by `action`; `raydiag/schemas/tsdb.json`
states its shape.
"""

import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from raydiag.model import Coverage, Diagnosis, HostUnread, Unread, Window
from raydiag.nodeset import fold
from raydiag.playbooks.undecided import undecided_rows
from raydiag.render import document
from raydiag.render import report as blocks
from raydiag.render.coverage import not_read
from raydiag.render.formats import count, filled, grouped, number, quantity, utc
from raydiag.render.report import Block, Bullet, Paragraph, Report, Section, bullets, table
from raydiag.tsdb.connection import Connection
from raydiag.tsdb.discovery_types import Discovery, Family, SpokenDialect, Target
from raydiag.tsdb.identity import Belief, TsdbIdentity
from raydiag.tsdb.series import AskedQuery, QueryResult, Series

_MOST_ROWS = 400
_MOST_METRICS = 3  # that are named of those which would do
_EXPECTED_FAMILIES = ("hw_gpu_", "hw_tcp_", "hw_rdma_", "ray_node_", "tb_")
_BELIEFS = {
    Belief.VERIFIED: ("These are the job's own series", blocks.Tone.GOOD),
    Belief.UNVERIFIED: ("Undecided whether these are the job's series", blocks.Tone.DOUBTFUL),
    Belief.WRONG: ("THESE ARE NOT THE JOB'S SERIES", blocks.Tone.BAD),
}


def info_report(discovery: Discovery) -> Report:
    """Families, hosts, times, resolution and scrape targets."""
    facts = [_window(discovery.window), _hosts(discovery), *_host_gaps(discovery)]
    overview = Section(blocks=[_origin(discovery), bullets(facts)])
    header = ("Family", "Metrics", "Hosts", "Last", "Resolution", "Refresh")
    rows = [_family_row(family, discovery) for family in discovery.families]
    families = Section("Families", [table(header, rows)])
    targets = Section("Scrape targets", [bullets(_targets(discovery.targets))])
    others = Section("Other exporters", list(_dialects(discovery.dialects)))
    undecided = Section("Left undecided", [_undecided(discovery)])
    return Report([overview, families, others, undecided, targets, not_read(discovery.unread)])


def query_report(answer: QueryResult, data: Window | None, unread: Sequence[Unread]) -> Report:
    """A value for each series, or its extent over the range."""
    sections = [Section(blocks=list(_answer(answer, data)))]
    sections.append(Section("Warnings", [bullets(answer.warnings)]))
    return Report([*sections, not_read(unread)])


def verify_report(discovery: Discovery, identity: TsdbIdentity) -> Report:
    """Whether the series are the job's, why, and the steps that show it."""
    belief, tone = _BELIEFS[identity.belief]
    rows = []
    for step in identity.examples:
        rows.append([str(step.step), utc(step.time), number(step.logged), number(step.stored)])
    examples = table(("Step", "Stored at", "Loss in the log", "Stored loss"), rows)
    answer = Paragraph(f"{belief}: {identity.reason}.", tone)
    section = Section(blocks=[_origin(discovery), answer, examples])
    return Report([section, not_read(discovery.unread)])


def view_report(servers: Sequence[tuple[str, Connection]]) -> Report:
    """Where to look, from here and from elsewhere."""
    forwards = []
    unread: list[Unread] = []
    for _, connection in servers:
        port = urlsplit(connection.client.url).port
        forwards.append(f"-L {port}:127.0.0.1:{port}")
        unread += connection.unread
    opened = blocks.Bullets([Bullet(job, list(_server(connection))) for job, connection in servers])
    ssh = f"From another machine first: ssh {' '.join(forwards)} {socket.gethostname()}"
    end = "Ctrl-C ends it and leaves nothing behind."
    footer = Section(blocks=[Paragraph(ssh), Paragraph(end)])
    return Report([Section(blocks=[opened]), footer, not_read(unread)])


def _origin(discovery: Discovery) -> Paragraph:
    return Paragraph(discovery.origin, strong=True)


def _window(window: Window | None) -> str:
    if window is None:
        return "no samples"
    length = _length(window.end - window.start)
    return f"{utc(window.start)} to {utc(window.end)} ({length})"


def _hosts(discovery: Discovery) -> str:
    hosts = count(len(discovery.hosts), "host")
    if discovery.nnodes is not None or discovery.expected:
        nodes = discovery.nnodes or len(discovery.expected)
        hosts = f"{len(discovery.hosts)} of the job's {nodes} hosts"
    gpus = sum(map(attrgetter("gpus"), discovery.hosts))
    if gpus:
        hosts += f", {count(gpus, 'GPU')}"
    return hosts


def _host_gaps(discovery: Discovery) -> Iterator[str]:
    if discovery.missing:
        yield f"without any series: {fold(discovery.missing)}"
    if discovery.foreign:
        yield f"not on the node list: {fold(discovery.foreign)}"
    for prefix in ("hw_", "ray_"):
        without = [host.name for host in discovery.hosts if host.sample_range(prefix) is None]
        if 0 < len(without) < len(discovery.hosts):
            yield f"without {prefix}* series: {fold(without)}"
    absent = [f"{name}*" for name in _EXPECTED_FAMILIES if discovery.family(name) is None]
    if absent:
        yield f"absent: {', '.join(absent)}"


def _family_row(family: Family, discovery: Discovery) -> list[str]:
    hosts = str(len(family.hosts))
    if len(family.hosts) < len(discovery.hosts):
        hosts += f" of {len(discovery.hosts)}"
    return [
        f"{family.prefix}*" if family.prefix.endswith("_") else family.prefix,
        str(len(family.metrics)),
        hosts,
        _lag(family.lag_s),
        quantity(family.resolution_s, "s", digits=3),
        quantity(family.refresh_s, "s", digits=3),
    ]


def _dialects(dialects: Iterable[SpokenDialect]) -> Iterator[Block]:
    for dialect in dialects:
        lacking = filled("; absent: {}", ", ".join(dialect.lacking))
        yield Paragraph(f"{dialect.name} on {fold(dialect.hosts)}{lacking}")
        yield table(("Read as", "From"), map(list, dialect.used.items()))


def _undecided(discovery: Discovery) -> Block:
    """What the playbooks cannot judge here, and what would let them."""
    rows = []
    for undecided in undecided_rows(discovery.has):
        more = filled(", {} more", len(undecided.metrics) - _MOST_METRICS or "")
        named = ", ".join(undecided.metrics[:_MOST_METRICS])
        is_long = len(undecided.metrics) > _MOST_METRICS
        rows.append([named + more * is_long, ", ".join(undecided.rows)])
    return table(("No series of", "Rows of the playbooks"), rows)


def _lag(lag_s: float | None) -> str:
    if lag_s is None:
        return "-"
    if lag_s < 1:
        return "at the end"
    return f"-{_length(lag_s)}"


def _targets(targets: Iterable[Target]) -> Iterator[str]:
    for job, of_job in sorted(grouped(targets, attrgetter("job")).items()):
        down = [target.host or target.instance for target in of_job if not target.up]
        suffix = filled("; down at the last scrape: {}", fold(down))
        yield f"scrape job {job}: {len(of_job) - len(down)} of {len(of_job)} up{suffix}"


def _answer(answer: QueryResult, data: Window | None) -> Iterator[Block]:
    if not answer.series:
        reach = f"; samples reach to {utc(data.end)}" if data is not None else ""
        yield Paragraph(f"No such series at {utc(answer.query.window.end)}{reach}.")
        return
    listed = answer.series[:_MOST_ROWS]
    if max(map(attrgetter("sampled_at.size"), answer.series)) <= 1:
        yield table(("Series", "Value"), zip(map(_name, listed), map(_last, listed)))
    else:
        header = ("Series", "Min", "Max", "Mean", "Last", "Samples", "NaN")
        yield table(header, map(_extent_row, listed))
    if len(answer.series) > _MOST_ROWS:
        yield Paragraph(f"and {len(answer.series) - _MOST_ROWS} more: --format json has all")


def _name(series: Series) -> str:
    labels = []
    for key, value in sorted(series.labels.items()):
        if key != "__name__":
            labels.append(f"{key}={value}")
    return f"{series.metric}{{{', '.join(labels)}}}"


def _last(series: Series) -> str:
    return "NaN" if series.last is None else number(series.last)


def _extent_row(series: Series) -> list[str]:
    extent = ["-"] * 3
    if series.values.size:
        extent = [number(float(of(series.values))) for of in (np.min, np.max, np.mean)]
    sizes = [str(series.sampled_at.size), str(series.nan_times.size)]
    return [_name(series), *extent, _last(series), *sizes]


def _server(connection: Connection) -> Iterator[str]:
    yield f"Open {connection.client.url}"
    if connection.stored is not None:
        start, end = utc(connection.stored.start), utc(connection.stored.end)
        later = " and later" if connection.has_log else ""
        yield f"data from {start} to {end}{later}: set that time in the page"


def _length(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


# ---- JSON


def info_document(discovery: Discovery, live: bool) -> dict[str, Any]:
    """What discovery found."""
    return _document("info", Diagnosis((), (), discovery.coverage)) | {
        "origin": discovery.origin,
        "live": live,
        "window": document.window(discovery.window),
        **document.picked(discovery, "nnodes", "expected", "missing", "foreign", "families"),
        "hosts": list(map(_host_object, discovery.hosts)),
        "targets": document.plain(discovery.targets),
        "dialects": document.plain(discovery.dialects),
        "undecided": document.plain(undecided_rows(discovery.has)),
    }


def query_document(
    origin: str, answer: QueryResult, data: Window | None, unread: Iterable[Unread]
) -> dict[str, Any]:
    """All samples of one query; NaN and infinity as text, as Prometheus writes them."""
    return _document("query", _only_coverage(data, unread)) | {
        "origin": origin,
        "query": document.plain(AskedQuery.of(answer)),
        "warnings": list(answer.warnings),
        "series": list(map(_series_object, answer.series)),
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


def _only_coverage(window: Window | None, unread: Iterable[Unread]) -> Diagnosis:
    gaps = tuple(map(HostUnread.without_host, unread))
    return Diagnosis((), (), Coverage(0, 0, (), gaps, window))


def _host_object(host: Any) -> dict[str, Any]:
    sights = {prefix: dict(vars(sight)) for prefix, sight in sorted(host.sample_ranges.items())}
    names = ("name", "labels", "instances", "ips", "is_head", "gpus")
    return {**document.picked(host, *names), "sights": sights}


def _series_object(series: Series) -> dict[str, Any]:
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
