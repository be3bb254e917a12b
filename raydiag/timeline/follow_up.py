"""What second, finer queries share: a few hosts each, at a cost that stays bounded."""

import math
import re
from collections.abc import Iterable, Iterator, Sequence

from raydiag.model import Window
from raydiag.timeline.context import Context
from raydiag.tsdb.series import Query

MAX_HOSTS = 16  # that one query asks about, the worst first
PER_HOST = 8  # GPUs, ports
MAX_POINTS = 40_000
_AROUND_S = 900.0  # of the moment, where the whole window would be too much


def first_hosts(hosts: Iterable[str]) -> list[str]:
    """As many as one query asks about, each once; the worst come first."""
    return list(dict.fromkeys(hosts))[:MAX_HOSTS]


def host_matcher(context: Context, hosts: Iterable[str], ray: bool = False) -> str:
    """PromQL label matcher, with what is special in a regular expression taken literally.

    `ray`: for Ray's series, which name their host by `instance`.
    """
    names: set[str] = set()
    for host in hosts:
        names.update(_label_values(context, host, ray) or (host,))
    label, pattern = "host", "|".join(map(re.escape, sorted(names)))
    if ray:
        label, pattern = "instance", f"({pattern})(:.*)?"
    quoted = pattern.replace("\\", "\\\\").replace('"', '\\"')
    return f'{label}=~"{quoted}"'


def fine_query(
    context: Context,
    query_id: str,
    promql: str,
    hosts: Sequence[str],
    rows: int,
    around: float | None = None,
    ray: bool = False,
) -> Iterator[Query]:
    """A finer query about some hosts, `rows` of each, around a moment; none without hosts.

    `promql` has `$match` for the matcher of the hosts.
    """
    if hosts:
        match = host_matcher(context, hosts, ray)
        window = fine_window(context, len(hosts) * rows, around)
        yield Query(query_id, promql.replace("$match", match), window)


def _label_values(context: Context, host: str, ray: bool) -> tuple[str, ...]:
    series = context.discovery.host(host)
    if series is None:
        return ()
    return series.instances if ray else series.labels


def fine_window(
    context: Context, rows: int, around: float | None = None, step_s: float = 0.0
) -> Window:
    """At the resolution of the samples; around a moment where all of it would be too much."""
    step = step_s or context.resolution_s()
    start, end = context.window.start, context.window.end
    if rows * (end - start) / step > MAX_POINTS:
        centre = end if around is None else around
        half = max(_AROUND_S, min(MAX_POINTS * step / max(rows, 1) / 2, end - start))
        start, end = max(start, centre - half), min(end, centre + half)
    return Window(end - math.floor((end - start) / step) * step, end, step)


def lookback(context: Context) -> str:
    """How far rates look back: a few scrapes."""
    return f"{math.ceil(4 * context.resolution_s())}s"


def affordable_step_s(context: Context, rows: int) -> float:
    """The finest step, a multiple of the resolution, at which the whole window is affordable."""
    length = context.window.end - context.window.start
    resolution = context.resolution_s()
    return math.ceil(max(resolution, rows * length / MAX_POINTS) / resolution) * resolution
