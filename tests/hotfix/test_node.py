"""A node's operations on a real shell exporter, beside a training-like tree that notes signals."""

from __future__ import annotations

import ast
import base64
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from raydiag import sandbox
from raydiag.hotfix import guarded_request
from raydiag.hotfix import node as hotfix
from raydiag.hotfix.journal import sha256
from tests.cluster import fuse_hang
from tests.hotfix.training_tree import start_ticks
from tests.hotfix.watchdog import EXPORTER, GPU, ShellNode, free_port, wait_until

pytestmark = pytest.mark.slow

NAME = "gpu_metrics_plugin.sh"
BETTER = GPU.replace("700", "800")
EXPORTER_NAME = "metrics_exporter.sh"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ShellNode]:
    with ShellNode(tmp_path) as one:
        yield one
        assert one.trouble() == []


def answer(node: ShellNode, operation: str, **fields: object) -> dict[str, Any]:
    return hotfix.answer(node.request(operation, **fields))


def encoded(text: str | bytes) -> str:
    return base64.b64encode(text.encode() if isinstance(text, str) else text).decode()


def check(node: ShellNode, text: str | bytes, name: str = NAME, **fields: object) -> dict[str, Any]:
    return answer(node, "check", name=name, content=encoded(text), **fields)


def apply(
    node: ShellNode, text: str, name: str = NAME, rollout: str = "r1", **fields: object
) -> dict[str, Any]:
    old = sha256((node.utils / name).read_bytes())
    given: dict[str, object] = {"old_sha256": old, **fields}
    content = encoded(text)
    return answer(node, "apply", name=name, content=content, rollout=rollout, who="me", **given)


def deployed(node: ShellNode, text: str, name: str = NAME, **fields: object) -> dict[str, Any]:
    """Apply and verify; the answer of verify."""
    before = answer(node, "inspect")["served"]["metrics"]
    done = apply(node, text, name)
    assert done["outcome"] == "replaced", done
    return answer(
        node,
        "verify",
        **{
            "name": name,
            "since": done["at"],
            "plugin_log_bytes": done["plugin_log_bytes"],
            "before": before,
            "limit_s": 90.0,
            **fields,
        },
    )


def restart(node: ShellNode, rollout: str = "r1") -> dict[str, Any]:
    one = answer(node, "inspect")["exporter"]
    pid, ticks = (one["pid"], one["start_ticks"]) if one else (0, 0)
    return answer(node, "restart", rollout=rollout, who="me", pid=pid, start_ticks=ticks)


# ---- inspect


def test_a_node_is_described_and_not_changed(node: ShellNode) -> None:
    names = [NAME, EXPORTER_NAME, "train.py", "../job.log"]
    found = answer(node, "inspect", names=names)
    assert found["exporter"]["role"] == "exporter"
    assert [one["role"] for one in found["ends_on_restart"]] == ["exporter", "server"]
    assert found["directory"]["real_path"] == str(node.utils.resolve())
    assert (found["watchdog"]["restarts"], found["watchdog"]["left"]) == (0, 50)
    assert found["served"]["answer"] == "ok"
    assert found["served"]["metrics"]["hw_gpu_power_watts"] == 2
    assert (found["refuse_replace"], found["refuse_restart"]) == ([], [])
    plugin, exporter, *others = found["files"]
    assert plugin["sha256"] == sha256(GPU.encode())
    assert (plugin["restart"], plugin["refused"]) == (False, "")
    assert exporter["restart"]
    assert all(one["refused"].startswith("not one of") for one in others)
    assert list(node.journal.iterdir()) == []


def test_a_node_without_exporter_is_refused(tmp_path: Path) -> None:
    request = {"operation": "inspect", "port": free_port(), "journal": str(tmp_path / "j")}
    found = hotfix.answer({**request, "names": [NAME]})
    assert found["exporter"] is None
    assert found["refuse_replace"] == ["no exporter runs here"]
    assert found["refuse_restart"] == ["no exporter runs here"]
    assert found["served"]["answer"] == "refused"


