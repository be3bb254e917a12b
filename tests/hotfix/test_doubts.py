"""A node where something is odd: what a hotfix does not touch there, and does not call well."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raydiag.hotfix import discovery
from raydiag.hotfix import node as hotfix
from raydiag.hotfix.journal import sha256
from raydiag.hotfix.messages import NodeRequest
from tests.hotfix.test_process import running, script
from tests.hotfix.training_tree import start_ticks
from tests.hotfix.watchdog import EXPORTER, GPU, ShellNode, free_port, wait_until

pytestmark = pytest.mark.slow

NAME, SCRIPT = "gpu_metrics_plugin.sh", "metrics_exporter.sh"
PACKAGE = Path(hotfix.__file__).parents[2]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ShellNode]:
    with ShellNode(tmp_path) as one:
        yield one
        assert one.trouble() == []


def answer(node: ShellNode, operation: str, **fields: object) -> dict[str, Any]:
    return hotfix.answer(node.request(operation, **fields))


def apply(node: ShellNode, name: str, text: str, **fields: object) -> dict[str, Any]:
    given = {"old_sha256": sha256((node.utils / name).read_bytes()), **fields}
    content = base64.b64encode(text.encode()).decode()
    return answer(node, "apply", name=name, content=content, rollout="r1", who="me", **given)


def verify(node: ShellNode, name: str, done: dict[str, Any], **fields: object) -> dict[str, Any]:
    given = {"limit_s": 15.0, **fields}
    log_bytes = done["plugin_log_bytes"]
    return answer(node, "verify", name=name, since=done["at"], plugin_log_bytes=log_bytes, **given)


# ---- what is not called well


def test_a_new_exporter_that_ends_after_each_cycle_is_not_well(node: ShellNode) -> None:
    """Every one that the watchdog starts hands out one good page, and values that move."""
    text = EXPORTER.replace('"$port" &\n', '"$port" & server=$!\n')
    text = text.replace(
        "    cycle\n", "    cycle; sleep .5; cycle; sleep .5; kill $server; exit 1\n"
    )
    before = answer(node, "inspect")
    assert apply(node, SCRIPT, text)["outcome"] == "replaced"
    one = before["exporter"]
    ended = answer(
        node, "restart", rollout="r1", who="me", pid=one["pid"], start_ticks=one["start_ticks"]
    )
    assert ended["outcome"] == "ended"
    served = before["served"]["metrics"]
    seen = verify(node, SCRIPT, ended, before=served, restarted=ended)
    assert not seen["healthy"]
    assert "ended again" in seen["reason"]


def test_an_exporter_that_ends_while_it_is_watched_is_not_well(node: ShellNode) -> None:
    before = answer(node, "inspect")
    done = apply(node, NAME, GPU.replace("700", "800"))
    pid = before["exporter"]["pid"]
    killer = threading.Timer(0.3, os.kill, (pid, signal.SIGKILL))
    killer.start()
    seen = verify(node, NAME, done, before=before["served"]["metrics"])
    killer.join()
    assert not seen["healthy"]
    assert "ended again" in seen["reason"]


def test_metrics_that_a_new_exporter_lost_are_told(node: ShellNode) -> None:
    before = answer(node, "inspect")
    text = EXPORTER.replace("cycle() {", "cycle() {\n    skipped[tb_metrics_plugin]=1")
    assert apply(node, SCRIPT, text)["outcome"] == "replaced"
    one = before["exporter"]
    planned = {"pid": one["pid"], "start_ticks": one["start_ticks"]}
    ended = answer(node, "restart", rollout="r1", who="me", **planned)
    seen = verify(node, SCRIPT, ended, before=before["served"]["metrics"], restarted=ended)
    assert (seen["healthy"], seen["notes"]) == (True, ["not served any more: tb_learning_loss"])


# ---- who is not ended

OTHER_NUMBERS = """
import json, os, sys, time
from raydiag.hotfix import discovery, process
from raydiag.hotfix.messages import NodeRequest
pid, metrics_file, port = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
with open("/proc/sys/kernel/ns_last_pid", "w") as file:
    file.write(str(pid - 1))
trainer = os.fork()
if trainer == 0:
    time.sleep(60)
    os._exit(0)
seen = process.see(pid)
one = process.ProcessInfo(pid, seen.start_ticks, process.arguments(seen), "exporter")
said = {"same": trainer == pid, "doubt": ""}
try:
    process.end(process.Aim(one, metrics_file, port))
