from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydiag.errors import Denied, NoData, ParseError
from raydiag.host import Host
from raydiag.model import Status, Unread
from raydiag.probes import COMMANDS, defaults, load, stacks
from raydiag.probes.processes import RayProcess
from raydiag.probes.stacks import ThreadStack, parse_dump

PROCESS = RayProcess(
    pid=21,
    ppid=20,
    start_time_s=1.0,
    comm="python3",
    command="python3 train.py",
    role="child",
    worker_pid=20,
    state="S",
    threads=2,
    rss_bytes=1,
    environment={},
)
# A write-only setting: opening it for reading is refused to everybody, root included.
EACCES_FILE = "/proc/sys/vm/compact_memory"


def thread(name: str = "MainThread", number: int | None = 21, **changed: Any) -> dict[str, Any]:
    frames = [frame("all_reduce", "dist.py", 12), frame("<module>", "train.py", 3)]
    return {
        "pid": 21,
        "thread_id": 140186132534976,
        "thread_name": name,
        "os_thread_id": number,
        "active": False,
        "owns_gil": False,
        "frames": frames,
        **changed,
    }


def frame(name: str, place: str, line: int) -> dict[str, Any]:
    return {"name": name, "short_filename": place, "filename": f"/long/{place}", "line": line}


class Node:
    """A fake /proc, and a py-spy that writes down how it was called and says what `say` set."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "proc").mkdir()
        (root / "bin").mkdir()
        (root / "proc/stat").write_text("btime 1760000000\n")
        self.add(1, 0, "init", "/sbin/init")
        self.add(10, 1, "raylet", "/opt/ray/raylet\0")
        self.say(json.dumps([thread()]))

    def add(
        self, pid: int, ppid: int, comm: str, command: str, state: str = "S", exe: str = "python3"
    ) -> None:
        directory = self.root / f"proc/{pid}"
        directory.mkdir()
        (directory / "stat").write_text(
            f"{pid} ({comm}) {state} {ppid} 1 1 0 -1 0 0 0 0 0 5 5 0 0 20 0 12 0 300 8192 25 0 0\n"
        )
        (directory / "cmdline").write_text(command)
        (directory / "environ").write_text("A=1\0")
        (directory / "exe").symlink_to(f"/usr/bin/{exe}")

    def say(self, out: str = "", err: str = "", code: int = 0, before: str = "") -> None:
        (self.root / "out").write_text(out)
        (self.root / "err").write_text(err)
        program = self.root / "bin/py-spy"
        program.write_text(
            f'#!/bin/sh\necho "$@" >>{self.root}/calls\n{before}\n'
            f"cat {self.root}/out; cat {self.root}/err >&2\nexit {code}\n"
        )
        program.chmod(0o755)

    def calls(self) -> list[str]:
        log = self.root / "calls"
        return log.read_text().splitlines() if log.exists() else []

    def looked_at(self) -> list[int]:
        return [int(call.rsplit(" ", 1)[-1]) for call in self.calls()]

    def read(self) -> tuple[list[ThreadStack], list[Unread]]:
        found = list(stacks.stacks(Host(str(self.root))))
        records = [item for item in found if isinstance(item, ThreadStack)]
        return records, [item for item in found if isinstance(item, Unread)]


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    monkeypatch.setenv("PATH", f"{tmp_path}/bin{os.pathsep}{os.environ['PATH']}")
    return Node(tmp_path)


@pytest.fixture
def busy_node(node: Node) -> Node:
    """A worker with a training child."""
    node.add(20, 10, "ray::Trainer", "ray::Trainer.step\0")
    node.add(21, 20, "python3", "python3\0train.py\0")
    return node


def test_runs_only_when_asked_for() -> None:
    probe = load("stacks")
    assert probe.reader == COMMANDS
    assert "stacks" not in defaults()
    assert "stacks" not in defaults()


def test_ok_workers_before_their_children(busy_node: Node) -> None:
    busy_node.add(15, 21, "python3", "python3\0-c\0loader\0")
    records, unread = busy_node.read()
    assert unread == []
    assert [(record.pid, record.worker_pid, record.role) for record in records] == [
        (20, 20, "worker"),
        (21, 20, "child"),
        (15, 20, "child"),
    ]
    assert records[1] == ThreadStack(
        pid=21,
        worker_pid=20,
        role="child",
        command="python3 train.py",
        thread_id=21,
        thread="MainThread",
        main=True,
        active=False,
        owns_gil=False,
        frames=("all_reduce (dist.py:12)", "<module> (train.py:3)"),
        frames_left_out=0,
    )


def test_processes_are_never_paused(busy_node: Node) -> None:
    busy_node.read()
    assert busy_node.calls() == [f"dump --nonblocking --json --pid {pid}" for pid in (20, 21)]
    tree = ast.parse(Path(stacks.__file__).read_text())
    starts = [ast.unparse(x) for x in ast.walk(tree) if isinstance(x, ast.Call)]
    assert [x for x in starts if x.startswith("run_command")] == [
        "run_command(command, _ONE_PROCESS_S, _DUMP_LIMIT_BYTES)"
    ]


@pytest.mark.parametrize("state", ["D", "Z", "X"])
def test_state_in_which_nothing_is_touched(busy_node: Node, state: str) -> None:
    busy_node.add(22, 20, "python3", "", state=state)
    _, unread = busy_node.read()
    assert busy_node.looked_at() == [20, 21]
    reason = "no stack: it is in state D, where reading its memory could block"
    told = [Unread("/proc/22", Status.DENIED, reason)] if state == "D" else []
    assert unread == told


def test_idle_workers_and_other_programs_are_passed_over(busy_node: Node) -> None:
    busy_node.add(30, 10, "ray::IDLE", "ray::IDLE\0")
    busy_node.add(31, 30, "python3", "python3\0left_over.py\0")
    busy_node.add(32, 20, "bash", "bash\0", exe="bash")
    busy_node.add(33, 20, "python3", "python3\0")
    (busy_node.root / "proc/33/exe").unlink()  # it has ended
    assert busy_node.read()[1] == []
    assert busy_node.looked_at() == [20, 21]


def test_number_of_processes_is_bounded(busy_node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "MOST_PROCESSES", 2)
    busy_node.add(22, 21, "python3", "python3\0")
    busy_node.add(23, 21, "python3", "python3\0")
    records, (unread,) = busy_node.read()
    assert [record.pid for record in records] == [20, 21]
    reason = "2 processes were not looked at, the limit is used up: pid 22, 23"
    assert unread == Unread("py-spy", Status.TIMEOUT, reason)


def test_size_and_time_are_bounded(busy_node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "MOST_BYTES", 10)
    assert "what a report takes is used up: pid 21" in busy_node.read()[1][0].reason
    monkeypatch.setattr(stacks, "_BUDGET_S", -1.0)
    records, (unread,) = busy_node.read()
    assert records == []
    assert "2 processes were not looked at, the time is used up: pid 20, 21" in unread.reason


def test_py_spy_that_hangs_costs_its_own_process_only(
    busy_node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacks, "_ONE_PROCESS_S", 0.3)
    busy_node.say(json.dumps([thread()]), before='case "$*" in *20) exec sleep 60;; esac')
    records, (unread,) = busy_node.read()
    assert [record.pid for record in records] == [21]
    assert (unread.source, unread.status) == ("/proc/20", Status.ERROR)
    assert "no answer in time" in unread.reason


def test_no_data_without_py_spy(busy_node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(NoData, match="pip install py-spy"):
        busy_node.read()


def test_py_spy_beside_the_python_that_runs_ray(
    busy_node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = busy_node.root / "bin/py-spy"
    program.write_text(program.read_text().replace("cat ", "/bin/cat "))
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(sys, "executable", f"{busy_node.root}/bin/python")
    assert [record.pid for record in busy_node.read()[0]] == [20, 21]


def test_no_data_without_work(node: Node) -> None:
    with pytest.raises(NoData, match="no worker of a job runs here"):
        node.read()


def test_no_data_of_a_process_that_ended_is_no_gap(busy_node: Node) -> None:
    busy_node.say(err="Error: gone", code=1, before=f"rm -f {busy_node.root}/proc/2*/stat")
    assert busy_node.read() == ([], [])


def test_denied_when_processes_are_hidden(node: Node) -> None:
    shutil.rmtree(node.root / "proc/10")
    (node.root / "proc/30").mkdir()
    (node.root / "proc/30/stat").symlink_to(EACCES_FILE)
    with pytest.raises(Denied, match="no Ray process is visible"):
        node.read()


def test_denied_by_the_kernel_says_what_py_spy_said(busy_node: Node) -> None:
    error = (
        "Error: Failed to open it.\n\nCaused by:\n    0: Permission denied (os error 13)\n\n"
        "Stack backtrace:\n   0: main\n"
    )
    busy_node.say(err=error, code=1)
    records, unread = busy_node.read()
    assert records == []
    reason = "no stack: py-spy: Error: Failed to open it. 0: Permission denied (os error 13)"
    assert unread == [Unread(f"/proc/{pid}", Status.DENIED, reason) for pid in (20, 21)]


def test_malformed_answers_are_gaps(busy_node: Node) -> None:
    busy_node.say("Process 20: no JSON")
    _, unread = busy_node.read()
    assert [item.status for item in unread] == [Status.ERROR, Status.ERROR]
    assert "not the JSON that it documents" in unread[0].reason
    busy_node.say(code=1)
    assert "py-spy: ended without an error message" in busy_node.read()[1][0].reason


@pytest.mark.parametrize(
    "text",
    ["", "{}", "null", "7", "[7]", "[{}]", '[{"frames": "abc"}]', '[{"frames": [{}]}]', "[" * 9999],
)
def test_malformed_dump(text: str) -> None:
    if text == "{}":
        assert parse_dump(text.encode(), PROCESS) == []
        return
    with pytest.raises(ParseError, match="py-spy: not the JSON"):
        parse_dump(text.encode(), PROCESS)


def test_threads_are_in_order_and_deep_ones_are_cut() -> None:
    deep = thread("loader", 30, active=True, frames=[frame("f", "a.py", n) for n in range(250)])
    unknown = thread("", None, owns_gil=True, frames=[])
    found = parse_dump(json.dumps([deep, unknown, thread()]).encode(), PROCESS)
    assert [(x.thread, x.main, x.thread_id) for x in found] == [
        ("MainThread", True, 21),
        ("", False, None),
        ("loader", False, 30),
    ]
    assert (len(found[2].frames), found[2].frames_left_out) == (200, 50)
    assert (found[2].active, found[1].owns_gil) == (True, True)
    assert found[2].frames[0] == "f (a.py:0)"


@given(st.recursive(st.none() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(
    st.sampled_from(["frames", "name", "line", "active", "owns_gil", "os_thread_id"]), x
)))  # fmt: skip
def test_any_json_gives_stacks_or_a_parse_error(value: Any) -> None:
    try:
        found = parse_dump(json.dumps([value]).encode(), PROCESS)
    except ParseError:
        return
    assert all(isinstance(item, ThreadStack) for item in found)


@pytest.fixture
def trainer(tmp_path: Path) -> Iterator[int]:
    """A process that calls itself a Ray worker; its child trains. Gives the child's pid."""
    script = tmp_path / "train.py"
    script.write_text(
        "import threading, time\n"
        "def all_reduce():\n    time.sleep(600)\n"
        "def load():\n    time.sleep(600)\n"
        "threading.Thread(target=load, name='load \"1\"', daemon=True).start()\n"
        "print(flush=True)\n"
        "all_reduce()\n"
    )
    code = (
        "import ctypes, subprocess, sys\n"
        "ctypes.CDLL(None).prctl(15, b'ray::Pretender', 0, 0, 0)\n"
        f"child = subprocess.Popen([sys.executable, {str(script)!r}], stdout=subprocess.PIPE)\n"
        "child.stdout.readline()\n"
        "print(child.pid, flush=True)\n"
        "sys.stdin.read()\n"
        "child.kill(); child.wait()\n"
    )
    worker = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert worker.stdout is not None
    yield int(worker.stdout.readline())
    worker.communicate("", timeout=60)


