from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from raydiag.cluster.collect import reports
from raydiag.explain.diagnosis import coverage
from raydiag.model import (
    Confidence,
    LastWords,
    NodeReport,
    NodeStatus,
    ProbeResult,
    Severity,
    Status,
    StuckReader,
    Unread,
)
from raydiag.rules.nodes import (
    dead_nodes,
    departed,
    hung_reads,
    unreachable_nodes,
)
from tests.rules.snapshots import NOW, dead, report, snapshot


def test_an_unexpected_death_is_critical() -> None:
    reason = "UNEXPECTED_TERMINATION: health check failed due to missing too many heartbeats"
    (finding,) = dead_nodes(snapshot(report("a"), dead("b", reason)))
    assert (finding.failure_class, finding.host) == ("ray-node-dead", "b")
    assert finding.severity is Severity.CRITICAL
    assert reason in finding.evidence[0].text


@pytest.mark.parametrize(
    "reason",
    [
        "EXPECTED_TERMINATION: received SIGTERM",
        "AUTOSCALER_DRAIN_IDLE: idle for long",
        "the node was drained",
    ],
)
def test_a_planned_end_is_only_told(reason: str) -> None:
    seen = snapshot(report("a"), dead("b", reason))
    (finding,) = dead_nodes(seen)
    assert finding.severity is Severity.INFO
    assert set(departed(seen)) == {"dead-b"}


def test_an_unexpected_end_that_speaks_of_draining_stays_critical() -> None:
    (finding,) = dead_nodes(snapshot(dead("b", "UNEXPECTED_TERMINATION: lost while draining")))
    assert finding.severity is Severity.CRITICAL


@pytest.mark.parametrize("host", ["b", "renamed"])
def test_a_machine_that_is_back_is_only_told(host: str) -> None:
    seen = snapshot(report("b"), dead(host, "UNEXPECTED_TERMINATION: gone", address="addr-b"))
    (finding,) = dead_nodes(seen)
    assert finding.severity is Severity.INFO
    assert "rejoined" in finding.explanation


def test_a_namesake_at_another_address_has_not_rejoined() -> None:
    seen = snapshot(report("b"), dead("b", "UNEXPECTED_TERMINATION: gone", address="elsewhere"))
    (finding,) = dead_nodes(seen)
    assert (finding.host, finding.severity) == ("b (elsewhere)", Severity.CRITICAL)
    assert not departed(seen)


def test_a_machine_whose_every_node_is_dead_has_not_rejoined() -> None:
    lost = "UNEXPECTED_TERMINATION: gone"
    seen = snapshot(dead("b", lost, node_id="1"), dead("b", lost, node_id="2"))
    assert [finding.severity for finding in dead_nodes(seen)] == [Severity.CRITICAL] * 2


@pytest.mark.parametrize(
    ("job_start", "ended_at", "severity"),
    [
        (NOW - 3600, NOW - 7200, Severity.INFO),
        (NOW - 3600, NOW - 1800, Severity.CRITICAL),
        (None, NOW - 7200, Severity.CRITICAL),
        (None, NOW - 30 * 86_400, Severity.INFO),
        (NOW - 3600, None, Severity.CRITICAL),
    ],
)
def test_a_node_lost_before_the_job_is_no_news(
    job_start: float | None, ended_at: float | None, severity: Severity
) -> None:
    gone = dead("b", "UNEXPECTED_TERMINATION")
    gone = replace(gone, node=replace(gone.node, ended_at=ended_at))
    seen = replace(snapshot(report("a"), gone), job_start=job_start)
    (finding,) = dead_nodes(seen)
    assert (finding.severity, finding.onset) == (severity, ended_at)
    blind = [] if severity is Severity.INFO else ["b"]
    assert [item.host for item in coverage(seen).blind] == blind


@pytest.mark.parametrize("status", [NodeStatus.TIMEOUT, NodeStatus.UNREACHABLE])
def test_a_node_without_an_answer(status: NodeStatus) -> None:
    seen = snapshot(report("a"), report("b", status=status, reason="no answer within 10 s"))
    (finding,) = unreachable_nodes(seen)
    assert (finding.host, finding.severity) == ("b", Severity.CRITICAL)
    assert finding.evidence[0].text == "no answer within 10 s"
    assert not list(dead_nodes(seen))


def test_where_no_node_answers_none_of_them_is_accused_for_sure() -> None:
    silent: dict[str, Any] = {"status": NodeStatus.TIMEOUT, "reason": "no answer within 10 s"}
    findings = list(unreachable_nodes(snapshot(report("a", **silent), report("b", **silent))))
    assert [finding.host for finding in findings] == ["a", "b"]
    assert {finding.confidence for finding in findings} == {Confidence.POSSIBLE}
    (alone,) = unreachable_nodes(snapshot(report("a", **silent)))
    assert alone.confidence is Confidence.CONFIRMED


def test_an_answer_that_was_lost_on_the_way_is_no_fault_of_the_node() -> None:
    row = {"node_id": "1", "hostname": "a", "address": "b", "alive": True, "death_reason": ""}
    senseless = {"status": "answered", "answer": "", "duration_s": 1.0}
    for message in ({}, {1: senseless}):
        (finding,) = unreachable_nodes(snapshot(*reports([row], message, ["ras"], ends={})))
        assert finding.severity is Severity.WARNING
        assert "its answer" in finding.explanation
        assert not any("ssh" in step for step in finding.next_steps)
        assert finding.next_steps


