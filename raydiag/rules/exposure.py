"""Services of the job that other machines can reach and should not.

Ray's dashboard, its control store, its agents and JAX's coordinator run whatever code they are
sent; Prometheus, TensorBoard and metrics disclose what runs here. A firewall in front cannot be
seen.
"""

from collections.abc import Container, Iterator, Sequence
from typing import NamedTuple

from raydiag.model import Confidence, Evidence, Finding, Severity, Snapshot
from raydiag.probes.listeners import Listener, Listeners
from raydiag.probes.processes import RayProcess
from raydiag.rules.grades import critical_if
from raydiag.rules.machines import Machine, machines

_RUNS_CODE = {
    "dashboard": "Ray's dashboard and Jobs API",
    "gcs_server": "Ray's control store (GCS)",
    "raylet": "a raylet",
    "agent": "Ray's agent",
    "coordinator": "JAX's coordinator",
}
_DISCLOSES: dict[str, tuple[str, Container[int]]] = {
    "prometheus": ("Prometheus", range(9190, 9196)),
    "tensorboard": ("TensorBoard", range(6006, 6016)),
    "exporter": ("the metrics exporter", range(1, 65536)),
    "agent": ("Ray's metrics", (55080,)),
}
_MEANT_FOR_THE_NODE_ITSELF = frozenset({"dashboard", "prometheus", "tensorboard"})
_ALL_V4, _ALL_V6 = "0.0.0.0", "::"


class _Exposed(NamedTuple):
    """A socket of the job that other machines can reach."""

    listener: Listener
    program: str
    title: str
    runs_code: bool
    public_addresses: Sequence[str]  # those of the host at which it can be reached

    @property
    def severity(self) -> Severity | None:
        """None for what is meant for other nodes, where only a private network reaches it."""
        if self.public_addresses:
            # IPv6 gives every machine an address that looks public; a firewall is the rule there.
            has_v4 = any("." in address for address in self.public_addresses)
            return critical_if(self.runs_code and has_v4)
        return Severity.INFO if self.program in _MEANT_FOR_THE_NODE_ITSELF else None

    @property
    def where(self) -> str:
        """`all addresses, 203.0.113.7 among them`."""
        address = self.listener.address
        if address not in (_ALL_V4, _ALL_V6):
            return f"the public address {address}" if self.public_addresses else address
        if self.public_addresses:
            return f"all addresses, {self.public_addresses[0]} among them"
        return f"all addresses ({address})"


def exposed_endpoints(snapshot: Snapshot) -> Iterator[Finding]:
    """One finding for each host, and one note for what only its private network can reach.

    Sockets of unknown programs, or of programs that are not the job's, are left alone.
    """
    for machine in machines(snapshot):
        evidence: dict[Severity, list[Evidence]] = {}
        for exposed in _exposed_sockets(machine):
            if exposed.severity:
                evidence.setdefault(exposed.severity, []).append(_evidence(machine, exposed))
        severe = [*evidence.get(Severity.CRITICAL, ()), *evidence.get(Severity.WARNING, ())]
        if severe:
            severity, confidence = critical_if(Severity.CRITICAL in evidence), Confidence.LIKELY
            weight = {"severity": severity, "confidence": confidence}
            yield machine.finding("exposed-endpoint", *severe, **weight)
        elif notes := evidence.get(Severity.INFO):
            yield machine.finding("exposed-endpoint", *notes, variant="private-network")


def _exposed_sockets(machine: Machine) -> Iterator[_Exposed]:
    processes = machine.records(RayProcess)
    coordinator_ports = {process.job.get("JAX_COORDINATOR_PORT", "") for process in processes}
    for listeners in machine.records(Listeners):
        for listener in listeners.sockets:
            program = listener.program
            if not program and str(listener.port) in coordinator_ports:
                program = "coordinator"
            addresses = _public_addresses(listener, listeners)
            title, ports = _DISCLOSES.get(program, ("", ()))
            if listener.port in ports:
                yield _Exposed(listener, program, title, False, addresses)
            elif program in _RUNS_CODE:
                yield _Exposed(listener, program, _RUNS_CODE[program], True, addresses)


def _public_addresses(listener: Listener, listeners: Listeners) -> Sequence[str]:
    """The public addresses of the host at which a socket can be reached."""
    if listener.address == _ALL_V4:
        return listeners.public_v4
    if listener.address == _ALL_V6:  # takes IPv4 as well, unless it is told not to
        return listeners.public_v6 + listeners.public_v4
    is_public = listener.address in listeners.public_v4 + listeners.public_v6
    return [listener.address] if is_public else []


def _evidence(machine: Machine, exposed: _Exposed) -> Evidence:
    listener = exposed.listener
    table = "/proc/net/tcp6" if ":" in listener.address else "/proc/net/tcp"
    text = f"{exposed.title} listens on {exposed.where}, port {listener.port}"
    return machine.evidence(table, text, float(listener.port))
