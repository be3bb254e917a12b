"""What a Prometheus holds about a job: the types between discovery and everything that asks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Optional

from raydiag.model import Blind, Coverage, HostUnread, Unread, Window
from raydiag.tsdb import promql


@dataclass(frozen=True)
class Family:
    """Metrics with a common prefix, and how fresh and fine their samples are."""

    prefix: str  # "hw_gpu_", "ray_node_", "tb_", ...; "other" for what belongs to none
    metrics: tuple[str, ...]
    sampled: str = ""  # the metric that stands for the family in the fields below; "" for none
    hosts: tuple[str, ...] = ()  # that have samples of it
    first: Optional[float] = None  # oldest sample of any host
    last: Optional[float] = None  # newest sample of any host
    resolution_s: Optional[float] = None  # usual distance of two samples
    # Usual distance of two changes: a value that is scraped every 5 s may be renewed every 300 s.
    refresh_s: Optional[float] = None
    lag_s: Optional[float] = None  # from its newest sample to the end of the whole range

    @property
    def uncertainty_s(self) -> float:
        """How far off the time of a change may be; infinite when nothing is known."""
        known = [one for one in (self.resolution_s, self.refresh_s) if one is not None]
        return max(known, default=float("inf"))


@dataclass(frozen=True)
class Sight:
    """When one host was seen in one family."""

    first: float
    last: float


@dataclass(frozen=True)
class HostSeries:
    """One host under all the names that its series carry."""

    name: str  # short, as in the node list; the IP address when nothing says the name
    labels: tuple[str, ...] = ()  # values of the label `host`, mostly the name itself
    instances: tuple[str, ...] = ()  # "mi2033:9400", "10.0.0.2:55080"
    ips: tuple[str, ...] = ()
    is_head: bool = False  # as Ray's series say
    sights: Mapping[str, Sight] = field(default_factory=dict)  # by family prefix
    gpus: int = 0  # most GPU series of one metric; 0 without GPU series

    def sight(self, prefix: str) -> Optional[Sight]:
        """Of all families whose prefix begins so: "hw_" is the node exporter, "ray_" is Ray."""
        seen = [one for family, one in self.sights.items() if family.startswith(prefix)]
        if not seen:
            return None
        return Sight(min(one.first for one in seen), max(one.last for one in seen))


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
class Discovery:
    """What there is. Without a `window` nothing was ever scraped."""

    origin: str  # the directory or the URL
    metrics: tuple[str, ...]
    families: tuple[Family, ...]
    hosts: tuple[HostSeries, ...]
    targets: tuple[Target, ...]
    window: Optional[Window]  # from the first to the last sample
    expected: tuple[str, ...] = ()  # the job's node list; empty when it is not known
    nnodes: Optional[int] = None
    missing: tuple[str, ...] = ()  # of `expected`: without any series
    foreign: tuple[str, ...] = ()  # hosts that are not in `expected`
    unread: tuple[Unread, ...] = ()
    notes: tuple[str, ...] = ()

    def family(self, prefix: str) -> Optional[Family]:
        return next((one for one in self.families if one.prefix == prefix), None)

    def has(self, metric: str) -> bool:
        return metric in self._names

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(self.metrics)

    @cached_property
    def _names_of_hosts(self) -> Mapping[tuple[str, str], str]:
        names: dict[tuple[str, str], str] = {}
        for host in self.hosts:
            names["host", host.name] = host.name
            names |= {("host", one): host.name for one in host.labels}
            names |= {("instance", one): host.name for one in host.instances}
            names |= {("ip", one): host.name for one in host.ips}
        return names

    def host(self, name: str) -> Optional[HostSeries]:
        return next((one for one in self.hosts if one.name == name), None)

    def host_of(self, labels: Mapping[str, str]) -> Optional[str]:
        """Name of the host that a series belongs to; None when no label says."""
        for label in ("host", "instance", "ip"):
            found = self._names_of_hosts.get((label, labels.get(label, "")))
            if found is not None:
                return found
        return short_name(labels.get("host") or labels.get("instance") or "") or labels.get("ip")

    @property
    def coverage(self) -> Coverage:
        """Hosts of the node list that have series, and those that have not; what was not read."""
        asked = self.expected or tuple(one.name for one in self.hosts)
        unnamed = max(0, (self.nnodes or 0) - len(asked))
        blind = [Blind(one, "no series of it") for one in self.missing]
        blind += [Blind("", "a node of the job whose name is not known")] * unnamed
        unread = [HostUnread("", one.source, one.status, one.reason) for one in self.unread]
        answered = len(asked) - len(self.missing)
        return Coverage(len(asked) + unnamed, answered, tuple(blind), tuple(unread), self.window)

    def select(self, metric: str, hosts: Iterable[str]) -> str:
        """A selector for these hosts' series of a metric, by the label that the metric has."""
        wanted = [one for one in self.hosts if one.name in set(hosts)]
        labels = sorted({label for one in wanted for label in one.labels})
        if labels and not metric.startswith(("ray_", "up")):
            return promql.selector(metric, match={"host": promql.any_of(labels)})
        instances = sorted({label for one in wanted for label in one.instances})
        return promql.selector(metric, match={"instance": promql.any_of(instances)})

    def last_sample(self, prefix: str) -> Optional[float]:
        """Newest sample of the families whose prefix begins so."""
        lasts = [one.last for one in self.families if one.prefix.startswith(prefix)]
        return max((one for one in lasts if one is not None), default=None)


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


def is_address(host: str) -> bool:
    """Whether it is an IP address and no name."""
    return ":" in host or host.replace(".", "").isdigit()
