from __future__ import annotations

import fcntl
import os
import tempfile
import time
from pathlib import Path

import pytest

from raydiag.errors import CannotRun
from raydiag.tsdb import private_directory


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def left_by_a_dead_run(place: Path, name: str = "raydiag-tsdb-dead") -> Path:
    path = place / name
    path.mkdir(mode=0o700)
    (path / "owner").write_text("pid 1\n")
    (path / "data0").mkdir()
    return path


def test_it_is_ours_alone_and_gone_afterwards() -> None:
    with private_directory.directory() as path:
        assert path.stat().st_mode & 0o777 == 0o700
        assert (path / "owner").read_text() == f"pid {os.getpid()}\n"
        (path / "file").write_text("")
    assert not path.exists()


def test_what_a_dead_run_left_is_removed_with_links_but_not_what_they_lead_to(place: Path) -> None:
    kept = place / "evidence"
    kept.mkdir()
    (kept / "file").write_text("evidence")
    dead = left_by_a_dead_run(place)
    (dead / "data0" / "link").symlink_to(kept / "file")
    (dead / "data0" / "tree").symlink_to(kept)
    with private_directory.directory():
        assert not dead.exists()
    assert (kept / "file").read_text() == "evidence"


def test_what_belongs_to_a_run_that_lives_stays(place: Path) -> None:
    live = left_by_a_dead_run(place, "raydiag-tsdb-live")
    with open(live / "owner") as owner:
        fcntl.flock(owner, fcntl.LOCK_EX)
        assert private_directory.remove_leftovers() == []
    assert private_directory.remove_leftovers() == [live]


def test_one_that_is_being_made_stays_for_a_while(place: Path) -> None:
    young, old = place / "raydiag-tsdb-young", place / "raydiag-tsdb-old"
    for path in (young, old):
        path.mkdir(mode=0o700)
    long_ago = time.time() - 3600
    os.utime(old, (long_ago, long_ago))
    assert private_directory.remove_leftovers() == [old]


def test_what_is_not_ours_stays(place: Path) -> None:
    open_to_all = left_by_a_dead_run(place, "raydiag-tsdb-open")
    open_to_all.chmod(0o777)
    target = place / "elsewhere"
    left_by_a_dead_run(place, "elsewhere")
    (place / "raydiag-tsdb-link").symlink_to(target)
    (place / "raydiag-tsdb-file").write_text("")
    assert private_directory.remove_leftovers() == []
    assert (target / "owner").exists() and open_to_all.exists()


def test_no_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(CannotRun, match=r"no place for a private view in .*gone.*TMPDIR"):
        private_directory.directory().__enter__()
