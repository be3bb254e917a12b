"""A second look at a node never takes away what the first one showed."""

from __future__ import annotations

import pytest

from raydiag.cli.closer_look import joined, not_seen
from raydiag.model import NodeReport, NodeStatus, ProbeResult, Status
from tests.rules.snapshots import dead, report


def first() -> NodeReport:
    return report("a", kernel_log=["oops"], d_state=["task"])


@pytest.mark.parametrize("status", [NodeStatus.TIMEOUT, NodeStatus.UNREACHABLE])
def test_a_closer_look_that_times_out_keeps_the_first_answer(status: NodeStatus) -> None:
    closer = report("a", status=status, reason="no answer within 30 s")
    kept = joined(first(), closer)
    assert (kept.status, kept.records("kernel_log")) == (NodeStatus.OK, ["oops"])
    (unread,) = not_seen(first(), closer)
    assert (unread.host, unread.source) == ("a", "a closer look")
    assert "no answer within 30 s" in unread.reason


def test_a_probe_that_times_out_the_second_time_keeps_its_first_records() -> None:
    late = ProbeResult("d_state", Status.TIMEOUT, reason="no end within 6 s")
    closer = report("a", status=NodeStatus.PARTIAL, results=[late], kernel_log=["oops", "more"])
    kept = joined(first(), closer)
    assert (kept.records("d_state"), kept.records("kernel_log")) == (["task"], ["oops", "more"])
    (unread,) = not_seen(first(), closer)
    assert (unread.source, unread.status) == ("a closer look: d_state", Status.TIMEOUT)


def test_what_only_the_closer_look_tried_is_not_hidden() -> None:
    late = ProbeResult("ras", Status.TIMEOUT, reason="no end within 3 s")
    closer = report("a", status=NodeStatus.PARTIAL, results=[late])
    assert joined(first(), closer).probes["ras"].status is Status.TIMEOUT
    assert list(not_seen(first(), closer)) == []  # its own result tells


def test_a_node_that_died_meanwhile_is_dead() -> None:
    closer = dead("a", "UNEXPECTED_TERMINATION")
    assert joined(first(), closer).status is NodeStatus.DEAD
    assert list(not_seen(first(), closer)) == []


def test_a_node_that_answers_only_the_second_time() -> None:
    silent = report("a", status=NodeStatus.TIMEOUT)
    assert joined(silent, first()).records("kernel_log") == ["oops"]
