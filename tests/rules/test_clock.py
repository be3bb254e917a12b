from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydiag.model import Finding, NodeReport, NodeStatus, Severity
from raydiag.rules.clock import skewed_clocks
from tests.rules.snapshots import report, snapshot


def node(host: str, bounds: tuple[float, float] | None, node_id: str = "") -> NodeReport:
    return replace(report(host, node_id=node_id, address=host), clock_offset_s=bounds)


def judged(offsets: Mapping[str, tuple[float, float] | None]) -> list[Finding]:
    return list(skewed_clocks(snapshot(*(node(*item) for item in offsets.items()))))


@pytest.mark.parametrize(
    ("bounds", "severity", "text"),
    [
        ((2.1, 3.4), Severity.WARNING, "2.1 to 3.4 s ahead of the head's clock"),
        ((-9.75, -8.5), Severity.WARNING, "8.5 to 9.8 s behind the head's clock"),
        ((59.0, 99.0), Severity.WARNING, "59.0 to 99.0 s ahead of the head's clock"),
        ((-3700.0, -3600.0), Severity.CRITICAL, "3600.0 to 3700.0 s behind the head's clock"),
    ],
)
def test_a_clock_that_is_off(bounds: tuple[float, float], severity: Severity, text: str) -> None:
    (finding,) = judged({"head": (-0.1, 0.1), "a": bounds})
    assert (finding.failure_class, finding.host) == ("clock-skew", "a")
    assert finding.severity is severity
    assert finding.evidence[0].text == text
    assert finding.evidence[0].value == sum(bounds) / 2


@pytest.mark.parametrize(
    "bounds",
    [(1.9, 8.0), (-30.0, 30.0), (-8.0, -2.0), (0.0, 0.1), None, (5.0, 4.0)],
)
def test_a_clock_that_may_be_right_is_silent(bounds: tuple[float, float] | None) -> None:
    assert judged({"head": (-0.1, 0.1), "a": bounds}) == []


def test_when_nearly_all_differ_alike_it_is_the_head() -> None:
    hosts = {f"n{number}": (29.5 + number / 10, 30.5) for number in range(8)}
    found = judged({"head": (-0.1, 0.1), **hosts, "odd": (80.0, 80.5), "right": (-0.5, 0.5)})
    assert [(one.host, one.severity) for one in found] == [
        (None, Severity.WARNING),
        ("odd", Severity.CRITICAL),
    ]
    assert found[0].title == "Clock skew on the head node"
    assert found[0].evidence[0].text.startswith("8 of 11 hosts: 29.5 to 30.5 s ahead")


def test_two_hosts_cannot_outvote_the_head() -> None:
    hosts = {"head": (0.0, 0.1), "a": (30.0, 30.1), "b": (30.0, 30.1)}
    assert [one.host for one in judged(hosts)] == ["a", "b"]


def test_half_of_the_hosts_cannot_outvote_the_head() -> None:
    hosts = {f"n{n}": (30.0, 30.1) if n % 2 else (-0.1, 0.1) for n in range(8)}
    assert [one.host for one in judged(hosts)] == ["n1", "n3", "n5", "n7"]


def test_ray_nodes_of_one_machine_narrow_its_clock_down() -> None:
    wide, narrow = node("a", (0.5, 9.0), "1"), node("a", (2.5, 30.0), "2")
    (finding,) = skewed_clocks(snapshot(wide, narrow))
    assert finding.evidence[0].text == "2.5 to 9.0 s ahead of the head's clock"


def test_a_node_without_an_answer_has_no_clock() -> None:
    silent = replace(node("a", (50.0, 51.0)), status=NodeStatus.UNREACHABLE)
    assert list(skewed_clocks(snapshot(silent))) == []


@given(st.dictionaries(st.text("abc", min_size=1), st.floats(-90, 90)), st.floats(0, 5))
def test_every_host_that_is_surely_off_is_told(offsets: dict[str, float], doubt: float) -> None:
    found = judged({host: (value - doubt, value + doubt) for host, value in offsets.items()})
    off = {host for host, value in offsets.items() if abs(value) - doubt > 2.0}
    told = {one.host for one in found}
    assert told <= {*off, None}
    assert None in told or told == off
