"""Ethernet interfaces and TCP: errors, drops, retransmits, aborts, full accept queues.

Counters run since boot: only their growth between the two samples is judged.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from raydiag.model import Confidence, Evidence, Finding, Severity, Snapshot
from raydiag.probes.network import NetworkState
from raydiag.probes.processes import RayProcess
from raydiag.rules.grades import grown_counters, growth, warning_if
from raydiag.rules.machines import Machine, Samples, each_sample, machines

_MANY_DROPS = 100  # fewer may be frames of protocols that the node does not use
_DROPS_SHARE = 0.05
_LOADED_PER_S = 2000.0  # packets; with fewer, what is dropped hardly matters
_RETRANSMITS_PER_S, _RETRANSMITS_SHARE = 10.0, 0.01
_MANY_ABORTS = 3  # one may be a call to an address that never answered
_MANY_REFUSED = 3  # connections; a few together are how any short burst looks
_NO_LINK = frozenset({"down", "lowerlayerdown"})
_VARIABLE = "NCCL_SOCKET_IFNAME"
_NETSTAT = "/proc/net/netstat"
_REFUSALS = ("ListenOverflows", "ListenDrops")

_Samples = Samples[NetworkState]
_Trouble = tuple[Severity, Mapping[str, int]]  # counters that show it; none: nothing is wrong


def interface_errors(snapshot: Snapshot) -> Iterator[Finding]:
    """Interfaces whose errors grew, or that drop much of what they carry."""
    for machine, samples in each_sample(snapshot, NetworkState):
        interfaces = _troubled_interfaces(samples)
        for name, (severity, grown) in interfaces.items():
            # A bond shows the sum of the cards below it.
            if name.startswith(("bond", "team")) and len(interfaces) > 1:
                continue
            evidence = _growth_evidence(snapshot, f"/proc/net/dev: {name}", grown, samples.seconds)
            yield machine.finding("nic-errors", *evidence, device=name, severity=severity)


def _troubled_interfaces(samples: _Samples) -> dict[str, _Trouble]:
    troubled = {}
    for name, later in samples.later.interfaces.items():
        grown = grown_counters(samples.first.interfaces.get(name, {}), later)
        severity, troubling = _interface_trouble(grown, samples.seconds)
        if troubling:
            troubled[name] = severity, troubling
    return troubled


def _interface_trouble(grown: Mapping[str, int], seconds: float) -> _Trouble:
    """What is wrong with an interface whose counters grew so far."""
    severity, troubling = Severity.INFO, {}
    for direction in ("rx", "tx"):
        errors = grown.get(f"{direction}_errors", 0)
        drops = grown.get(f"{direction}_dropped", 0)
        if errors:
            severity = Severity.WARNING
            troubling[f"{direction}_errors"] = errors
        if drops >= _MANY_DROPS:
            troubling[f"{direction}_dropped"] = drops
            carried = grown.get(f"{direction}_packets", 0) + drops
            if drops > _DROPS_SHARE * carried and carried > _LOADED_PER_S * seconds:
                severity = Severity.WARNING
    return severity, troubling


def tcp_retransmits(snapshot: Snapshot) -> Iterator[Finding]:
    """Hosts that retransmit much of their TCP traffic; on its own that is no more than a note."""
    for machine, samples in each_sample(snapshot, NetworkState):
        again, sent = _tcp_growth(samples, "RetransSegs"), _tcp_growth(samples, "OutSegs")
        seconds = samples.seconds
        if again > _RETRANSMITS_PER_S * seconds and again > _RETRANSMITS_SHARE * sent:
            text = f"RetransSegs grew by {again}, OutSegs by {sent} in {seconds:.1f} s"
            evidence = Evidence("/proc/net/snmp", text, float(again), snapshot.time)
            yield machine.finding("tcp-retransmits", evidence, severity=Severity.INFO)


def tcp_aborts(snapshot: Snapshot) -> Iterator[Finding]:
    """Connections that the kernel gave up because nothing was acknowledged any more.

    Resets by the other end (EstabResets) are how many programs hang up, and say nothing alone.
    """
    for machine, samples in each_sample(snapshot, NetworkState):
        aborts = _tcp_growth(samples, "TCPAbortOnTimeout")
        if not aborts:
            continue
        fields: dict[str, Any] = {"severity": Severity.WARNING}
        if aborts < _MANY_ABORTS:
            explanation = "One may be a call to an address that never answered."
            fields = {"severity": Severity.INFO, "explanation": explanation}
        grown = {"TCPAbortOnTimeout": aborts}
        evidence = _growth_evidence(snapshot, _NETSTAT, grown, samples.seconds)
        yield machine.finding("tcp-aborts", *evidence, **fields)


def full_accept_queues(snapshot: Snapshot) -> Iterator[Finding]:
    """Hosts where a program does not accept its incoming connections fast enough."""
    for machine, samples in each_sample(snapshot, NetworkState):
        grown = {name: _tcp_growth(samples, name) for name in _REFUSALS}
        if not any(grown.values()):
            continue
        evidence = _growth_evidence(snapshot, _NETSTAT, grown, samples.seconds)
        # Every overflow is a drop as well; the counters do not say whose queue it was.
        severity = warning_if(max(grown.values()) >= _MANY_REFUSED)
        weight = {"severity": severity, "confidence": Confidence.LIKELY}
        yield machine.finding("coordinator-overload", *evidence, **weight)


def _tcp_growth(samples: _Samples, name: str) -> int:
    return growth(samples.first.tcp.get(name), samples.later.tcp.get(name)) or 0


def _growth_evidence(
    snapshot: Snapshot, source: str, grown: Mapping[str, int], seconds: float
) -> Iterator[Evidence]:
    for name, count in grown.items():
        if count:
            text = f"{name} grew by {count} in {seconds:.1f} s"
            yield Evidence(source, text, float(count), snapshot.time)


def job_interfaces_down(snapshot: Snapshot) -> Iterator[Finding]:
    """Hosts where every interface that a job's processes are told to use has lost its link."""
    for machine in machines(snapshot):
        states = _operstates(machine)
        for setting in sorted(_interface_settings(machine)):
            chosen = [name for name in states if _is_chosen(name, setting)]
            if not _NO_LINK.issuperset(map(states.get, chosen)):
                continue
            for name in chosen:
                text = f"{states[name]}; {_VARIABLE}={setting} tells processes to use it"
                source = f"/sys/class/net/{name}/operstate"
                evidence = Evidence(source, text, time=snapshot.time)
                fields = {"device": name, "severity": Severity.CRITICAL}
                yield machine.finding("net-link-down", evidence, **fields)


def _interface_settings(machine: Machine) -> set[str]:
    """The values of NCCL_SOCKET_IFNAME that processes were started with."""
    processes = machine.records(RayProcess)
    return {process.environment.get(_VARIABLE, "") for process in processes} - {""}


def _is_chosen(name: str, setting: str) -> bool:
    """Whether NCCL_SOCKET_IFNAME chooses an interface: `=` means the whole name, else a prefix.

    A list of what not to use (`^`) chooses nothing that must be there.
    """
    if setting.startswith("^"):
        return False
    if setting.startswith("="):
        return name in setting[1:].split(",")
    return name.startswith(tuple(filter(None, setting.split(","))))


def _operstates(machine: Machine) -> Mapping[str, str]:
    """By interface, as the later sample shows it."""
    states: dict[str, str] = {}
    for result in machine.results("network"):
        for record in (*result.records, *result.later):
            states.update(record.operstates)
    return states
