"""A file is old or new at any moment, and what it was and is can always be told."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from raydiag.hotfix import node_rollback, replace
from raydiag.hotfix.journal import Journal, JournalError, sha256
from raydiag.hotfix.messages import RAYDIAG, SHELL, Rollback, RolledBack
from raydiag.hotfix.replace import Replacement, ReplaceRefused

NAME = "gpu_metrics_plugin.sh"
OLD, NEW = b"#!/bin/bash\necho old 1\n", b"#!/bin/bash\necho new 22\n" * 50
STEPS = [
    "contents kept",
    "intent recorded",
    "temporary file made",
    "half written",
    "temporary file on disk",
    "renamed",
    "directory on disk",
    "outcome recorded",
]


@pytest.fixture
def utils(tmp_path: Path) -> Path:
    place = tmp_path / "artifact" / "utils"
    place.mkdir(parents=True)
    (place / NAME).write_bytes(OLD)
    (place / NAME).chmod(0o755)
    return place


def replacement(utils: Path, content: bytes | None = NEW) -> Replacement:
    journal = Journal(str(utils.parent.parent / "journal"))
    old = replace.current(str(utils), NAME)
    return Replacement(journal, "r1", "ops@login1", NAME, old, content)


def rolled_back(journal: Journal, utils: Path, exporter: str = SHELL) -> RolledBack:
    request = Rollback(exporter=exporter, rollout="r1", who="me")
    return node_rollback.rollback(journal, request, str(utils), 0)


def killed_after(one: Replacement, steps: int) -> None:
    """Do that many steps in a child, which then kills itself."""
    pid = os.fork()
    if pid == 0:
        try:
            work = one.steps()
            for _ in range(steps):
                next(work)
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL


def test_these_are_the_steps(utils: Path) -> None:
    assert list(replacement(utils).steps()) == STEPS
    assert (utils / NAME).read_bytes() == NEW


@pytest.mark.parametrize("steps", range(len(STEPS) + 1))
def test_killed_after_any_step_the_file_is_whole_and_status_is_true(
    utils: Path, steps: int
) -> None:
    one = replacement(utils)
    killed_after(one, steps)
    content = (utils / NAME).read_bytes()
    assert content == (NEW if steps > STEPS.index("renamed") else OLD)
    known = node_rollback.statuses(one.journal)
    files = [file for rollout in known.rollouts for file in rollout.files]
    if steps <= STEPS.index("intent recorded"):
        assert files == []
    else:
        assert [file.content for file in files] == ["new" if content == NEW else "old"]
        assert files[0].sha256 == sha256(content)
        assert known.rollouts[0].ended == ""
    temporary = STEPS.index("temporary file made") < steps <= STEPS.index("renamed")
    assert len(replace.leftovers(str(utils))) == temporary
    if files:
        assert len(known.leftovers) == temporary

    # The next one is not hindered by what was left, and nothing is left after it.
    replace.clean(str(utils))
    assert [path.name for path in utils.iterdir()] == [NAME]
    done = rolled_back(one.journal, utils)
    assert done.complete
    assert (utils / NAME).read_bytes() == OLD
    assert stat.S_IMODE((utils / NAME).stat().st_mode) == 0o755


@pytest.mark.parametrize("steps", range(len(STEPS) + 1))
def test_killed_while_it_rolls_back_it_is_old_or_new_as_well(utils: Path, steps: int) -> None:
    replacement(utils).run()
    journal = Journal(str(utils.parent.parent / "journal"))
    now = replace.current(str(utils), NAME)
    back = Replacement(
        journal, "r1", "me", NAME, now, journal.kept(sha256(OLD)), ("restore intent", "restored")
    )
    killed_after(back, steps)
    content = (utils / NAME).read_bytes()
    assert content in (OLD, NEW)
    told = node_rollback.statuses(journal).rollouts[0].files[0]
    assert told.content == ("old" if content == OLD else "new")
    assert rolled_back(journal, utils).complete
    assert (utils / NAME).read_bytes() == OLD


def test_owner_mode_and_attributes_stay(utils: Path) -> None:
    target = utils / NAME
    target.chmod(0o2750)
    if os.geteuid() == 0:
        os.chown(target, 12345, 23456)
        target.chmod(0o2750)
    try:
        os.setxattr(target, "user.origin", b"artifact")
    except OSError as error:
        pytest.skip(f"no extended attributes here: {error.strerror}")
    before = target.stat()
    replacement(utils).run()
    after = target.stat()
    assert after.st_ino != before.st_ino
    assert (after.st_mode, after.st_uid, after.st_gid) == (
        before.st_mode,
        before.st_uid,
        before.st_gid,
    )
    assert os.getxattr(target, "user.origin") == b"artifact"


def test_a_reader_of_the_old_file_goes_on_with_the_old_one(utils: Path) -> None:
    with (utils / NAME).open("rb") as file:
        replacement(utils).run()
        assert file.read() == OLD


def test_the_temporary_name_is_no_plugins(utils: Path) -> None:
    name = replace.temporary_name(NAME)
    assert not Path(name).match("*_metrics_plugin.sh")
    assert not Path(name).match("*.py")
    assert name.startswith(".")


def test_what_a_living_process_is_at_work_on_is_left_alone(utils: Path) -> None:
    (utils / replace.temporary_name(NAME)).write_bytes(b"#!")
    assert replace.clean(str(utils)) == []
    other = f".raydiag-hotfix.other-host.1.1.{NAME}.tmp"
    (utils / other).write_bytes(b"#!")
    assert replace.clean(str(utils)) == []
    os.utime(utils / other, (1, 1))
    assert replace.clean(str(utils)) == [other]


def test_a_file_that_somebody_changed_meanwhile_is_left(utils: Path) -> None:
    one = replacement(utils)
    (utils / NAME).write_bytes(b"#!/bin/bash\necho third\n")
    with pytest.raises(ReplaceRefused, match="changed by someone else"):
        one.run()
    assert (utils / NAME).read_bytes() == b"#!/bin/bash\necho third\n"
    assert [path.name for path in utils.iterdir()] == [NAME]


def test_without_a_record_nothing_is_changed(utils: Path) -> None:
    one = replacement(utils)
    Path(one.journal.directory).write_text("a file where the directory should be")
    with pytest.raises(JournalError):
        one.run()
    assert (utils / NAME).read_bytes() == OLD


def test_a_full_disk_leaves_the_old_file(utils: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("a full disk needs root, to mount a small one")
    mount = ["mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs", str(utils)]
    subprocess.run(mount, check=True)
    try:
        (utils / NAME).write_bytes(OLD)
        one = replacement(utils, NEW * 20)
        with pytest.raises(ReplaceRefused, match="No space left"):
            one.run()
        assert (utils / NAME).read_bytes() == OLD
        assert [path.name for path in utils.iterdir()] == [NAME]
        assert node_rollback.statuses(one.journal).rollouts[0].files[0].content == "old"
    finally:
        subprocess.run(["umount", str(utils)], check=True)


@pytest.mark.parametrize("done", [True, False])
def test_a_rename_that_is_said_to_fail_is_looked_at(
    utils: Path, done: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As over NFS, when the answer of the server is lost and the question is sent again."""
    one, rename = replacement(utils), os.rename

    def failing(source: str, target: str) -> None:
        if done:
            rename(source, target)
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(os, "rename", failing)
    if done:
        one.run()
    else:
        with pytest.raises(ReplaceRefused, match="No such file"):
            one.run()
    assert (utils / NAME).read_bytes() == (NEW if done else OLD)
    assert [path.name for path in utils.iterdir()] == [NAME]