def test_another_directory_than_the_exporters_is_refused(node: ShellNode, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    found = answer(node, "inspect", names=[NAME], directory=str(other))
    assert "runs from" in found["refuse_replace"][0]
    assert found["files"][0]["refused"] == "there is no such file"
    found = answer(node, "inspect", directory=str(tmp_path / "nowhere"))
    assert "No such file" in found["refuse_replace"][0]


def test_two_nodes_know_that_they_share_the_directory(node: ShellNode, tmp_path: Path) -> None:
    second = tmp_path / "second"
    second.mkdir()
    with ShellNode(second, utils=node.utils) as other:
        identities = {answer(one, "inspect")["directory"]["identity"] for one in (node, other)}
        assert len(identities) == 1
        assert apply(node, BETTER)["outcome"] == "replaced"
        planned = {"old_sha256": sha256(GPU.encode())}
        assert apply(other, BETTER, **planned)["outcome"] == "already"
        assert other.trouble() == []


def test_somebody_elses_exporter_is_left_to_him(node: ShellNode) -> None:
    if os.geteuid() != 0:
        pytest.skip("becoming another user needs root")
    program = """
        import codecs, json, os, sys
        sys.path.insert(0, sys.argv[1])
        from raydiag.hotfix import node
        codecs.lookup("ascii")  # he may not be allowed to read this Python's own files
        os.setgid(65534); os.setuid(65534)
        print(json.dumps(node.answer(json.load(sys.stdin))))
    """
    package = str(Path(hotfix.__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-I", "-c", textwrap.dedent(program), package],
        input=json.dumps(node.request("inspect", names=[NAME], journal="/nowhere")),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    found = json.loads(done.stdout)
    assert "error" not in found, found
    assert found["exporter"] is None
    for refused in (found["refuse_restart"], found["refuse_replace"]):
        assert "belongs to another user" in refused[0]


# ---- check


def test_a_good_plugin_passes_and_says_what_it_makes(node: ShellNode) -> None:
    found = check(node, BETTER)
    assert (found["passed"], found["reason"], found["dry_run"]) == (True, "", "passed")
    assert found["metrics"] == {"hw_gpu_power_watts": 2, "hw_gpu_vram_total_bytes": 1}
    assert sorted(path.suffix for path in node.utils.iterdir()) == [".sh"] * 4
    assert (node.utils / NAME).read_text() == GPU


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("#!/bin/bash\nif true; then\n", "syntax"),
        ("#!/bin/bash\nexit 3\n", "exit status 3"),
        ("#!/bin/bash\nexit 99\n", "would not run it again"),
        ("#!/bin/bash\ntrue\n", "no metrics"),
        ("#!/bin/bash\necho hello world again\n", "line 1: neither a sample"),
        ('#!/bin/bash\necho "# TYPE hw_gpu_x wattage"\necho "hw_gpu_x 1"\n', "no type of metric"),
        ("#!/bin/bash\necho 'a 1'; echo 'a 2'\n", "twice"),
        ("#!/bin/bash\nno_such_command\n", "exit status 127"),
        ("#!/bin/bash\nsleep 600\n", "no answer"),
        ("#!/bin/bash\nyes hw_x 1\n", "more than"),
        ("#!/bin/bash\nhead -c 3000000 /dev/zero\n", "more than"),
        ("", "empty"),
        (GPU, "same as the deployed one"),
    ],
)
def test_a_plugin_that_does_not_work_is_not_rolled_out(
    node: ShellNode, text: str, words: str
) -> None:
    # What never ends is given up; all else ends by itself, however long that takes.
    found = check(node, text, limit_s=1.5 if words == "no answer" else 60.0)
    assert not found["passed"]
    assert words in found["reason"]
    assert (node.utils / NAME).read_text() == GPU
    assert sorted(path.suffix for path in node.utils.iterdir()) == [".sh"] * 4


def test_what_a_plugin_started_ends_with_its_dry_run(node: ShellNode, tmp_path: Path) -> None:
    note = tmp_path / "pids"
    text = f"#!/bin/bash\n(trap '' TERM HUP; echo $BASHPID >>{note}; sleep 600) &\nsleep 600\n"
    assert not check(node, text, limit_s=8.0)["passed"]
    for pid in map(int, note.read_text().split()):
        wait_until(lambda pid=pid: start_ticks(pid) is None, "its end")  # type: ignore[misc]


def test_a_dry_run_that_hangs_in_the_kernel_is_left_and_not_repeated(
    node: ShellNode, tmp_path: Path
) -> None:
    if reason := fuse_hang.unavailable():
        pytest.skip(reason)
    place = tmp_path / "ras"
    place.mkdir()
    (place / "aca_umc").write_text("ue 0\n")
    text = f"#!/bin/bash\ncat {place}/aca_umc\necho hw_gpu_x 1\n"
    with fuse_hang.HangingFile(place, hang=("aca_umc",)) as hanging:
        assert "no answer" in check(node, text, limit_s=5.0)["reason"]
        stuck = hanging.stuck_pids("cat")
        assert len(stuck) == 1
        found = check(node, text, limit_s=0.5)
        assert not found["passed"]
        assert "still there" in found["reason"]
        assert hanging.stuck_pids() == stuck
        symbols = [fuse_hang.WAIT_CHANNEL]
        fault = answer(node, "inspect", driver_fault_symbols=symbols)["driver_fault"]
        assert fault == f"pid {stuck[0]} waits in {fuse_hang.WAIT_CHANNEL}"
        hanging.release()
        wait_until(lambda: start_ticks(stuck[0]) is None, "the end of the stuck one")
        assert check(node, BETTER)["passed"]


def test_the_gpu_plugin_is_not_tried_where_the_driver_fault_shows(
    node: ShellNode, tmp_path: Path
) -> None:
    ran = tmp_path / "ran"
    text = f"#!/bin/bash\ntouch {ran}\necho hw_gpu_x 1\n"
    found = check(node, text, driver_fault="hung reads of RAS files")
    assert (found["passed"], found["dry_run"]) == (True, "skipped")
    assert "driver fault" in found["reason"]
    with node.plugin_log.open("a") as log:
        log.write("[metrics_exporter] gpu_metrics_plugin timed out after 10s\n")
    found = check(node, text)
    assert "timed out 1 times" in found["reason"]
    assert "timed out" in answer(node, "inspect")["driver_fault"]
    assert not ran.exists()
    assert check(node, "#!/bin/bash\necho hw_y 1\n", "host_metrics_plugin.sh")["passed"]


def test_the_exporter_is_never_run_to_try_it(node: ShellNode, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    found = check(node, f"#!/bin/bash\ntouch {ran}\n", EXPORTER_NAME)
    assert (found["passed"], found["dry_run"]) == (True, "skipped")
    assert not ran.exists()
    assert "syntax" in check(node, "#!/bin/bash\nfi\n", EXPORTER_NAME)["reason"]


def test_a_python_plugin_is_compiled_and_not_run(node: ShellNode, tmp_path: Path) -> None:
    place = tmp_path / "plugins"
    place.mkdir()
    own: dict[str, object] = {"exporter": "raydiag", "directory": str(place)}
    for text, words in [
        ("def collect(host):\n    yield\n", ""),
        ("def collect(host:\n", "syntax"),
        ("x = 1\n", "no function `collect`"),
        ("(" * 5000, "syntax"),
    ]:
        found = check(node, text, "disks.py", **own)
        assert found["passed"] is (words == "")
        assert words in found["reason"]
    assert list(place.iterdir()) == []


# ---- apply, verify, rollback


def test_a_good_plugin_is_live_and_verified_and_can_be_undone(node: ShellNode) -> None:
    expected = check(node, BETTER)["metrics"]
    seen = deployed(node, BETTER, expected=expected)
    assert (seen["healthy"], seen["reason"]) == (True, "")
    assert seen["moved"] > 0
    assert re.search(rb"hw_gpu_power_watts\{[^}]*\} 8\d\d", node.page())
    status = answer(node, "status")["rollouts"]
    assert [file["content"] for file in status[0]["files"]] == ["new"]
    done = answer(node, "rollback", rollout="r1", who="me")
    assert done["complete"]
    assert [file["outcome"] for file in done["files"]] == ["restored"]
    assert (node.utils / NAME).read_text() == GPU
    assert answer(node, "close", rollout="r1", who="me", outcome="rolled back")["recorded"]
    status = answer(node, "status", rollout="r1")["rollouts"]
    assert (status[0]["ended"], status[0]["files"][0]["content"]) == ("rolled back", "old")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("#!/bin/bash\ntrue\n", "hw_gpu_power_watts has 0 series"),
        (GPU.replace("0 1;", "0;"), "hw_gpu_power_watts has 1 series, and had 2"),
        (GPU.replace("$((700 + RANDOM % 50))", "700"), "values that move"),
        (GPU.replace("hw_gpu_power_watts{", "hw gpu power watts{"), "not valid"),
        (GPU + "sleep 600\n", "timed out after"),
        (GPU + "no_such_command\n", "no_such_command: command not found"),
        (GPU + "exit 99\n", "exited 99"),
    ],
)
def test_a_plugin_that_breaks_on_this_node_is_noticed(
    node: ShellNode, text: str, words: str
) -> None:
    # What does not move is waited for to the end; all else is said when it is seen.
    seen = deployed(node, text, limit_s=15.0 if words == "values that move" else 90.0)
    assert not seen["healthy"]
    assert words in seen["reason"]


