"""Nodes beside log and series: one fault is one finding, and what was not seen is said."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Optional

import pytest

from raydiag.cli.live import without_log
from raydiag.cluster import ray_job
from raydiag.explain import verdict
from raydiag.explain.diagnosis import NODES
from raydiag.explain.job import nodes
from raydiag.explain.job.case import case_of
from raydiag.explain.job.join import contradictions, join
from raydiag.explain.job.nodes import LiveNodes
from raydiag.explain.job.query import SeenMetrics, since
from raydiag.explain.job.request import DiagnosisRequest, TriagedJob
from raydiag.model import (
    Blind,
    Confidence,
    Coverage,
    Diagnosis,
    Evidence,
    Finding,
    HostUnread,
    Node,
    NodeReport,
    NodeStatus,
    Observation,
    ProbeResult,
    Severity,
    Snapshot,
    Status,
    Window,
)
from raydiag.probes.ras import RasCount
from raydiag.probes.ray_logs import RayLog
from raydiag.render.diagnose import _when
from raydiag.triage import judge
from raydiag.triage.verdict import Moment
from raydiag.tsdb import live
from raydiag.tsdb.client import Client
from raydiag.tsdb.connection import Connection
from tests.rules.test_pcie import function
from tests.rules.test_progress import log

ADDRESS = "0000:75:00.0"


def report(name: str, status: NodeStatus = NodeStatus.OK) -> NodeReport:
    number = int(name[-3:])
    counts = (RasCount(3, ADDRESS, "umc", "/sys/ras", 0, 0, 0),)
    probes = {"ras": ProbeResult("ras", Status.OK, records=counts)}
    return NodeReport(Node(f"{number:056x}", name, f"10.0.0.{number}"), status, probes=probes)


SNAPSHOT = Snapshot([report("gpu001"), report("gpu002")], 1000.0)


def told(failure_class: str, source: str = "series", **scope: Any) -> Observation:
    facts = scope.pop("facts", {})
    finding = Finding(failure_class, evidence=(Evidence(source, failure_class),), **scope)
    return Observation(finding, "gpu-health", "row", facts=facts)


def shown(failure_class: str, **scope: Any) -> Observation:
    finding = Finding(failure_class, evidence=(Evidence("node", failure_class),), **scope)
    return Observation(finding, NODES, failure_class)


def explained(*observations: Observation, **case: Any) -> verdict.Explained:
    coverage = case.pop("coverage", Coverage(2, 2))
    whole = verdict.JobCase(observations=observations, coverage=coverage, **case)
    return concluded(whole, LiveNodes(SNAPSHOT))


def concluded(case: verdict.JobCase, own: LiveNodes) -> verdict.Explained:
    """The verdict on a job of a live cluster."""
    asides = [one for one in case.observations if nodes.is_aside(one, own)]
    rest = [one for one in case.observations if one not in asides]
    return verdict.explain(
        replace(
            case,
            observations=rest,
            asides=asides,
            of_cluster=True,
            shared_cluster=own.unplaced,
        )
    )


# ---- one fault, one finding


@pytest.mark.parametrize(
    ("series", "node"),
    [
        ({"host": "gpu001", "gpu": 3}, {"host": "gpu001", "gpu": 3, "device": ADDRESS}),
        ({"host": "gpu001", "gpu": 3}, {"host": "gpu001", "device": ADDRESS}),
        ({"host": "10.0.0.1", "gpu": 3}, {"host": "gpu001", "gpu": 3, "device": ADDRESS}),
        ({"host": "gpu001"}, {"host": "gpu001", "gpu": 3, "device": ADDRESS}),
    ],
)
def test_a_fault_that_series_and_node_tell_is_one_finding(
    series: dict[str, Any], node: dict[str, Any]
) -> None:
    both = join(
        [told("gpu-memory-error", onset=50.0, **series)],
        [shown("gpu-memory-error", onset=None, **node)],
        SNAPSHOT,
    )
    (finding,) = explained(*both, status="running").diagnosis.findings
    assert (finding.host, finding.gpu, finding.device) == ("gpu001", 3, ADDRESS)
    assert finding.onset == 50.0
    assert {one.source for one in finding.evidence} == {"series", "node"}


def test_a_gpu_is_one_by_index_by_address_and_by_the_bridge_above_it() -> None:
    bridge = "0000:74:01.0"
    own = report("gpu001")
    functions = (function(ADDRESS, "gpu", above=bridge), function(bridge, "bridge"))
    probes = {**own.probes, "pcie": ProbeResult("pcie", Status.OK, records=functions)}
    snapshot = Snapshot([replace(own, probes=probes)], 1000.0)
    both = join(
        [told("pcie-fatal", host="gpu001", gpu=3)],
        [shown("pcie-fatal", host="gpu001", device=bridge)],
        snapshot,
    )
    (finding,) = explained(*both, status="running").diagnosis.findings
    assert finding.gpu == 3
    assert {one.source for one in finding.evidence} == {"series", "node"}


def test_faults_of_two_gpus_stay_two() -> None:
    both = join(
        [told("gpu-memory-error", host="gpu001", gpu=5)],
        [shown("gpu-memory-error", host="gpu001", gpu=3, device=ADDRESS)],
        SNAPSHOT,
    )
    assert {one.gpu for one in explained(*both).diagnosis.findings} == {3, 5}


def test_an_unnamed_gpu_is_not_guessed_among_two() -> None:
    both = join(
        [told("gpu-memory-error", host="gpu001")],
        [
            shown("gpu-memory-error", host="gpu001", gpu=3, device=ADDRESS),
            shown("gpu-memory-error", host="gpu001", gpu=4, device="0000:85:00.0"),
        ],
        SNAPSHOT,
    )
    assert {one.finding.gpu for one in both} == {None, 3, 4}


def test_a_kill_and_a_silent_node_are_sights_of_what_the_series_tell() -> None:
    both = join(
        [
            told("oom-host", host="gpu001", onset=500.0, facts={"kill_time": 900.0}),
            told("node-death", host="gpu002", onset=950.0),
        ],
        [
            shown("oom-kill", host="gpu001", onset=902.0),
            shown("ray-node-dead", host="gpu002", onset=960.0),
            shown("node-unreachable", host="gpu002"),
        ],
        SNAPSHOT,
    )
    assert [one.finding.failure_class for one in both] == ["oom-host", "node-death"]
    assert [len(one.finding.evidence) for one in both] == [2, 3]


def test_a_node_that_came_back_and_is_silent_now_is_lost_anew() -> None:
    death = replace(told("node-death", host="gpu002", onset=500.0), recovered=True)
    now = shown("node-unreachable", host="gpu002")
    assert len(join([death], [now], SNAPSHOT)) == 2
    assert len(join([replace(death, recovered=False)], [now], SNAPSHOT)) == 1


@pytest.mark.parametrize(
    ("own", "moment", "expected"),
    [
        (LiveNodes(Snapshot([], 0.0), idle=True), Moment(9000.0), (5400.0, 9000.0)),
        (
            LiveNodes(Snapshot([], 0.0, 4000.0), job="a"),
            Moment(9000.0, alive=True),
            (4000.0, 9000.0),
        ),
        (
            LiveNodes(Snapshot([], 0.0, 4000.0), job="a", ended=5000.0),
            Moment(9000.0, alive=False),
            (4000.0, 5060.0),
        ),
    ],
)
def test_of_a_server_that_watches_for_long_only_the_job_is_judged(
    own: LiveNodes, moment: Moment, expected: tuple[float, float]
) -> None:
    connection = Connection(Client("http://127.0.0.1:1"), "x", live=True)
    request = DiagnosisRequest(nodes=own, no_log="" if own.job else "no job runs")
    assert moment.now is not None
    window = since(connection, moment, moment.now, request)
    assert window == Window(*expected)


@pytest.mark.parametrize(
    "other", [{"host": "gpu002", "onset": 902.0}, {"host": "gpu001", "onset": 5000.0}]
)
def test_a_kill_elsewhere_or_at_another_time_is_its_own(other: dict[str, Any]) -> None:
    oom = told("oom-host", host="gpu001", onset=500.0, facts={"kill_time": 900.0})
    assert len(join([oom], [shown("oom-kill", **other)], SNAPSHOT)) == 2


def test_a_node_that_counts_no_error_contradicts_its_series() -> None:
    series = [
        told("gpu-memory-error", host="gpu001", gpu=3),
        told("gpu-memory-error", host="gpu001", gpu=4),  # of which the node says nothing
        told("gpu-memory-error", host="gpu007", gpu=3),
    ]
    (found,) = contradictions(series, SNAPSHOT)
    assert (found.host, found.source, found.status) == ("gpu001", "ras", Status.ERROR)
    assert "GPU 3" in found.reason


# ---- what may be the verdict


def test_an_aside_explains_nothing_beside_a_sick_job() -> None:
    slow = told("tgs-degradation", onset=10.0, severity=Severity.WARNING)
    found = explained(shown("exposed-endpoint", host="gpu001"), slow, status="running")
    assert found.verdict.failure_class == "tgs-degradation"
    assert [one.failure_class for one in found.diagnosis.findings][-1] == "exposed-endpoint"
    assert len(found.diagnosis.chains) == 2
    dead = explained(shown("version-skew", host="gpu001"), status="failed")
    assert dead.verdict.failure_class == "unknown"


def test_an_aside_alone_is_told() -> None:
    found = explained(shown("version-skew", host="gpu001"), status="running")
    assert (found.verdict.failure_class, found.verdict.hosts) == ("version-skew", ("gpu001",))


def test_a_fact_without_a_date_is_a_possible_cause_and_no_more() -> None:
    hang = told("rccl-hang", onset=100.0)
    link = shown("pcie-degraded", host="gpu001", gpu=3)
    found = explained(link, hang, status="hanging")
    assert found.verdict.failure_class == "pcie-degraded"
    assert found.verdict.confidence is Confidence.POSSIBLE
    dated = shown("pcie-degraded", host="gpu001", gpu=3, onset=95.0)
    assert explained(dated, hang, status="hanging").verdict.confidence is Confidence.CONFIRMED
    alone = explained(link, status="running")
    assert alone.verdict.confidence is Confidence.CONFIRMED


@pytest.mark.parametrize(
    ("case", "words", "confidence"),
    [
        ({"status": "running"}, "in the metrics and in the job's log.", Confidence.CONFIRMED),
        ({"status": "idle", "no_log": "x", "no_metrics": "y"}, "no job runs", Confidence.CONFIRMED),
        ({"status": "running", "no_metrics": "none"}, "no metrics: none.", Confidence.LIKELY),
        ({"status": "running", "no_log": "lost"}, "there is no log: lost.", Confidence.LIKELY),
    ],
)
def test_a_healthy_verdict_says_what_it_rests_on(
    case: dict[str, Any], words: str, confidence: Confidence
) -> None:
    found = explained(**case).verdict
    assert (found.failure_class, found.confidence) == ("healthy", confidence)
    assert "on 2 nodes" in found.summary
    assert found.summary.endswith((words, f"{words} here."))


def test_what_was_not_seen_is_not_healthy() -> None:
    lost = Coverage(2, 1, (Blind("gpu002", "timeout"),))
    assert explained(status="running", coverage=lost).verdict.failure_class == "unknown"
    assert explained(told=False).verdict.failure_class == "unknown"


# ---- whose nodes


def test_nodes_of_other_jobs_are_left_out() -> None:
    own = nodes.of_job(LiveNodes(SNAPSHOT), ["gpu002.cluster.local"], 900.0)
    assert own.hosts == ("gpu002",)
    assert own.snapshot.job_start == 900.0
    assert own.notes == ("1 of the cluster's nodes left out: not on the job's list",)


def test_a_cluster_without_any_host_of_the_job_is_another_one() -> None:
    assert "a1, b2" in nodes.foreign(LiveNodes(SNAPSHOT), ["b2.local", "a1"])
    assert nodes.foreign(LiveNodes(SNAPSHOT), ["gpu001"]) == ""
    assert nodes.foreign(LiveNodes(SNAPSHOT), ["10.0.0.2"]) == ""
    assert nodes.foreign(LiveNodes(SNAPSHOT), []) == ""


def test_a_host_of_the_job_that_the_cluster_does_not_have_is_blind() -> None:
    (missing,) = nodes.absent(LiveNodes(SNAPSHOT), ["gpu001.local", "10.0.0.2", "gpu003"])
    assert missing.host == "gpu003"
    hosts = ("gpu001", "gpu002")
    series = Coverage(3, 2, (Blind("gpu003", "no series"),))
    for told in (Coverage(0, 0), series):
        found = nodes.coverage(Coverage(2, 2), told, Coverage(0, 0), hosts, [missing])
        assert (found.asked, found.answered, found.blind) == (3, 2, (missing,))
    assert not nodes.absent(LiveNodes(SNAPSHOT), [])


def test_where_several_jobs_run_a_fault_of_some_node_is_a_possible_cause() -> None:
    hang = told("rccl-hang", onset=100.0)
    link = shown("pcie-degraded", host="gpu001", gpu=3, onset=95.0)
    several = nodes.of_job(LiveNodes(SNAPSHOT, job="a", others=1), [], 0.0)
    assert several.unplaced and "other jobs run" in several.notes[0]
    case = verdict.JobCase(observations=[link, hang], coverage=Coverage(2, 2), status="hanging")
    assert concluded(case, several).verdict.confidence is Confidence.POSSIBLE
    placed = nodes.of_job(LiveNodes(SNAPSHOT, job="a", others=1), ["gpu001"], 0.0)
    assert not placed.unplaced


@pytest.mark.parametrize(
    ("onset", "others", "now", "cause"),
    [
        (2900.0, 0, 3100.0, True),
        (2900.0, 1, 90_000.0, True),
        (5000.0, 0, 5100.0, False),  # after the job
        (None, 0, 3100.0, True),
        (None, 0, 90_000.0, False),
        (None, 1, 3100.0, False),  # another job's by now
    ],
)
def test_what_came_after_the_job_did_not_end_it(
    onset: Optional[float], others: int, now: float, cause: bool
) -> None:
    end = LiveNodes(Snapshot(SNAPSHOT.nodes, now), job="a", ended=3000.0, others=others)
    fault = shown("gpu-memory-error", host="gpu001", gpu=3, onset=onset)
    case = verdict.JobCase(observations=[fault], coverage=Coverage(2, 2), status="failed")
    found = concluded(case, end)
    assert (found.verdict.failure_class == "gpu-memory-error") is cause
    assert [one.failure_class for one in found.diagnosis.findings] == ["gpu-memory-error"]


def test_a_kernel_event_older_than_the_job_explains_nothing_of_it() -> None:
    old = Finding("gpu-memory-error", host="gpu001", onset=50.0, before_job=True)
    new = Finding("gpu-memory-error", host="gpu002", onset=950.0, explanation="x")
    first, second = nodes.observed(Diagnosis([old, new], [], Coverage(2, 2)))
    assert (first.before_job, second.before_job) == (True, False)
    hang = told("rccl-hang", onset=1000.0)
    assert explained(first, hang, status="hanging").verdict.failure_class == "rccl-hang"
    assert explained(second, hang, status="hanging").verdict.failure_class == "gpu-memory-error"


def test_coverage_counts_each_node_once() -> None:
    probed = Coverage(3, 2, (Blind("gpu003", "timeout"),))
    silent = HostUnread("", "q", Status.TIMEOUT, "slow")
    series = Coverage(4, 1, (Blind("gpu001", "no series"), Blind("gpu003", "no series")))
    series = Coverage(4, 1, (*series.blind, Blind("gpu009", "no series")))
    hosts = ("gpu001", "gpu002", "gpu003")
    found = nodes.coverage(probed, series, Coverage(0, 0, unread=(silent,)), hosts)
    assert (found.asked, found.answered) == (4, 2)
    assert [one.host for one in found.blind] == ["gpu003", "gpu009"]
    assert [(one.host, one.source) for one in found.unread] == [("gpu001", "metrics"), ("", "q")]


# ---- which job


def job(submission_id: Optional[str], status: str = "RUNNING", job_id: str = "1") -> dict[str, Any]:
    return {"submission_id": submission_id, "status": status, "job_id": job_id}


OURS = job("raydiag-probe-0123456789ab")


def test_the_only_job_that_runs_is_meant() -> None:
    assert ray_job.running([OURS, job("a"), job("b", "FAILED")], 10.0).id == "a"
    idle = ray_job.running([OURS], 10.0)
    assert idle.idle and not idle.id
    several = ray_job.running([job("a"), job("b")], 10.0)
    assert not several.id and not several.idle and "a, b" in several.reason
    driver = ray_job.running([job(None, job_id="02000000")], 10.0)
    assert not driver.id and driver.alive and "02000000" in driver.reason
    assert driver.ray_id == "02000000"


def test_a_job_that_is_named_may_have_ended() -> None:
    jobs = [job("a"), job("b", "FAILED"), OURS]
    found = ray_job.named(jobs, "b")
    assert found is not None and (found.id, found.alive) == ("b", False)
    assert ray_job.named(jobs, "c") is None
    assert ray_job.named(jobs, str(OURS["submission_id"])) is None


def test_without_a_job_that_runs_the_newest_one_of_a_day_is_judged() -> None:
    failed = {**job("a", "FAILED", "03000000"), "end_time": 9000}
    well = {**job("b", "SUCCEEDED"), "end_time": 5000}
    last = ray_job.running([well, failed, OURS], 69.0)
    assert (last.id, last.alive, last.idle, last.end) == ("a", False, False, 9.0)
    assert (last.status, last.ray_id) == ("FAILED", "03000000")
    assert "a, which ended 60 s ago (FAILED)" in last.note
    assert ray_job.running([well | {"end_time": 10_000}, failed], 69.0).id == "b"
    assert ray_job.running([failed], 200_000.0).idle
    waiting = ray_job.running([job("c", "PENDING"), well], 69.0)
    assert not waiting.idle and "c waits" in waiting.reason


def test_how_a_job_ended_that_was_not_submitted_through_ray_nobody_knows() -> None:
    driver = {**job(None, "SUCCEEDED", "04000000"), "end_time": 9000}
    last = ray_job.running([driver], 69.0)
    assert (last.id, last.alive, last.idle) == ("", None, False)
    assert "04000000" in last.note and "not submitted" in last.reason


def paced(*logs: RayLog, **known: Any) -> LiveNodes:
    """Four nodes whose workers have written that."""
    reports = []
    for index, each in enumerate(logs, start=1):
        result = ProbeResult("ray_logs", Status.OK, records=(each,))
        reports.append(replace(report(f"gpu00{index}"), probes={"ray_logs": result}))
    return LiveNodes(Snapshot(reports, 1000.0), **known)


def unlogged_case(nodes_of_job: LiveNodes, alive: Optional[bool] = True) -> verdict.JobCase:
    """Of a job of which Ray keeps no log."""
    facts = without_log("the cluster")
    moment = Moment(1000.0, alive=alive)
    triaged = TriagedJob(facts, judge(facts, replace(moment, alive=None)), moment)
    request = DiagnosisRequest(no_log="not submitted through Ray", nodes=nodes_of_job)
    return case_of(
        triaged, SeenMetrics(log_only="no server"), request, Diagnosis((), (), Coverage(4, 4))
    )


def test_a_job_without_a_log_is_judged_by_the_steps_of_its_workers() -> None:
    steps_go_on = unlogged_case(paced(log(30), log(30), log(31), log(30)))
    assert steps_go_on.status == "running" and not steps_go_on.is_late
    assert verdict.explain(steps_go_on).verdict.failure_class == "healthy"
    nobody_knows = unlogged_case(paced(log(30)), alive=None)
    assert verdict.explain(nobody_knows).verdict.failure_class == "unknown"


def test_a_job_that_has_run_for_three_minutes_was_looked_at_for_three_minutes() -> None:
    nodes_of_job = paced(log(30), log(30))
    started = replace(nodes_of_job.snapshot, job_start=820.0)
    window = unlogged_case(replace(nodes_of_job, snapshot=started)).coverage.window
    assert window == Window(820.0, 1000.0)
    ended = replace(nodes_of_job, snapshot=started, ended=900.0)
    assert unlogged_case(ended, alive=False).coverage.window == Window(820.0, 900.0)


def test_what_has_no_onset_was_seen_at_the_time_of_its_evidence() -> None:
    timed, untimed = Evidence("/proc/7/stat", "stopped", time=1000.0), Evidence("log", "x")
    finding = Finding("worker-stopped", evidence=(untimed, timed))
    assert _when(finding) == "seen 1970-01-01 00:16:40Z"
    assert _when(replace(finding, onset=900.0)) == "1970-01-01 00:15:00Z"
    assert _when(replace(finding, evidence=(untimed,))) == "(no time)"


def test_no_verdict_is_healthy_while_one_rank_makes_no_step() -> None:
    late = unlogged_case(paced(log(30, age_s=40.0), log(30), log(31), log(30)))
    said = verdict.explain(late).verdict
    assert said.failure_class == "unknown" and "40 s ago" in said.summary
    assert "0.5 s" in said.summary
    in_time = unlogged_case(paced(log(30, age_s=29.0), log(30)))
    assert verdict.explain(in_time).verdict.failure_class == "healthy"


@pytest.mark.parametrize(("answer", "said"), [("ok", "unknown"), ("refused", "healthy")])
def test_a_prometheus_that_is_gone_is_missed_where_exporters_serve(answer: str, said: str) -> None:
    served = ProbeResult("exporter", Status.OK, records=(SimpleNamespace(answer=answer),))
    well = paced(log(30), log(30), log(31))
    reports = [
        replace(one, probes={**one.probes, "exporter": served}) for one in well.snapshot.nodes
    ]
    case = unlogged_case(replace(well, snapshot=replace(well.snapshot, nodes=reports)))
    assert verdict.explain(case).verdict.failure_class == said
    missing = [one.reason for one in case.coverage.unread if one.source == "Prometheus"]
    assert missing == (["exporters answer on 3 nodes, and no server"] if said == "unknown" else [])


def test_other_jobs_of_the_cluster_do_not_make_one_late() -> None:
    other = log(9, age_s=400.0, job_id="01000000")
    case = unlogged_case(paced(other, log(30), ray_id="02000000"))
    assert case.silent_s == pytest.approx(0.1)
    assert unlogged_case(paced(other, log(30))).is_late


def test_a_job_that_began_after_the_log_ended_is_another_one() -> None:
    jobs = [{**job("a"), "start_time": 50_000_000}, OURS]
    other, note = ray_job.beside(jobs, 10_000.0, 60_000.0)
    assert (other.alive, other.start, other.end, other.other_jobs) == (None, None, 10_000.0, 1)
    assert "another one" in note
    same, note = ray_job.beside(jobs, 49_990.0, 60_000.0)
    assert (same.alive, same.start, note) == (True, 50_000.0, "")
    two, note = ray_job.beside([*jobs, job("b")], 49_990.0, 60_000.0)
    assert two.alive is None and "2 jobs run" in note


def test_an_ended_job_has_the_times_that_ray_gives() -> None:
    times = {"start_time": 1000, "end_time": 2000}
    found = ray_job.named([{**job("a", "FAILED"), **times}, job("b")], "a")
    assert found is not None
    assert (found.start, found.end, found.other_jobs) == (1.0, 2.0, 1)


# ---- whose server


@contextmanager
def server(document: Mapping[str, Any]) -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps({"status": "success", "data": document}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    found = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=found.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{found.server_port}"
    finally:
        found.shutdown()
        found.server_close()


@pytest.mark.parametrize(
    ("targets", "expected"),
    [
        ([{"labels": {"instance": "10.0.0.2:9400"}}], True),
        ([{"labels": {"instance": "x"}, "discoveredLabels": {"__address__": "gpu001:9400"}}], True),
        ([{"labels": {"instance": "gpu0011:9400"}}], False),
        ([], False),
    ],
)
def test_a_server_that_scrapes_none_of_the_nodes_is_another_ones(
    targets: list[dict[str, Any]], expected: bool
) -> None:
    with server({"activeTargets": targets}) as url:
        assert live.watches(url, ["gpu001", "10.0.0.2"]) is expected


def test_what_is_no_server_watches_nothing() -> None:
    assert not live.watches("http://127.0.0.1:1", ["gpu001"])
