from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydiag.errors import Denied, ParseError
from raydiag.host import Host
from raydiag.model import Status, Unread
from raydiag.probes import d_state as module
from raydiag.probes.d_state import BlockedTask, d_state
from raydiag.procfs import split_stat

# A write-only setting: opening it for reading is refused to everybody, root included.
EACCES_FILE = "/proc/sys/vm/compact_memory"
SIGKILL, SIGTERM = "0000000000000100", "0000000000004000"


def add_task(
    directory: Path,
    state: str = "S",
    comm: str = "bash",
    *,
    start: int = 500,
    flags: int = 0x400000,
    ticks: int = 7,
    threads: int = 1,
    switches: int = 3,
    pending: tuple[str, str] = ("0", "0"),
    wchan: str = "0",
    stack: str = "",
) -> None:
    """Files of one task; written again, they are those of a later moment."""
    directory.mkdir(parents=True, exist_ok=True)
    tid = int(directory.name)
    (directory / "stat").write_text(
        f"{tid} ({comm}) {state} 1 {tid} {tid} 0 -1 {flags} 9 0 0 0 {ticks} 2 0 0 20 0 {threads} 0 "
        f"{start} 4096 100 18446744073709551615 0 0 0\n"
    )
    (directory / "status").write_text(
        f"Name:\t{comm}\nState:\t{state}\nSigPnd:\t{pending[0]}\nShdPnd:\t{pending[1]}\n"
        f"voluntary_ctxt_switches:\t{switches}\nnonvoluntary_ctxt_switches:\t1\n"
    )
    (directory / "wchan").write_text(wchan)
    (directory / "stack").write_text(stack)


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    add_task(tmp_path / "proc/1", comm="init")
    (tmp_path / "proc/sys").mkdir()
    return tmp_path / "proc"


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], object]]:
    """Called between the samples, in place of waiting."""
    calls: list[Callable[[], object]] = []
    monkeypatch.setattr("raydiag.probes.d_state.time.sleep", lambda _: [call() for call in calls])
    return calls


def read(proc: Path) -> tuple[list[BlockedTask], list[Unread]]:
    found = list(d_state(Host(str(proc.parent))))
    tasks = [item for item in found if isinstance(item, BlockedTask)]
    return tasks, [item for item in found if isinstance(item, Unread)]


STACK = (
    "[<0>] amdgpu_cper_ring_write+0x6a/0x2f0 [amdgpu]\n"
    "[<0>] aca_sysfs_read+0x1e/0x30 [amdgpu]\n"
    "[<ffffffffffffffff>] 0xffffffffffffffff\n"
)


def test_ok_a_task_that_stays_blocked(proc: Path, between: list[Callable[[], object]]) -> None:
    add_task(proc / "42", "D", "a) D 1 (b", wchan="amdgpu_cper_generate_ce_records", stack=STACK)
    assert read(proc) == (
        [
            BlockedTask(
                pid=42,
                start_ticks=500,
                comm="a) D 1 (b",
                state="D",
                kernel_thread=False,
                wchan="amdgpu_cper_generate_ce_records",
                stack=(
                    "amdgpu_cper_ring_write+0x6a/0x2f0 [amdgpu]",
                    "aca_sysfs_read+0x1e/0x30 [amdgpu]",
                ),
                persistent=True,
                sample_gap_s=1.0,
                kill_pending=False,
                raydiag_reader=False,
            )
        ],
        [],
    )


