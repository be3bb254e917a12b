"""Which series belong to one host: exporters name it, Ray gives an address, Prometheus an instance.

Series of Ray have no label `host`. What shares a name, an address or the host part of an instance
is one host.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from raydiag.tsdb.discovery_types import HostSeries, Sight, is_address, short_name

# The same words on every host.
_NOBODY = {"", "localhost", "127.0.0.1", "::1", "0.0.0.0"}


@dataclass(frozen=True)
class HostRow:
    """One family's series of one host, by the labels that may say which."""

    family: str
    labels: Mapping[str, str]
    first: float
    last: float

    def names(self, addresses: Mapping[str, str]) -> set[str]:
        """All names that the labels give, short, and those that their addresses are known by."""
        own = {short_name(self.labels.get(label, "")) for label in ("host", "instance")}
        own.add(self.labels.get("ip", ""))
        own |= {short_name(addresses[one]) for one in own if one in addresses}
        return own - _NOBODY


def joined(
    rows: Sequence[HostRow], addresses: Mapping[str, str], gpus: Mapping[str, int]
) -> tuple[HostSeries, ...]:
    """The hosts, by name. `gpus`: number of GPUs by the label `host`."""
    by_name: dict[str, _SeriesGroup] = {}
    for row in rows:
        names = row.names(addresses)
        if not names:
            continue
        group = _SeriesGroup(names, [row])
        for other in {id(one): one for one in map(by_name.get, names) if one}.values():
            group.names |= other.names
            group.rows += other.rows
        by_name |= dict.fromkeys(group.names, group)
    groups = {id(one): one for one in by_name.values()}.values()
    found = [_host(one, gpus) for one in groups]
    return tuple(sorted(found, key=lambda one: one.name))


@dataclass
class _SeriesGroup:
    names: set[str]
    rows: list[HostRow]


def _host(group: _SeriesGroup, gpus: Mapping[str, int]) -> HostSeries:
    names, rows = group.names, group.rows
    labels = _values(rows, "host")
    named = sorted(name for name in names if not is_address(name))
    sights: dict[str, Sight] = {}
    for row in rows:
        known = sights.get(row.family, Sight(row.first, row.last))
        sights[row.family] = Sight(min(known.first, row.first), max(known.last, row.last))
    own = [short_name(label) for label in labels]
    return HostSeries(
        (own or named or sorted(names))[0],
        labels,
        _values(rows, "instance"),
        tuple(sorted(set(_values(rows, "ip")) | {one for one in names if is_address(one)})),
        any(row.labels.get("IsHeadNode") == "true" for row in rows),
        sights,
        max((gpus.get(label, 0) for label in labels), default=0),
    )


def _values(rows: Iterable[HostRow], label: str) -> tuple[str, ...]:
    return tuple(sorted({row.labels[label] for row in rows if row.labels.get(label)}))
