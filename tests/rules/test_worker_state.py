"""Workers whose process is stopped, traced, a zombie, or gone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from raydiag.explain.diagnosis import judge_nodes
from raydiag.model import Actor, Confidence, Finding, NodeReport, Severity, Snapshot
from raydiag.probes.processes import RayProcess
from raydiag.rules.worker_state import (
    dead_ranks,
    ended_children,
    missing_workers,
    stopped_ray_processes,
    stopped_workers,
)
from tests.rules.snapshots import NOW, report, snapshot
from tests.rules.test_progress import log


def process(pid: int, state: str = "S", **values: Any) -> RayProcess:
    known: dict[str, Any] = {
        "ppid": 100,
        "start_time_s": NOW - 7200,
        "comm": "ray::Trainer.tr",
        "command": "ray::Trainer.train",
        "role": "worker",
        "worker_pid": pid,
        "threads": 90,
        "rss_bytes": 1 << 30,
        "environment": {},
    }
    return RayProcess(pid=pid, state=state, **{**known, **values})


RAYLET = process(100, comm="raylet", command="raylet", role="raylet", worker_pid=None)


def node(host: str, *processes: RayProcess, **records: Any) -> NodeReport:
    return report(host, processes=[RAYLET, *processes], **records)


def actor(host: str, pid: int, rank: int, *, alive: bool = True) -> Actor:
    return Actor(f"id-{host}", pid, "Trainer", f"trainer_{rank}", alive)


def job(*reports: NodeReport, actors: tuple[Actor, ...] = ()) -> Snapshot:
    return replace(snapshot(*reports, job_start=NOW - 7200), actors=actors)


def stopped(*processes: RayProcess, actors: tuple[Actor, ...] = ()) -> list[Finding]:
    return list(stopped_workers(job(node("a", *processes), actors=actors)))


@pytest.mark.parametrize(
    ("state", "words"), [("T", "stopped"), ("t", "traced"), ("Z", "zombie"), ("X", "zombie")]
)
def test_a_rank_that_does_not_run_is_critical_at_once(state: str, words: str) -> None:
    (finding,) = stopped(process(700), process(701, state), actors=(actor("a", 701, 3),))
    assert (finding.failure_class, finding.host, finding.pid) == ("worker-stopped", "a", 701)
    assert (finding.severity, finding.confidence) == (Severity.CRITICAL, Confidence.CONFIRMED)
    assert finding.task == "trainer_3"
    assert finding.evidence[0].source == "/proc/701/stat"
    assert words in finding.evidence[0].text


def test_without_an_actor_the_title_names_the_rank() -> None:
    assert [finding.task for finding in stopped(process(701, "T"))] == ["Trainer"]


@pytest.mark.parametrize("state", ["S", "R", "D", "I"])
def test_a_process_that_works_or_waits_is_no_finding(state: str) -> None:
    assert stopped(process(700, state)) == []


def test_what_has_no_work_or_is_not_a_worker_is_left_alone() -> None:
    idle = process(700, "T", command="ray::IDLE", comm="ray::IDLE")
    ended = process(701, "Z", command="", comm="ray::IDLE")
    raylet = process(702, "T", role="raylet", comm="raylet", worker_pid=None)
    assert stopped(idle, ended, raylet) == []


def test_a_raylet_that_has_exited_beside_a_living_one_is_history() -> None:
    left = process(90, "Z", comm="raylet", command="", role="raylet", worker_pid=None)
    assert list(stopped_ray_processes(job(node("b", left)))) == []  # each node has one that lives
    stopped_one = replace(left, state="T")  # may be continued, so somebody counts on it
    (finding,) = stopped_ray_processes(job(node("b", stopped_one)))
    assert finding.failure_class == "ray-node-dead"


@pytest.mark.parametrize(("state", "words"), [("T", "state T"), ("Z", "zombie")])
def test_an_agent_of_rays_that_does_not_run_is_told(state: str, words: str) -> None:
    agent = process(703, state, role="agent", comm="ray::DashboardA", command="", worker_pid=None)
    (finding,) = stopped_ray_processes(job(node("a"), node("b", agent)))
    assert (finding.failure_class, finding.host, finding.pid) == ("ray-node-dead", "b", 703)
    assert (finding.severity, finding.confidence) == (Severity.WARNING, Confidence.LIKELY)
    assert words in finding.evidence[0].text
    assert list(stopped_workers(job(node("b", agent)))) == []
    assert list(stopped_ray_processes(job(node("b", replace(agent, state="S"))))) == []


def test_data_loaders_that_ended_are_left_alone_and_stopped_ones_are_not() -> None:
    loader = process(800, "Z", role="child", worker_pid=700, command="")
    assert stopped(process(700), loader) == []
    (finding,) = stopped(process(700), replace(loader, state="T"), actors=(actor("a", 700, 3),))
    assert (finding.pid, finding.task) == (800, "trainer_3")


def with_ended_children(*hosts: str, age_s: float = 40.0) -> list[Finding]:
    """Of ranks below workers on four hosts, which have ended on some."""
    reports = []
    for host in "abcd":
        state = "Z" if host in hosts else "S"
        child = process(800, state, role="child", worker_pid=700, command="")
        reports.append(node(host, process(700), child, ray_logs=[log(50, age_s=age_s)]))
    return list(ended_children(job(*reports)))


def test_a_rank_below_a_worker_that_has_exited_while_no_step_comes() -> None:
    (finding,) = with_ended_children("c")
    assert (finding.failure_class, finding.host, finding.pid) == ("worker-stopped", "c", 800)
    assert finding.confidence is Confidence.LIKELY
    assert with_ended_children("c", age_s=0.5) == []
    assert with_ended_children("a", "b", "c", "d") == []


def with_child(comm: str, others: str = "", *, ranks: int = 0) -> list[Finding]:
    """One child of the first of four hosts that has ended, and what lives on it and the others."""
    reports = []
    for host in "abcd":
        names = [f"rank{number}" for number in range(ranks)]
        names += [others] if others and host != "a" else []
        children = [
            process(810 + number, role="child", comm=name, worker_pid=700)
            for number, name in enumerate(names)
        ]
        if host == "a":
            children.append(process(800, "Z", role="child", comm=comm, worker_pid=700, command=""))
        reports.append(node(host, process(700), *children, ray_logs=[log(50, age_s=40.0)]))
    return list(ended_children(job(*reports)))


@pytest.mark.parametrize("comm", ["git", "nvidia-smi", "wandb-core", "python3"])
def test_a_helper_that_was_not_reaped_is_no_rank(comm: str) -> None:
    assert with_child(comm) == []
    assert with_child(comm, ranks=2) == []


def test_a_child_whose_peers_live_on_the_other_hosts_trained() -> None:
    (finding,) = with_child("python3", "python3")
    assert (finding.failure_class, finding.host, finding.pid) == ("worker-stopped", "a", 800)
    (finding,) = with_child("rank7", "rank7", ranks=7)
    assert finding.host == "a"


def test_a_child_of_which_the_host_has_as_many_as_the_others_is_not_missed() -> None:
    assert with_child("rank9", ranks=8) == []


def test_a_worker_and_its_children_are_one_finding() -> None:
    children = [process(pid, "T", role="child", worker_pid=700) for pid in (801, 802)]
    (finding,) = stopped(process(700, "T"), *children)
    assert finding.pid == 700
    assert len(finding.evidence) == 3


def training(*, pids: tuple[int, ...] = (700, 701), alive: bool = True) -> Snapshot:
    """Two ranks on one host as Ray lists them, and the processes that are there."""
    workers = [process(pid) for pid in pids]
    actors = (actor("a", 700, 0), actor("a", 701, 1, alive=alive))
    return job(node("a", *workers, ray_logs=[log(120, pid=700)]), actors=actors)


def test_a_rank_that_is_gone_while_ray_calls_it_alive() -> None:
    (finding,) = missing_workers(training(pids=(700,)))
    assert (finding.failure_class, finding.host, finding.pid) == ("worker-stopped", "a", 701)
    assert (finding.severity, finding.task) == (Severity.CRITICAL, "trainer_1")
    assert finding.confidence is Confidence.LIKELY


def test_ranks_that_are_there_or_known_to_be_dead_are_no_finding() -> None:
    assert list(missing_workers(training())) == []
    assert list(missing_workers(training(pids=(700,), alive=False))) == []


def test_nothing_is_said_where_another_reason_is_possible() -> None:
    gone = training(pids=(700,))
    (seen,) = gone.nodes
    young = replace(gone, job_start=NOW - 30)  # its workers may just have been started
    no_job = replace(gone, job_start=None)
    no_steps = replace(gone, nodes=[replace(seen, probes={"processes": seen.probes["processes"]})])
    hidden = replace(seen.probes["processes"], records=[process(700)])  # no raylet is visible
    no_raylet = replace(gone, nodes=[replace(seen, probes={**seen.probes, "processes": hidden})])
    other_node = replace(gone, actors=(replace(gone.actors[1], node_id="id-b"),))
    for unclear in (young, no_job, no_steps, no_raylet, other_node):
        assert list(missing_workers(unclear)) == []


def test_a_rank_has_not_run_since_its_last_step() -> None:
    reports = job(
        node("a", process(701, "T"), ray_logs=[log(9, pid=700), log(9, pid=701, age_s=40.0)])
    )
    (finding,) = stopped_workers(reports)
    assert finding.onset == NOW - 40.0
    (finding,) = stopped_workers(job(node("a", process(701, "T"), ray_logs=[log(9, pid=700)])))
    assert finding.onset is None


def test_a_rank_that_died_while_the_others_wait_for_it() -> None:
    reports = [node(host, ray_logs=[log(50, age_s=6.0)]) for host in "abc"]
    reports.append(node("d"))
    ranks = [actor(host, 700, number, alive=host != "d") for number, host in enumerate("abcd")]
    actors = tuple(replace(each, job_id="02000000") for each in ranks)
    whole = job(*reports, actors=actors)
    (finding,) = dead_ranks(whole)
    assert (finding.failure_class, finding.host, finding.pid) == ("worker-stopped", "d", 700)
    assert (finding.task, finding.severity) == ("trainer_3", Severity.CRITICAL)
    goes_on = [node(host, ray_logs=[log(50, age_s=0.3)]) for host in "abc"]
    assert list(dead_ranks(replace(whole, nodes=[*goes_on, reports[3]]))) == []
    others = tuple(replace(each, job_id="01000000") for each in ranks)
    assert list(dead_ranks(replace(whole, actors=others))) == []


def test_the_judgement_has_it() -> None:
    reports = job(node("a", process(700)), node("b", process(701, "T")))
    assert [(found.failure_class, found.host) for found in judge_nodes(reports)] == [
        ("worker-stopped", "b")
    ]
