"""Reports grouped by machine, and the records and samples of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from raydiag.model import NodeReport, NodeStatus, ProbeResult, Status
from raydiag.probes.bad_pages import BadPages
from raydiag.probes.versions import Version
from raydiag.rules.machines import Samples, each_record, machines
from tests.rules.snapshots import NOW, report, snapshot


def pages(address: str, retired: int) -> BadPages:
    return BadPages(0, address, "/file", retired, 0, 0)


def sampled(records: Sequence[Any], later: Sequence[Any], node_id: str = "1") -> NodeReport:
    result = ProbeResult("bad_pages", Status.OK, records=records, later=later, interval_s=0.5)
    return report("a", node_id=node_id, address="10.0.0.1", results=[result])


def test_machines_that_share_a_host_name_are_told_apart_by_address() -> None:
    seen = snapshot(
        report("a", node_id="1", address="10.0.0.1"),
        report("a", node_id="2", address="10.0.0.1"),
        report("a", node_id="3", address="10.0.0.2"),
        report("b"),
    )
    node_ids = {
        machine.name: [report.node.node_id for report in machine.reports]
        for machine in machines(seen)
    }
    assert node_ids == {"a (10.0.0.1)": ["1", "2"], "a (10.0.0.2)": ["3"], "b": ["id-b"]}


def test_a_node_that_did_not_answer_is_no_machine() -> None:
    assert machines(snapshot(report("b", status=NodeStatus.TIMEOUT))) == ()


def test_several_ray_nodes_of_one_machine_show_each_record_once() -> None:
    first, other = Version("rocm", "7.0", "/a"), Version("rocm", "7.1", "/a")
    again = Version("rocm", "7.0", "/b")
    (machine,) = machines(
        snapshot(
            report("a", node_id="1", versions=[first]),
            report("a", node_id="2", versions=[again, other]),
        )
    )
    assert machine.records(Version) == (first, other)
    assert machine.records(BadPages) == ()


def test_what_is_in_both_samples_is_paired() -> None:
    (machine,) = machines(
        snapshot(sampled([pages("a", 1), pages("b", 2)], [pages("b", 5), pages("c", 9)]))
    )
    assert machine.samples(BadPages) == [Samples(pages("b", 2), pages("b", 5), 0.5)]


def test_of_two_ray_nodes_on_a_machine_the_first_counts() -> None:
    (machine,) = machines(
        snapshot(
            sampled([pages("a", 1)], [pages("a", 2)], "1"),
            sampled([pages("a", 1)], [pages("a", 3)], "2"),
        )
    )
    assert machine.samples(BadPages) == [Samples(pages("a", 1), pages("a", 2), 0.5)]


def test_without_a_second_sample_there_is_nothing() -> None:
    (machine,) = machines(snapshot(sampled([pages("a", 1)], [])))
    assert machine.samples(BadPages) == []
    assert machine.samples(Version) == []


def test_evidence_has_the_time_of_the_report() -> None:
    ((machine, record),) = each_record(snapshot(sampled([pages("a", 1)], [])), BadPages)
    assert machine.evidence(record.file, "text", 1.0).time == NOW
