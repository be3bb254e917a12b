"""Ethernet interfaces and TCP: errors, drops, retransmits, aborts, full accept queues.

Counters run since boot: only their growth between the two samples is judged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from raydiag.model import Confidence, Evidence, Finding, NodeReport, Severity, Snapshot
from raydiag.probes.network import NetworkState
from raydiag.probes.processes import RayProcess
from raydiag.rules.growth import growth, pairs
from raydiag.rules.nodes import by_host, distinct

_MANY_DROPS = 100  # fewer may be frames of protocols that nobody on the node speaks
_DROPS_SHARE = 0.05
_LOADED_PER_S = 2000.0  # packets; with fewer, what is dropped is hardly anybody's traffic
_RETRANSMITS_PER_S, _RETRANSMITS_SHARE = 10.0, 0.01
_MANY_ABORTS = 3  # one may be a call to an address that never answered
_MANY_REFUSED = 3  # connections; a few together are how any short burst looks
_NO_LINK = frozenset({"down", "lowerlayerdown"})
_VARIABLE = "NCCL_SOCKET_IFNAME"


def interface_errors(snapshot: Snapshot) -> Iterator[Finding]:
    """Interfaces whose errors grew, or that drop much of what they carry."""
    for host, first, later, seconds in _samples(snapshot):
        grown = {
            name: {
                column: growth(first.interfaces[name].get(column), count) or 0
                for column, count in columns.items()
            }
            for name, columns in later.interfaces.items()
            if name in first.interfaces
        }
        sick = {name: _trouble(columns, seconds) for name, columns in grown.items()}
        for name, (severity, counted) in sick.items():
            # A bond shows the sum of the cards below it.
            if not counted or (name.startswith(("bond", "team")) and _others(sick, name)):
                continue
            yield Finding(
                "nic-errors",
                host=host,
                device=name,
                severity=severity,
                evidence=tuple(
                    Evidence(
                        f"/proc/net/dev: {name}",
                        f"{column} grew by {number} in {seconds:.1f} s",
                        value=float(number),
                        time=snapshot.time,
                    )
                    for column, number in counted.items()
                ),
            )


def _trouble(grown: Mapping[str, int], seconds: float) -> tuple[Severity, dict[str, int]]:
    """What is wrong with an interface whose counters grew so far: empty for nothing."""
    severity, counted = Severity.INFO, {}
    for way in ("rx", "tx"):
        errors, drops = grown.get(f"{way}_errors", 0), grown.get(f"{way}_dropped", 0)
        if errors:
            severity = Severity.WARNING
            counted[f"{way}_errors"] = errors
        if drops >= _MANY_DROPS:
            counted[f"{way}_dropped"] = drops
            carried = grown.get(f"{way}_packets", 0) + drops
            if drops > _DROPS_SHARE * carried and carried > _LOADED_PER_S * seconds:
                severity = Severity.WARNING
    return severity, counted


def _others(sick: Mapping[str, tuple[Severity, dict[str, int]]], name: str) -> bool:
    return any(counted for other, (_, counted) in sick.items() if other != name)


def tcp_retransmits(snapshot: Snapshot) -> Iterator[Finding]:
    """Hosts that send much of their TCP traffic twice; on its own that is no more than a remark."""
    for host, first, later, seconds in _samples(snapshot):
        again = growth(first.tcp.get("RetransSegs"), later.tcp.get("RetransSegs")) or 0
        sent = growth(first.tcp.get("OutSegs"), later.tcp.get("OutSegs")) or 0
        if again > _RETRANSMITS_PER_S * seconds and again > _RETRANSMITS_SHARE * sent:
            text = f"RetransSegs grew by {again}, OutSegs by {sent} in {seconds:.1f} s"
            yield Finding(
                "tcp-retransmits",
                host=host,
                severity=Severity.INFO,
                evidence=(Evidence("/proc/net/snmp", text, float(again), snapshot.time),),
            )


def tcp_aborts(snapshot: Snapshot) -> Iterator[Finding]:
    """Connections that the kernel gave up because nothing came back any more.

    Resets by the other end (EstabResets) are how many programs hang up, and say nothing alone.
    """
    for host, first, later, seconds in _samples(snapshot):
        name = "TCPAbortOnTimeout"
        aborts = growth(first.tcp.get(name), later.tcp.get(name)) or 0
        if not aborts:
            continue
        many = aborts >= _MANY_ABORTS
        yield Finding(
            "tcp-aborts",
            host=host,
            severity=Severity.WARNING if many else Severity.INFO,
            evidence=(
                Evidence(
                    "/proc/net/netstat",
                    f"{name} grew by {aborts} in {seconds:.1f} s",
                    value=float(aborts),
                    time=snapshot.time,
                ),
            ),
            explanation="" if many else "One may be a call to an address that never answered.",
        )


def full_accept_queues(snapshot: Snapshot) -> Iterator[Finding]:
    """Hosts where a program does not take its incoming connections fast enough."""
    for host, first, later, seconds in _samples(snapshot):
        counted = {
            name: grown
            for name in ("ListenOverflows", "ListenDrops")
            if (grown := growth(first.tcp.get(name), later.tcp.get(name)))
        }
        if counted:
            yield Finding(
                "coordinator-overload",
                host=host,
                # Every overflow is a drop as well.
                severity=(
                    Severity.WARNING if max(counted.values()) >= _MANY_REFUSED else Severity.INFO
                ),
                # The counters do not say whose queue it was.
                confidence=Confidence.LIKELY,
                evidence=tuple(
                    Evidence(
                        "/proc/net/netstat",
                        f"{name} grew by {grown} in {seconds:.1f} s",
                        value=float(grown),
                        time=snapshot.time,
                    )
                    for name, grown in counted.items()
                ),
            )


def job_interfaces_down(snapshot: Snapshot) -> Iterator[Finding]:
    """Hosts where every interface that a job's processes are told to use has lost its link."""
    for host, reports in by_host(snapshot).items():
        processes: list[RayProcess] = distinct(reports, "processes", "pid", "start_time_s")
        wanted = {p.environment[_VARIABLE] for p in processes if p.environment.get(_VARIABLE)}
        states = _operstates(reports)
        for value in sorted(wanted):
            chosen = [name for name in states if _is_chosen(name, value)]
            if not chosen or any(states[name] not in _NO_LINK for name in chosen):
                continue
            for name in chosen:
                text = f"{states[name]}; {_VARIABLE}={value} tells processes to use it"
                source = f"/sys/class/net/{name}/operstate"
                yield Finding(
                    "net-link-down",
                    host=host,
                    device=name,
                    severity=Severity.CRITICAL,
                    evidence=(Evidence(source, text, time=snapshot.time),),
                )


def _is_chosen(name: str, value: str) -> bool:
    """Whether NCCL_SOCKET_IFNAME chooses an interface: `=` means the whole name, else a prefix.

    A list of what not to use (`^`) chooses nothing that must be there.
    """
    if value.startswith("^"):
        return False
    if value.startswith("="):
        return name in value[1:].split(",")
    return name.startswith(tuple(part for part in value.split(",") if part))


def _operstates(reports: Sequence[NodeReport]) -> Mapping[str, str]:
    states: dict[str, str] = {}
    for report in reports:
        result = report.probes.get("network")
        for state in (*result.records, *result.later) if result else ():
            states.update(state.operstates)
    return states


def _samples(snapshot: Snapshot) -> Iterator[tuple[str, NetworkState, NetworkState, float]]:
    """(machine, first record, second record, seconds between)."""
    for host, reports in by_host(snapshot).items():
        for first, later, seconds in pairs(reports, "network", "namespace"):
            yield host, first, later, seconds
