"""The two samples of counters, side by side."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from raydiag.model import Node, NodeReport, NodeStatus, ProbeResult, Status
from raydiag.rules.growth import growth, pairs


@dataclass(frozen=True)
class Count:
    device: str
    errors: int | None


def report(first: list[Count], later: list[Count]) -> NodeReport:
    result = ProbeResult("counts", Status.OK, records=first, later=later, interval_s=0.5)
    return NodeReport(Node("f" * 56, "n1", "10.0.0.1"), NodeStatus.OK, probes={"counts": result})


def test_what_is_in_both_samples_is_paired() -> None:
    one = report([Count("a", 1), Count("b", 2)], [Count("b", 5), Count("c", 9)])
    assert pairs([one], "counts", "device") == [(Count("b", 2), Count("b", 5), 0.5)]


def test_of_two_ray_nodes_on_a_machine_the_first_counts() -> None:
    one, two = report([Count("a", 1)], [Count("a", 2)]), report([Count("a", 1)], [Count("a", 3)])
    assert pairs([one, two], "counts", "device") == [(Count("a", 1), Count("a", 2), 0.5)]


def test_without_a_second_sample_there_is_nothing() -> None:
    assert pairs([report([Count("a", 1)], [])], "counts", "device") == []
    assert pairs([report([], [])], "others", "device") == []


@pytest.mark.parametrize(
    ("first", "later", "expected"),
    [(3, 5, 2), (3, 3, 0), (5, 3, None), (None, 3, None), (3, None, None)],
)
def test_growth(first: int | None, later: int | None, expected: int | None) -> None:
    assert growth(first, later) == expected
