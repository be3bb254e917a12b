"""The report for the administrator: every item that is asked for, as text, Markdown and JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from raydiag.catalog.driver_fault import words
from raydiag.render.document import lines
from raydiag.render.driver_fault import driver_fault_report, headline
from raydiag.render.driver_fault_document import driver_fault_document
from raydiag.render.markdown import markdown_text
from raydiag.render.text import text
from tests import schemas
from tests.explain import driver_fault_samples as samples
from tests.explain.driver_fault_samples import NOW, investigated, node, oops

Golden = Callable[[str, str], None]


def as_markdown(*reports: Any, **options: Any) -> str:
    return markdown_text(driver_fault_report(investigated(*reports, **options), NOW, False))


def test_whole_cluster(golden: Golden) -> None:
    report = driver_fault_report(samples.whole_cluster(), NOW, False)
    golden("driver-fault.md", markdown_text(report))
    golden("driver-fault-80.txt", text(report, 80, False))


def test_document_fits_its_schema_and_has_the_reports() -> None:
    document = driver_fault_document(samples.whole_cluster(), NOW)
    printed = json.loads("".join(lines(document)))
    schemas.fits(printed, "driver-fault")
    assert [one["host"] for one in printed["admin_reports"]] == [
        "node002",
        "node006",
        "node007",
        "node005",
    ]
    assert printed["admin_reports"][0]["markdown"].startswith("## Report for the administrator")
    assert printed["verdicts"] == {
        "clean": 1,
        "suspect": 1,
        "confirmed": 3,
        "unreachable": 1,
        "not-checked": 1,
    }


def test_every_item_of_the_report_is_there() -> None:
    report = driver_fault_document(samples.whole_cluster(), NOW)["admin_reports"][0]["markdown"]
    facts = dict(
        line.strip("| ").split(" | ", 1) for line in report.splitlines() if line.startswith("| ")
    )
    assert facts["Hostname"] == "node002 (10.1.0.2)"
    assert facts["Kernel (uname -r)"] == "6.8.0-60-generic"
    assert facts["amdgpu module version"] == "6.14.14"
    assert facts["hw_dmesg_gpu_errors_total"].startswith("44 ")
    assert facts["Tasks stuck in the driver (state D)"] == "30: 30 in amdgpu_cper_ring_write"
    assert facts["Onset"] == "2026-11-19 22:12:07Z"
    assert facts["Onset by the kernel log"].startswith("2026-11-19 22:12:07Z (time since boot")
    assert facts["Onset by the metric"].startswith(
        "2026-11-19 22:12:22Z, when hw_dmesg_gpu_errors_total rose"
    )
    assert facts["Other nodes"] == (
        "6 other nodes asked, 1 did not answer: 1 clean (node001); 1 suspect (node005); "
        "2 with a confirmed fault (node\\[006-007\\]); 1 did not answer (node004); "
        "1 could not be checked (node003)"
    )
    stack = report.partition("```text\n")[2].partition("\n```")[0].split("\n")
    assert [line.partition("Z  ")[2] for line in stack] == [line.text for line in oops()[1:]]
    assert stack[0].startswith("2026-11-19 22:12:07.00000")
    for promise in (*words().impact, words().recovery, "6 stuck tasks came each hour"):
        assert promise in report
    assert "4194304 process ids" in report


def test_all_other_nodes_are_clean_says_how_many() -> None:
    report = as_markdown(node(1), node(2, oops(), samples.blocked(3)), node(3))
    assert (
        "All other nodes are clean: 2 other nodes asked, all answered (node\\[001,003\\])" in report
    )
    alone = as_markdown(node(2, oops(), samples.blocked(3)))
    assert "no other node was asked, so there is nothing to compare with" in alone


def test_an_in_tree_driver_goes_with_its_kernel() -> None:
    from raydiag.probes.versions import Version

    in_tree = [
        Version("kernel", "6.18.0", "/proc"),
        Version("amdgpu", "in-tree (6.18.0)", "/sys/module/amdgpu"),
    ]
    assert "| amdgpu module version | in-tree (6.18.0) |" in as_markdown(
        node(2, oops(), versions=in_tree)
    )


def test_series_that_were_not_asked_are_said_not_to_be() -> None:
    report = as_markdown(node(1), node(2, oops()), no_series="no Prometheus answers")
    assert "| hw_dmesg_gpu_errors_total | not known: no Prometheus answers |" in report
    assert "No series were read: no Prometheus answers." in report


@pytest.mark.parametrize(
    ("reports", "expected"),
    [
        ([node(1), node(2)], "No GPU driver fault found. 2 nodes: 2 clean."),
        (
            [node(1), samples.lost(2)],
            "No GPU driver fault found. 2 nodes: 1 clean, 1 unreachable.",
        ),
        ([], "No node was asked and no series were read, so nothing is known."),
        (
            [node(1), node(2, oops(), samples.blocked(2))],
            "gpu-driver-fault on node002. 2 nodes: 1 clean, 1 confirmed.",
        ),
    ],
)
def test_headline(reports: list[Any], expected: str) -> None:
    assert headline(investigated(*reports)) == expected


def test_a_node_that_was_asked_for_by_name_has_a_report_though_it_is_clean() -> None:
    found = replace(investigated(node(1), node(2)), named=("node002",))
    report = markdown_text(driver_fault_report(found, NOW, False))
    assert report.count("Report for the administrator") == 1
    assert "node002: clean" in report


def test_many_faulty_nodes_are_named_and_a_few_are_told_of() -> None:
    reports = [node(n, oops()) for n in range(1, 21)]
    report = as_markdown(*reports)
    assert report.count("Report for the administrator") == 8
    assert "node\\[009-020\\]: -v and JSON have them." in report
    assert len(driver_fault_document(investigated(*reports), NOW)["admin_reports"]) == 20
