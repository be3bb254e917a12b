from __future__ import annotations

import pytest

from raydiag.model import Finding, Severity
from raydiag.probes.listeners import Listener, Listeners
from raydiag.probes.processes import RayProcess
from raydiag.rules.exposure import exposed_endpoints
from tests.rules.snapshots import report, snapshot

PUBLIC = "198.211.5.7"


def socket(address: str, port: int, program: str = "") -> Listener:
    return Listener(address, port, 7 if program else None, program)


def trainer(**job: str) -> RayProcess:
    return RayProcess(
        pid=8, ppid=1, start_time_s=1.0, comm="ray::Trainer", command="ray::Trainer",
        role="worker", worker_pid=8, state="S", threads=9, rss_bytes=1, environment={}, job=job,
    )  # fmt: skip


def judged(*sockets: Listener, v4: str = "", v6: str = "", **job: str) -> list[Finding]:
    record = Listeners((v4,) if v4 else (), (v6,) if v6 else (), sockets)
    return list(
        exposed_endpoints(snapshot(report("a", listeners=[record], processes=[trainer(**job)])))
    )


@pytest.mark.parametrize("program", ["dashboard", "gcs_server", "raylet", "agent"])
@pytest.mark.parametrize("address", ["0.0.0.0", "::", PUBLIC])
def test_what_runs_code_on_a_public_address_is_critical(program: str, address: str) -> None:
    (finding,) = judged(socket(address, 7777, program), v4=PUBLIC)
    assert (finding.failure_class, finding.host) == ("exposed-endpoint", "a")
    assert finding.severity is Severity.CRITICAL
    assert PUBLIC in finding.evidence[0].text
    assert finding.evidence[0].value == 7777


@pytest.mark.parametrize(
    ("program", "port"),
    [("prometheus", 9190), ("tensorboard", 6006), ("exporter", 9400), ("agent", 55080)],
)
def test_what_tells_on_a_public_address_is_a_warning(program: str, port: int) -> None:
    (finding,) = judged(socket("0.0.0.0", port, program), v4=PUBLIC)
    assert finding.severity is Severity.WARNING


def test_jaxs_coordinator_is_known_by_its_port() -> None:
    (finding,) = judged(socket("::", 7000), v4=PUBLIC, JAX_COORDINATOR_PORT="7000")
    assert finding.severity is Severity.CRITICAL
    assert finding.evidence[0].text.startswith("JAX's coordinator listens on all addresses")
    assert judged(socket("::", 7001), v4=PUBLIC, JAX_COORDINATOR_PORT="7000") == []


def test_a_dashboard_on_a_private_network_is_a_remark() -> None:
    for address in ("0.0.0.0", "::", "10.77.0.1"):
        (finding,) = judged(
            socket(address, 8265, "dashboard"),
            socket(address, 9190, "prometheus"),
            socket(address, 6006, "tensorboard"),
        )
        assert finding.severity is Severity.INFO
        assert len(finding.evidence) == 3
        assert "no public address" in finding.explanation


def test_all_of_a_host_is_one_finding_as_grave_as_the_gravest() -> None:
    (finding,) = judged(
        socket("0.0.0.0", 6379, "gcs_server"),
        socket(PUBLIC, 9400, "exporter"),
        socket("10.77.0.1", 8265, "dashboard"),
        v4=PUBLIC,
    )
    assert finding.severity is Severity.CRITICAL
    assert [piece.value for piece in finding.evidence] == [6379, 9400]


@pytest.mark.parametrize(
    "quiet",
    [
        # What a well host of a private network shows.
        socket("10.77.0.1", 6379, "gcs_server"),
        socket("0.0.0.0", 6379, "gcs_server"),
        socket("::", 52365, "agent"),
        socket("0.0.0.0", 9400, "exporter"),
        socket("0.0.0.0", 55080, "agent"),
        socket("0.0.0.0", 7000),
        socket("0.0.0.0", 8265),  # of somebody else, perhaps
    ],
)
def test_meant_for_the_private_network(quiet: Listener) -> None:
    assert judged(quiet, JAX_COORDINATOR_PORT="7000") == []


@pytest.mark.parametrize(
    "quiet",
    [
        socket("0.0.0.0", 22),
        socket("0.0.0.0", 8265),
        socket("0.0.0.0", 9090, "prometheus"),  # the site's own
        socket("10.77.0.1", 6379, "gcs_server"),
    ],
)
def test_on_a_public_host_what_is_not_the_jobs_or_not_public(quiet: Listener) -> None:
    assert judged(quiet, v4=PUBLIC) == []


def test_families_are_told_apart() -> None:
    assert judged(socket("0.0.0.0", 6379, "gcs_server"), v6="2a01:0:0:0:0:0:0:1") == []
    (finding,) = judged(socket("::", 6379, "gcs_server"), v6="2a01:0:0:0:0:0:0:1")
    assert finding.evidence[0].source == "/proc/net/tcp6"


def test_nothing_listens() -> None:
    assert judged(v4=PUBLIC) == []
