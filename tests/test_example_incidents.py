"""The incidents in examples/ are diagnosed as each one's `expected.json` says."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from examples.generate import EXAMPLES, Example, generate
from raydiag.cli import main
from tests import prometheus_programs
from tests.tsdb import promtool

EXAMPLE_DIRECTORY = Path(__file__).parent.parent / "examples"
_MOST_BYTES = 1_000_000
_TOLERANCE = 1e-6  # of values that another processor's sine and exponential may have moved

each_example = pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)


@pytest.fixture(autouse=True)
def _prometheus(monkeypatch: pytest.MonkeyPatch) -> None:
    promtool.provide(monkeypatch)


def expected_of(example: Example) -> dict[str, Any]:
    text = (EXAMPLE_DIRECTORY / example.name / "expected.json").read_text(encoding="utf-8")
    expected = json.loads(text)
    assert isinstance(expected, dict)
    return expected


def document_of(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main([*words, "--format", "json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert isinstance(document, dict)
    return document


def test_every_directory_is_an_example() -> None:
    there = {path.parent.name for path in EXAMPLE_DIRECTORY.glob("*/expected.json")}
    assert there == {example.name for example in EXAMPLES}


@pytest.mark.slow
@each_example
def test_diagnose_finds_what_happened(example: Example, capsys: pytest.CaptureFixture[str]) -> None:
    expected = expected_of(example)
    verdict = document_of(capsys, "diagnose", str(EXAMPLE_DIRECTORY / example.name))["verdict"]
    assert verdict["class"] == expected["class"]
    assert sorted(verdict["hosts"]) == sorted(expected["hosts"])
    assert verdict["gpus"] == expected["gpus"]
    assert abs(verdict["onset"] - expected["onset"]) <= expected["onset_within_s"]


@pytest.mark.slow
@each_example
def test_a_diagnosis_answers_on_its_first_screen(
    example: Example, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What, where, since when, why and what now in 25 lines of 80 columns; nothing is cut away."""
    monkeypatch.delenv("COLUMNS", raising=False)  # as through a pipe
    directory = str(EXAMPLE_DIRECTORY / example.name)
    document = document_of(capsys, "diagnose", directory)
    main(["diagnose", directory])
    lines = capsys.readouterr().out.splitlines()
    verdict, root = document["verdict"], document["chains"][0][0]
    assert max(map(len, lines)) <= 80
    first_screen = " ".join(" ".join(lines[:25]).split())
    assert first_screen.startswith(f"VERDICT {verdict['class']} ")
    assert all(host in first_screen for host in verdict["hosts"])
    assert "FINDINGS" in first_screen and "COVERAGE" in first_screen
    assert root["next_steps"][-1] in first_screen
    texts = [piece["text"] for piece in root["evidence"]] + [root["explanation"]]
    assert any(text in first_screen for text in texts)
    whole = "\n".join(lines)
    assert whole.count(directory) <= 2, "the log and the metrics, each once"
    assert [line for line in lines if len(line) > 50 and lines.count(line) > 1] == []


@each_example
def test_triage_answers_on_its_first_screen(
    example: Example, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    directory = str(EXAMPLE_DIRECTORY / example.name)
    main(["triage", directory, "--format", "json"])
    document = json.loads(capsys.readouterr().out)
    main(["triage", directory])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    first_screen = " ".join(" ".join(lines[:25]).split())
    assert f"Status: {document['status']} Primary failure: {document['primary']}" in first_screen
    assert document["what_happened"] in first_screen
    line = document["findings"][0]["evidence"][0]["source"].rpartition(":")[2]
    assert f"> log:{line}: " in first_screen
    assert document["next_steps"][-1] in first_screen


@each_example
def test_kmsg_finds_what_the_kernel_said(
    example: Example, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = [str(path) for path in (EXAMPLE_DIRECTORY / example.name).glob("kernel-*.txt")]
    expected = expected_of(example)["kernel"]
    events = document_of(capsys, "kmsg", *logs)["events"] if logs else []
    assert {event["class"] for event in events} == set(expected)


@each_example
def test_an_example_is_small(example: Example) -> None:
    files = [path for path in (EXAMPLE_DIRECTORY / example.name).rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < _MOST_BYTES
    assert any("/prometheus/" in str(path) and path.name == "index" for path in files)
    assert len({path.parent.name for path in files if path.name == "raylet.out"}) >= 4


@pytest.mark.slow
@each_example
def test_the_script_makes_what_is_there(example: Example, tmp_path: Path) -> None:
    """Byte for byte where promtool is the same; the texts and the samples in any case."""
    committed, made = EXAMPLE_DIRECTORY / example.name, tmp_path / "made"
    generate(example, made)
    assert files_below(made) == files_below(committed)
    for name in files_below(made):
        if "/0" not in name:  # a block
            assert (made / name).read_bytes() == (committed / name).read_bytes(), name
    ours, theirs = samples_of(made, tmp_path), samples_of(committed, tmp_path)
    assert [name for name, _ in ours] == [name for name, _ in theirs]
    assert [value for _, value in ours] == pytest.approx(
        [value for _, value in theirs], rel=_TOLERANCE, nan_ok=True
    )


@pytest.mark.slow
def test_the_same_call_makes_the_same_bytes(tmp_path: Path) -> None:
    (example,) = [example for example in EXAMPLES if example.name == "straggler"]
    for name in ("first", "second"):
        generate(example, tmp_path / name)
    names = files_below(tmp_path / "first")
    assert names == files_below(tmp_path / "second")
    for name in names:
        first, second = (tmp_path / each / name for each in ("first", "second"))
        assert first.read_bytes() == second.read_bytes(), name


def files_below(directory: Path) -> list[str]:
    files = (path for path in directory.rglob("*") if path.is_file())
    return sorted(path.relative_to(directory).as_posix() for path in files)


def samples_of(job: Path, scratch: Path) -> list[tuple[str, float]]:
    """Series with time, and value. Of links: promtool wants a write-ahead log beside blocks."""
    data = scratch / f"data-{job.name}"
    data.mkdir()
    for block in (job / "prometheus").glob("0*"):
        (data / block.name).symlink_to(block, target_is_directory=True)
    (data / "wal").mkdir()
    command = [prometheus_programs.found("promtool") or "promtool", "tsdb", "dump"]
    command += ["--max-time=9000000000000", str(data)]
    dumped = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = (line.rsplit(" ", 2) for line in dumped.splitlines())
    return sorted((f"{labels} {at}", float(value)) for labels, value, at in rows)
