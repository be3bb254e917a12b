"""What a Prometheus holds about a job: the types between discovery and everything that asks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from raydiag.model import Blind, Coverage, HostUnread, Unread, Window
from raydiag.tsdb import promql


@dataclass(frozen=True)
class Family:
    """Metrics with a common prefix, and how fresh and fine their samples are."""

    prefix: str  # "hw_gpu_", "ray_node_", "tb_", ...; "other" for what belongs to none
    metrics: tuple[str, ...]
    sampled: str = ""  # the metric that stands for the family in the fields below; "" for none
    hosts: tuple[str, ...] = ()  # that have samples of it
    first: float | None = None  # oldest sample of any host
    last: float | None = None  # newest sample of any host
    resolution_s: float | None = None  # usual distance of two samples
    # Usual distance of two changes: a value that is scraped every 5 s may be renewed every 300 s.
    refresh_s: float | None = None
    lag_s: float | None = None  # from its newest sample to the end of the whole range

    @property
    def uncertainty_s(self) -> float:
        """How far off the time of a change may be; infinite when nothing is known."""
        distances = (self.resolution_s or 0.0, self.refresh_s or 0.0)
        return max(distances) or float("inf")


@dataclass(frozen=True)
class SampleRange:
    """First and last sample of one host in one family."""

    first: float
    last: float

    def joined(self, samples: SampleRange | None) -> SampleRange:
        """From the first to the last sample of both."""
        if samples is None:
            return self
        return SampleRange(min(self.first, samples.first), max(self.last, samples.last))


@dataclass(frozen=True)
class HostSeries:
    """One host under all the names that its series carry."""

    name: str  # short, as in the node list; the IP address when nothing says the name
    labels: tuple[str, ...] = ()  # values of the label `host`, mostly the name itself
    instances: tuple[str, ...] = ()  # "mi2033:9400", "10.0.0.2:55080"
    ips: tuple[str, ...] = ()
    is_head: bool = False  # as Ray's series say
    sample_ranges: Mapping[str, SampleRange] = field(default_factory=dict)  # by family prefix
    gpus: int = 0  # most GPU series of one metric; 0 without GPU series

    def names(self) -> Mapping[str, tuple[str, ...]]:
        """All names of the host, by the label that has them."""
        return {"host": (self.name, *self.labels), "instance": self.instances, "ip": self.ips}

    def sample_range(self, prefix: str) -> SampleRange | None:
        """Of all families whose prefix begins so: "hw_" is the node exporter, "ray_" is Ray."""
        joined: SampleRange | None = None
        for family, samples in self.sample_ranges.items():
            if family.startswith(prefix):
                joined = samples.joined(joined)
        return joined


@dataclass(frozen=True)
class Target:
    """One scrape target as the series `up` tells of it."""

    job: str  # scrape job: "ray", "node_hw"
    instance: str
    host: str
    up: bool  # at its last scrape
    last: float  # when it was last scraped
    share_up: float  # of its scrapes in the whole range, 0 to 1


@dataclass(frozen=True)
class SpokenDialect:
    """Another exporter whose series are read as ours."""

    name: str
    hosts: tuple[str, ...]
    used: Mapping[str, str]  # our metric -> what is read for it
    lacking: tuple[str, ...]  # metrics of ours that it could have and has not here


@dataclass(frozen=True)
class Discovery:
    """What there is. Without a `window` nothing was ever scraped."""

    origin: str  # the directory or the URL
    metrics: tuple[str, ...]
    families: tuple[Family, ...] = ()
    hosts: tuple[HostSeries, ...] = ()
    targets: tuple[Target, ...] = ()
    window: Window | None = None  # from the first to the last sample
    expected: tuple[str, ...] = ()  # the job's node list; empty when it is not known
    nnodes: int | None = None
    missing: tuple[str, ...] = ()  # of `expected`: without any series
    foreign: tuple[str, ...] = ()  # hosts that are not in `expected`
    unread: tuple[Unread, ...] = ()
    notes: tuple[str, ...] = ()
    dialects: tuple[SpokenDialect, ...] = ()  # of other exporters

    def family(self, prefix: str) -> Family | None:
        """The family of that prefix; None without samples of it."""
        return next((family for family in self.families if family.prefix == prefix), None)

    def has(self, metric: str) -> bool:
        """Whether any series of the metric is stored."""
        return metric in self.metrics

    @cached_property
    def _names_of_hosts(self) -> Mapping[tuple[str, str], str]:
        names: dict[tuple[str, str], str] = {}
        for host in self.hosts:
            for label, values in host.names().items():
                names.update(((label, value), host.name) for value in values)
        return names

    @cached_property
    def _hosts(self) -> Mapping[str, HostSeries]:
        return {host.name: host for host in self.hosts}

    def host(self, name: str) -> HostSeries | None:
        """The host of that short name."""
        return self._hosts.get(name)

    def host_of(self, labels: Mapping[str, str]) -> str | None:
        """Name of the host that a series belongs to; None when no label says."""
        for label in ("host", "instance", "ip"):
            name = self._names_of_hosts.get((label, labels.get(label, "")))
            if name is not None:
                return name
        return short_name(labels.get("host") or labels.get("instance") or "") or labels.get("ip")

    @property
    def coverage(self) -> Coverage:
        """Hosts of the node list that have series, and those that have not; what was not read."""
        hosts = self.expected or tuple(self._hosts)
        unnamed = max(0, (self.nnodes or 0) - len(hosts))
        blind = [Blind(host, "no series of it") for host in self.missing]
        blind += [Blind("", "a node of the job whose name is not known")] * unnamed
        unread = tuple(map(HostUnread.without_host, self.unread))
        answered = len(hosts) - len(self.missing)
        return Coverage(len(hosts) + unnamed, answered, tuple(blind), unread, self.window)

    def select(self, metric: str, hosts: Iterable[str]) -> str:
        """A selector for these hosts' series of a metric, by the label that the metric has."""
        labels: set[str] = set()
        instances: set[str] = set()
        for host in filter(None, map(self.host, hosts)):
            labels.update(host.labels)
            instances.update(host.instances)
        if labels and not metric.startswith(("ray_", "up")):
            return promql.selector(metric, match={"host": promql.any_of(sorted(labels))})
        return promql.selector(metric, match={"instance": promql.any_of(sorted(instances))})


def short_name(text: str) -> str:
    """`mi2033` of "mi2033.cluster.local:9400"; an IP address stays whole, without its port."""
    host = text.strip()
    if host.startswith("["):  # [2001:db8::1]:9400
        return host[1:].partition("]")[0]
    if host.count(":") == 1:
        host = host.partition(":")[0]
    if is_address(host):
        return host
    return host.partition(".")[0]


# The same words on every host.
ANY_HOST = frozenset({"", "localhost", "127.0.0.1", "::1", "0.0.0.0"})


def is_address(host: str) -> bool:
    """Whether it is an IP address and no name."""
    return ":" in host or host.replace(".", "").isdigit()
