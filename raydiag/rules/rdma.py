"""Links of RDMA ports: those that are down or missing, and those slower than their like."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

from raydiag import catalog
from raydiag.model import Evidence, Finding, Severity, Snapshot
from raydiag.probes.network import NetworkState
from raydiag.probes.rdma import DIRECTORY, RdmaPort
from raydiag.rdma_names import STANDARD_TRAFFIC, files_of
from raydiag.rules.grades import known
from raydiag.rules.machines import Machine, machines

_BOOT_GRACE_S = 600.0  # links and switches come up after the node
_YOUNG = "young-node"  # variant of the class in the catalog
_IN_USE_PACKETS = 1000  # any job moves more; fewer are a trial, or what a switch sends unasked
_MANY_UP = 3  # ports of a host: then each of its like is meant to be up
_DOWN = frozenset({"DOWN", "INIT", "ARMED"})
# fmt: off
_NO_LINK = frozenset({
    "Sleep", "Polling", "Disabled", "PortConfigurationTraining", "LinkErrorRecovery", "Phy Test",
})
# fmt: on
_PACKETS = (
    (STANDARD_TRAFFIC["rx_pkts"], STANDARD_TRAFFIC["tx_pkts"]),
    *zip(files_of("rx_pkts"), files_of("tx_pkts"), strict=True),
)

PortKey = tuple[str, int]  # device, port


class Ports(dict[PortKey, RdmaPort]):
    """The ports of one machine, as the second sample shows them where there is one."""

    @classmethod
    def of(cls, machine: Machine) -> Ports:
        """Of several Ray nodes the first that saw a port counts."""
        ports = cls()
        for result in machine.results("rdma"):
            latest = {port.key: port for port in (*result.records, *result.later)}
            for key, port in latest.items():
                ports.setdefault(key, port)
        return ports

    def name(self, key: PortKey) -> str:
        """The device's name, with the port's number where it has several."""
        device, port = key
        ports_of_device = sum(name == device for name, _ in self)
        return device if ports_of_device == 1 else f"{device}/{port}"

    @property
    def names(self) -> frozenset[PortKey]:
        """Ports of real cards."""
        return frozenset(key for key, port in self.items() if not port.virtual_function)

    @property
    def devices(self) -> set[str]:
        """Real cards."""
        return set(map(itemgetter(0), self.names))


class _MachinePorts(NamedTuple):
    """A machine's ports, and those of every machine (itself too) with mostly the same names.

    On such machines a port of one name has one use; a head node with other cards is no measure.
    """

    machine: Machine
    ports: Ports
    alike: Sequence[Ports]

    def of_same_name(self, key: PortKey) -> list[RdmaPort]:
        """The ports of this name on all machines that are alike."""
        return [ports[key] for ports in self.alike if key in ports]

    @property
    def is_young(self) -> bool:
        """Whether the node has just booted."""
        uptimes = known(map(attrgetter("uptime_s"), self.machine.records(NetworkState)))
        return min(uptimes, default=_BOOT_GRACE_S) < _BOOT_GRACE_S


def ports_down(snapshot: Snapshot) -> Iterator[Finding]:
    """Ports without a link that should have one, and devices that are missing.

    What should be up, or present, is judged by hosts with mostly the same devices.
    """
    all_machines = list(_with_peers(snapshot))
    for each in all_machines:
        for key, port in each.ports.items():
            circumstances = _circumstances(each, key) if is_down(port) else ()
            if circumstances:
                evidence = _down_evidence(each, key, snapshot.time)
                yield _finding(each, evidence, each.ports.name(key), circumstances)
    yield from _missing_devices(all_machines, snapshot.time)


def _finding(
    each: _MachinePorts, evidence: Evidence, device: str, circumstances: Iterable[str]
) -> Finding:
    """`circumstances`: variants of the class in the catalog; the last that tells counts."""
    known: dict[str, Any] = {"device": device}
    for circumstance in circumstances:
        known.update(catalog.variant("rdma-port-down", circumstance))
    return each.machine.finding("rdma-port-down", evidence, **known)


def _down_evidence(each: _MachinePorts, key: PortKey, time: float) -> Evidence:
    port, same_name = each.ports[key], each.of_same_name(key)
    text = f"state {port.state}, link {port.phys_state or 'unknown'}{also_known(port)}"
    if len(same_name) > 1:
        text += f"; up on {_count_up(same_name)} of {len(same_name)} hosts that have it"
    return Evidence(f"{port_path(key)}/state", text, time=time)


def _circumstances(each: _MachinePorts, key: PortKey) -> Sequence[str]:
    """What is known of a port that is down; nothing when it is clearly unused."""
    port, same_name = each.ports[key], each.of_same_name(key)
    circumstance = _judged_by_own_host(port, each.ports)
    if len(same_name) > 1:
        circumstance = _judged_by_peers(port, same_name, each.ports)
    if not circumstance:
        return ()
    if each.is_young:
        return (circumstance, _YOUNG)
    return (circumstance, "virtual-card") if port.virtual_function else (circumstance,)


def _judged_by_peers(port: RdmaPort, same_name: Sequence[RdmaPort], ports: Ports) -> str:
    """By the ports of its name on all hosts, itself included; `ports` are all of its host."""
    up = _count_up(same_name)
    used = (packets(port.counters) or 0) >= _IN_USE_PACKETS
    if 2 * up >= len(same_name) or (up and used):
        return "should-be-up"
    if port.state != "DOWN":
        return "without-address"
    if used:
        return "down-everywhere"
    if 4 * up < len(same_name) and _count_up(ports.values()):
        return ""
    return "unused"


def _judged_by_own_host(port: RdmaPort, ports: Ports) -> str:
    """For a port that no other host has: judged by the other ports of its driver.

    Of the ports of one card, some may be left without a cable.
    """
    cards = [other for other in ports.values() if not other.virtual_function]
    siblings = [card for card in cards if card.driver == port.driver and card is not port]
    up = _count_up(siblings)
    most_are_up = up >= _MANY_UP and 4 * up >= 3 * len(siblings)
    if port.state != "DOWN" or (most_are_up and not _shares_card(port, siblings)):
        return "should-be-up"
    carried = packets(port.counters)
    is_idle = carried is not None and carried < _IN_USE_PACKETS
    return "hardly-used" if is_idle else "on-no-other-host"


def _shares_card(port: RdmaPort, siblings: Iterable[RdmaPort]) -> bool:
    card = port.address.rpartition(".")[0]
    return bool(card) and any(sibling.address.startswith(f"{card}.") for sibling in siblings)


def _missing_devices(all_machines: Sequence[_MachinePorts], time: float) -> Iterator[Finding]:
    """Devices that most hosts with RDMA have, and a host that is otherwise like them lacks."""
    devices = [each.ports.devices for each in all_machines if each.ports.devices]
    having = Counter(chain.from_iterable(devices))
    usual = {device for device, count in having.items() if 2 * count > len(devices)}
    for each in all_machines:
        present = set(map(itemgetter(0), each.ports))
        for unread in each.machine.unread("rdma"):  # there, but it could not be read
            present.add(unread.source.removeprefix(f"{DIRECTORY}/"))
        for device in sorted(usual - present):
            owners = [ports for ports in each.alike if device in ports.devices]
            if 2 * len(owners) > len(each.alike):
                yield _missing_device(each, device, owners, time)


def _missing_device(
    each: _MachinePorts, device: str, owners: Sequence[Ports], time: float
) -> Finding:
    hosts = len(each.alike)
    circumstances = ["one-lacks-it" if hosts - len(owners) == 1 else "several-lack-it"]
    if each.is_young:
        circumstances.append(_YOUNG)
    example = next(port for (name, _), port in owners[0].items() if name == device)
    text = f"missing; {len(owners)} of {hosts} hosts with mostly the same devices have it"
    evidence = Evidence(f"{DIRECTORY}/{device}", f"{text}{also_known(example)}", time=time)
    return _finding(each, evidence, device, circumstances)


def slow_ports(snapshot: Snapshot) -> Iterator[Finding]:
    """Ports that run at a lower rate than most of the same name, or else of the same driver."""
    rates: dict[Hashable, float | None] = {}  # hosts with the same peers share what is usual
    for each in _with_peers(snapshot):
        for key, port in each.ports.items():
            rate = port.rate_gbits_per_s
            if rate is None or not _is_up(port):
                continue
            kind = (id(each.alike), key, port.driver)
            if kind not in rates:
                rates[kind] = _usual_rate(each, key)
            usual = rates[kind]
            if usual is None or rate >= usual:
                continue
            text = f"{rate:g} Gbit/s ({port.width}), {usual:g} on most like it{also_known(port)}"
            evidence = Evidence(f"{port_path(key)}/rate", text, rate, snapshot.time)
            fields = {"device": each.ports.name(key), "severity": Severity.WARNING}
            yield each.machine.finding("rdma-degraded", evidence, **fields)


def _usual_rate(each: _MachinePorts, key: PortKey) -> float | None:
    """What most ports of this name run at; None when nothing shows what would be usual.

    Two hosts that differ have no majority; then the other ports of the driver break the tie.
    """
    rates_of_name = _rates(each.of_same_name(key))
    rate, count = rates_of_name.most_common(1)[0]
    if 2 * count > rates_of_name.total():
        return rate
    driver = each.ports[key].driver
    rates_of_driver: Counter[float | None] = Counter()
    for ports in each.alike:
        rates_of_driver += _rates(port for port in ports.values() if port.driver == driver)
    rate, count = rates_of_driver.most_common(1)[0]
    if 2 * count > rates_of_driver.total() and rate in rates_of_name:
        return rate
    return None


def _rates(ports: Iterable[RdmaPort]) -> Counter[float | None]:
    return Counter(map(attrgetter("rate_gbits_per_s"), filter(_is_up, ports)))


def _with_peers(snapshot: Snapshot) -> Iterator[_MachinePorts]:
    """Each machine's ports beside those of the machines that are alike."""
    all_ports = [(machine, Ports.of(machine)) for machine in machines(snapshot)]
    by_names: dict[frozenset[PortKey], list[Ports]] = {}
    for _, ports in all_ports:
        by_names.setdefault(ports.names, []).append(ports)
    alike = {names: _alike(names, by_names) for names in by_names}
    for machine, ports in all_ports:
        yield _MachinePorts(machine, ports, alike[ports.names])


