from __future__ import annotations

from dataclasses import replace

import pytest

from raydiag.model import Finding, NodeReport, NodeStatus, Severity
from raydiag.probes.processes import RayProcess
from raydiag.rules.nodes import missing_hosts
from tests.rules.snapshots import NOW, dead, report, snapshot

SLURM = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "gpu[001-004]"}


def node(host: str, status: NodeStatus = NodeStatus.OK, /, **job: str) -> NodeReport:
    raylet = RayProcess(
        pid=7, ppid=1, start_time_s=1.0, comm="raylet", command="raylet", role="raylet",
        worker_pid=None, state="S", threads=9, rss_bytes=1, environment={}, job=job,
    )  # fmt: skip
    return report(host, status=status, processes=[raylet])


def judged(*nodes: NodeReport, whole: bool = True, job_age_s: float | None = 7200) -> list[Finding]:
    start = None if job_age_s is None else NOW - job_age_s
    return list(missing_hosts(replace(snapshot(*nodes, job_start=start), whole_cluster=whole)))


def four(count: int = 3, /, **job: str) -> list[NodeReport]:
    return [node(f"gpu{number:03}", **job) for number in range(1, count + 1)]


def test_a_host_of_the_list_that_ray_does_not_have() -> None:
    (finding,) = judged(*four(**SLURM))
    assert (finding.failure_class, finding.host) == ("host-missing", "gpu004")
    assert finding.severity is Severity.WARNING
    assert finding.evidence[0].source == "SLURM_JOB_NODELIST in /proc/<pid>/environ"
    assert finding.evidence[0].text == "4 hosts, 3 of which are in the cluster"


@pytest.mark.parametrize("text", ["gpu001,gpu002,gpu003,gpu009", "GPU[001-003,009].example.net"])
def test_other_ways_to_write_a_list(text: str) -> None:
    found = judged(*four(JOB_NODELIST=text, SLURM_NODELIST="gpu[001-003,009]"))
    assert [finding.host for finding in found] == ["gpu009"]
    assert found[0].evidence[0].source.startswith("JOB_NODELIST, SLURM_NODELIST in")


def test_all_there() -> None:
    assert judged(*four(4, **SLURM, NNODES="4")) == []
    assert judged(*four(4)) == []


def test_a_host_with_a_finding_of_its_own_is_not_missing() -> None:
    assert judged(*four(**SLURM), dead("gpu004", "UNEXPECTED_TERMINATION")) == []
    assert judged(*four(**SLURM), node("gpu004", NodeStatus.UNREACHABLE)) == []


def test_a_part_of_the_cluster_misses_nothing() -> None:
    assert judged(*four(**SLURM), whole=False) == []
    assert judged(*four(NNODES="9"), whole=False) == []


@pytest.mark.parametrize("age", [None, 60.0])
def test_hosts_that_may_still_join_are_a_remark(age: float | None) -> None:
    for job in (SLURM, {"NNODES": "4"}):
        (finding,) = judged(*four(**job), job_age_s=age)
        assert finding.severity is Severity.INFO


@pytest.mark.parametrize(
    "nodes",
    [
        four(**{**SLURM, "SLURM_JOB_NODELIST": "cloud-[1-4]"}),  # names of the scheduler alone
        [*four(2, **SLURM), node("gpu003", SLURM_JOB_ID="8", SLURM_JOB_NODELIST="gpu[003,007]")],
        [*four(2, **SLURM), node("gpu003", SLURM_JOB_NODELIST="gpu[003-004]")],
        four(SLURM_JOB_NODELIST="gpu[001-"),
        four(SLURM_JOB_NODELIST=""),
    ],
)
def test_lists_that_mean_something_else_are_not_used(nodes: list[NodeReport]) -> None:
    assert judged(*nodes) == []


def test_more_nodes_counted_than_known() -> None:
    (finding,) = judged(*four(NNODES="4", SLURM_JOB_NUM_NODES="5"))
    assert (finding.failure_class, finding.host) == ("host-missing", None)
    assert finding.evidence[0].text == "4 nodes, 3 are known to Ray"
    assert finding.evidence[0].source.startswith("NNODES")


@pytest.mark.parametrize("count", ["3", "1", "", "many", "9" * 30])
def test_a_count_that_is_met_or_no_number_is_silent(count: str) -> None:
    assert judged(*four(NNODES=count)) == []


def test_dead_nodes_are_counted_once() -> None:
    lost = dead("gpu004", "UNEXPECTED_TERMINATION")
    assert judged(*four(NNODES="4"), lost) == []
    rejoined = dead("gpu003", "UNEXPECTED_TERMINATION")
    assert len(judged(*four(NNODES="4"), rejoined)) == 1


def test_the_missing_are_not_counted_as_well() -> None:
    assert [x.host for x in judged(*four(**SLURM, NNODES="4"))] == ["gpu004"]


def test_many_missing_hosts_share_one_finding() -> None:
    (finding,) = judged(node("gpu0001", SLURM_JOB_NODELIST="gpu[0001-0500]"))
    assert finding.host is None
    assert "gpu0002 is the first of 499 that are not" in finding.evidence[0].text


def test_a_head_that_has_no_part_in_the_job_does_not_count() -> None:
    (finding,) = judged(node("head"), *four(7, NNODES="8"))
    assert finding.host is None
    assert "8 nodes, 7 are known to Ray" in finding.evidence[0].text
