"""The machines of a cluster, from Ray's rows of nodes: one that has several has one exporter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from raydiag.hotfix.plan import HostState

_Row = Mapping[str, Any]  # node_id, hostname, address, alive, death_reason, asked


def hosts_of(rows: Sequence[_Row]) -> list[HostState]:
    """Machines in the order of their names. A dead node stands only where no other one lives."""
    hosts: dict[tuple[str, str], HostState] = {}
    addresses = _addresses_by_name(rows)
    for row in rows:
        host = _host(row, addresses)
        listed = hosts.get((host.name, host.address))
        if listed is None or (listed.unseen and not host.unseen):
            hosts[host.name, host.address] = host
    return sorted(hosts.values(), key=lambda host: (host.name, host.address))


def _addresses_by_name(rows: Sequence[_Row]) -> dict[str, set[str]]:
    """Addresses of live nodes by full and by short host name."""
    addresses: dict[str, set[str]] = {}
    for row in rows:
        if row["alive"]:
            full = str(row["hostname"])
            for name in (full, full.split(".")[0]):
                addresses.setdefault(name, set()).add(str(row["address"]))
    return addresses


def _host(row: _Row, addresses: Mapping[str, set[str]]) -> HostState:
    """By its short name, unless several machines have it: then the full one, or the address."""
    full, address = str(row["hostname"]), str(row["address"])
    name = full if full == address else full.split(".")[0]
    unseen = ""
    if not row["alive"]:
        unseen = f"dead: {row['death_reason'] or 'Ray lost it'}"
    elif len(addresses.get(name, ())) > 1:
        name = address if len(addresses.get(full, ())) > 1 else full
    return HostState(str(row["node_id"]), name, row["address"], bool(row["asked"]), unseen)
