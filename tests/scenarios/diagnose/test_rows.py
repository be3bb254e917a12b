"""Every row gets its verdict from the real command, over blocks that promtool built."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.incidents.generate import generate
from tests.incidents.job import Options
from tests.incidents.kinds import load
from tests.incidents.measure import diagnose, score
from tests.scenarios.diagnose.rows import ROWS, Row

CASES = [(table, row) for table, rows in ROWS for row in rows]
SMALL = {"nodes": 4, "gpus": 4, "ports": 2, "minutes": 36.0}


@pytest.mark.skipif(
    not (shutil.which("promtool") and shutil.which("prometheus")),
    reason="promtool and prometheus are not on PATH",
)
@pytest.mark.slow
@pytest.mark.parametrize(
    "row", [pytest.param(row, id=f"{table}: {row.name}") for table, row in CASES]
)
def test_row(row: Row, tmp_path: Path) -> None:
    options = Options(**{**SMALL, **row.options})
    incident = generate(row.kind, row.seed, tmp_path / "outputs", options)
    truth = incident.truth
    assert row.verdict == truth.verdict, "the table and the incident disagree"
    found = score(incident, diagnose(incident))
    assert found.verdict in (truth.verdict, *truth.also), found.told
    assert found.hosts_right is not False, (truth.hosts, found.told)
    assert found.devices_right is not False, (truth.gpus, truth.devices, found.told)
    assert found.onset_right is not False, (truth.onset, found.told)
    assert truth.pattern is None or found.pattern == truth.pattern


def test_every_kind_stands_in_a_table() -> None:
    assert {row.kind for _, row in CASES} == set(load())
