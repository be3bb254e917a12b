"""What the resident agent remembers: bounded, and nothing is lost by a kill or a full disk."""

from __future__ import annotations

import json
import os
import sqlite3
import zlib
from pathlib import Path
from typing import Any

import pytest

from raydiag.cluster.resident import caller
from raydiag.cluster.resident import memory as memory_module
from raydiag.cluster.resident.memory import NodeMemory
from raydiag.model import Finding

SESSION = "session_x"


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("raydiag.ownership.changeable", lambda path: "")
    return tmp_path / f"raydiag-agent-{os.geteuid()}"


def row(number: int) -> dict[str, Any]:
    return {
        "node_id": f"{number:056x}",
        "hostname": f"node{number:03}",
        "address": f"10.0.0.{number}",
    }


def answer(*lines: tuple[float, str]) -> bytes:
    records = []
    for time_s, text in lines:
        more = {"level": 3, "facility": 0, "matched": text != "quiet"}
        records.append({"time_s": time_s, "text": text, **more})
    content = {"probes": {"kernel_log": {"records": records}}, "stuck": []}
    return zlib.compress(json.dumps(content).encode())


def test_last_words_are_the_end_of_what_mattered() -> None:
    memory = NodeMemory(SESSION)
    memory.answered(row(1), answer((1.0, "quiet"), (2.0, "amdgpu: ring gfx timeout")))
    memory.answered(row(2), answer((3.0, "another node")))
    words = memory.last_words(row(1)["node_id"])
    assert words is not None
    assert [text for _, text in words["kernel_log"]] == ["amdgpu: ring gfx timeout"]
    assert memory.last_words("unknown") is None


def test_lines_that_left_the_ring_are_still_known_and_none_comes_twice() -> None:
    memory = NodeMemory(SESSION)
    memory.answered(row(1), answer((1.0, "first"), (2.0, "second")))
    memory.last_words(row(1)["node_id"])
    memory.answered(row(1), answer((2.0, "second"), (3.0, "third")))
    texts = [line[-1] for line in memory.history()["kernel_log"]]
    assert texts == ["first", "second", "third"]


@pytest.mark.parametrize(
    "odd", [b"", b"no zlib", zlib.compress(b"[]"), zlib.compress(b'{"probes": 1}')]
)
def test_an_odd_answer_costs_its_own_lines(odd: bytes) -> None:
    memory = NodeMemory(SESSION)
    memory.answered(row(1), odd)
    memory.answered(row(2), answer((2.0, "line")))
    assert [node["host"] for node in memory.history()["nodes"]] == ["node001", "node002"]
    assert len(memory.history()["kernel_log"]) == 1


def test_what_was_found_is_counted_with_its_jobs() -> None:
    memory = NodeMemory(SESSION)
    found = {"class": "nvlink", "host": "node001", "gpu": "3", "device": "", "severity": "warning"}
    memory.remember([found], ["job-a"])
    memory.remember([found, {**found, "gpu": "4"}], ["job-b"])
    first, second = memory.known()
    assert (first["gpu"], first["times"], first["jobs"]) == ("3", 2, ["job-a", "job-b"])
    assert (second["gpu"], second["times"], second["jobs"]) == ("4", 1, ["job-b"])
    of_gpu_3, _ = caller.known(memory.known())
    assert of_gpu_3.key == Finding("nvlink", "node001", gpu=3).key
    assert of_gpu_3.jobs == ("job-a", "job-b")


def test_what_makes_no_sense_is_not_known() -> None:
    assert caller.known(None) == caller.known([1, {"class": "nvlink"}, None]) == []


def test_the_copy_is_private_and_comes_back(directory: Path) -> None:
    memory = NodeMemory(SESSION)
    memory.answered(row(1), answer((1.0, "line")))
    memory.save()
    assert memory.trouble == ""
    assert os.stat(memory.path).st_mode & 0o077 == 0
    assert os.stat(directory).st_mode & 0o077 == 0
    again = NodeMemory(SESSION)
    assert [node["host"] for node in again.history()["nodes"]] == ["node001"]
    again.remove()
    assert not directory.exists()
    again.save()
    assert not directory.exists()


def test_a_damaged_copy_is_told_and_a_new_one_begun(directory: Path) -> None:
    directory.mkdir(mode=0o700)
    (directory / f"{SESSION}.sqlite").write_bytes(b"no database at all" * 1000)
    memory = NodeMemory(SESSION)
    assert "not read" in memory.trouble
    memory.answered(row(1), answer((1.0, "line")))
    memory.save()
    assert memory.trouble == ""
    assert len(NodeMemory(SESSION).history()["nodes"]) == 1


def test_where_the_copy_cannot_be_written_the_old_one_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory = NodeMemory(SESSION)
    memory.answered(row(1), answer())
    memory.save()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    memory.answered(row(2), answer())
    memory.save()
    assert "No space left" in memory.trouble
    assert not os.path.exists(f"{memory.path}.new")
    assert len(memory.history()["nodes"]) == 2
    assert len(NodeMemory(SESSION).history()["nodes"]) == 1


def test_nothing_is_written_where_others_could_change_it(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = "others may write to /tmp"
    monkeypatch.setattr("raydiag.ownership.changeable", lambda path: words)
    memory = NodeMemory(SESSION)
    memory.save()
    assert words in memory.trouble
    assert list(directory.iterdir()) == []


def test_it_stays_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_module, "_MOST_LINES_OF_HOST", 10)
    monkeypatch.setattr(memory_module, "_MOST_FOUND", 5)
    memory = NodeMemory(SESSION)
    lines = [(float(number), f"line {number}") for number in range(50)]
    memory.answered(row(1), answer(*lines))
    history = memory.history()
    assert [line[2] for line in history["kernel_log"]] == [float(n) for n in range(39, 50)]
    for number in range(20):
        memory.remember([{"class": "nvlink", "device": str(number)}], [])
    assert len(memory.known()) <= 6


def test_a_node_that_was_not_seen_for_weeks_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = NodeMemory(SESSION)
    memory.answered(row(1), answer((1.0, "line")))
    memory.last_words(row(1)["node_id"])
    monkeypatch.setattr(memory_module, "_FORGOTTEN_S", -1)
    memory.save()
    assert memory.history()["nodes"] == []
    assert memory.history()["kernel_log"] == []


def test_the_copy_needs_no_journal(directory: Path) -> None:
    memory = NodeMemory(SESSION)
    memory.save()
    assert sorted(path.name for path in directory.iterdir()) == [f"{SESSION}.sqlite"]
    with sqlite3.connect(memory.path) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