def test_real_py_spy_on_a_real_process(trainer: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "_ONE_PROCESS_S", 60.0)  # of a busy machine
    monkeypatch.setattr(stacks, "_BUDGET_S", 60.0)
    try:
        stacks._py_spy()
    except NoData as error:
        pytest.skip(f"ray[default] should have brought it: {error}")
    names: list[str] = []
    end = time.monotonic() + 60
    while names != ["all_reduce", "load"] and time.monotonic() < end:  # until both sleep
        found = [item for item in stacks.stacks(Host()) if isinstance(item, ThreadStack)]
        of_trainer = [item for item in found if item.pid == trainer]
        names = ["".join(item.frames[:1]).partition(" ")[0] for item in of_trainer]
    main, load = of_trainer
    assert (main.thread, main.main, main.thread_id) == ("MainThread", True, trainer)
    assert main.frames == ("all_reduce (train.py:3)", "<module> (train.py:8)")
    assert (load.thread, load.main, load.frames[0]) == ('load "1"', False, "load (train.py:5)")
    assert (load.role, load.active) == ("child", False)
    assert load.worker_pid in {item.pid for item in found if item.role == "worker"}
    status = Path(f"/proc/{trainer}/status").read_text()
    assert "TracerPid:\t0\n" in status
    assert "State:\tS" in status