def test_values_of_before_the_change_are_no_proof(node: ShellNode) -> None:
    """The exporter is stopped: what is served is whole, and older than the change."""
    pid = answer(node, "inspect")["exporter"]["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        seen = deployed(node, BETTER, limit_s=2.0)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert not seen["healthy"]
    assert "waited 2 s for a cycle" in seen["reason"]


def test_the_tensorboard_plugin_need_not_move_nor_run_everywhere(tmp_path: Path) -> None:
    name = "tb_metrics_plugin.sh"
    for rank in (0, 1):
        place = tmp_path / str(rank)
        place.mkdir()
        with ShellNode(place, rank=rank) as node:
            text = (node.utils / name).read_text() + "# a remark\n"
            assert check(node, text, name)["exit_status"] == (99 if rank else 0)
            seen = deployed(node, text, name)
            assert (seen["healthy"], seen["reason"]) == (True, "")
            assert "need not" in seen["notes"][0]
            assert node.trouble() == []


def test_a_file_that_is_not_the_planned_one_is_left(node: ShellNode) -> None:
    done = apply(node, BETTER, old_sha256="0" * 64)
    assert done["outcome"] == "refused"
    assert "not the planned one" in done["reason"]
    assert (node.utils / NAME).read_text() == GPU
    assert answer(node, "status")["rollouts"] == []


@pytest.mark.parametrize(("mode", "reason"), [(0o777, "others may write"), (0o4755, "set-id bit")])
def test_a_target_that_others_write_or_that_runs_as_its_owner_is_left(
    node: ShellNode, mode: int, reason: str
) -> None:
    (node.utils / NAME).chmod(mode)
    assert reason in answer(node, "inspect", names=[NAME])["files"][0]["refused"]
    done = apply(node, BETTER)
    assert done["outcome"] == "refused"
    assert reason in done["reason"]
    assert (node.utils / NAME).read_text() == GPU


def test_a_directory_that_others_write_is_left(node: ShellNode) -> None:
    node.utils.chmod(0o777)
    assert "others may write" in apply(node, BETTER)["reason"]
    node.utils.chmod(0o755)
    assert apply(node, BETTER)["outcome"] == "replaced"


def test_one_rollout_at_a_time(node: ShellNode) -> None:
    held = sandbox.lock(hotfix.lock_name(hotfix.decoded(node.request("status"))))
    assert held is not None
    with held:
        assert "another rollout is at work" in apply(node, BETTER)["reason"]
        assert "another rollout is at work" in restart(node)["reason"]
        assert not answer(node, "rollback", rollout="r1")["complete"]
    assert apply(node, BETTER)["outcome"] == "replaced"
    second = apply(node, GPU, rollout="r2")
    assert "r1 has not ended here" in second["reason"]
    assert answer(node, "inspect")["unfinished"] == ["r1"]
    answer(node, "close", rollout="r1", who="me", outcome="verified")
    assert apply(node, GPU, rollout="r2")["outcome"] == "replaced"


# ---- restart


def test_the_exporter_is_replaced_restarted_and_verified(node: ShellNode) -> None:
    before = answer(node, "inspect", names=[EXPORTER_NAME])
    done = apply(node, EXPORTER + "# better\n", EXPORTER_NAME)
    assert (done["outcome"], done["restart"]) == ("replaced", True)
    ended = restart(node)
    assert (ended["outcome"], ended["reason"], ended["port_free"]) == ("ended", "", True)
    assert [one["role"] for one in ended["ended"]] == ["exporter", "server"]
    seen = answer(
        node,
        "verify",
        name=EXPORTER_NAME,
        since=ended["at"],
        plugin_log_bytes=ended["plugin_log_bytes"],
        before=before["served"]["metrics"],
        restarted=ended,
        limit_s=90.0,
    )
    assert (seen["healthy"], seen["reason"], seen["restarts"]) == (True, "", 1)
    assert seen["exporter"]["pid"] != before["exporter"]["pid"]
    assert "exited with code 137, restart #1\n" in node.log.read_text()
    assert node.serves()
    assert answer(node, "status")["rollouts"][0]["restarts"] == 1


def test_a_server_that_was_orphaned_before_is_taken_along(node: ShellNode) -> None:
    """Somebody ended the exporter alone: the new one has no server, the old server goes on."""
    first = answer(node, "inspect")
    os.kill(first["exporter"]["pid"], signal.SIGKILL)
    wait_until(
        lambda: (
            [one["role"] for one in answer(node, "inspect")["ends_on_restart"]]
            == ["exporter", "orphan"]
        ),
        "the orphan",
    )
    ended = restart(node)
    assert (ended["outcome"], ended["reason"]) == ("ended", "")
    roles = [one["role"] for one in ended["ended"]]
    assert (roles[0], roles[-1]) == ("exporter", "orphan")
    assert ended["ended"][-1]["pid"] == first["ends_on_restart"][1]["pid"]
    seen = answer(
        node, "verify", name=EXPORTER_NAME, since=ended["at"], restarted=ended, limit_s=90.0
    )
    assert (seen["healthy"], seen["reason"], seen["restarts"]) == (True, "", 2)
    found = answer(node, "inspect")
    assert [one["role"] for one in found["ends_on_restart"]] == ["exporter", "server"]


@pytest.mark.parametrize(("used", "allowed"), [(45, True), (46, False), (49, False)])
def test_a_watchdog_near_its_limit_is_spared(tmp_path: Path, used: int, allowed: bool) -> None:
    with ShellNode(tmp_path, restarts=used) as node:
        before = answer(node, "inspect")
        assert before["watchdog"]["left"] == 50 - used
        done = restart(node)
        if allowed:
            assert (done["outcome"], done["restarts"]) == ("ended", 45)
            return
        assert done["outcome"] == "refused"
        assert f"{50 - used} of 50 restarts left" in done["reason"]
        assert before["refuse_restart"] == [done["reason"]]
        assert start_ticks(before["exporter"]["pid"]) == before["exporter"]["start_ticks"]
        assert node.trouble() == []


def test_another_exporter_than_the_planned_one_is_spared(node: ShellNode) -> None:
    one = answer(node, "inspect")["exporter"]
    for pid, ticks in [(one["pid"], one["start_ticks"] - 1), (node.pid, one["start_ticks"])]:
        done = answer(node, "restart", rollout="r1", who="me", pid=pid, start_ticks=ticks)
        assert done["outcome"] == "refused"
        assert "not the exporter that was planned" in done["reason"]
    assert start_ticks(one["pid"]) == one["start_ticks"]


def test_without_a_record_nothing_is_ended(node: ShellNode) -> None:
    one = answer(node, "inspect")["exporter"]
    node.journal.chmod(0o777)
    done = restart(node)
    assert done["outcome"] == "refused"
    assert "others may write" in done["reason"]
    assert start_ticks(one["pid"]) == one["start_ticks"]


def test_a_port_that_somebody_else_has_is_said_before_anything_is_ended(tmp_path: Path) -> None:
    with ShellNode(tmp_path) as node:
        server = answer(node, "inspect")["ends_on_restart"][1]["pid"]
        os.kill(server, signal.SIGKILL)
        wait_until(lambda: start_ticks(server) is None, "the server's end")
        other = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(node.port)]
        stranger = subprocess.Popen(other, cwd=tmp_path, stderr=subprocess.DEVNULL)
        try:
            wait_until(lambda: node.page() != b"", "the stranger")
            done = restart(node)
            assert done["outcome"] == "refused"
            assert "belongs to another process" in done["reason"]
            assert stranger.poll() is None
        finally:
            stranger.kill()
            stranger.wait()
        assert node.trouble() == []


