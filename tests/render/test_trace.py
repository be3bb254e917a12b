"""The Chrome trace of a job: each event as the format's description has it, and all that happened.

Perfetto's own reader is a program that has to be fetched; what it needs of each phase stands here.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from raydiag.cli import main
from tests.incidents.generate import generate
from tests.incidents.job import Options
from tests.incidents.truth import Incident

pytestmark = pytest.mark.slow

# What each phase must have besides name, ph and pid.
_NEEDED = {
    "X": {"tid", "ts", "dur", "cat"},
    "b": {"tid", "ts", "id", "cat"},
    "e": {"tid", "ts", "id", "cat"},
    "i": {"tid", "ts", "s", "cat"},
    "C": {"ts", "args"},
    "M": {"tid", "args"},
}


@pytest.fixture(scope="module")
def incident(tmp_path_factory: pytest.TempPathFactory) -> Incident:
    if not (shutil.which("promtool") and shutil.which("prometheus")):
        pytest.skip("promtool and prometheus are not on PATH")
    options = Options(nodes=4, ports=2, minutes=40.0)
    return generate("rdma-degraded", 3, tmp_path_factory.mktemp("job") / "out", options)


@pytest.fixture(scope="module")
def trace(incident: Incident, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("trace") / "trace.json"
    assert main(["diagnose", *incident.arguments, "--format", "trace", "-o", str(path)]) == 1
    parsed: dict[str, Any] = json.loads(path.read_text("ascii"), parse_constant=_no_number)
    return parsed


def _no_number(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON: viewers refuse the whole trace")


def events_of(trace: dict[str, Any], phase: str) -> list[dict[str, Any]]:
    return [event for event in trace["traceEvents"] if event["ph"] == phase]


def test_every_event_has_what_its_phase_needs(trace: dict[str, Any]) -> None:
    assert set(trace) == {"displayTimeUnit", "otherData", "traceEvents"}
    for event in trace["traceEvents"]:
        assert {"name", "ph", "pid"} | _NEEDED[event["ph"]] <= set(event), event
        assert type(event["pid"]) is int and type(event.get("tid", 0)) is int
        assert type(event.get("ts", 0)) is int and 0 <= event.get("ts", 0) < 2**53
        assert event.get("dur", 1) > 0
        assert event.get("s", "g") in ("g", "p", "t")
    for event in events_of(trace, "C"):
        assert all(isinstance(value, float) for value in event["args"].values())


def test_metadata_names_every_process_and_thread_once(trace: dict[str, Any]) -> None:
    metadata = events_of(trace, "M")
    assert {event["name"] for event in metadata} == {"process_name", "thread_name"}
    assert all(set(event["args"]) == {"name"} and event["args"]["name"] for event in metadata)
    processes = [event["pid"] for event in metadata if event["name"] == "process_name"]
    assert sorted(processes) == sorted({event["pid"] for event in trace["traceEvents"]})
    threads = [(event["pid"], event["tid"]) for event in metadata if event["name"] == "thread_name"]
    assert len(threads) == len(set(threads))
    placed = {(event["pid"], event["tid"]) for phase in "Xbei" for event in events_of(trace, phase)}
    assert placed <= set(threads)


def test_slices_of_a_thread_do_not_overlap(trace: dict[str, Any]) -> None:
    steps = events_of(trace, "X")
    assert len(steps) > 50
    ended = 0
    for step in steps:
        assert step["ts"] >= ended
        ended = step["ts"] + step["dur"]


def test_every_span_begins_and_ends(trace: dict[str, Any]) -> None:
    begun = {event["id"]: event for event in events_of(trace, "b")}
    ended = {event["id"]: event for event in events_of(trace, "e")}
    assert begun and set(begun) == set(ended)
    assert Counter(event["id"] for event in events_of(trace, "b")).most_common(1)[0][1] == 1
    for number, event in begun.items():
        assert event["ts"] <= ended[number]["ts"]
        assert event["name"] == ended[number]["name"]
    assert "save" in {event["name"] for event in begun.values()}


def test_what_happened_stands_at_its_host(trace: dict[str, Any], incident: Incident) -> None:
    named = [event for event in events_of(trace, "M") if event["name"] == "process_name"]
    processes = {event["args"]["name"]: event["pid"] for event in named}
    assert len(set(processes.values())) == len(processes) == 5  # the job, and four hosts
    (sick,) = incident.truth.hosts or ()
    found = [event for event in events_of(trace, "i") if event["name"] == "rdma-degraded"]
    assert [event["pid"] for event in found] == [processes[sick]]
    (onset,) = (event for event in events_of(trace, "i") if event["s"] == "g")
    assert onset["name"] == "onset: rdma-degraded"
    assert incident.truth.onset is not None
    assert abs(onset["ts"] / 1e6 - incident.truth.onset) < 60
    counted = {event["name"] for event in events_of(trace, "C") if event["pid"] == processes[sick]}
    assert "RDMA retransmits" in counted


def test_names_are_taken_out(
    trace: dict[str, Any], incident: Incident, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diagnose", *incident.arguments, "--format", "trace", "--redact"]) == 1
    told = capsys.readouterr().out
    assert len(json.loads(told)["traceEvents"]) == len(trace["traceEvents"])
    assert not [host for host in incident.truth.hosts or () if host in told]
    assert "host-1" in told


def test_a_job_without_metrics_has_a_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "4711-job.log"
    log.write_text("0: Traceback (most recent call last):\n0: RuntimeError: x password=hunter2\n")
    assert main(["diagnose", str(log), "--job-state", "ended", "--format", "trace"]) == 1
    told = capsys.readouterr().out
    assert json.loads(told)["otherData"]["verdict"] == "python-exception"
    assert "hunter2" not in told