def test_a_later_change_of_somebody_else_is_not_rolled_back(utils: Path) -> None:
    one = replacement(utils)
    one.run()
    (utils / NAME).write_bytes(b"#!/bin/bash\necho third\n")
    done = rolled_back(one.journal, utils)
    assert not done.complete
    assert [file.outcome for file in done.files] == ["refused"]
    assert "neither old nor new" in done.files[0].reason
    assert node_rollback.statuses(one.journal).rollouts[0].files[0].content == "neither"


def test_a_new_plugin_is_removed_again(utils: Path) -> None:
    journal = Journal(str(utils.parent.parent / "journal"))
    old = replace.current(str(utils), "extra.py")
    assert old.content is None
    Replacement(journal, "r1", "me", "extra.py", old, b"def collect(host):\n    pass\n").run()
    assert stat.S_IMODE((utils / "extra.py").stat().st_mode) == 0o644
    done = rolled_back(journal, utils, RAYDIAG)
    assert [(file.outcome, file.sha256) for file in done.files] == [("removed", "")]
    assert not (utils / "extra.py").exists()
    assert node_rollback.statuses(journal).rollouts[0].files[0].content == "old"


def test_a_damaged_backup_is_not_written(utils: Path) -> None:
    one = replacement(utils)
    one.run()
    (Path(one.journal.directory) / f"{sha256(OLD)}.old").write_bytes(b"#!/bin/ba")
    done = rolled_back(one.journal, utils)
    assert [file.outcome for file in done.files] == ["failed"]
    assert (utils / NAME).read_bytes() == NEW