def test_a_port_that_somebody_takes_meanwhile_is_noticed(tmp_path: Path) -> None:
    with ShellNode(tmp_path, pause_s=2.0) as node:
        ended = restart(node)
        assert (ended["outcome"], ended["port_free"]) == ("ended", True)
        with socket.socket() as stranger:
            stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            stranger.bind(("127.0.0.1", node.port))
            stranger.listen()
            seen = answer(
                node, "verify", name=EXPORTER_NAME, since=ended["at"], restarted=ended, limit_s=90.0
            )
        assert not seen["healthy"]
        assert seen["reason"] == f"the new exporter's server found port {node.port} taken"
        assert node.trouble() == []


# ---- raydiag's own exporter

OWN = """
import os, sys, time
place = sys.argv[-1]
log = open(place + "/log", "a")
os.dup2(log.fileno(), 1)
number = 0
while True:
    child = os.fork()
    if child == 0:
        with open("/proc/self/stat") as file:
            ticks = file.read().rpartition(")")[2].split()[19]
        with open(place + "/new", "w") as file:
            file.write(f"{os.getpid()} {ticks}")
        os.rename(place + "/new", place + "/pid")
        time.sleep(600)
    _, status = os.waitpid(child, 0)
    number += 1
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    said = f"exited with code {128 + os.WTERMSIG(status)}, restart #{number}"
    log.write(f"[{stamp}] [Metrics Exporter] Watchdog: {said}\\n")
    log.flush()
"""


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Callable[..., dict[str, Any]]]:
    """A stand-in for raydiag's exporter with its supervisor: requests about it."""
    (tmp_path / "raydiag").mkdir()
    (tmp_path / "raydiag" / "__init__.py").touch()
    (tmp_path / "raydiag" / "__main__.py").write_text(OWN)
    (tmp_path / "plugins").mkdir()
    argv = [sys.executable, "-m", "raydiag", "exporter", "run", "--supervise"]
    argv += ["--plugins", "plugins", str(tmp_path)]
    one = subprocess.Popen(argv, cwd=tmp_path, start_new_session=True)
    request = {"exporter": "raydiag", "port": free_port(), "pid_file": str(tmp_path / "pid")}
    request["journal"] = str(tmp_path / "journal")
    try:
        wait_until((tmp_path / "pid").exists, "the stand-in")
        yield lambda operation, **more: hotfix.answer({"operation": operation, **request, **more})
    finally:
        os.killpg(one.pid, signal.SIGKILL)
        one.wait(10)