except process.Doubt as doubt:
    said["doubt"] = str(doubt)
time.sleep(0.3)
said["lives"] = os.waitpid(trainer, os.WNOHANG) == (0, 0)
said["found"] = discovery.find(NodeRequest(port=port, metrics_file=metrics_file)).doubts
print(json.dumps(said))
"""


def test_a_proc_of_another_pid_namespace_ends_nobody(node: ShellNode, tmp_path: Path) -> None:
    """The exporter's number there is a trainer's here: a container that was given its host's."""
    if os.geteuid() != 0:
        pytest.skip("a PID namespace needs root")
    exporter = answer(node, "inspect")["exporter"]
    program = tmp_path / "inside.py"
    program.write_text(OTHER_NUMBERS)
    words = [str(program), str(exporter["pid"]), str(node.metrics_file), str(node.port)]
    done = subprocess.run(
        ["unshare", "--pid", "--fork", sys.executable, *words],
        env={**os.environ, "PYTHONPATH": str(PACKAGE)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    said = json.loads(done.stdout)
    assert said["same"]
    assert said["lives"]
    assert "PID namespace" in said["doubt"]
    assert "PID namespace" in said["found"][0]
    assert start_ticks(exporter["pid"]) == exporter["start_ticks"]


def test_the_exporter_of_another_port_is_known_by_its_server(tmp_path: Path) -> None:
    """Two nodes on one machine, whose exporters have their ports from the environment."""
    port, ready, page = free_port(), tmp_path / "ready", tmp_path / "page"
    server = f"{sys.executable} -c 'import time; time.sleep(600)' {page} {port}"
    inner = "( while :; do sleep 600; done ) &"
    path = script(tmp_path, f"{server} &\n{inner}\ntouch {ready}; while :; do sleep 600; done\n")
    with running(["bash", str(path)], ready) as pid:
        request = NodeRequest(port=port, metrics_file=str(page))
        wait_until(lambda: discovery.find(request).server, "the server")
        mine = discovery.find(request).exporter
        assert mine is not None
        assert mine.pid == pid
        other = discovery.find(NodeRequest(port=free_port(), metrics_file=str(page)))
        assert (other.exporter, other.doubts) == (None, ("no exporter runs here",))


def test_a_watchdog_whose_last_line_lies_far_back_is_counted(tmp_path: Path) -> None:
    said = b'127.0.0.1 - - [12/Feb/2026 19:58:10] "GET /metrics HTTP/1.1" 200 -\n'
    with ShellNode(tmp_path, restarts=49) as node:
        for more, left in ((6 << 20, 1), (64 << 20, None)):
            with node.log.open("ab") as log:
                log.write(said * (more // len(said)))
            found = answer(node, "inspect")
            assert found["watchdog"] == left or found["watchdog"]["left"] == left
            words = "1 of 50 restarts left" if left else "cannot be counted"
            assert words in found["refuse_restart"][0]
        assert node.trouble() == []


def test_a_shell_that_has_never_restarted_it_is_no_watchdog(tmp_path: Path) -> None:
    """The line is another one's, from before this shell was there."""
    ready, port, log = tmp_path / "ready", free_port(), tmp_path / "log"
    line = "[2026-02-12T19:58:10Z] [Metrics Exporter] Watchdog: exited with code 1, restart #1\n"
    log.write_text(line)
    path = script(tmp_path, f"touch {ready}; while :; do sleep 600; done\n")
    by_hand = f"bash {path} --port {port} >>{log}; true"
    with running(["bash", "-c", by_hand], ready):
        found = discovery.find(NodeRequest(port=port))
        assert found.exporter is not None
        assert "may be no watchdog" in found.doubts[0]


def test_an_exporter_without_server_is_known_while_slow_plugins_run(tmp_path: Path) -> None:
    """It waits for each of them in a subshell that shows its own arguments."""
    with ShellNode(tmp_path, pause_s=0.1, interval_s=0.3) as node:
        (node.utils / NAME).write_text(GPU + "sleep 0.8\n")
        pid = answer(node, "inspect")["exporter"]["pid"]
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: "restart #1" in node.log.read_text(), "the watchdog")
        time.sleep(1.0)
        one = answer(node, "inspect")["exporter"]
        planned = {"pid": one["pid"], "start_ticks": one["start_ticks"]}
        ended = answer(node, "restart", rollout="r1", who="me", **planned)
        assert (ended["outcome"], ended["reason"]) == ("ended", "")
        assert [one["role"] for one in ended["ended"]] == ["exporter", "orphan"]
        assert node.trouble() == []


# ---- what is not written


def test_files_that_the_exporter_does_not_see_are_left(tmp_path: Path) -> None:
    """It has a mount of its own over its directory; the name is the same, the files are not."""
    if os.geteuid() != 0:
        pytest.skip("a mount namespace needs root")
    command = ["unshare", "--mount", "bash"]
    with ShellNode(tmp_path, command=command) as node:
        given = {"directory": str(node.utils)}
        for more in ({}, given):
            found = answer(node, "inspect", names=[NAME], **more)
            assert "sees other files" in found["refuse_replace"][0]
            done = apply(node, NAME, GPU + "# new\n", **more)
            assert done["outcome"] == "refused"
            assert "sees other files" in done["reason"]
        assert (node.utils / NAME).read_text() == GPU
        assert node.trouble() == []


def test_no_other_directory_is_written_to_than_the_exporters(
    node: ShellNode, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / NAME).write_text(GPU)
    done = apply(node, NAME, GPU + "# new\n", directory=str(other))
    assert done["outcome"] == "refused"
    assert "runs from" in done["reason"]
    assert (other / NAME).read_text() == GPU


def test_a_directory_that_means_two_is_none(tmp_path: Path) -> None:
    """To the kernel `job/now/..` is where the link leads, to a shell's `cd` it is `job`."""
    real = tmp_path / "artifact" / "utils"
    (tmp_path / "artifact" / "bin").mkdir(parents=True)
    (tmp_path / "job" / "utils").mkdir(parents=True)
    (tmp_path / "job" / "now").symlink_to(tmp_path / "artifact" / "bin")
    real.mkdir()
    ready, port = tmp_path / "ready", free_port()
    (real / SCRIPT).write_text(f"touch {ready}; while :; do sleep 600; done\n")
    (tmp_path / "job" / "utils" / SCRIPT).write_text("old\n")
    argv = ["bash", f"{tmp_path}/job/now/../utils/{SCRIPT}", "--port", str(port)]
    with running(argv, ready):
        found = discovery.find(NodeRequest(port=port))
        assert found.exporter is not None
        assert found.directory is None
        assert "are not one directory" in found.elsewhere


def test_a_journal_whose_disk_is_full_takes_no_way_back(node: ShellNode) -> None:
    """The old content is there already; what cannot be kept leaves nothing that fills the disk."""
    if os.geteuid() != 0:
        pytest.skip("a full disk needs root, to mount a small one")
    mount = ["mount", "-t", "tmpfs", "-o", "size=48k,mode=700", "tmpfs", str(node.journal)]
    subprocess.run(mount, check=True)
    try:
        assert apply(node, NAME, GPU + "# new\n")["outcome"] == "replaced"
        for _ in range(3):
            done = apply(node, NAME, GPU + "# large\n" * 10000)
            assert "No space left" in done["reason"]
        with (node.journal / "filler").open("wb") as file:
            file.write(bytes(32 << 10))
        left = {path.name for path in node.journal.iterdir()} - {"lock"}
        assert len(left) == 4
        assert answer(node, "rollback", rollout="r1", who="me")["complete"]
        assert (node.utils / NAME).read_text() == GPU
    finally:
        subprocess.run(["umount", str(node.journal)], check=True)


# ---- dry runs


@pytest.mark.parametrize("starts", ["setsid sleep 600 &", "setsid sleep 600 >/dev/null 2>&1 &"])
def test_what_a_plugin_leaves_running_ends_and_is_said(
    node: ShellNode, tmp_path: Path, starts: str
) -> None:
    note = tmp_path / "pids"
    plugin = GPU + f"{starts}\nln -s $! {note}\nsleep 0.2\n"
    content = base64.b64encode(plugin.encode()).decode()
    found = answer(node, "check", name=NAME, content=content, limit_s=2.0)
    pid = int(os.readlink(note))
    try:
        assert not found["passed"]
        assert "left running" in found["reason"] or "no answer" in found["reason"]
        wait_until(lambda: start_ticks(pid) is None, "its end", 3.0)
    finally:
        if start_ticks(pid) is not None:
            os.kill(pid, signal.SIGKILL)