@pytest.mark.parametrize(
    "reason",
    [
        "RayTaskError(RuntimeError): RuntimeError: Python 3.9.18 here, another one on the head",
        "RayTaskError(RuntimeError): RuntimeError: node runner: ended before it answered: exit",
    ],
)
def test_a_node_that_answered_wrongly_is_not_called_unreachable(reason: str) -> None:
    seen = snapshot(report("a", status=NodeStatus.UNREACHABLE, reason=reason))
    (finding,) = unreachable_nodes(seen)
    assert finding.severity is Severity.WARNING
    assert finding.evidence[0].text == reason
    assert len(coverage(seen).blind) == 1


def test_nodes_that_answered_give_no_finding() -> None:
    late = ProbeResult("ras", Status.TIMEOUT, reason="deadline")
    seen = snapshot(report("a"), report("b", status=NodeStatus.PARTIAL, results=[late]))
    assert not [*dead_nodes(seen), *unreachable_nodes(seen), *hung_reads(seen)]


def test_a_stuck_reader_names_source_place_and_age() -> None:
    reader = StuckReader("/data", "storage", 4711, 12.4, wchan="rpc_wait_bit_killable")
    (finding,) = hung_reads(snapshot(report("a", stuck=[reader])))
    assert (finding.failure_class, finding.device, finding.pid) == ("hung-read", "/data", 4711)
    assert finding.severity is Severity.WARNING
    assert finding.onset == NOW - 12.4
    text = finding.evidence[0].text
    assert all(word in text for word in ("4711", "rpc_wait_bit_killable", "12 s"))
    assert "not read the source again" in finding.explanation


def storage(*unread: Unread) -> ProbeResult:
    return ProbeResult("storage", Status.TIMEOUT, unread=unread)


LATE = Unread("/data", Status.TIMEOUT, "/data: no answer within 2 s")


def test_a_mount_whose_reader_could_be_ended_hangs_all_the_same() -> None:
    seen = snapshot(report("a", status=NodeStatus.PARTIAL, results=[storage(LATE)]))
    (finding,) = hung_reads(seen)
    assert (finding.failure_class, finding.host, finding.device) == ("hung-read", "a", "/data")
    assert (finding.severity, finding.confidence) == (Severity.WARNING, Confidence.LIKELY)
    assert (finding.pid, finding.evidence[0].text) == (None, LATE.reason)


@pytest.mark.parametrize(
    "quiet",
    [
        storage(Unread("/data", Status.TIMEOUT, "not reached before the node's deadline")),
        storage(Unread("/data", Status.TIMEOUT, "/data: no answer before the node's deadline")),
        storage(Unread("/data", Status.TIMEOUT, "not read: 8 readers are stuck on this node")),
        storage(Unread("/data", Status.ERROR, "/data: Stale file handle")),
        storage(Unread("storage", Status.TIMEOUT, "storage: no answer within 2 s")),
        ProbeResult("versions", Status.TIMEOUT, unread=[LATE]),
    ],
)
def test_what_was_only_not_reached_does_not_hang(quiet: ProbeResult) -> None:
    assert not list(hung_reads(snapshot(report("a", results=[quiet]))))


def test_a_mount_with_a_stuck_reader_is_told_once() -> None:
    reader = StuckReader("/data", "storage", 4711, 2.0)
    told = Unread("/data", Status.TIMEOUT, f"{LATE.reason}; its reader (pid 4711) is stuck")
    (finding,) = hung_reads(
        snapshot(
            report("a", node_id="1", results=[storage(LATE)]),
            report("a", node_id="2", results=[storage(told)], stuck=[reader]),
        )
    )
    assert finding.pid == 4711


_WORDS = LastWords(NOW - 40, ((NOW - 90, "nvme0: timeout"), (NOW - 41, "Kernel panic - x")))


@pytest.mark.parametrize(
    "silent",
    [
        dead("b", "UNEXPECTED_TERMINATION: missing heartbeats"),
        report("b", status=NodeStatus.TIMEOUT, reason="no answer within 30 s"),
    ],
)
def test_a_node_that_is_gone_has_its_last_words(silent: NodeReport) -> None:
    seen = snapshot(report("a"), replace(silent, last_words=_WORDS))
    (finding,) = (*dead_nodes(seen), *unreachable_nodes(seen))
    _, seen_last, newest, oldest = finding.evidence
    assert seen_last.text == "last seen 40 s before this probe"
    assert (newest.text, newest.time) == ("Kernel panic - x", NOW - 41)
    assert (oldest.text, oldest.time) == ("nvme0: timeout", NOW - 90)


def test_a_node_that_left_as_planned_needs_no_last_words() -> None:
    gone = replace(dead("b", "AUTOSCALER_DRAIN_IDLE: idle"), last_words=_WORDS)
    (finding,) = dead_nodes(snapshot(gone))
    assert len(finding.evidence) == 1