def _alike(
    names: frozenset[PortKey], by_names: Mapping[frozenset[PortKey], Sequence[Ports]]
) -> list[Ports]:
    alike: list[Ports] = []
    for other_names, ports in by_names.items():
        shared = len(names & other_names)
        if names == other_names or 2 * shared > max(len(names), len(other_names)):
            alike.extend(ports)
    return alike


def is_down(port: RdmaPort) -> bool:
    """Not the opposite of up: a port whose state is not known is neither."""
    return port.state in _DOWN or (port.state.startswith("ACTIVE") and port.phys_state in _NO_LINK)


def _is_up(port: RdmaPort) -> bool:
    return port.state.startswith("ACTIVE") and port.phys_state not in _NO_LINK


def _count_up(ports: Iterable[RdmaPort]) -> int:
    return sum(map(_is_up, ports))


def packets(counters: Mapping[str, int]) -> int | None:
    """Packets both ways since the driver was loaded; None where the card does not count them."""
    for received, sent in _PACKETS:
        if received in counters and sent in counters:
            return counters[received] + counters[sent]
    return None


def port_path(key: PortKey) -> str:
    """The directory of a port on the node."""
    return f"{DIRECTORY}/{key[0]}/ports/{key[1]}"


def also_known(port: RdmaPort) -> str:
    """What else the port is known by: ` (ionic 0000:06:00.0, eth2)`."""
    card = " ".join(filter(None, (port.driver, port.address)))
    names = ", ".join(filter(None, (card, port.netdev)))
    return f" ({names})" if names else ""
