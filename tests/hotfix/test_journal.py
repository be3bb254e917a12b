"""The record on the node: whole lines, survives whoever wrote it, and keeps the old contents."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from raydiag.hotfix import node
from raydiag.hotfix.journal import Journal, JournalError, is_rollout, sha256


def test_records_come_back_in_their_order_with_who_and_when(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path / "one" / "two"))
    first = journal.append("r-1", "ops@login1", "intent", name="a.sh")
    journal.append("r-1", "ops@login1", "replaced", name="a.sh")
    history = journal.history("r-1")
    assert [one["event"] for one in history.records] == ["intent", "replaced"]
    assert history.records[0] == {
        "at": first,
        "who": "ops@login1",
        "event": "intent",
        "name": "a.sh",
    }
    assert (history.torn, history.ended) == (False, "")
    assert Path(journal.directory).stat().st_mode & 0o777 == 0o700


def test_a_torn_record_is_said_and_the_next_one_stands_by_itself(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path))
    tmp_path.chmod(0o700)
    journal.append("r1", "me", "intent")
    with (tmp_path / "r1.jsonl").open("ab") as file:
        file.write(b'{"at": 12, "who": "me", "eve')
    assert journal.history("r1").torn
    journal.append("r1", "me", "replaced")
    history = journal.history("r1")
    assert [one["event"] for one in history.records] == ["intent", "replaced"]
    assert not history.torn


@pytest.mark.parametrize("garbage", [b"\0\xff\n", b"[]\n5\nnull\n", b"{}", b"\n\n"])
def test_garbage_in_a_record_is_passed_over(tmp_path: Path, garbage: bytes) -> None:
    tmp_path.chmod(0o700)
    journal = Journal(str(tmp_path))
    (tmp_path / "r1.jsonl").write_bytes(garbage)
    assert [one for one in journal.history("r1").records if one] == []
    journal.append("r1", "me", "intent")
    assert journal.history("r1").records[-1]["event"] == "intent"
    assert journal.unfinished() == ["r1"]


def test_a_rollout_is_unfinished_until_it_is_closed(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path / "journal"))
    for rollout in ("b", "a"):
        journal.append(rollout, "me", "intent")
    assert journal.unfinished() == ["b", "a"]
    assert journal.unfinished(but="a") == ["b"]
    journal.append("b", "me", "closed", outcome="verified")
    assert journal.unfinished() == ["a"]
    assert journal.history("b").ended == "verified"


@pytest.mark.parametrize("name", ["", "../x", "a/b", "a.b", "-a", "x" * 65, "a\n", "ä"])
def test_a_name_that_is_no_rollouts_is_refused(tmp_path: Path, name: str) -> None:
    assert not is_rollout(name)
    with pytest.raises(JournalError):
        Journal(str(tmp_path)).append(name, "me", "intent")
    with pytest.raises(JournalError):
        Journal(str(tmp_path)).history(name)


def test_old_contents_are_kept_whole_or_not_at_all(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path / "journal"))
    digest = journal.keep(b"#!/bin/sh\n")
    assert digest == sha256(b"#!/bin/sh\n")
    assert journal.kept(digest) == b"#!/bin/sh\n"
    (tmp_path / "journal" / f"{digest}.old").write_bytes(b"#!/bin")
    with pytest.raises(JournalError, match="not what was kept"):
        journal.kept(digest)
    with pytest.raises(JournalError, match="No such file"):
        journal.kept(sha256(b"other"))


def test_a_directory_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(JournalError, match="others may write there"):
        Journal(str(tmp_path)).append("r1", "me", "intent")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_said_and_not_taken_for_a_record(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    os.symlink("/dev/full", tmp_path / "r1.jsonl")
    with pytest.raises(JournalError, match="No space left"):
        Journal(str(tmp_path)).append("r1", "me", "intent")


def test_a_record_is_one_line_of_json_whatever_it_says(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path / "journal"))
    journal.append("r1", "a\nb\udcff", "intent", name="x\ny")
    lines = (tmp_path / "journal" / "r1.jsonl").read_text().splitlines()
    assert [json.loads(line)["name"] for line in lines] == ["x\ny"]


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user: needs root")
@pytest.mark.parametrize("how", ["owner", "mode", "directory", "fifo"])
def test_records_that_others_may_have_written_are_not_believed(tmp_path: Path, how: str) -> None:
    journal = Journal(str(tmp_path / "journal"))
    journal.append("r1", "me", "intent")
    path = tmp_path / "journal" / "r1.jsonl"
    if how == "owner":
        os.chown(path, 1234, 1234)
    elif how == "mode":
        path.chmod(0o666)
    elif how == "directory":
        path.parent.chmod(0o777)
    else:
        path.unlink()
        os.mkfifo(path, 0o600)
    with pytest.raises(JournalError):
        journal.history("r1")


def test_a_record_nested_without_end_is_passed_over(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path / "journal"))
    journal.append("r1", "me", "intent")
    with open(tmp_path / "journal" / "r1.jsonl", "a") as file:
        file.write("[" * 200_000 + "\n")
    assert [record["event"] for record in journal.history("r1").records] == ["intent"]


def test_a_guarded_reader_reads_it(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path / "journal"))
    journal.append("r1", "me", "intent")
    request = {"operation": "status", "journal": journal.directory}
    (known,) = node.answer(request)["rollouts"]
    assert known["rollout"] == "r1"
