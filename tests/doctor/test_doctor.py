"""Each planted weakness is found, and a good set-up is all well."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest

from raydiag.catalog.advisories import advisories, release_of
from raydiag.doctor import examined, exit_code
from raydiag.doctor.set_up import CheckStatus, PrometheusSetUp, ScrapeTarget, SetUp
from raydiag.explain import diagnosis
from raydiag.model import NodeReport, NodeStatus, ProbeResult, Snapshot, Status, Unread
from raydiag.probes.exporter import Exporter
from raydiag.probes.listeners import Listener, Listeners
from raydiag.probes.processes import RayProcess
from raydiag.probes.versions import Version
from raydiag.render.doctor import doctor_document, doctor_report
from raydiag.render.text import text
from raydiag.tsdb.promql import duration_s
from tests import schemas
from tests.rules.snapshots import NOW, dead, report
from tests.rules.test_progress import log

PROBES = (
    *("kernel_log", "d_state", "processes", "listeners", "versions", "exporter", "ras", "ray_logs"),
)
PUBLIC = "198.211.5.7"


def raylet(pid: int, session: str) -> RayProcess:
    command = f"/ray/raylet --raylet_socket_name=/tmp/ray/{session}/sockets/raylet"
    return RayProcess(
        pid=pid, ppid=1, start_time_s=1.0, comm="raylet", command=command, role="raylet",
        worker_pid=None, state="S", threads=9, rss_bytes=1, environment={},
    )  # fmt: skip


def trainer(**settings: str) -> RayProcess:
    return replace(
        raylet(4242, ""), comm="ray::Trainer", command="ray::Trainer", role="worker",
        worker_pid=4242, settings=settings,
    )  # fmt: skip


def exporter(answer: str = "ok") -> Exporter:
    served = answer == "ok"
    return Exporter(
        port=9400, answer=answer, reason="" if served else "refused", duration_s=0.01,
        body_bytes=900, samples=9, hw_samples=9 if served else 0, groups=("gpu",), checksum=1,
        scrape_duration_s=0.1, data_time_s=None, data_age_s=None, switches_served=None,
        switches_now=None, uptime_s=None, file_age_s=None, log_age_s=None, log_lines=(),
        timed_out={}, ends_in_timeout=False, skipped=(), restarts=(), processes=(),
        process_age_s=900.0,
    )  # fmt: skip


def node(host: str, address: str) -> NodeReport:
    """One that lacks nothing."""
    answered = report(
        host,
        address=address,
        kernel_log=[],
        d_state=[],
        processes=[raylet(7, "session_2026-11-20_10-00-00_000000_1")],
        listeners=[Listeners((), (), (Listener(address, 6379, 9, "gcs_server"),))],
        versions=[Version("python", "3.11.7", "/usr/bin/python3"), Version("kernel", "6.8.0", "/")],
        exporter=[exporter()],
        ras=[],
        ray_logs=[log(118)],
    )
    held = {"no_new_privs": True, "seccomp": True, "landlock_abi": 4}
    sandbox = {"files": held, "processes": {**held, "landlock_abi": 0}}
    return replace(answered, sandbox=sandbox, clock_offset_s=(-0.001, 0.001))


def target(**changes: object) -> ScrapeTarget:
    usual = ScrapeTarget("node_hw", "http://10.0.0.1:9400/metrics", "up", "", 15.0)
    return replace(usual, **changes)  # type: ignore[arg-type]


def set_up(*nodes: NodeReport) -> SetUp:
    reports = nodes or (node("n1", "10.0.0.1"), node("n2", "10.0.0.2"))
    snapshot = Snapshot(reports, NOW, whole_cluster=True)
    return SetUp(
        snapshot=snapshot,
        findings=diagnosis.explain(snapshot).findings,
        cluster={"ray_version": "2.60.0", "address": "http://127.0.0.1:8265"},
        token_is_needed=True,
        prometheus=PrometheusSetUp("http://127.0.0.1:9190", "", [target()]),
        prometheus_program="/usr/bin/prometheus",
        coverage=diagnosis.coverage(snapshot),
        raydiag_version="0.1.0",
        probes_asked=PROBES,
    )


def with_node(**changes: object) -> SetUp:
    """The second node is otherwise."""
    changed = replace(node("n2", "10.0.0.2"), **changes)  # type: ignore[arg-type]
    return set_up(node("n1", "10.0.0.1"), changed)


def with_records(**records: list[object]) -> SetUp:
    probes = dict(node("n2", "10.0.0.2").probes)
    for name, of_probe in records.items():
        probes[name] = ProbeResult(name, Status.OK, records=of_probe)
    return with_node(probes=probes)


def with_results(*results: ProbeResult) -> SetUp:
    probes = dict(node("n2", "10.0.0.2").probes)
    probes.update({result.probe: result for result in results})
    return with_node(probes=probes)


def listening(address: str, port: int, program: str, public: bool = True) -> SetUp:
    sockets = (Listener(address, port, 7, program),)
    return with_records(listeners=[Listeners((PUBLIC,) if public else (), (), sockets)])


def denied(probe: str) -> SetUp:
    return with_results(ProbeResult(probe, Status.DENIED, reason=f"{probe}: permission denied"))


def test_a_good_set_up_is_all_well() -> None:
    checks = examined(set_up())
    assert [check.id for check in checks if check.status is not CheckStatus.OK] == []
    assert len({check.id for check in checks}) == len(checks) >= 18
    assert exit_code(checks, everything_seen=True) == 0
    assert exit_code(checks, everything_seen=False) == 3


def test_nodes_that_left_on_purpose_are_not_missed() -> None:
    drained = "EXPECTED_TERMINATION: drained by the autoscaler"
    left = [dead(f"gone{index}", drained, address=PUBLIC) for index in range(3)]
    seen = set_up(node("n1", "10.0.0.1"), *left)
    checks = examined(seen)
    assert [check.id for check in checks if check.status is not CheckStatus.OK] == []
    assert exit_code(checks, everything_seen=True) == 0


def test_a_node_that_is_lost_or_silent_is_not_checked() -> None:
    lost = dead("lost", "UNEXPECTED_TERMINATION: health check failed", address=PUBLIC)
    silent = report("silent", address="10.0.0.3", status=NodeStatus.TIMEOUT)
    checks = {check.id: check for check in examined(set_up(node("n1", "10.0.0.1"), lost, silent))}
    told = "public-endpoints clocks reads-kernel-log reads-ras same-versions node-python"
    for name in f"{told} single-cluster confinement exporters".split():
        assert checks[name].status is CheckStatus.UNKNOWN
        assert set(checks[name].hosts) == {"lost", "silent"}
    assert "Not checked on every node: NCCL or RCCL says" in checks["job-nccl-debug"].title
    assert checks["node-addresses"].status is CheckStatus.OK  # nobody talks to the lost one


def test_an_exporter_that_is_scraped_need_not_listen_on_loopback() -> None:
    silent = with_records(exporter=[exporter("refused")])
    checks = {check.id: check for check in examined(silent)}
    assert checks["exporters"].status is CheckStatus.ADVICE
    (host,) = checks["exporters"].hosts
    address = next(r.node.address for r in silent.snapshot.nodes if r.node.host == host)
    scraped = replace(target(), address=f"http://{address}:9400/metrics")
    for health, status in (("up", CheckStatus.OK), ("down", CheckStatus.ADVICE)):
        served = PrometheusSetUp("http://h", "", [replace(scraped, health=health)])
        checks = {check.id: check for check in examined(replace(silent, prometheus=served))}
        assert checks["exporters"].status is status


UNREAD_STACK = Unread("/proc/<pid>/wchan", Status.DENIED, "permission denied")
PLANTED: dict[str, tuple[Callable[[], SetUp], str, CheckStatus]] = {
    "public dashboard": (
        lambda: listening("0.0.0.0", 8265, "dashboard"), "public-endpoints", CheckStatus.PROBLEM),
    "public GCS": (
        lambda: listening(PUBLIC, 6379, "gcs_server"), "public-endpoints", CheckStatus.PROBLEM),
    "public Prometheus": (
        lambda: listening("0.0.0.0", 9190, "prometheus"), "public-endpoints", CheckStatus.PROBLEM),
    "public TensorBoard": (
        lambda: listening("::", 6006, "tensorboard"), "public-endpoints", CheckStatus.PROBLEM),
    "public exporter": (
        lambda: listening("0.0.0.0", 9400, "exporter"), "public-endpoints", CheckStatus.PROBLEM),
    "dashboard on the private network": (
        lambda: listening("0.0.0.0", 8265, "dashboard", public=False),
        "public-endpoints", CheckStatus.ADVICE),
    "sockets not read": (
        lambda: denied("listeners"), "public-endpoints", CheckStatus.UNKNOWN),
    "node under a public address": (
        lambda: set_up(node("n1", "10.0.0.1"), node("n2", PUBLIC)),
        "node-addresses", CheckStatus.PROBLEM),
    "no token": (
        lambda: replace(set_up(), token_is_needed=False),
        "token-authentication", CheckStatus.ADVICE),
    "silent dashboard": (
        lambda: replace(set_up(), token_is_needed=None),
        "token-authentication", CheckStatus.UNKNOWN),
    "old Ray": (
        lambda: replace(set_up(), cluster={"ray_version": "2.8.0"}),
        "ray-version", CheckStatus.PROBLEM),
    "Ray with weaknesses": (
        lambda: replace(set_up(), cluster={"ray_version": "2.51.1"}),
        "ray-advisories", CheckStatus.PROBLEM),
    "Ray of no version": (
        lambda: replace(set_up(), cluster={"ray_version": None}),
        "ray-version", CheckStatus.UNKNOWN),
    "old Python": (
        lambda: with_records(versions=[Version("python", "3.8.10", "/usr/bin/python3")]),
        "node-python", CheckStatus.PROBLEM),
    "another kernel": (
        lambda: set_up(
            *(node(f"n{index}", f"10.0.0.{index}") for index in range(1, 5)),
            replace(node("n5", "10.0.0.5"), probes={
                **node("n5", "10.0.0.5").probes,
                "versions": ProbeResult("versions", Status.OK, records=[
                    Version("python", "3.11.7", "/usr/bin/python3"),
                    Version("kernel", "5.15.0", "/")]),
            }),
        ),
        "same-versions", CheckStatus.PROBLEM),
    "clock off": (
        lambda: with_node(clock_offset_s=(89.9, 90.1)), "clocks", CheckStatus.PROBLEM),
    "clock not measured": (
        lambda: with_node(clock_offset_s=None), "clocks", CheckStatus.UNKNOWN),
    "two clusters": (
        lambda: with_records(processes=[
            raylet(7, "session_2026-11-20_10-00-00_000000_1"),
            raylet(8, "session_2026-11-20_11-00-00_000000_2")]),
        "single-cluster", CheckStatus.PROBLEM),
    "kernel log denied": (
        lambda: denied("kernel_log"), "reads-kernel-log", CheckStatus.PROBLEM),
    "wait channels denied": (
        lambda: with_results(ProbeResult("d_state", Status.OK, unread=[UNREAD_STACK])),
        "reads-d-state", CheckStatus.PROBLEM),
    "processes hidden": (
        lambda: denied("processes"), "reads-processes", CheckStatus.PROBLEM),
    "RAS denied": (lambda: denied("ras"), "reads-ras", CheckStatus.PROBLEM),
    "no Landlock": (
        lambda: with_node(sandbox={"files": {"seccomp": True, "landlock_abi": 0}}),
        "confinement", CheckStatus.ADVICE),
    "no Prometheus program": (
        lambda: replace(set_up(), prometheus_program=""),
        "prometheus-program", CheckStatus.PROBLEM),
    "no Prometheus": (
        lambda: replace(set_up(), prometheus=PrometheusSetUp(reason="none answers")),
        "prometheus-server", CheckStatus.PROBLEM),
    "target down": (
        lambda: replace(set_up(), prometheus=PrometheusSetUp(
            "http://h", "", [target(), target(health="down", error="connection refused")])),
        "scrape-targets", CheckStatus.PROBLEM),
    "seldom scraped": (
        lambda: replace(set_up(), prometheus=PrometheusSetUp(
            "http://h", "", [target(interval_s=60.0)])),
        "scrape-interval", CheckStatus.PROBLEM),
    "NCCL prints versions only": (
        lambda: with_records(processes=[trainer(NCCL_DEBUG="VERSION")]),
        "job-nccl-debug", CheckStatus.ADVICE),
    "flight recorder off": (
        lambda: with_records(processes=[trainer(TORCH_NCCL_TRACE_BUFFER_SIZE="0")]),
        "job-flight-recorder", CheckStatus.ADVICE),
    "flight recorder does not dump": (
        lambda: with_records(processes=[trainer(TORCH_NCCL_DUMP_ON_TIMEOUT="0")]),
        "job-flight-recorder", CheckStatus.ADVICE),
    "watchdog off": (
        lambda: with_records(processes=[trainer(TORCH_NCCL_ENABLE_MONITORING="0")]),
        "job-heartbeat", CheckStatus.ADVICE),
    "heartbeat of a day": (
        lambda: with_records(processes=[trainer(TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC="86400")]),
        "job-heartbeat", CheckStatus.ADVICE),
    "RAS off": (
        lambda: with_records(processes=[trainer(NCCL_RAS_ENABLE="0")]),
        "job-ras", CheckStatus.ADVICE),
    "log in blocks": (
        lambda: with_records(ray_logs=[log(118, buffered=True)]),
        "job-log-buffered", CheckStatus.ADVICE),
    "logs not read": (
        lambda: with_results(ProbeResult("ray_logs", Status.ERROR, reason="it ended")),
        "job-log-buffered", CheckStatus.UNKNOWN),
    "no exporter": (
        lambda: with_records(exporter=[exporter("refused")]), "exporters", CheckStatus.ADVICE),
}  # fmt: skip


def test_settings_that_are_as_they_should_be_are_no_weakness() -> None:
    settings = {
        "NCCL_DEBUG": "INFO",
        "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
        "NCCL_RAS_ENABLE": "1",
    }
    well = with_records(processes=[trainer(**settings, TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC="600")])
    job = [check for check in examined(well) if check.area == "job"]
    assert len(job) == 5
    assert {check.status for check in job} == {CheckStatus.OK}


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_weakness_is_found(planted: str) -> None:
    build, check_id, status = PLANTED[planted]
    weak = build()
    checks = {check.id: check for check in examined(weak)}
    check = checks[check_id]
    assert check.status is status
    assert check.fix or status is CheckStatus.UNKNOWN
    if "n2" in str(check.evidence) or check.hosts:
        assert set(check.hosts) <= {"n2", "n5"}
    expected = {CheckStatus.PROBLEM: 1, CheckStatus.UNKNOWN: 3, CheckStatus.ADVICE: 0}[status]
    assert exit_code(list(checks.values()), everything_seen=True) == expected
    document = doctor_document(list(checks.values()), weak, diagnosis.coverage(weak.snapshot), NOW)
    schemas.fits(document, "doctor")
    json.dumps(document)


def test_the_report_shows_problems_with_what_mends_them() -> None:
    weak = denied("kernel_log")
    written = text(
        doctor_report(examined(weak), diagnosis.coverage(weak.snapshot), False), 100, False
    )
    assert written.startswith("1 problem, 0 to improve, 0 not checked, ")
    assert "PROBLEM Probes cannot read the kernel log  reads-kernel-log  n2\n" in written
    assert "  Fix: give the container CAP_SYSLOG" in written
    assert written.index("PROBLEM") < written.index("WELL")


def test_advisories_by_version_and_by_token() -> None:
    def known(version: str, token: bool | None) -> set[str]:
        return {row.id for row in advisories() if row.concerns(version, token)}

    assert known("2.60.0", True) == known("2.54.0", None) == set()
    assert known("2.60.0", False) == {"CVE-2023-48022"}
    assert known("2.52.0", True) == {"CVE-2026-27482"}
    assert "CVE-2023-6019" in known("2.8.0", True) and "CVE-2023-6019" not in known("2.8.1", True)
    assert known("nightly", True) == set()
    assert release_of("3.0.0.dev0") == (3, 0, 0)


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("15s", 15), ("1m30s", 90), ("250ms", 0.25), ("1h", 3600), ("", None), ("5", None)],
)
def test_durations_of_prometheus(written: str, seconds: float | None) -> None:
    assert duration_s(written) == seconds


@pytest.mark.cluster
def test_on_a_temporary_ray() -> None:
    command = [sys.executable, "-m", "raydiag", "doctor", "--address", "local", "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ended.returncode in (0, 1, 3), ended.stderr
    document = json.loads(ended.stdout)
    schemas.fits(document, "doctor")
    statuses = {check["id"]: check["status"] for check in document["checks"]}
    assert statuses["ray-version"] == statuses["node-python"] == statuses["clocks"] == "ok"
    assert document["coverage"]["nodes"]["answered"] == 1
