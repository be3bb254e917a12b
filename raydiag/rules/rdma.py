"""Links of RDMA ports: those that are down, and those that run slower than their like."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from raydiag.model import Evidence, Finding, NodeReport, Severity, Snapshot
from raydiag.probes.network import NetworkState
from raydiag.probes.rdma import DIRECTORY, RdmaPort
from raydiag.rules.nodes import by_host, distinct

PortKey = tuple[str, int]  # device, port
Ports = Mapping[PortKey, RdmaPort]  # of one machine

_BOOT_GRACE_S = 600.0  # links and switches come up after the node
_DOWN = frozenset({"DOWN", "INIT", "ARMED"})
_NO_LINK = frozenset(
    {
        *("Sleep", "Polling", "Disabled", "PortConfigurationTraining"),
        *("LinkErrorRecovery", "Phy Test"),
    }
)
_PACKETS = (
    ("port_rcv_packets", "port_xmit_packets"),
    ("rx_rdma_ucast_pkts", "tx_rdma_ucast_pkts"),
    ("rx_pkts", "tx_pkts"),
)


def ports_down(snapshot: Snapshot) -> Iterator[Finding]:
    """Ports without a link that should have one, as far as hosts with the same devices tell."""
    hosts = by_host(snapshot)
    for host, ports, alike in _beside_peers(hosts):
        young = _is_young(hosts[host])
        for key, port in ports.items():
            if not is_down(port):
                continue
            same = [other[key] for other in alike if key in other]
            up = sum(_is_up(one) for one in same)
            severity, why = _weight(port, len(same), up)
            if young or port.virtual_function:
                severity = Severity.INFO
                why = "The node has just started." if young else "A virtual card may be spare."
            text = f"state {port.state}, link {port.phys_state or 'unknown'}{also_known(port)}"
            if len(same) > 1:
                text += f"; up on {up} of {len(same)} hosts with the same devices"
            yield Finding(
                "rdma-port-down",
                host=host,
                device=port_name(key, ports),
                severity=severity,
                evidence=(Evidence(f"{port_path(key)}/state", text, time=snapshot.time),),
                explanation=why,
            )


def _weight(port: RdmaPort, alike: int, up: int) -> tuple[Severity, str]:
    """How grave a port is that is down; of the `alike` ones (itself included) `up` are up.

    One that is down everywhere, or has no like, and has never carried a packet is not in use.
    """
    carried = packets(port.counters)
    if up:
        return Severity.CRITICAL, ""
    if alike == 1:
        if carried == 0 and port.state == "DOWN":
            return (
                Severity.INFO,
                "It has carried no packet since the driver was loaded: not in use.",
            )
        return Severity.CRITICAL, ""
    if port.state != "DOWN":
        why = "It has no address on any host with the same devices: look at the subnet manager."
        return Severity.WARNING, why
    if carried:
        why = "It is down on every host with the same devices, and has carried packets: look at its"
        return Severity.WARNING, f"{why} switch."
    return Severity.INFO, "It is down on every host with the same devices: not in use."


def slow_ports(snapshot: Snapshot) -> Iterator[Finding]:
    """Ports that run at a lower rate than most of the same name, or else of the same driver."""
    for host, ports, alike in _beside_peers(by_host(snapshot)):
        for key, port in ports.items():
            rate = port.rate_gbits_per_s
            if rate is None or not _is_up(port):
                continue
            usual = _usual_rate(port, [other[key] for other in alike if key in other], alike)
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


def _beside_peers(
    hosts: Mapping[str, Sequence[NodeReport]],
) -> Iterator[tuple[str, Ports, Sequence[Ports]]]:
    """Each host's ports, and those of every host (itself too) whose physical ones have its names.

    On such hosts a port of one name has one use; a head node with other cards is no measure.
    """
    ports = {host: latest_ports(reports) for host, reports in hosts.items()}
    names = {
        host: frozenset(key for key, port in found.items() if not port.virtual_function)
        for host, found in ports.items()
    }
    alike: dict[frozenset[PortKey], list[Ports]] = {}
    for host, found in ports.items():
        alike.setdefault(names[host], []).append(found)
    for host, found in ports.items():
        yield host, found, alike[names[host]]


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
