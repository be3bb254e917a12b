"""`diagnose` of a live cluster has the verdict on each GPU driver, and the report for its admin."""

from __future__ import annotations

import json
import time

import pytest

from raydiag.cli.live import without_log
from raydiag.explain.job import DiagnosisRequest, ExaminedJob, LiveNodes, examine
from raydiag.model import Snapshot
from raydiag.render.diagnose import diagnosis_report
from raydiag.render.diagnose_document import diagnose_document
from raydiag.render.document import lines
from raydiag.render.markdown import markdown_text
from raydiag.render.text import text
from raydiag.triage.verdict import Moment
from tests import schemas
from tests.explain import driver_fault_samples as samples


@pytest.fixture(scope="module")
def examined() -> ExaminedJob:
    reports = [samples.node(1), samples.faulty(), samples.node(3)]
    live = LiveNodes(Snapshot(reports, samples.NOW, None), {"address": "http://127.0.0.1:8265"})
    request = DiagnosisRequest(no_metrics="no Prometheus", no_log="no job was named", nodes=live)
    return examine(without_log("the cluster"), Moment(samples.NOW, False, None), request)


def test_the_document_has_the_node_whole(examined: ExaminedJob) -> None:
    document = json.loads("".join(lines(diagnose_document(examined, time.time()))))
    schemas.fits(document, "diagnose")
    (fault,) = document["driver_faults"]
    assert (fault["host"], fault["verdict"]) == ("node002", "confirmed")
    assert fault["stuck_tasks"]["count"] == 30
    assert len(fault["stacks"][0]["lines"]) == 16
    assert document["verdict"]["class"] == "gpu-driver-fault"


def test_a_terminal_gets_a_line_and_a_document_the_report(examined: ExaminedJob) -> None:
    report = diagnosis_report(examined, False)
    brief, whole = text(report, 100, False), markdown_text(report)
    assert "node002: confirmed. 2 independent signs of gpu-driver-fault" in " ".join(brief.split())
    assert "raydiag driver-fault has the report" in brief
    assert "Report for the administrator" not in brief
    assert "## Report for the administrator: node002" in whole
    assert "All other nodes are clean: 2 other nodes asked, all answered" in whole