def test_our_own_exporter_is_ended_and_its_supervisor_is_not(
    own: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    found = own("inspect", names=["disks.py"])
    assert found["directory"]["real_path"] == str((tmp_path / "plugins").resolve())
    assert found["refuse_restart"] == []
    one = found["exporter"]
    supervisor = int(Path(f"/proc/{one['pid']}/stat").read_text().split()[3])
    done = own("restart", rollout="r1", who="me", pid=one["pid"], start_ticks=one["start_ticks"])
    assert (done["outcome"], len(done["ended"])) == ("ended", 1)
    wait_until(lambda: own("inspect")["exporter"] not in (None, one), "the new one")
    assert start_ticks(supervisor) is not None
    assert own("inspect")["watchdog"]["restarts"] == 1


def test_a_pid_file_that_means_another_process_ends_nothing(
    own: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    pid, ticks = (tmp_path / "pid").read_text().split()
    for text, words in [
        (f"{pid} {int(ticks) + 1}", "another process"),
        (f"{os.getpid()}", "younger|no exporter of ours"),
        ("", "names no process"),
        ("\xff", "names no process"),
        ("-1", "names no process"),
        ("99999999999", "names no process"),
    ]:
        (tmp_path / "pid").write_text(text, encoding="latin-1")
        found = own("inspect")
        assert found["exporter"] is None
        assert re.search(words, found["refuse_restart"][0])
    assert start_ticks(int(pid)) == int(ticks)


# ---- requests, and how they travel


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ({}, "unknown operation"),
        ({"operation": "shoot"}, "unknown operation"),
        ({"operation": "inspect", "color": 1}, "unknown field"),
        ({"operation": "inspect", "port": "9400"}, "port: '9400' is not a 64-bit integer"),
        ({"operation": "inspect", "port": True}, "port: True is not a 64-bit integer"),
        ({"operation": "inspect", "names": [1]}, "names: [1] is not of type str"),
        ({"operation": "inspect", "exporter": "node"}, "unknown exporter"),
        ({"operation": "apply", "rollout": "../x"}, "not the name of a rollout"),
        ({"operation": "apply", "rollout": ""}, "not the name of a rollout"),
        ({"operation": "apply", "rollout": "r", "content": "%"}, "not base64"),
        ({"operation": "status", "rollout": "../x"}, "not the name of a rollout"),
        ([], "not an object"),
        (None, "not an object"),
    ],
)
def test_a_request_that_makes_no_sense_is_one_line(request_: Any, words: str) -> None:
    said = hotfix.answer(request_)
    assert list(said) == ["error"]
    assert words in said["error"]
    assert "\n" not in said["error"]


