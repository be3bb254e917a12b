"""Links of RDMA ports: those that are down or gone, and those that run slower than their like."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

from raydiag.model import Confidence, Evidence, Finding, NodeReport, Severity, Snapshot
from raydiag.probes.network import NetworkState
from raydiag.probes.rdma import DIRECTORY, RdmaPort
from raydiag.rdma_names import STANDARD_TRAFFIC, files_of
from raydiag.rules.nodes import by_host, distinct

PortKey = tuple[str, int]  # device, port
Ports = Mapping[PortKey, RdmaPort]  # of one machine
_Beside = tuple[str, Ports, Sequence[Ports]]  # host, its ports, those of each host like it
_Weight = tuple[Severity, Confidence, str]  # with an explanation

_BOOT_GRACE_S = 600.0  # links and switches come up after the node
_JUST_STARTED = "The node has just started."
_IN_USE_PACKETS = 1000  # any job moves more; fewer are a trial, or what a switch sends unasked
_MANY_UP = 3  # ports of a host: then each of its like is meant to be up
_DOWN = frozenset({"DOWN", "INIT", "ARMED"})
_NO_LINK = frozenset(
    {
        *("Sleep", "Polling", "Disabled", "PortConfigurationTraining"),
        *("LinkErrorRecovery", "Phy Test"),
    }
)
_PACKETS = (
    (STANDARD_TRAFFIC["rx_pkts"], STANDARD_TRAFFIC["tx_pkts"]),
    *zip(files_of("rx_pkts"), files_of("tx_pkts"), strict=True),
)


def ports_down(snapshot: Snapshot) -> Iterator[Finding]:
    """Ports without a link that should have one, and devices that are not there.

    What should be up or there is what hosts with mostly the same devices tell.
    """
    hosts = by_host(snapshot)
    beside = list(_beside_peers(hosts))
    for host, ports, alike in beside:
        young = _is_young(hosts[host])
        for key, port in ports.items():
            if not is_down(port):
                continue
            same = [other[key] for other in alike if key in other]
            if (weight := _weight(port, same, ports)) is None:
                continue
            severity, confidence, why = weight
            if young or port.virtual_function:
                severity = Severity.INFO
                why = _JUST_STARTED if young else "A virtual card may be spare."
            text = f"state {port.state}, link {port.phys_state or 'unknown'}{also_known(port)}"
            if len(same) > 1:
                text += f"; up on {_count_up(same)} of {len(same)} hosts that have it"
            yield Finding(
                "rdma-port-down",
                host=host,
                device=port_name(key, ports),
                severity=severity,
                confidence=confidence,
                evidence=(Evidence(f"{port_path(key)}/state", text, time=snapshot.time),),
                explanation=why,
            )
    yield from _devices_gone(hosts, beside, snapshot.time)


def _weight(port: RdmaPort, same: Sequence[RdmaPort], ports: Ports) -> _Weight | None:
    """How grave a port is that is down; None when it is clear that nobody uses it.

    `same` are those of its name, itself included, and `ports` all of its host.
    """
    up = _count_up(same)
    used = (packets(port.counters) or 0) >= _IN_USE_PACKETS
    if 2 * up >= len(same) or (up and used):
        return Severity.CRITICAL, Confidence.CONFIRMED, ""
    if len(same) == 1:
        return _weight_without_like(port, ports)
    if port.state != "DOWN":
        why = "It has no address on most hosts that have it: look at the subnet manager."
        return Severity.WARNING, Confidence.CONFIRMED, why
    if used:
        why = "It is down on every host that has it, and has carried packets: look at its switch."
        return Severity.WARNING, Confidence.CONFIRMED, why
    if 4 * up < len(same) and _count_up(ports.values()):
        return None
    return Severity.INFO, Confidence.CONFIRMED, "It is down on most hosts that have it: not in use."


def _weight_without_like(port: RdmaPort, ports: Ports) -> _Weight:
    """The same for a port that no other host has: its own host must tell.

    Of the ports of one card, some may be left without a cable.
    """
    others = [
        one
        for one in ports.values()
        if one is not port and one.driver == port.driver and not one.virtual_function
    ]
    up = _count_up(others)
    card = port.address.rpartition(".")[0]
    shared = bool(card) and any(one.address.startswith(f"{card}.") for one in others)
    if port.state != "DOWN" or (up >= _MANY_UP and 4 * up >= 3 * len(others) and not shared):
        return Severity.CRITICAL, Confidence.CONFIRMED, ""
    carried = packets(port.counters)
    if carried is not None and carried < _IN_USE_PACKETS:
        why = "It has carried next to nothing since the driver was loaded: it may not be in use."
        return Severity.INFO, Confidence.POSSIBLE, why
    why = "No other host has this port; it may be one that is no longer in use."
    return Severity.WARNING, Confidence.POSSIBLE, why


def _devices_gone(
    hosts: Mapping[str, Sequence[NodeReport]], beside: Sequence[_Beside], time: float
) -> Iterator[Finding]:
    """Devices that most hosts with RDMA have, and that one which is otherwise like them has not."""
    all_devices = [devices for _, ports, _ in beside if (devices := _devices(ports))]
    having = Counter(device for devices in all_devices for device in devices)
    usual = {device for device, count in having.items() if 2 * count > len(all_devices)}
    for host, ports, alike in beside:
        for device in sorted(usual - {name for name, _ in ports} - _unread(hosts[host])):
            owners = [other for other in alike if device in _devices(other)]
            if 2 * len(owners) <= len(alike):
                continue
            young, alone = _is_young(hosts[host]), len(alike) - len(owners) == 1
            why = "Devices are numbered as they are found: the one that is gone may be another."
            if young or not alone:
                why = _JUST_STARTED if young else "Several hosts are so; it may be by design."
            example = next(port for (name, _), port in owners[0].items() if name == device)
            text = f"not there; {len(owners)} of {len(alike)} hosts with mostly the same devices"
            source = f"{DIRECTORY}/{device}"
            severity = Severity.CRITICAL if alone else Severity.WARNING
            yield Finding(
                "rdma-port-down",
                host=host,
                device=device,
                severity=Severity.INFO if young else severity,
                confidence=Confidence.LIKELY if alone else Confidence.POSSIBLE,
                evidence=(Evidence(source, f"{text} have it{also_known(example)}", time=time),),
                explanation=why,
            )


def _devices(ports: Ports) -> set[str]:
    return {device for (device, _), port in ports.items() if not port.virtual_function}


def _unread(reports: Sequence[NodeReport]) -> set[str]:
    """Devices that are there, but could not be read."""
    results = [report.probes["rdma"] for report in reports if "rdma" in report.probes]
    return {item.source.removeprefix(f"{DIRECTORY}/") for one in results for item in one.unread}


def slow_ports(snapshot: Snapshot) -> Iterator[Finding]:
    """Ports that run at a lower rate than most of the same name, or else of the same driver."""
    known: dict[Hashable, float | None] = {}  # what is usual, as hosts with the same peers share it
    for host, ports, alike in _beside_peers(by_host(snapshot)):
        for key, port in ports.items():
            rate = port.rate_gbits_per_s
            if rate is None or not _is_up(port):
                continue
            kind = (id(alike), key, port.driver)
            if kind not in known:
                same = [other[key] for other in alike if key in other]
                known[kind] = _usual_rate(port, same, alike)
            usual = known[kind]
            if usual is None or rate >= usual:
                continue
            text = f"{rate:g} Gbit/s ({port.width}), {usual:g} on most like it{also_known(port)}"
            yield Finding(
                "rdma-degraded",
                host=host,
                device=port_name(key, ports),
                severity=Severity.WARNING,
                evidence=(Evidence(f"{port_path(key)}/rate", text, rate, snapshot.time),),
            )


def _usual_rate(port: RdmaPort, same: Sequence[RdmaPort], alike: Sequence[Ports]) -> float | None:
    """What most ports of this name run at; None when nothing shows what would be usual.

    Two hosts that differ have no majority; then the other ports of the driver break the tie.
    """
    named = Counter(one.rate_gbits_per_s for one in same if _is_up(one))
    rate, count = named.most_common(1)[0]
    if 2 * count > named.total():
        return rate
    kindred = Counter(
        one.rate_gbits_per_s
        for ports in alike
        for one in ports.values()
        if one.driver == port.driver and _is_up(one)
    )
    rate, count = kindred.most_common(1)[0]
    return rate if 2 * count > kindred.total() and rate in named else None


def _beside_peers(hosts: Mapping[str, Sequence[NodeReport]]) -> Iterator[_Beside]:
    """Each host's ports, and those of every host (itself too) with mostly the same names.

    On such hosts a port of one name has one use; a head node with other cards is no measure.
    """
    ports = {host: latest_ports(reports) for host, reports in hosts.items()}
    names = {
        host: frozenset(key for key, port in found.items() if not port.virtual_function)
        for host, found in ports.items()
    }
    kinds: dict[frozenset[PortKey], list[Ports]] = {}
    for host, found in ports.items():
        kinds.setdefault(names[host], []).append(found)
    alike = {
        kind: [one for other, found in kinds.items() if _most_shared(kind, other) for one in found]
        for kind in kinds
    }
    for host, found in ports.items():
        yield host, found, alike[names[host]]


def _most_shared(names: frozenset[PortKey], others: frozenset[PortKey]) -> bool:
    return names == others or 2 * len(names & others) > max(len(names), len(others))


def latest_ports(reports: Sequence[NodeReport]) -> Ports:
    """The ports of one machine, as the second sample shows them where there is one."""
    found: dict[PortKey, RdmaPort] = {}
    for report in reports:
        result = report.probes.get("rdma")
        if result is not None:
            seen = {(one.device, one.port): one for one in (*result.records, *result.later)}
            found = {**seen, **found}
    return found


def is_down(port: RdmaPort) -> bool:
    """Not the opposite of up: a port whose state is not known is neither."""
    return port.state in _DOWN or (port.state.startswith("ACTIVE") and port.phys_state in _NO_LINK)


def _is_up(port: RdmaPort) -> bool:
    return port.state.startswith("ACTIVE") and port.phys_state not in _NO_LINK


def _count_up(ports: Iterable[RdmaPort]) -> int:
    return sum(_is_up(port) for port in ports)


def packets(counters: Mapping[str, int]) -> int | None:
    """Packets both ways since the driver was loaded; None where the card does not count them."""
    for received, sent in _PACKETS:
        if received in counters and sent in counters:
            return counters[received] + counters[sent]
    return None


def _is_young(reports: Sequence[NodeReport]) -> bool:
    states: list[NetworkState] = distinct(reports, "network", "namespace")
    return any(one.uptime_s is not None and one.uptime_s < _BOOT_GRACE_S for one in states)


def port_name(key: PortKey, ports: Ports) -> str:
    """The device's name, with the port's number where it has several."""
    device, port = key
    return device if sum(one == device for one, _ in ports) == 1 else f"{device}/{port}"


def port_path(key: PortKey) -> str:
    return f"{DIRECTORY}/{key[0]}/ports/{key[1]}"


def also_known(port: RdmaPort) -> str:
    """What else the port is known by: ` (ionic 0000:06:00.0, eth2)`."""
    card = " ".join(name for name in (port.driver, port.address) if name)
    names = ", ".join(name for name in (card, port.netdev) if name)
    return f" ({names})" if names else ""
