"""Which series belong to one host: exporters name it, Ray gives an address, Prometheus an instance.

Series of Ray have no label `host`. What shares a name, an address or the host part of an instance
is one host.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import filterfalse
from operator import attrgetter

from raydiag.tsdb.discovery_types import ANY_HOST, HostSeries, SampleRange, is_address, short_name


@dataclass(frozen=True)
class HostRow:
    """One family's series of one host, by the labels that may say which."""

    family: str
    labels: Mapping[str, str]
    first: float
    last: float

    def names(self, addresses: Mapping[str, str]) -> set[str]:
        """All names that the labels give, short, and those that their addresses are known by."""
        names = {self.labels.get("ip", "")}
        names |= {short_name(self.labels.get(label, "")) for label in ("host", "instance")}
        known_by = filter(None, map(addresses.get, names))
        return names.union(map(short_name, known_by)) - ANY_HOST


@dataclass
class _SeriesGroup:
    names: set[str]
    rows: list[HostRow]


def joined(
    rows: Sequence[HostRow], addresses: Mapping[str, str], gpus: Mapping[str, int]
) -> tuple[HostSeries, ...]:
    """The hosts, by name. `gpus`: number of GPUs by the label `host`."""
    group_of: dict[str, _SeriesGroup] = {}
    for row in rows:
        names = row.names(addresses)
        if not names:
            continue
        group = _SeriesGroup(names, [row])
        for group_of_same_host in _different(map(group_of.get, list(names))):
            group.names |= group_of_same_host.names
            group.rows += group_of_same_host.rows
        group_of |= dict.fromkeys(group.names, group)
    hosts = [_host(group, gpus) for group in _different(group_of.values())]
    return tuple(sorted(hosts, key=attrgetter("name")))


def _different(groups: Iterable[_SeriesGroup | None]) -> Iterable[_SeriesGroup]:
    """Each group once."""
    return {id(group): group for group in groups if group}.values()


def _host(group: _SeriesGroup, gpus: Mapping[str, int]) -> HostSeries:
    rows = group.rows
    labels = _values(rows, "host")
    addresses = set(filter(is_address, group.names))
    ranges: dict[str, SampleRange] = {}
    for row in rows:
        ranges[row.family] = SampleRange(row.first, row.last).joined(ranges.get(row.family))
    told = filterfalse(is_address, map(short_name, labels))
    by_preference = [*told, *sorted(group.names - addresses), *sorted(addresses)]
    return HostSeries(
        name=by_preference[0],
        labels=labels,
        instances=_values(rows, "instance"),
        ips=tuple(sorted(addresses.union(_values(rows, "ip")))),
        is_head="true" in _values(rows, "IsHeadNode"),
        sample_ranges=ranges,
        gpus=max((gpus.get(label, 0) for label in labels), default=0),
    )


def _values(rows: Iterable[HostRow], label: str) -> tuple[str, ...]:
    """The values of a label, without the empty one."""
    values = {row.labels.get(label, "") for row in rows}
    return tuple(sorted(values - {""}))
