"""What plugins remember across restarts: same boot, whole files, no room, no permission."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from raydiag.exporter.state import SavedState, default_directory
from raydiag.host import Host
from raydiag.procfs import boot_id


def kept(directory: Path, values: object, boot: str = "b1", host: str = "n1") -> Path:
    path = directory / f"exporter-{host}.json"
    path.write_text(json.dumps({"boot_id": boot, "plugins": values}))
    return path


def test_what_was_put_is_there_after_a_restart(tmp_path: Path) -> None:
    state = SavedState(str(tmp_path / "new"), "n1", "b1")
    state.put("kernel_log", {"seq": 7})
    state.save()
    assert SavedState(str(tmp_path / "new"), "n1", "b1").get("kernel_log") == {"seq": 7}
    assert state.problem == ""


def test_another_boot_begins_anew(tmp_path: Path) -> None:
    kept(tmp_path, {"kernel_log": {"seq": 7}})
    state = SavedState(str(tmp_path), "n1", "b2")
    assert (state.get("kernel_log"), state.problem) == ({}, "")


def test_hosts_that_share_a_directory_have_their_own(tmp_path: Path) -> None:
    kept(tmp_path, {"a": {"x": 1}}, host="n2")
    assert SavedState(str(tmp_path), "n1", "b1").get("a") == {}


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\x00\xff\xfe", b"[]", b'{"boot_id": "b1"}', b'{"plugins": []}', b"1" * 5_000_000],
)
def test_a_damaged_file_is_told_and_replaced(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "exporter-n1.json"
    path.write_bytes(content)
    state = SavedState(str(tmp_path), "n1", "b1")
    assert f"{path}: not read: " in state.problem
    state.put("a", {"x": 1})
    state.save()
    assert state.problem == ""
    assert SavedState(str(tmp_path), "n1", "b1").get("a") == {"x": 1}


def test_values_that_are_no_state_are_left_out(tmp_path: Path) -> None:
    kept(tmp_path, {"a": 5, "b": {"x": 1}})
    state = SavedState(str(tmp_path), "n1", "b1")
    assert (state.get("a"), state.get("b")) == ({}, {"x": 1})


def test_nothing_is_written_while_nothing_changes(tmp_path: Path) -> None:
    state = SavedState(str(tmp_path), "n1", "b1")
    state.put("a", {"x": 1})
    state.save()
    (path,) = tmp_path.iterdir()
    path.unlink()
    state.put("a", {"x": 1})
    state.save()
    assert not path.exists()


def test_who_only_looks_writes_nothing(tmp_path: Path) -> None:
    state = SavedState(str(tmp_path / "none"), "n1", "b1", keep=False)
    state.put("a", {"x": 1})
    state.save()
    assert list(tmp_path.iterdir()) == []
    assert (state.get("a"), state.problem) == ({"x": 1}, "")


def test_a_directory_that_cannot_be_written_costs_only_the_state(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    state = SavedState(str(tmp_path / "file"), "n1", "b1")
    assert "not read" in state.problem
    state.put("a", {"x": 1})
    state.save()
    assert state.get("a") == {"x": 1}
    assert "not written: Not a directory" in state.problem


def test_others_cannot_plant_a_state(tmp_path: Path) -> None:
    kept(tmp_path, {"a": {"x": 1}})
    tmp_path.chmod(0o777)
    state = SavedState(str(tmp_path), "n1", "b1")
    assert state.get("a") == {}
    assert "others can write to its directory" in state.problem


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    target = kept(elsewhere, {"a": {"x": 1}})
    (tmp_path / "exporter-n1.json").symlink_to(target)
    (tmp_path / "exporter-n1.json.new").symlink_to(elsewhere / "victim")
    state = SavedState(str(tmp_path), "n1", "b1")
    assert state.get("a") == {}
    state.put("a", {"x": 2})
    state.save()
    assert not (elsewhere / "victim").exists()


def test_a_full_disk_leaves_the_last_state(tmp_path: Path) -> None:
    """A process that may write 64 KiB and no more stands for a disk with that much room."""
    program = """if True:
        import resource, signal, sys
        from raydiag.exporter.state import SavedState
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        state = SavedState(sys.argv[1], "n1", "b1")
        state.put("a", {"x": 1}); state.save()
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
        state.put("a", {"x": "y" * (1 << 17)}); state.save()
        print(state.problem)
        state.put("a", {"x": 2}); state.save()
        print(state.problem or "fine")
    """
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True
    )
    first, second = done.stdout.splitlines()
    assert "not written: File too large" in first
    assert second == "fine"
    assert [path.name for path in tmp_path.iterdir()] == ["exporter-n1.json"]
    assert SavedState(str(tmp_path), "n1", "b1").get("a") == {"x": 2}


def test_killed_at_any_moment_it_is_whole(tmp_path: Path) -> None:
    program = """if True:
        import sys
        from raydiag.exporter.state import SavedState
        state = SavedState(sys.argv[1], "n1", "b1")
        number = 0
        while True:
            number += 1
            state.put("a", {"x": [number] * 20000}); state.save()
            if number == 3: print("going", flush=True)
    """
    argv = [sys.executable, "-c", program, str(tmp_path)]
    for _ in range(5):
        process = subprocess.Popen(argv, stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        state = SavedState(str(tmp_path), "n1", "b1")
        assert state.problem == ""
        assert len(set(state.get("a")["x"])) == 1


def test_the_default_place_is_ours_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 1234)
    assert default_directory() == f"{tmp_path}/raydiag"
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert default_directory() == "/tmp/raydiag-1234"


def test_the_file_is_no_secret_and_not_for_others_to_write(tmp_path: Path) -> None:
    state = SavedState(str(tmp_path / "d"), "n1", "b1")
    state.put("a", {})
    state.save()
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "d").iterdir()]
    assert [mode & 0o022 for mode in modes] == [0]


def test_the_boot_has_a_name(tmp_path: Path) -> None:
    assert boot_id(Host(str(tmp_path))) == ""
    path = tmp_path / "proc/sys/kernel/random/boot_id"
    path.parent.mkdir(parents=True)
    path.write_text("0f1e\n")
    assert boot_id(Host(str(tmp_path))) == "0f1e"
