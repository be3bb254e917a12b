"""Who can reach what: services of Ray and of training that other machines should not reach."""

from collections.abc import Iterable, Iterator
from ipaddress import ip_address

from raydiag.doctor.set_up import CheckResult, CheckStatus, SetUp, hosts_of
from raydiag.model import Finding, Severity

_AREA = "exposure"
_MOST_SERVICES = 16
_BIND = (
    "start Ray with --node-ip-address of a private address and --dashboard-host 127.0.0.1, bind "
    "Prometheus and TensorBoard to 127.0.0.1, and reach them by ssh"
)
_TOKEN = "set RAY_AUTH_MODE=token for all nodes (Ray 2.52 and newer), with a token file of mode 600"
_PRIVATE = "give ray start --node-ip-address=<private address> on the head and on every worker"


def exposure_checks(set_up: SetUp) -> Iterator[CheckResult]:
    """Listening sockets, addresses of nodes, and token authentication."""
    yield _endpoints(set_up)
    yield _node_addresses(set_up)
    yield _token(set_up)


def _endpoints(set_up: SetUp) -> CheckResult:
    """By the sockets that nodes listen on."""
    exposed = set_up.findings_of("exposed-endpoint")
    if exposed:
        title = "Services of the cluster can be reached from public addresses"
        return CheckResult(
            "public-endpoints", _AREA, CheckStatus.PROBLEM, title,
            hosts_of(exposed), _services(exposed), _BIND,
        )  # fmt: skip
    unseen = set_up.without(lambda report: bool(report.records("listeners")))
    if unseen:
        title = "Listening sockets could not be read on every node"
        return CheckResult("public-endpoints", _AREA, CheckStatus.UNKNOWN, title, unseen)
    notes = [
        finding
        for finding in set_up.findings
        if finding.failure_class == "exposed-endpoint" and finding.severity is Severity.INFO
    ]
    if notes:
        title = "Dashboard, Prometheus or TensorBoard can be reached from the private network"
        return CheckResult(
            "public-endpoints", _AREA, CheckStatus.ADVICE, title,
            hosts_of(notes), _services(notes), _BIND,
        )  # fmt: skip
    title = "No service of the cluster can be reached from outside"
    return CheckResult("public-endpoints", _AREA, CheckStatus.OK, title)


def _services(findings: Iterable[Finding]) -> tuple[str, ...]:
    """One text for each service of a host, with all its ports."""
    ports: dict[str, list[str]] = {}
    for finding in findings:
        for evidence in finding.evidence:
            service, _, port = evidence.text.rpartition(", port ")
            ports.setdefault(f"{finding.host}: {service}", []).append(port)
    texts = [f"{service}, port {', '.join(ports[service])}" for service in ports]
    if len(texts) > _MOST_SERVICES:
        texts[_MOST_SERVICES:] = [f"and {len(texts) - _MOST_SERVICES} more"]
    return tuple(texts)


def _node_addresses(set_up: SetUp) -> CheckResult:
    """Ray falls back to a public address where it finds no private one."""
    public = []
    for report in set_up.snapshot.nodes:
        if report.node.alive and _is_public(report.node.address):
            public.append(report.node)
    if not public:
        title = "All nodes are registered under private addresses"
        return CheckResult("node-addresses", _AREA, CheckStatus.OK, title)
    return CheckResult(
        "node-addresses", _AREA, CheckStatus.PROBLEM,
        "Nodes are registered under public addresses: GCS and raylets talk over them",
        tuple(node.host for node in public),
        tuple(f"{node.host}: {node.address}" for node in public[:4]),
        _PRIVATE,
    )  # fmt: skip


def _is_public(address: str) -> bool:
    try:
        return ip_address(address).is_global
    except ValueError:
        return False


def _token(set_up: SetUp) -> CheckResult:
    if set_up.is_temporary:
        title = "A temporary Ray has no dashboard that could want a token"
        return CheckResult("token-authentication", _AREA, CheckStatus.OK, title)
    if set_up.token_is_needed is None:
        title = "The dashboard did not say whether it wants a token"
        return CheckResult("token-authentication", _AREA, CheckStatus.UNKNOWN, title)
    if set_up.token_is_needed:
        title = "The dashboard wants a token"
        return CheckResult("token-authentication", _AREA, CheckStatus.OK, title)
    return CheckResult(
        "token-authentication", _AREA, CheckStatus.ADVICE,
        "The dashboard runs jobs of every user of the machines that reach it",
        evidence=(f"{set_up.cluster.get('address')}/api/version answers without a token",),
        fix=_TOKEN,
    )  # fmt: skip
