from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydiag import catalog
from raydiag.catalog.completion import complete
from raydiag.catalog.failure_classes import FailureClass
from raydiag.explain import chains as causes
from raydiag.explain.diagnosis import NODES, coverage, exit_code, explain
from raydiag.model import (
    Chain,
    Confidence,
    Coverage,
    Diagnosis,
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
    StuckReader,
    Unread,
)
from tests.rules.test_progress import log

NOW = 1_700_000_000.0

# Three real classes with edges of the test's own: a row that the catalog may reword or rewire.
ROOT, MIDDLE, LEAF = "gpu-driver-fault", "d-state-accumulation", "hung-read"
_EDGES = {ROOT: [MIDDLE, LEAF], MIDDLE: [LEAF], LEAF: []}


@pytest.fixture
def edges(monkeypatch: pytest.MonkeyPatch) -> None:
    _use_edges(monkeypatch)


def _use_edges(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {
        name: FailureClass(
            id=name,
            title=f"title of {name}",
            severity=Severity.WARNING,
            can_cause=tuple(effects),
            conditions={"look": {}},
            explanation=f"about {name}",
            source="test",
        )
        for name, effects in _EDGES.items()
    }
    monkeypatch.setattr(catalog, "failures", lambda: MappingProxyType(rows))


def chains(findings: Sequence[Finding]) -> list[Chain]:
    """Chains of findings of nodes."""
    return causes.chains([Observation(one, NODES, one.failure_class) for one in findings])


def finding(failure_class: str, onset: float | None = NOW, **values: Any) -> Finding:
    fields = {"host": "a", "severity": Severity.WARNING, **values}
    return Finding(failure_class, onset=onset, **fields)


def report(
    host: str,
    status: NodeStatus = NodeStatus.OK,
    results: Sequence[ProbeResult] = (),
    **values: Any,
) -> NodeReport:
    node = Node(values.pop("node_id", f"id-{host}"), host, values.pop("address", f"addr-{host}"))
    return NodeReport(node, status, probes={one.probe: one for one in results}, **values)


def dead(host: str, reason: str, node_id: str = "") -> NodeReport:
    node = Node(node_id or f"dead-{host}", host, f"addr-{host}", False, reason)
    return NodeReport(node, NodeStatus.DEAD)


def shape(found: Sequence[Finding]) -> list[list[tuple[str, str | None]]]:
    return [[(one.failure_class, one.host) for one in chain.findings] for chain in chains(found)]


class TestComplete:
    @pytest.mark.usefixtures("edges")
    def test_what_a_rule_left_out_comes_from_the_catalog(self) -> None:
        (one,) = complete([Finding(ROOT, host="a")])
        assert one.title == f"title of {ROOT}"
        assert one.severity is Severity.WARNING
        assert (one.explanation, one.next_steps) == (f"about {ROOT}", ("look",))

    @pytest.mark.usefixtures("edges")
    def test_what_a_rule_said_stays(self) -> None:
        said = Finding(ROOT, severity=Severity.INFO, explanation="old", next_steps=("wait",))
        (one,) = complete([said])
        assert (one.severity, one.explanation) == (Severity.INFO, "old")
        assert one.next_steps == ("wait",)

    @pytest.mark.usefixtures("edges")
    def test_severity_then_onset_then_host(self) -> None:
        found = complete(
            [
                finding(ROOT, 1.0, host="z", severity=Severity.INFO),
                finding(ROOT, None, host="a"),
                finding(ROOT, 5.0, host="c"),
                finding(ROOT, 5.0, host="b"),
                finding(ROOT, None, host="d", severity=Severity.CRITICAL),
            ]
        )
        assert [one.host for one in found] == ["d", "b", "c", "a", "z"]


@pytest.mark.usefixtures("edges")
class TestChains:
    def test_root_first_and_everything_below_it(self) -> None:
        found = [finding(LEAF, NOW + 2), finding(MIDDLE, NOW + 1), finding(ROOT, NOW)]
        (chain,) = chains(found)
        assert chain.findings[0].failure_class == ROOT
        assert {one.failure_class for one in chain.findings} == {ROOT, MIDDLE, LEAF}
        assert chain.confidence is Confidence.CONFIRMED

    def test_other_hosts_have_their_own_chains(self) -> None:
        assert shape([finding(ROOT), finding(LEAF, host="b")]) == [[(ROOT, "a")], [(LEAF, "b")]]

    def test_machines_that_share_a_host_name_have_their_own_chains(self) -> None:
        found = [finding(ROOT, address="10.0.0.1"), finding(LEAF, address="10.0.0.2")]
        assert shape(found) == [[(ROOT, "a")], [(LEAF, "a")]]

    def test_a_finding_without_host_concerns_all(self) -> None:
        found = [finding(ROOT, host=None), finding(LEAF), finding(LEAF, host="b")]
        assert shape(found) == [[(ROOT, None), (LEAF, "a"), (LEAF, "b")]]
        assert shape([finding(ROOT), finding(LEAF, host=None)]) == [[(ROOT, "a"), (LEAF, None)]]

    def test_an_effect_is_not_older_than_its_cause(self) -> None:
        found = [finding(LEAF, NOW - 1), finding(ROOT, NOW)]
        assert shape(found) == [[(LEAF, "a")], [(ROOT, "a")]]

    def test_an_undated_link_is_only_possible(self) -> None:
        for cause, effect in ((None, NOW), (NOW, None)):
            (chain,) = chains([finding(ROOT, cause), finding(LEAF, effect)])
            assert chain.confidence is Confidence.POSSIBLE

    def test_a_chain_is_no_surer_than_its_findings(self) -> None:
        (alone,) = chains([finding(ROOT, None, confidence=Confidence.LIKELY)])
        (both,) = chains([finding(ROOT, confidence=Confidence.LIKELY), finding(LEAF)])
        assert alone.confidence is both.confidence is Confidence.LIKELY

    def test_the_cause_on_the_same_device_is_preferred(self) -> None:
        near = finding(ROOT, NOW, device="x", severity=Severity.INFO)
        far = finding(ROOT, NOW - 9, device="y", severity=Severity.CRITICAL)
        effect = finding(LEAF, NOW, device="x")
        assert [tuple(chain.findings) for chain in chains([far, effect, near])] == [
            (far,),
            (near, effect),
        ]

    def test_the_chain_with_the_gravest_finding_comes_first(self) -> None:
        found = complete(
            [
                finding(ROOT, severity=Severity.INFO),
                finding(LEAF, severity=Severity.CRITICAL),
                finding(MIDDLE, host="b"),
            ]
        )
        assert shape(found) == [[(ROOT, "a"), (LEAF, "a")], [(MIDDLE, "b")]]


_FINDINGS = st.builds(
    finding,
    st.sampled_from([ROOT, MIDDLE, LEAF]),
    st.none() | st.floats(0, 10),
    host=st.sampled_from(["a", "b", None]),
    severity=st.sampled_from(list(Severity)),
)


@given(st.lists(_FINDINGS, max_size=12))
def test_each_finding_is_in_exactly_one_chain(found: list[Finding]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        _use_edges(patch)
        ordered = complete(found)
        built = chains(ordered)
    assert sorted(id(one) for chain in built for one in chain.findings) == sorted(
        id(one) for one in ordered
    )
    for chain in built:
        root = chain.findings[0]
        able = [one for one in ordered if root.failure_class in _EDGES[one.failure_class]]
        assert not [
            one
            for one in able
            if (one.host == root.host or None in (one.host, root.host))
            and (one.onset is None or root.onset is None or one.onset <= root.onset)
        ]


class TestCoverage:
    def test_silent_and_lost_nodes_are_blind(self) -> None:
        seen = Snapshot(
            [
                report("a"),
                report("b", NodeStatus.PARTIAL),
                report("c", NodeStatus.TIMEOUT, reason="no answer within 10 s"),
                report("d", NodeStatus.UNREACHABLE, reason="the actor died"),
                dead("e", "UNEXPECTED_TERMINATION: gone"),
            ],
            NOW,
        )
        covered = coverage(seen)
        assert (covered.asked, covered.answered) == (5, 2)
        assert [blind.host for blind in covered.blind] == ["c", "d", "e"]
        assert "no answer within 10 s" in covered.blind[0].reason
        assert "gone" in covered.blind[2].reason
        assert not covered.complete

    def test_nodes_that_left_or_rejoined_are_not_missed(self) -> None:
        seen = Snapshot(
            [
                report("a"),
                dead("a", "UNEXPECTED_TERMINATION: gone"),
                dead("b", "AUTOSCALER_DRAIN_IDLE"),
            ],
            NOW,
        )
        covered = coverage(seen)
        assert (covered.asked, covered.answered, covered.complete) == (1, 1, True)

    def test_machines_that_share_a_host_name_each_miss_their_own(self) -> None:
        refused = [ProbeResult("kernel_log", Status.DENIED, reason="not permitted")]
        nodes = [report("a", results=refused, node_id=x, address=f"10.0.0.{x}") for x in "12"]
        assert [one.host for one in coverage(Snapshot(nodes, NOW)).unread] == ["a", "a"]

    def test_what_could_not_be_read_is_listed_once(self) -> None:
        denied = Unread("/proc/7/environ", Status.DENIED, "permission denied")
        absent = Unread("/sys/none", Status.NO_DATA, "no such file")
        stuck = StuckReader("/data", "storage", 9, 4.0, wchan="rpc_wait_bit_killable")
        results = [
            ProbeResult("kernel_log", Status.DENIED, reason="not permitted"),
            ProbeResult("processes", Status.OK, unread=[denied, absent]),
            ProbeResult("ras", Status.NO_DATA, reason="no GPU"),
            ProbeResult(
                "storage",
                Status.TIMEOUT,
                unread=[Unread("/data", Status.TIMEOUT, "2 s passed")],
                reason="1 of 3 sources",
            ),
            ProbeResult("versions", Status.ERROR, reason="not a number"),
        ]
        twice = [report("a", NodeStatus.PARTIAL, results, stuck=[stuck], node_id=id) for id in "12"]
        unread = coverage(Snapshot(twice, NOW)).unread
        assert sorted((one.host, one.source, one.status) for one in unread) == [
            ("a", "/data", Status.TIMEOUT),
            ("a", "/proc/7/environ", Status.DENIED),
            ("a", "kernel_log", Status.DENIED),
            ("a", "versions", Status.ERROR),
        ]
        (reason,) = [one.reason for one in unread if one.source == "/data"]
        assert "rpc_wait_bit_killable" in reason


class TestExitCode:
    SEEN = Coverage(1, 1)
    UNSEEN = Coverage(1, 1, unread=(HostUnread("a", "kernel_log", Status.DENIED, "no"),))

    @pytest.mark.parametrize(
        ("severity", "covered", "code"),
        [
            (None, SEEN, 0),
            (None, UNSEEN, 3),
            (Severity.INFO, SEEN, 0),
            (Severity.INFO, UNSEEN, 3),
            (Severity.WARNING, SEEN, 1),
            (Severity.CRITICAL, UNSEEN, 1),
        ],
    )
    def test_a_problem_beats_blindness(
        self, severity: Severity | None, covered: Coverage, code: int
    ) -> None:
        found = [finding(ROOT, severity=severity)] if severity else []
        assert exit_code(Diagnosis(found, (), covered)) == code


def test_explain_judges_completes_and_covers() -> None:
    lost = dead("b", "UNEXPECTED_TERMINATION: health check failed")
    diagnosis = explain(Snapshot([report("a"), lost], NOW))
    (one,) = diagnosis.findings
    assert (one.failure_class, one.host) == ("ray-node-dead", "b")
    assert one.title
    assert one.next_steps
    assert [list(chain.findings) for chain in diagnosis.chains] == [[one]]
    assert (diagnosis.coverage.asked, diagnosis.coverage.answered) == (2, 1)
    assert exit_code(diagnosis) == 1


def test_a_well_cluster_that_was_fully_seen_exits_with_0() -> None:
    assert exit_code(explain(Snapshot([report("a")], NOW))) == 0


@pytest.mark.parametrize(("age_s", "code"), [(5.0, 0), (40.0, 3), (400.0, 1)])
def test_a_job_that_is_late_is_not_said_to_be_well(age_s: float, code: int) -> None:
    logs = [ProbeResult("ray_logs", Status.OK, records=[log(9, age_s=age_s)])]
    nodes = [report(host, results=logs) for host in "abc"]
    assert exit_code(explain(Snapshot(nodes, NOW, job_start=NOW - 3600))) == code