def test_no_data_without_blocked_tasks_is_an_empty_answer_at_once(
    proc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_task(proc / "2", "I", "kworker/0:1")
    add_task(proc / "3", "Z")
    add_task(proc / "4", "R")
    monkeypatch.setattr(
        "raydiag.probes.d_state.time.sleep", lambda _: pytest.fail("waited for nothing")
    )
    assert read(proc) == ([], [])


@pytest.mark.parametrize("change", [{"switches": 4}, {"ticks": 8}, {"state": "S"}])
def test_a_task_that_ran_in_between_is_not_persistent(
    proc: Path, between: list[Callable[[], object]], change: dict[str, object]
) -> None:
    add_task(proc / "42", "D", wchan="folio_wait_bit", stack=STACK)
    now = {"state": "D", "wchan": "folio_wait_bit", **change}
    between.append(lambda: add_task(proc / "42", **now))  # type: ignore[arg-type]
    ((task,), _) = read(proc)
    assert (task.persistent, task.wchan, task.stack) == (False, "folio_wait_bit", ())


def test_tasks_that_ended_in_between_are_left_out(
    proc: Path, between: list[Callable[[], object]]
) -> None:
    add_task(proc / "42", "D")
    add_task(proc / "43", "D")
    between.append(lambda: (proc / "42/stat").unlink())
    between.append(lambda: add_task(proc / "43", "D", start=900))
    assert read(proc) == ([], [])


@pytest.mark.parametrize("pending", [(SIGKILL, "0"), ("0", SIGKILL)])
def test_ok_a_running_task_that_does_not_take_a_kill(
    proc: Path, between: list[Callable[[], object]], pending: tuple[str, str]
) -> None:
    add_task(proc / "42", "R", pending=pending)
    add_task(proc / "43", "R", pending=pending)
    add_task(proc / "44", "R", pending=(SIGTERM, SIGTERM))
    # It runs all the time, so that its counters move; the other one takes its signal.
    between.append(lambda: add_task(proc / "42", "R", pending=pending, ticks=107, switches=30))
    between.append(lambda: add_task(proc / "43", "R"))
    tasks, _ = read(proc)
    assert [(x.pid, x.state, x.kill_pending, x.persistent) for x in tasks] == [
        (42, "R", True, True),
        (43, "R", True, False),
    ]


def test_a_killed_reader_of_raydiag_and_a_kernel_thread(
    proc: Path, between: list[Callable[[], object]]
) -> None:
    add_task(proc / "42", "D", "rd-0123456789ab", pending=(SIGKILL, "0"))
    add_task(proc / "43", "D", "rd-0123456789ax")
    add_task(proc / "44", "D", "kworker/u8:2", flags=0x4208060)
    tasks, _ = read(proc)
    assert [(x.raydiag_reader, x.kill_pending, x.kernel_thread) for x in tasks] == [
        (True, True, False),
        (False, False, False),
        (False, False, True),
    ]


@pytest.mark.parametrize("wchan", ["0", ""])
def test_a_hidden_wait_channel_is_taken_from_the_stack(
    proc: Path, between: list[Callable[[], object]], wchan: str
) -> None:
    add_task(proc / "42", "D", wchan=wchan, stack=STACK)
    add_task(proc / "43", "D", wchan=wchan)
    tasks, _ = read(proc)
    assert [task.wchan for task in tasks] == ["amdgpu_cper_ring_write", ""]


def test_denied_wait_channel_and_stack_are_unknown(
    proc: Path, between: list[Callable[[], object]]
) -> None:
    add_task(proc / "42", "D")
    for name in ("wchan", "stack", "status"):
        (proc / "42" / name).unlink()
        (proc / "42" / name).symlink_to(EACCES_FILE)
    add_task(proc / "43", "D", wchan="0")
    (proc / "43/stack").unlink()
    (proc / "43/stack").symlink_to(EACCES_FILE)
    tasks, unread = read(proc)
    assert [(task.wchan, task.stack, task.persistent) for task in tasks] == [("", (), True)] * 2
    reason = "wait channels of 2 tasks are hidden, the first: /proc/42/stack: Permission denied"
    assert unread == [Unread("/proc/<pid>/wchan", Status.DENIED, reason)]


def test_a_refused_stack_hides_nothing_where_the_wait_channel_is_known(
    proc: Path, between: list[Callable[[], object]]
) -> None:
    add_task(proc / "42", "D", wchan="io_schedule")
    add_task(proc / "43", "D", wchan="0")  # runs again: where it waited does not matter
    between.append(lambda: add_task(proc / "43", "S", wchan="0"))
    add_task(proc / "44", "D", wchan="0")  # not refused: this kernel has no stack file
    (proc / "44/stack").unlink()
    (proc / "42/stack").unlink()
    (proc / "42/stack").symlink_to(EACCES_FILE)
    assert read(proc)[1] == []


def test_threads_of_training_processes_are_looked_at(
    proc: Path, between: list[Callable[[], object]]
) -> None:
    for pid, comm in ((10, "ray::Trainer"), (20, "python3.11"), (30, "pt_main_thread"), (40, "sh")):
        add_task(proc / str(pid), "S", comm, threads=2)
        add_task(proc / f"{pid}/task/{pid}", "S", comm, threads=2)
        add_task(proc / f"{pid}/task/{pid + 1}", "D", "loader", threads=2)
    tasks, _ = read(proc)
    assert [(task.pid, task.comm) for task in tasks] == [(n, "loader") for n in (11, 21, 31)]


def test_persistent_tasks_come_first_and_their_number_is_bounded(
    proc: Path, between: list[Callable[[], object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_RECORDS", 2)
    for pid in (10, 11, 12, 13):
        add_task(proc / str(pid), "D")
    between.append(lambda: add_task(proc / "10", "S"))
    between.append(lambda: add_task(proc / "12", "S"))
    tasks, unread = read(proc)
    assert [(task.pid, task.persistent) for task in tasks] == [(11, True), (13, True)]
    assert unread == [Unread("/proc", Status.ERROR, "2 more blocked tasks are not listed")]


def test_the_number_of_tasks_looked_at_is_bounded(
    proc: Path, between: list[Callable[[], object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_TASKS", 3)
    for pid in (10, 11, 12, 13):
        add_task(proc / str(pid), "D")
    tasks, (left_out,) = read(proc)
    assert [task.pid for task in tasks] == [10, 11]
    assert left_out.reason == "2 tasks were not looked at, the limit is 3"


def test_denied_when_proc_cannot_be_listed(tmp_path: Path) -> None:
    with pytest.raises(Denied, match="blocked tasks were not looked for"):
        read(tmp_path / "proc")


def test_denied_processes_are_reported_together(
    proc: Path, between: list[Callable[[], object]]
) -> None:
    for pid in ("50", "51"):
        (proc / pid).mkdir()
        (proc / pid / "stat").symlink_to(EACCES_FILE)
    add_task(proc / "60", "D")
    tasks, unread = read(proc)
    assert [task.pid for task in tasks] == [60]
    assert unread == [
        Unread(
            "/proc/<pid>/stat",
            Status.DENIED,
            "2 tasks, the first: /proc/50/stat: Permission denied",
        )
    ]


def test_malformed_stat_is_reported_and_costs_no_other_task(
    proc: Path, between: list[Callable[[], object]]
) -> None:
    add_task(proc / "50")
    (proc / "50/stat").write_text("50 (sh")
    add_task(proc / "60", "D")
    (proc / "60/status").write_text("SigPnd:\tnone\nvoluntary_ctxt_switches:\n\0\xff")
    tasks, (broken,) = read(proc)
    assert [(task.pid, task.kill_pending, task.persistent) for task in tasks] == [(60, False, True)]
    assert (broken.status, broken.source) == (Status.ERROR, "/proc/<pid>/stat")


NAMES = st.text(st.characters(blacklist_categories=["Cs"]), max_size=15)


@given(NAMES, st.lists(st.integers(-(2**63), 2**64), min_size=21, max_size=50))
def test_a_name_may_hold_anything(name: str, numbers: list[int]) -> None:
    values = ["D", *map(str, numbers)]
    assert split_stat(f"7 ({name}) {' '.join(values)}", "stat") == (name, values)


@given(st.text())
def test_other_text_is_no_stat_file(text: str) -> None:
    try:
        _, values = split_stat(text, "stat")
    except ParseError:
        return
    assert [int(value) for value in values[1:22]]


# The parent of a vfork() is in state D until its child ends. The child asks to be killed with its
# parent, so that killing the parent ends both.
VFORK = """
import ctypes
libc = ctypes.PyDLL(None)
def block():
    if libc.vfork() == 0:
        libc.prctl(1, 9, 0, 0, 0)
        libc.alarm(120)
        libc.pause()
        libc._exit(0)
"""
IN_THREAD = "import threading; t = threading.Thread(target=block); t.start(); t.join()"


@contextlib.contextmanager
def blocked_process(code: str) -> Iterator[int]:
    """A process with a task in state D; yields the id of that task."""
    process = subprocess.Popen([sys.executable, "-I", "-S", "-c", VFORK + code])
    try:
        for _ in range(1200):
            for task in os.listdir(f"/proc/{process.pid}/task"):
                stat = Path(f"/proc/{process.pid}/task/{task}/stat").read_text()
                if stat.rpartition(")")[2].split()[0] == "D":
                    time.sleep(0.05)  # not the short D of start-up
                    if stat == Path(f"/proc/{process.pid}/task/{task}/stat").read_text():
                        yield int(task)
                        return
            time.sleep(0.05)
        pytest.skip("a parent in vfork() is not in state D here")
    finally:
        process.kill()
        process.wait(60)


@pytest.mark.parametrize("code", ["block()", IN_THREAD], ids=["process", "thread"])
def test_real_blocked_task(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SAMPLE_GAP_S", 0.2)
    with blocked_process(code) as tid:
        found = [x for x in d_state(Host()) if isinstance(x, BlockedTask) and x.pid == tid]
    (task,) = found
    assert (task.state, task.persistent, task.sample_gap_s) == ("D", True, 0.2)
    assert not task.kernel_thread
    assert not task.kill_pending
    if os.geteuid() == 0:
        assert task.wchan
        assert any("vfork" in frame for frame in task.stack)