# ---- names, links, contents


@pytest.mark.parametrize(
    ("exporter", "name", "allowed"),
    [
        (SHELL, "tb_metrics_plugin.sh", True),
        (SHELL, "metrics_exporter.sh", True),
        (SHELL, "train.py", False),
        (SHELL, "../utils/gpu_metrics_plugin.sh", False),
        (SHELL, "my_metrics_plugin.sh", False),
        (SHELL, "", False),
        (RAYDIAG, "ours.py", True),
        (RAYDIAG, "disks", True),
        (RAYDIAG, ".hidden", False),
        (RAYDIAG, "a/b.py", False),
        (RAYDIAG, "..", False),
        (RAYDIAG, "x" * 101, False),
    ],
)
def test_names_on_the_list_only(exporter: str, name: str, allowed: bool) -> None:
    assert (replace.name_refusal(exporter, name) == "") is allowed


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty"),
        (b" \n\n", "empty"),
        (b"\x7fELF\0\0", "binary"),
        (b"#!/bin/bash\n\xff\xfe", "binary"),
        (b"echo hello\n", "not a script"),
        (b"#!/usr/bin/python3\nprint()\n", "not a shell script"),
        (b"#!/bin/bash\r\necho\r\n", "Windows"),
        (b"#!/bin/bash\n" + b"#" * (1 << 20), "bytes"),
    ],
)
def test_what_is_no_plugin_is_refused(content: bytes, words: str) -> None:
    assert words in replace.content_refusal(NAME, content)
    assert replace.content_refusal(NAME, OLD) == ""


def test_a_link_out_of_the_directory_is_refused_and_one_inside_followed(utils: Path) -> None:
    outside = utils.parent / "train.sh"
    outside.write_bytes(OLD)
    (utils / NAME).unlink()
    (utils / NAME).symlink_to(outside)
    with pytest.raises(ReplaceRefused, match="out of the directory"):
        replace.current(str(utils), NAME)
    (utils / NAME).unlink()
    (utils / "gpu_v2.sh").write_bytes(OLD)
    (utils / NAME).symlink_to("gpu_v2.sh")
    replacement(utils).run()
    assert (utils / NAME).is_symlink()
    assert (utils / "gpu_v2.sh").read_bytes() == NEW


@pytest.mark.parametrize("kind", ["directory", "pipe", "huge", "link to nothing"])
def test_what_is_no_plain_file_is_refused(utils: Path, kind: str) -> None:
    target = utils / NAME
    target.unlink()
    if kind == "directory":
        target.mkdir()
    elif kind == "pipe":
        os.mkfifo(target)
    elif kind == "huge":
        target.write_bytes(b"#" * ((1 << 20) + 1))
    else:
        target.symlink_to("nothing")
    with pytest.raises(ReplaceRefused):
        replace.current(str(utils), NAME)


# ---- records are believed where they can be proved


