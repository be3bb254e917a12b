"""The JSON document: the contract's shape, and a schema that notices when it changes."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import replace
from importlib.resources import files
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from raydiag import __version__
from raydiag.model import (
    Chain,
    Diagnosis,
    Finding,
    KnownFinding,
    NodeReport,
    ProbeResult,
    Snapshot,
    Status,
)
from raydiag.render import document
from tests.render import cluster_samples as samples

SCHEMA = json.loads(files("raydiag").joinpath("schemas/probe.json").read_text(encoding="utf-8"))
VALIDATOR = Draft202012Validator(SCHEMA)


@pytest.fixture(scope="module")
def rich() -> dict[str, Any]:
    return document.probe_document(*samples.sick_cluster(), samples.CLUSTER, samples.NOW)


def with_records(records: list[Any]) -> tuple[Snapshot, Diagnosis]:
    nodes, diagnosis = samples.all_well(1)
    result = ProbeResult("memory", Status.OK, math.inf, records=records)
    report: NodeReport = replace(nodes.nodes[0], probes={"memory": result})
    return samples.snapshot([report]), diagnosis


def test_what_a_resident_agent_remembers_of_a_finding_is_described() -> None:
    known = KnownFinding("node-death", "a", "", "", "critical", samples.NOW, samples.NOW + 60, 3)
    snapshot, diagnosis = samples.all_well(1)
    for times in (0, 3):
        finding = Finding("node-death", "a", known=replace(known, times=times, jobs=("one",)))
        told = replace(diagnosis, findings=[finding], chains=[])
        rendered = document.probe_document(snapshot, told, samples.CLUSTER, samples.NOW)
        VALIDATOR.validate(rendered)
        assert rendered["findings"][0]["known"]["times"] == times
        for key in ("times", "first_seen", "last_seen", "jobs"):
            broken = copy.deepcopy(rendered)
            broken["findings"][0]["known"][key] = "x"
            assert not VALIDATOR.is_valid(broken)


def test_schema_is_a_schema() -> None:
    Draft202012Validator.check_schema(SCHEMA)


def test_rich_document_is_valid(rich: dict[str, Any]) -> None:
    assert [error.message for error in VALIDATOR.iter_errors(rich)] == []


def test_head(rich: dict[str, Any]) -> None:
    assert rich["schema"] == "raydiag.probe/1"
    assert rich["raydiag_version"] == __version__
    assert rich["generated_at"] == "2026-11-20T03:12:07Z"
    assert rich["cluster"] == samples.CLUSTER
    assert rich["chains"] == [[1, 2], [0]]


def test_finding(rich: dict[str, Any]) -> None:
    finding = rich["findings"][1]
    assert finding == {
        "class": "gpu-driver-fault",
        "severity": "warning",
        "title": "The GPU driver is broken",
        "host": "node005",
        "gpu": None,
        "device": None,
        "pid": None,
        "task": None,
        "onset": None,
        "confidence": "likely",
        "evidence": [
            {
                "source": "/dev/kmsg",
                "text": "BUG: bad \x1b[31mread\tat 0",
                "value": None,
                "time": samples.NOW - 5000,
            }
        ],
        "explanation": "",
        "next_steps": ["Reboot node005 after the job."],
    }
    assert len(rich["findings"][0]["evidence"]) == 7


def test_coverage(rich: dict[str, Any]) -> None:
    coverage = rich["coverage"]
    assert coverage["nodes"]["asked"] == 8
    assert coverage["nodes"]["blind"][1] == {"host": "node008", "reason": "dead"}
    assert coverage["unread"][0] == {
        "host": "node005",
        "source": "/sys/kernel/ras0/umc_err_count",
        "status": "timeout",
        "reason": "hangs in kernel",
    }
    assert coverage["window"] == {"start": samples.NOW - 60, "end": samples.NOW}


def test_node(rich: dict[str, Any]) -> None:
    node = rich["nodes"][4]
    assert (node["host"], node["status"], node["reason"]) == (
        "node005",
        "partial",
        "ras did not end",
    )
    assert node["sandbox"]["files"]["landlock_abi"] == 4
    assert node["stuck"][0]["wchan"] == "ras_read_wait"
    assert node["probes"]["ras"]["unread"][0]["status"] == "timeout"
    sensors = node["probes"]["gpu_sensors"]["records"]
    assert len(sensors) == 8
    assert (sensors[7]["temperature_c"], sensors[7]["power_w"]) == (52.0, None)
    assert node["probes"]["memory"]["records"][0]["pressure"]["io_some_avg10"] == 0.5


def test_records_keep_every_field_and_stay_untouched() -> None:
    nodes, diagnosis = samples.all_well(1)
    record = nodes.nodes[0].records("memory")[0]
    before = copy.deepcopy(record)
    made = document.probe_document(nodes, diagnosis, {}, samples.NOW)
    shown = made["nodes"][0]["probes"]["memory"]["records"][0]
    assert shown == vars(record)
    shown["total_bytes"] = 0
    shown["pressure"].clear()
    assert record == before


def test_numbers_that_json_lacks_become_null() -> None:
    nodes, diagnosis = samples.all_well(1)
    record = replace(
        nodes.nodes[0].records("memory")[0],
        pressure={"io_some_avg10": math.nan, "cpu_some_avg10": -math.inf},
    )
    snapshot, _ = with_records([record])
    finding = Finding("straggler", onset=math.nan)
    diagnosis = replace(diagnosis, findings=[finding])
    made = document.probe_document(snapshot, diagnosis, {"deadline_s": math.inf}, samples.NOW)
    probe = made["nodes"][0]["probes"]["memory"]
    assert probe["duration_s"] is None
    assert probe["records"][0]["pressure"] == {"io_some_avg10": None, "cpu_some_avg10": None}
    assert made["findings"][0]["onset"] is None
    assert made["cluster"]["deadline_s"] is None
    assert made["cluster"]["address"] is None
    assert "NaN" not in "".join(document.lines(made))
    assert VALIDATOR.is_valid(made)


def test_lines_are_the_document_one_node_per_line(rich: dict[str, Any]) -> None:
    text = "".join(document.lines(rich))
    assert json.loads(text) == rich
    assert text.isascii()
    assert "\x1b" not in text
    assert sum('"node_id"' in line for line in text.splitlines()) == 8


def test_lines_of_an_empty_cluster() -> None:
    made = document.probe_document(*samples.all_well(0), samples.CLUSTER, samples.NOW)
    assert VALIDATOR.is_valid(made)
    assert json.loads("".join(document.lines(made))) == made


def test_chains_find_equal_findings_and_refuse_foreign_ones() -> None:
    _, diagnosis = samples.sick_cluster()
    twins = replace(diagnosis, chains=[Chain([replace(diagnosis.findings[2])])])
    assert document.chain_indices(twins) == [[2]]
    foreign = replace(diagnosis, chains=[Chain([Finding("straggler")])])
    with pytest.raises(ValueError, match="not in"):
        document.chain_indices(foreign)


@pytest.mark.parametrize("time_s", [math.nan, math.inf, 1e300, -1e15])
def test_rfc3339_refuses_what_is_no_time(time_s: float) -> None:
    with pytest.raises(ValueError, match=r"."):
        document.rfc3339(time_s)


Change = Callable[[dict[str, Any]], object]


def put(
    container: MutableMapping[str, Any], values: Mapping[str, Any] | None = None, **more: Any
) -> None:
    container.update(values or {}, **more)


def probe_of(made: dict[str, Any]) -> dict[str, Any]:
    entry: dict[str, Any] = made["nodes"][0]["probes"]["ras"]
    return entry


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda d: put(d, schema="raydiag.probe/2"), id="other schema"),
        pytest.param(lambda d: put(d, generated_at=samples.NOW), id="time as number"),
        pytest.param(lambda d: put(d, generated_at="2026-11-20T03:12:07+01:00"), id="not UTC"),
        pytest.param(lambda d: d.pop("chains"), id="no chains"),
        pytest.param(lambda d: put(d, chains=[[0.5]]), id="chain of fractions"),
        pytest.param(lambda d: put(d, chains=[[]]), id="empty chain"),
        pytest.param(lambda d: d["cluster"].pop("gcs_address"), id="no gcs_address"),
        pytest.param(lambda d: d["findings"][0].pop("device"), id="no device"),
        pytest.param(lambda d: put(d["findings"][0], severity="fatal"), id="severity"),
        pytest.param(lambda d: put(d["findings"][0], severity=None), id="no severity"),
        pytest.param(lambda d: put(d["findings"][0], confidence="sure"), id="confidence"),
        pytest.param(lambda d: put(d["findings"][0], {"class": "Gpu_Fault"}), id="class"),
        pytest.param(lambda d: put(d["findings"][0], gpu="3"), id="gpu as text"),
        pytest.param(lambda d: put(d["findings"][0], host=""), id="empty host"),
        pytest.param(lambda d: put(d["findings"][0]["evidence"][0], unit="1"), id="evidence grows"),
        pytest.param(lambda d: d["findings"][0]["evidence"][0].pop("time"), id="evidence shrinks"),
        pytest.param(lambda d: d["coverage"].pop("window"), id="no window"),
        pytest.param(lambda d: put(d["coverage"]["nodes"], asked=-1), id="negative count"),
        pytest.param(lambda d: put(d["coverage"]["unread"][0], status="ok"), id="unread but ok"),
        pytest.param(lambda d: put(d["coverage"], extra=1), id="coverage grows"),
        pytest.param(lambda d: put(d["nodes"][0], status="healthy"), id="node status"),
        pytest.param(lambda d: d["nodes"][0].pop("sandbox"), id="no sandbox"),
        pytest.param(lambda d: put(d["nodes"][4]["stuck"][0], pid=None), id="stuck pid"),
        pytest.param(lambda d: put(d["nodes"][0]["probes"], {"GPU sensors": {}}), id="probe name"),
        pytest.param(lambda d: put(probe_of(d), status="no-data"), id="probe status"),
        pytest.param(lambda d: put(probe_of(d), duration_s="0.3"), id="duration as text"),
        pytest.param(lambda d: probe_of(d).pop("unread"), id="no unread"),
        pytest.param(lambda d: put(probe_of(d), records=[[0, 0]]), id="record as list"),
        pytest.param(lambda d: put(probe_of(d), records=[{}]), id="empty record"),
    ],
)
def test_schema_refuses_drift(rich: dict[str, Any], change: Change) -> None:
    broken = copy.deepcopy(rich)
    change(broken)
    assert not VALIDATOR.is_valid(broken)


@pytest.mark.parametrize(
    "change",
    [
        lambda d: put(d, verdict={}),
        lambda d: put(d["findings"][0], pattern="leak"),
        lambda d: put(d["nodes"][0], agent="warm"),
        lambda d: put(probe_of(d), attempts=2),
    ],
    ids=["document", "finding", "node", "probe"],
)
def test_schema_lets_the_contract_grow(rich: dict[str, Any], change: Change) -> None:
    grown = copy.deepcopy(rich)
    change(grown)
    assert VALIDATOR.is_valid(grown)
