"""How findings are told apart and described before they are written in any format."""

from __future__ import annotations

from dataclasses import replace

from raydiag.model import Finding, KnownFinding
from raydiag.render import document
from raydiag.render.groups import known_before
from tests.render import cluster_samples as samples

_KNOWN = KnownFinding("gpu-driver-fault", "a", "", "", "critical", samples.NOW, samples.NOW + 60, 3)
OLD = Finding("gpu-driver-fault", "a", known=_KNOWN)
NEW = Finding("gpu-driver-fault", "b", known=replace(_KNOWN, host="b", times=0))


def test_what_nobody_remembers_is_neither_new_nor_known() -> None:
    assert known_before([Finding("gpu-driver-fault", "a")]) == ""


def test_new_and_known_findings_say_so() -> None:
    since = "2026-11-20 03:12:07Z"
    assert known_before([NEW]) == "new"
    assert known_before([OLD]) == f"known since {since}, by 3 probes"
    assert known_before([OLD, NEW]) == f"known since {since}, by 3 probes (1 of these 2)"


def test_json_says_so_only_where_somebody_remembers() -> None:
    snapshot, diagnosis = samples.all_well(1)
    written = []
    for finding in (OLD, NEW, replace(OLD, known=None)):
        with_finding = replace(diagnosis, findings=[finding], chains=[])
        shown = document.probe_document(snapshot, with_finding, samples.CLUSTER, samples.NOW)
        written.append(shown["findings"][0])
    assert written[0]["known"]["times"] == 3
    assert written[1]["known"] == {"times": 0, "first_seen": None, "last_seen": None, "jobs": []}
    assert "known" not in written[2]