def test_what_only_looks_cannot_write_or_signal(tmp_path: Path, node: ShellNode) -> None:
    """The kernel refuses it in the reader that does the looking."""

    def serve(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
        attempts: tuple[Callable[[], object], ...] = (
            (tmp_path / "x").touch,
            lambda: os.rename(node.utils / NAME, node.utils / "x"),
            lambda: os.kill(node.pid, 0),
        )
        for attempt in attempts:
            try:
                attempt()
                yield {"done": True}
            except PermissionError:
                yield {"refused": True}

    reader = sandbox.Reader(serve, guarded_request.LOOKS_AS)
    reader.ask({}, sandbox.tag("test"), None)
    said: list[dict[str, Any]] = []

    def is_complete() -> bool:
        said.extend(reader.receive())
        return {"end": True} in said

    wait_until(is_complete, "the reader")
    reader.abandon()
    assert [one for one in said if "done" in one] == []
    assert said.count({"refused": True}) == 3


@pytest.mark.parametrize("python", [sys.executable, "python3.9"])
def test_it_runs_in_a_lean_interpreter(python: str, node: ShellNode) -> None:
    # Running it tells more than its name on PATH, which may be that of a version manager's shim.
    if not shutil.which(python) or subprocess.run([python, "-c", ""], check=False).returncode:
        pytest.skip(f"{python} is not installed here")
    package = Path(hotfix.__file__).parents[2]
    program = f"""
        import json, os, sys
        sys.path.insert(0, {str(package)!r})
        from raydiag.hotfix import node
        node.main(json.load(sys.stdin), 20.0, os.getppid())
    """
    done = subprocess.run(
        [python, "-I", "-S", "-c", textwrap.dedent(program)],
        input=json.dumps(node.request("inspect", names=[NAME])).encode(),
        capture_output=True,
        check=True,
        timeout=60,
    )
    length, _, body = done.stdout.partition(b"\n")
    assert len(body) == int(length)
    assert json.loads(zlib.decompress(body))["files"][0]["sha256"] == sha256(GPU.encode())
    assert done.stderr == b""


def test_all_of_it_is_python_3_9_and_standard_library() -> None:
    package = Path(hotfix.__file__).parents[1]
    waiting, done = ["hotfix.node"], set[str]()
    while waiting:
        name = waiting.pop()
        path = package / f"{name.replace('.', '/')}.py"
        if name in done or not path.exists():
            continue
        done.add(name)
        tree = ast.parse(path.read_text(), feature_version=(3, 9))
        for one in ast.walk(tree):
            if isinstance(one, ast.ImportFrom) and one.module:
                root, _, rest = one.module.partition(".")
                assert root in sys.stdlib_module_names or root == "raydiag"
                if root == "raydiag":
                    inside = [f"{rest}.{alias.name}".strip(".") for alias in one.names]
                    waiting += [rest, *inside]
            elif isinstance(one, ast.Import):
                roots = {alias.name.partition(".")[0] for alias in one.names}
                assert roots <= set(sys.stdlib_module_names) - {"tomllib"}
    assert {"hotfix.restart", "hotfix.journal", "sandbox", "probes.exporter"} <= done
