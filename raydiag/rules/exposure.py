"""Services of the job that other machines can reach and should not.

Ray's dashboard, its control store, its agents and JAX's coordinator run what anybody sends them;
Prometheus, TensorBoard and metrics tell anybody what there is. A firewall in front cannot be seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from raydiag.model import Confidence, Evidence, Finding, NodeReport, Severity, Snapshot
from raydiag.probes.listeners import Listener, Listeners
from raydiag.probes.processes import RayProcess
from raydiag.rules.nodes import by_host, distinct

_RUN_CODE = {
    "dashboard": "Ray's dashboard and Jobs API",
    "gcs_server": "Ray's control store (GCS)",
    "raylet": "a raylet",
    "agent": "Ray's agent",
    "coordinator": "JAX's coordinator",
}
_TELL = {
    "prometheus": ("Prometheus", range(9190, 9196)),
    "tensorboard": ("TensorBoard", range(6006, 6016)),
    "exporter": ("the metrics exporter", range(1, 65536)),
    "agent": ("Ray's metrics", (55080,)),
}
_FOR_THE_NODE_ITSELF = frozenset({"dashboard", "prometheus", "tensorboard"})
_EVERYWHERE = ("0.0.0.0", "::")


class _Service(NamedTuple):
    program: str
    title: str
    runs_code: bool


def exposed_endpoints(snapshot: Snapshot) -> Iterator[Finding]:
    """One finding for each host, and one remark for what only its private network can reach.

    What nobody can say of whose it is, or is none of the job's, is left alone.
    """
    for host, reports in by_host(snapshot).items():
        seen: list[Listeners] = distinct(reports, "listeners", "sockets")
        found: dict[Severity, list[Evidence]] = {}
        for record in seen:
            for one in record.sockets:
                service = _service(one, reports)
                severity = _severity(service, one, record) if service else None
                if service and severity:
                    text = f"{service.title} waits on {_where(one, record)}, port {one.port}"
                    piece = Evidence(_source(one), text, float(one.port), reports[0].collected_at)
                    found.setdefault(severity, []).append(piece)
        grave = [*found.get(Severity.CRITICAL, ()), *found.get(Severity.WARNING, ())]
        if grave:
            severity = Severity.CRITICAL if Severity.CRITICAL in found else Severity.WARNING
            yield _finding(host, severity, grave)
        elif Severity.INFO in found:
            yield _finding(host, Severity.INFO, found[Severity.INFO])


def _service(one: Listener, reports: Sequence[NodeReport]) -> _Service | None:
    """What the job uses a socket for, by the program that holds it or the port that it chose."""
    if one.program in _TELL:
        title, ports = _TELL[one.program]
        if one.port in ports:
            return _Service(one.program, title, runs_code=False)
    program = one.program
    if not program and str(one.port) in _coordinator_ports(reports):
        program = "coordinator"
    title = _RUN_CODE.get(program, "")
    return _Service(program, title, runs_code=True) if title else None


def _coordinator_ports(reports: Sequence[NodeReport]) -> set[str]:
    processes: list[RayProcess] = distinct(reports, "processes", "pid", "start_time_s")
    return {process.job.get("JAX_COORDINATOR_PORT", "") for process in processes}


def _severity(service: _Service, one: Listener, record: Listeners) -> Severity | None:
    if _public(one, record):
        # IPv6 gives every machine an address that looks public; a firewall is the rule there.
        only_v6 = not any("." in address for address in _public(one, record))
        grave = service.runs_code and not only_v6
        return Severity.CRITICAL if grave else Severity.WARNING
    return Severity.INFO if service.program in _FOR_THE_NODE_ITSELF else None


def _public(one: Listener, record: Listeners) -> Sequence[str]:
    """The public addresses at which a socket can be reached."""
    if one.address == "0.0.0.0":
        return record.public_v4
    if one.address == "::":  # takes IPv4 as well, unless it is told not to
        return record.public_v6 + record.public_v4
    return [x for x in record.public_v4 + record.public_v6 if x == one.address]


def _where(one: Listener, record: Listeners) -> str:
    if one.address not in _EVERYWHERE:
        return f"{'the public address ' if _public(one, record) else ''}{one.address}"
    public = _public(one, record)
    return f"all addresses, {public[0]} among them" if public else f"all addresses ({one.address})"


def _source(one: Listener) -> str:
    return "/proc/net/tcp6" if ":" in one.address else "/proc/net/tcp"


def _finding(host: str, severity: Severity, evidence: Sequence[Evidence]) -> Finding:
    is_public = severity is not Severity.INFO
    return Finding(
        "exposed-endpoint",
        host=host,
        severity=severity,
        confidence=Confidence.LIKELY,
        evidence=tuple(evidence),
        title="" if is_public else "A service of the job is open to the private network",
        explanation=""
        if is_public
        else (
            "The host has no public address, so the internet does not reach this. Whoever shares "
            "the network does, and is not asked for a password."
        ),
    )
