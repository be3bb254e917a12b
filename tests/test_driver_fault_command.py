"""`raydiag driver-fault` without a cluster: kernel logs alone, a job's metrics alone, refusals."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from raydiag.cli import main
from tests import schemas
from tests.cluster import fake_node
from tests.fake_dashboard import (
    END,
    FakeDashboard,
    Reply,
    framed,
    node,
    packed,
    start_message,
)
from tests.incidents import tsdb
from tests.incidents.generate import generate

Invoke = Callable[..., tuple[int, str, str]]
NOW = 1_795_144_327.0


@pytest.fixture
def invoke(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """`invoke("--kmsg", ...)`: exit code, stdout, stderr."""
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS", "RAYDIAG_CONFIG"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str) -> tuple[int, str, str]:
        try:
            code = main(["driver-fault", *arguments])
        except SystemExit as ended:
            code = int(ended.code or 0)
        return code, *capsys.readouterr()

    return run


def document(answer: tuple[int, str, str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(answer[1])
    schemas.fits(found, "driver-fault")
    return found


def test_a_kernel_log_has_the_stack_whole_and_one_sign(invoke: Invoke, tmp_path: Path) -> None:
    log = tmp_path / "node7.kmsg"
    records = fake_node.cper_oops_records(NOW)[1:]
    log.write_text(fake_node.kmsg(records, NOW - 50_000))
    answer = invoke("--kmsg", str(log), "--json")
    (node,) = document(answer)["nodes"]
    assert (answer[0], node["host"], node["verdict"], node["dated"]) == (
        1,
        "node7",
        "suspect",
        False,
    )
    assert [line["text"] for line in node["stacks"][0]["lines"]] == [one.text for one in records]
    assert node["onset"]["kernel"] == pytest.approx(50_000, abs=0.1)
    assert "1970" not in answer[1]


def test_a_central_syslog_has_a_verdict_for_each_host(invoke: Invoke, tmp_path: Path) -> None:
    log = tmp_path / "messages"
    log.write_text(
        "2026-11-20T03:12:07Z gpu1 kernel: RIP: 0010:amdgpu_cper_ring_write+0x7e/0x250 [amdgpu]\n"
        "2026-11-20T03:12:09Z gpu2 kernel: NVRM: Xid (PCI:0000:1b:00): 79, pid=1, name=x, gone\n"
        "2026-11-20T03:12:10Z gpu3 kernel: usb 1-1: new high-speed USB device number 2\n"
    )
    answer = invoke("--kmsg", str(log), "--json")
    nodes = {node["host"]: node for node in document(answer)["nodes"]}
    assert (nodes["gpu1"]["verdict"], nodes["gpu2"]["verdict"]) == ("suspect", "confirmed")
    assert nodes["gpu2"]["events"][0]["meaning"].startswith("Xid 79: ")
    assert nodes["gpu1"]["onset"]["kernel"] == NOW


def test_a_log_without_a_fault_is_no_clean_node(invoke: Invoke, tmp_path: Path) -> None:
    log = tmp_path / "quiet"
    log.write_text(fake_node.kmsg(fake_node.quiet_records(NOW), NOW - 9))
    answer = invoke("--kmsg", str(log), "--json")
    (node,) = document(answer)["nodes"]
    assert (answer[0], node["verdict"]) == (3, "not-checked")
    assert node["reason"] == "d_state was not read"


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        (["--kmsg", "{}/no-such-file"], 4, "no-such-file"),
        (["--kmsg", "{}"], 4, "directory"),
        (["--kmsg", "{}/empty"], 4, "empty"),
        (["--kmsg", "{}/quiet", "--node", "n1"], 2, "--kmsg reads files alone"),
        (["--deadline", "soon"], 2, "--deadline"),
        (["{}/no-such-job"], 4, "no-such-job"),
    ],
)
def test_bad_input_is_one_line(
    invoke: Invoke, tmp_path: Path, words: list[str], code: int, complaint: str
) -> None:
    (tmp_path / "empty").write_text("")
    (tmp_path / "quiet").write_text("[1.0] x\n")
    answer = invoke(*(word.format(tmp_path) for word in words))
    assert (answer[0], answer[1]) == (code, "")
    assert complaint in answer[2] and answer[2].count("\n") == 1


def test_names_are_taken_out_on_demand(invoke: Invoke, tmp_path: Path) -> None:
    log = tmp_path / "messages"
    line = (
        "2026-11-20T03:12:07Z gpu1 kernel: RIP: 0010:amdgpu_cper_ring_write+0x7e/0x250 [amdgpu]\n"
    )
    log.write_text(line)
    code, printed, _ = invoke("--kmsg", str(log), "--redact", "--format", "markdown")
    assert (code, "gpu1" in printed, "host-1" in printed) == (1, False, True)


@pytest.mark.slow
def test_a_jobs_metrics_alone_confirm_by_two_kinds_of_series(
    invoke: Invoke, tmp_path: Path
) -> None:
    try:
        incident = generate("gpu-driver-fault", 3, tmp_path / "job")
    except tsdb.NoPrometheus as missing:
        pytest.skip(str(missing))
    answer = invoke(incident.job_dir, "--now", str(incident.now), "--json")
    found = document(answer)
    (host,) = incident.truth.hosts or ()
    verdicts = {node["host"]: node["verdict"] for node in found["nodes"]}
    assert verdicts == dict.fromkeys(incident.hosts, "not-checked") | {host: "confirmed"}
    (node,) = (node for node in found["nodes"] if node["host"] == host)
    assert {sign["kind"] for sign in node["signs"]} == {"exporter-cycles", "errors-counter"}
    assert incident.truth.onset is not None
    assert node["onset"]["metric"] == pytest.approx(incident.truth.onset, abs=60)
    assert "none was asked: whether they are clean is not known" in node["others"]
    assert found["job"].startswith("gpu-driver-fault")


# ---- what nodes are asked


@pytest.fixture
def dashboard() -> Iterator[FakeDashboard]:
    """A cluster of one node that answers whatever it is asked: there is nothing."""
    server = FakeDashboard()
    server.status = "SUCCEEDED"
    server.jobs = [{"submission_id": "raysubmit_x", "status": "RUNNING", "start_time": 1000}]
    server.log = _nothing_found
    yield server
    server.close()


def _nothing_found(request: Mapping[str, Any]) -> str:
    nothing = {"status": "ok", "duration_s": 0.1, "reason": "", "records": [], "unread": []}
    answer = {"time": NOW, "cpu_s": 0.1, "pid": 7, "sandbox": {}, "stuck": []}
    answer["probes"] = dict.fromkeys(request["node"]["probes"], nothing)
    messages = {0: start_message(node(1)), 1: packed(answer), END: {"duration_s": 0.5}}
    return "".join(f"{line}\n" for line in framed(request["nonce"], messages))


def test_a_job_of_rays_is_looked_at_as_closely_as_a_cluster_that_is_named(
    invoke: Invoke, dashboard: FakeDashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", dashboard.url)
    invoke("raysubmit_x", "--force-ras", "--json")
    asked = dashboard.carried()["request"]["node"]
    assert asked["force_ras"] is True
    assert "remapped" in asked["options"]["nvidia"]
    assert "storage" not in asked["probes"]


def test_what_all_nodes_said_is_kept_where_the_close_look_fails(
    invoke: Invoke, dashboard: FakeDashboard
) -> None:
    def log(request: Mapping[str, Any]) -> str:
        dashboard.overrides["POST /api/jobs/"] = Reply(500, "GCS is busy", "text/plain")
        return _nothing_found(request)

    dashboard.log = log
    answer = invoke("--node", "node001", "--address", dashboard.url, "--json")
    found = document(answer)
    assert [one["host"] for one in found["nodes"]] == ["node001"]
    assert answer[0] == 3  # not clean: nobody has looked closely
    assert "GCS is busy" in json.dumps(found["coverage"])


def test_a_close_look_that_times_out_keeps_the_nodes_first_answer(
    invoke: Invoke, dashboard: FakeDashboard
) -> None:
    def silent(request: Mapping[str, Any]) -> str:
        late = {"status": "timeout", "reason": "no answer within 30 s", "duration_s": 30.0}
        messages = {0: start_message(node(1)), 1: late, END: {"duration_s": 30.0}}
        return "".join(f"{line}\n" for line in framed(request["nonce"], messages))

    def first(request: Mapping[str, Any]) -> str:
        dashboard.log = silent
        return _nothing_found(request)

    dashboard.log = first
    found = document(invoke("--node", "node001", "--address", dashboard.url, "--json"))
    (coverage,) = [one for one in found["coverage"]["unread"] if one["source"] == "a closer look"]
    assert (coverage["host"], coverage["status"]) == ("node001", "timeout")
    assert "no answer within 30 s" in coverage["reason"]
    assert found["coverage"]["nodes"]["answered"] == 1
    assert found["nodes"][0]["verdict"] != "unreachable"
