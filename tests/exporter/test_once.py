"""`raydiag exporter once`: one collection of a whole node, through guarded readers, to stdout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from raydiag.exporter import event_paths, main
from raydiag.exporter.metrics import OWN_PREFIX
from tests.exporter import fake_sys
from tests.exporter.test_plugins import BUILT_IN, ESTABLISHED_RESETS, ONLY_OURS, prescribed, series

pytestmark = pytest.mark.slow

PROMTOOL = shutil.which("promtool")
RAYDIAG = (sys.executable, "-m", "raydiag", "exporter", "once")


def once(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*RAYDIAG, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **environment},
    )


def on_tree(root: Path, *arguments: str) -> str:
    done = once("--root", str(root), "--host", "node001", *arguments)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    return done.stdout


def test_a_whole_node_is_as_prescribed(tmp_path: Path) -> None:
    planted = fake_sys.plant(tmp_path)
    found = series(on_tree(tmp_path))
    others = {key: value for key, value in found.items() if not key[0].startswith(OWN_PREFIX)}
    expected = prescribed(planted)
    duration = ("hw_scrape_duration_seconds", (("host", "node001"),))
    assert others.pop(duration) > 0
    assert others.keys() == expected.keys()
    differing = {name for name, labels in others if others[name, labels] != expected[name, labels]}
    assert differing == {ESTABLISHED_RESETS}
    for name in (*ONLY_OURS, f"{OWN_PREFIX}cycles_total"):
        assert (name, (("host", "node001"),)) in found
    up = {dict(labels)["plugin"]: v for (n, labels), v in found.items() if n.endswith("plugin_up")}
    assert {name: up[name] for name in BUILT_IN} == dict.fromkeys(BUILT_IN, 1)


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed")
def test_promtool_objects_to_one_old_name_only(tmp_path: Path) -> None:
    fake_sys.plant(tmp_path)
    page = on_tree(tmp_path)
    done = subprocess.run(
        [str(PROMTOOL), "check", "metrics"], input=page, capture_output=True, text=True, check=False
    )
    lines = (done.stdout + done.stderr).strip().split("\n")
    assert [line.split(" ")[0] for line in lines] == ["hw_io_pressure_full_total_us"], lines


def test_plugins_can_be_chosen(tmp_path: Path) -> None:
    fake_sys.plant(tmp_path)
    names = {name for name, _ in series(on_tree(tmp_path, "--only", "oom,memory"))}
    assert {name for name in names if name.startswith("hw_")} == {
        *("hw_oom_kills_total", "hw_mem_dirty_bytes", "hw_mem_writeback_bytes"),
        "hw_scrape_duration_seconds",
    }
    names = {name for name, _ in series(on_tree(tmp_path, "--skip", "oom"))}
    assert "hw_oom_kills_total" not in names
    assert "hw_mem_dirty_bytes" in names


def test_a_plugin_that_does_not_exist_is_a_usage_error(tmp_path: Path) -> None:
    done = once("--only", "no_such_plugin")
    assert done.returncode == 2
    assert "no_such_plugin" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "content", ["", "\x00\xff\x00", "x" * 100_000, "1 2 3", "-", "ue:\nce: \n"]
)
def test_files_full_of_nonsense_cost_their_own_series(tmp_path: Path, content: str) -> None:
    fake_sys.plant(tmp_path)
    for path in sorted(tmp_path.rglob("*")):
        if path.is_file() and not path.is_symlink() and path.name != "name":
            fake_sys.write(path, content)
    found = series(on_tree(tmp_path))
    assert not {name for name, _ in found if name.startswith("hw_gpu_ras")}
    assert found["hw_gpu_user_processes", (("host", "node001"),)] == 2


def test_on_this_machine_it_says_what_there_is() -> None:
    done = once("--host", "here")
    assert (done.returncode, "Traceback" in done.stderr) == (0, False)
    found = series(done.stdout)
    assert found["hw_context_switches_total", (("host", "here"),)] > 0


def test_readers_know_the_name_that_the_host_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Event files are looked for by it."""
    monkeypatch.setenv(event_paths.HOST, "")
    main._tell_readers(main.ExporterSettings())
    assert os.environ[event_paths.HOST] == ""
    main._tell_readers(main.ExporterSettings(host="node007"))
    assert os.environ[event_paths.HOST] == "node007"
