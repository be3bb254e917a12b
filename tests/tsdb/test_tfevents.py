from __future__ import annotations

import math
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydiag import event_file
from raydiag.model import Status
from raydiag.tsdb import tfevents, tfrecords
from raydiag.tsdb.tfevents import Events
from tests.tsdb import eventfiles as files

T = 1_795_300_000.0
LOSS = [(step, T + 10 * step, 9.0 - 0.125 * step) for step in range(40)]
SPEED = [(step, T + 10 * step + 0.01, 2000.0 + step) for step in range(40)]


@pytest.fixture
def written(tmp_path: Path) -> Path:
    return files.write(tmp_path, {"learning/loss": LOSS, "perf/per_device_tokens_per_sec": SPEED})


def events(path: Path) -> Events:
    return tfevents.read(tfevents.find([path.parent]))


def test_checksums_are_crc_32c() -> None:
    assert files.crc32c(b"123456789") == 0xE3069283  # the check value of the algorithm
    assert files.record(b"123456789")[-4:] == struct.pack("<I", event_file.masked_crc(b"123456789"))


@given(st.lists(st.binary(max_size=40), max_size=8))
def test_every_record_comes_back(contents: list[bytes]) -> None:
    found = tfrecords.scan(b"".join(map(files.record, contents)))
    assert found.contents == tuple(contents)
    assert not found.cut and not found.damage


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=5), st.data())
def test_any_byte_that_changes_is_noticed(contents: list[bytes], data: st.DataObject) -> None:
    whole = bytearray(b"".join(map(files.record, contents)))
    place = data.draw(st.integers(0, len(whole) - 1))
    whole[place] ^= data.draw(st.integers(1, 255))
    found = tfrecords.scan(bytes(whole))
    assert found.damage
    assert len(found.contents) < len(contents)
    assert all(one in contents for one in found.contents)


@given(st.binary(max_size=200))
def test_anything_may_stand_in_an_event(content: bytes) -> None:
    records = tfrecords.Records((content,), False)
    rows: dict[str, list[tuple[float, float, float]]] = {"": []}
    assert isinstance(tfevents._take(records, _Rows(rows)), str)


class _Rows(dict[str, list[tuple[float, float, float]]]):
    def __missing__(self, key: str) -> list[tuple[float, float, float]]:
        self[key] = []
        return self[key]


def test_scalars_by_tag_and_by_metric(written: Path) -> None:
    found = events(written)
    assert list(found.scalars) == ["learning/loss", "perf/per_device_tokens_per_sec"]
    loss = found.of_metric("tb_learning_loss")
    assert loss is not None
    assert list(zip(loss.steps, loss.times, loss.values, strict=True)) == LOSS
    assert list(found.steps) == list(range(40))
    assert found.times[3] == T + 30
    assert found.of_metric("tb_learning_grad_norm") is None
    assert not found.unread and not found.cut


def test_a_file_that_is_still_written_ends_anywhere(written: Path) -> None:
    whole = written.read_bytes()
    for lost in (1, 5, 20, 60):
        written.write_bytes(whole[:-lost])
        found = events(written)
        assert found.cut and not found.unread
        assert found.steps[-1] == 39 and len(found.scalars["learning/loss"].steps) == 40
    written.write_bytes(b"")
    assert not events(written).scalars


def test_a_damaged_record_is_left_out_and_said(written: Path) -> None:
    whole = bytearray(written.read_bytes())
    step_7 = whole.find(struct.pack("<d", T + 70))
    whole[step_7 + 2] ^= 0xFF
    written.write_bytes(whole)
    found = events(written)
    assert 7 not in found.scalars["learning/loss"].steps
    assert len(found.scalars["learning/loss"].steps) == 39
    (item,) = found.unread
    assert item.status is Status.ERROR and "1 records are damaged" in item.reason


def test_behind_a_damaged_length_nothing_is_guessed(written: Path) -> None:
    whole = bytearray(written.read_bytes())
    place = whole.find(struct.pack("<d", T + 200)) - 13
    whole[place] ^= 0x40
    written.write_bytes(whole)
    found = events(written)
    assert found.scalars["learning/loss"].steps[-1] == 19
    assert "are lost" in found.unread[0].reason


def test_a_step_that_was_repeated_after_a_restart_counts_once(tmp_path: Path) -> None:
    again = [(step, T + 1000 + step, 1.0) for step in range(30, 50)]
    files.write(tmp_path, {"learning/loss": LOSS})
    path = files.write(tmp_path, {"learning/loss": again}, created=1_795_300_900)
    loss = events(path).scalars["learning/loss"]
    assert list(loss.steps) == list(range(50))
    assert loss.values[29] == LOSS[29][2] and loss.values[30] == 1.0


def test_tensors_of_one_number_are_scalars(tmp_path: Path) -> None:
    values = [
        files.tensor("a/float", 1, b"\x2d" + struct.pack("<f", 1.5)),
        files.tensor("a/packed", 1, files.message(5, struct.pack("<f", 2.5))),
        files.tensor("a/double", 2, files.message(4, struct.pack("<d", 3.5))),
        files.tensor("a/int", 3, b"\x38" + files.varint(-4)),
        files.tensor("a/long", 9, files.message(10, files.varint(5))),
        files.tensor("a/vector", 1, files.message(5, struct.pack("<2f", 1, 2))),
        files.tensor("a/text_summary", 7, files.message(8, b"hello")),
        files.scalar("a/nan", math.nan),
    ]
    path = tmp_path / "events.out.tfevents.1795300000.mi10"
    path.write_bytes(files.record(files.event(T, 3, values)))
    found = events(path)
    told = {tag: float(one.values[0]) for tag, one in found.scalars.items()}
    assert math.isnan(told.pop("a/nan"))
    assert told == {"a/float": 1.5, "a/packed": 2.5, "a/double": 3.5, "a/int": -4.0, "a/long": 5.0}
    assert not found.unread


def test_whose_file_it_is(tmp_path: Path) -> None:
    for name, created in [
        ("host001", 100),
        ("host0012", 200),
        ("host001.cluster.local.4711.0.v2", 300),
        ("xhost001", 400),
    ]:
        files.write(tmp_path / "a" / "tensorboard", {"x": [(0, T, 1.0)]}, name, created)
    (tmp_path / "a" / "events.out.tfevents.soon.host001").touch()
    named = [one.host for one in tfevents.find([tmp_path], "host001")]
    assert named == ["host001", "host001.cluster.local.4711.0.v2"]
    assert [one.created for one in tfevents.find([tmp_path], "host001.cluster.local", 299.5)] == [
        300.0
    ]
    assert len(tfevents.find([tmp_path, tmp_path / "a"])) == 4
    assert tfevents.find([tmp_path / "nowhere"]) == []


def test_a_file_that_cannot_be_read(written: Path) -> None:
    found = tfevents.find([written.parent])
    written.unlink()
    read = tfevents.read(found)
    assert not read.scalars and read.unread[0].reason == "No such file or directory"