def forged(utils: Path, path: Path, name: str = NAME) -> RolledBack:
    """A rollback with a record of a file that no plan of ours has chosen."""
    replacement(utils).run()
    journal = Journal(str(utils.parent.parent / "journal"))
    path.write_bytes(NEW)
    hashes = {"old_sha256": sha256(OLD), "new_sha256": sha256(NEW)}
    journal.append("r1", "me", "intent", name=name, path=str(path), **hashes)
    return rolled_back(journal, utils)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("elsewhere", NAME),
        ("elsewhere", "elsewhere"),
        ("artifact/utils/train.sh", NAME),
        ("artifact/utils/train.sh", "train.sh"),
        ("artifact/utils/../../elsewhere", NAME),
        ("artifact/utils/host_metrics_plugin.sh", NAME),
    ],
)
def test_a_record_of_a_foreign_path_changes_nothing_there(
    utils: Path, path: str, name: str
) -> None:
    foreign = utils.parent.parent / path
    done = forged(utils, foreign, name)
    assert not done.complete
    assert [file.outcome for file in done.files] == ["refused", "restored"]
    assert foreign.read_bytes() == NEW
    assert (utils / NAME).read_bytes() == OLD


@pytest.mark.parametrize("digest", ["../artifact/utils/fifo", "", "9f" * 31, "9F" * 32])
def test_a_content_is_kept_below_its_hash_alone(utils: Path, digest: str) -> None:
    journal = Journal(str(utils.parent.parent / "journal"))
    with pytest.raises(JournalError, match="not the hash of a content"):
        journal.kept(digest)


# ---- two rollouts of one file


ROLLOUTS = 4


def attempted(utils: Path, number: int) -> bool:
    """Replace the file in a rollout of its own; whether it was replaced."""
    journal = Journal(str(utils.parent.parent / "journal"))
    old = replace.Current(str(utils / NAME), OLD, (utils / NAME).stat())
    content = f"#!/bin/bash\necho new {number}\n".encode()
    try:
        Replacement(journal, f"r{number}", "me", NAME, old, content).run()
    except ReplaceRefused:
        return False
    return True


@pytest.fixture
def slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the last look at the old file and the renaming of the new one, others have time."""
    rename = os.rename

    def late(old: str, new: str) -> None:
        time.sleep(0.3)
        rename(old, new)

    monkeypatch.setattr(os, "rename", late)


def one_alone_counts(utils: Path, replaced: list[bool]) -> None:
    assert replaced.count(True) == 1
    winner = f"r{replaced.index(True)}"
    journal = Journal(str(utils.parent.parent / "journal"))
    assert (utils / NAME).read_bytes() == f"#!/bin/bash\necho new {winner[1:]}\n".encode()
    for number in range(ROLLOUTS):
        request = Rollback(exporter=SHELL, rollout=f"r{number}", who="me")
        done = node_rollback.rollback(journal, request, str(utils), 0)
        outcomes = [file.outcome for file in done.files]
        assert outcomes in (
            [["restored"]] if f"r{number}" == winner else [["refused"], ["already"]]
        )
    assert (utils / NAME).read_bytes() == OLD
    assert [path.name for path in utils.iterdir()] == [NAME]


@pytest.mark.usefixtures("slowly")
def test_of_several_rollouts_in_one_process_one_replaces_the_file(utils: Path) -> None:
    with ThreadPoolExecutor(ROLLOUTS) as pool:
        replaced = list(pool.map(lambda number: attempted(utils, number), range(ROLLOUTS)))
    one_alone_counts(utils, replaced)


@pytest.mark.usefixtures("slowly")
def test_of_several_processes_one_replaces_the_file(utils: Path) -> None:
    children = []
    for number in range(ROLLOUTS):
        pid = os.fork()
        if pid == 0:
            code = 2
            try:
                code = 0 if attempted(utils, number) else 1
            finally:
                os._exit(code)
        children.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    assert set(codes) <= {0, 1}
    one_alone_counts(utils, [code == 0 for code in codes])


def test_a_lock_that_is_not_given_back_is_told(
    utils: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raydiag.hotfix.journal._LOCK_S", 0.1)
    waiting = replacement(utils)
    busy = pytest.raises(JournalError, match="another rollout is changing files here")
    with Journal(waiting.journal.directory).alone(), busy:
        waiting.run()
    assert (utils / NAME).read_bytes() == OLD
    waiting.run()
    assert (utils / NAME).read_bytes() == NEW
