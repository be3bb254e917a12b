"""Stacks in the reports: equal ones folded, the odd ones shown, what is missing said."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest

from raydiag.model import (
    Coverage,
    Diagnosis,
    Node,
    NodeReport,
    NodeStatus,
    ProbeResult,
    Snapshot,
    Status,
    Unread,
)
from raydiag.probes.stacks import ThreadStack
from raydiag.render.document import lines, probe_document
from raydiag.render.markdown import markdown_text
from raydiag.render.probe import probe_report
from raydiag.render.redact import redacted
from raydiag.render.report import Report
from raydiag.render.stacks import stack_groups, stacks_section
from raydiag.render.text import text as written

WAITING = ("all_reduce (dist.py:12)", "step (train.py:40)", "<module> (train.py:90)")
LOADING = ("read (loader.py:7)", "step (train.py:38)", "<module> (train.py:90)")
WELL = Diagnosis([], [], Coverage(2, 2))


def stack(pid: int, frames: Sequence[str] = WAITING, main: bool = True) -> ThreadStack:
    return ThreadStack(
        pid=pid,
        worker_pid=pid - 1,
        role="child",
        command=f"python3 train.py --rank={pid}",
        thread_id=pid if main else pid + 500,
        thread="MainThread" if main else "loader",
        main=main,
        active=False,
        owns_gil=False,
        frames=tuple(frames),
        frames_left_out=0,
    )


def node(number: int, *found: ThreadStack, **result: object) -> NodeReport:
    one = ProbeResult("stacks", Status.OK, records=found)
    return NodeReport(
        Node(str(number), f"node{number:02d}", f"10.0.0.{number}"),
        NodeStatus.OK,
        probes={"stacks": replace(one, **result)},  # type: ignore[arg-type]  # names of its fields
    )


def cluster() -> Snapshot:
    """Fifteen ranks wait for the sixteenth, which reads data."""
    first = [stack(pid) for pid in range(101, 109)]
    second = [*(stack(pid) for pid in range(201, 208)), stack(208, LOADING)]
    threads = [stack(pid, ["run (threading.py:9)"], main=False) for pid in range(101, 109)]
    return Snapshot([node(1, *first, *threads), node(2, *second)], 1.0)


def text(snapshot: Snapshot, verbose: bool = False, width: int = 100) -> str:
    return written(Report([stacks_section(snapshot, verbose)]), width).strip("\n")


def test_equal_stacks_are_one_group_and_the_odd_one_is_last_of_the_main_threads() -> None:
    assert text(cluster()).split("\n") == [
        "STACKS  16 processes on 2 nodes, main threads and tasks at 2 places",
        "  15 main threads on node[01-02], idle",
        "    all_reduce (dist.py:12)",
        "    step (train.py:40)",
        "    <module> (train.py:90)",
        "  1 main thread on node02, idle: node02 pid 208 (python3 train.py --rank=208)",
        "    read (loader.py:7)",
        "    step (train.py:38)",
        "    <module> (train.py:90)",
        "  8 threads 'loader' on node01, idle",
        "    run (threading.py:9)",
    ]


def test_a_task_in_a_thread_of_its_own_leads_as_main_threads_do() -> None:
    """A threaded actor's main thread only waits for work."""
    task = ["train (train.py:5)", "actor_method_executor (ray/_private/function_manager.py:740)"]
    waits = ["main_loop (ray/_private/worker.py:1069)"]
    serves = ["run (ray/_private/gc_collect_manager.py:29)"]
    of_one = [
        [stack(pid, waits), stack(pid, serves, main=False), stack(pid, task, main=False)]
        for pid in (101, 201, 301)
    ]
    snapshot = Snapshot([node(1, *(one for found in of_one for one in found))], 1.0)
    frames = [group.first.frames[0].split(" ")[0] for group in stack_groups(snapshot)]
    assert frames == ["main_loop", "train", "run"]
    assert "3 processes on 1 node, main threads and tasks at 2 places" in text(snapshot)


def test_no_stack_is_dropped() -> None:
    odd = [stack(pid, [f"f{pid} (a.py:1)"]) for pid in range(300, 400)]
    snapshot = Snapshot([*cluster().nodes, node(3, *odd)], 1.0)
    groups = stack_groups(snapshot)
    assert [len(group.threads) for group in groups] == [15, *[1] * 101, 8]
    assert all(f"f{pid} (a.py:1)" in text(snapshot) for pid in range(300, 400))


def test_verbose_names_every_process() -> None:
    assert "pid 105" not in text(cluster())
    assert "pid 105 (python3 train.py --rank=105)" in text(cluster(), True, 4000)


def test_what_a_thread_does() -> None:
    busy = replace(stack(101), active=True, owns_gil=True)
    cut = replace(stack(102, ["f (a.py:1)"]), active=True, frames_left_out=3)
    shown = text(Snapshot([node(1, busy, stack(103), cut, stack(104, []))], 1.0))
    assert "2 main threads on node01, 1 active, 1 with the interpreter lock: " in shown
    assert "1 main thread on node01, active: " in shown
    assert "    (+3 frames further out)" in shown
    assert "    (no Python frame)" in shown


def test_what_was_not_looked_at_is_said() -> None:
    blocked = "no stack: it is in state D, where reading its memory could block"
    gaps = [Unread(f"/proc/{pid}", Status.DENIED, blocked) for pid in (7, 8)]
    gaps.append(Unread("py-spy", Status.TIMEOUT, "3 processes were not looked at"))
    without = {"status": Status.NO_DATA, "reason": "py-spy is not there: `pip install py-spy`"}
    nodes = [node(1, stack(101), unread=gaps), node(2, **without), node(3, **without)]
    shown = text(Snapshot(nodes, 1.0), width=200)
    assert "not looked at: node01 pid 7, 8: it is in state D, where reading its" in shown
    assert "not looked at: node01: 3 processes were not looked at" in shown
    assert "not looked at: node[02-03]: py-spy is not there: `pip install py-spy`" in shown


def test_machines_of_one_name_are_told_apart() -> None:
    one, two = node(1, stack(101)), node(2, stack(101))
    two = replace(two, node=replace(two.node, hostname="node01"))
    shown = text(Snapshot([one, two], 1.0), width=200)
    assert "2 processes on 2 nodes" in shown
    assert "node01 (10.0.0.2) pid 101" in shown


def test_nothing_is_shown_unless_it_was_asked_for() -> None:
    snapshot = Snapshot([replace(node(1), probes={})], 1.0)
    assert text(snapshot) == ""
    assert "STACKS" not in written(probe_report(snapshot, WELL, {}, False), 100)
    assert "Stacks" not in markdown_text(probe_report(snapshot, WELL, {}, False))


def test_every_format_has_them() -> None:
    report = written(probe_report(cluster(), WELL, {}, False), 100)
    assert report.index("STACKS") < report.index("COVERAGE")
    shown = markdown_text(probe_report(cluster(), WELL, {}, False))
    assert "## Stacks\n\n16 processes on 2 nodes, main threads and tasks at 2 places" in shown
    assert "```text\nread (loader.py:7)\n" in shown
    assert shown.index("15 main threads") < shown.index("1 main thread ")
    document = json.loads("".join(lines(probe_document(cluster(), WELL, {}, 0.0))))
    records = [item["probes"]["stacks"]["records"] for item in document["nodes"]]
    assert [len(items) for items in records] == [16, 8]
    assert records[1][7]["frames"] == list(LOADING)


def test_redacted() -> None:
    frames = ["load (/home/alice/train.py:3)", "open (node01-data.py:1)"]
    snapshot, _, _ = redacted(Snapshot([node(1, stack(101, frames))], 1.0), WELL, {})
    shown = text(snapshot)
    assert "load (/home/user-1/train.py:3)" in shown
    assert "node01" not in shown
    assert "--rank" not in shown


@pytest.mark.parametrize("bad", ["f\x1b[31m (a.py:1)", "f\n# head (a.py:1)", "``` f (a.py:1)"])
def test_names_of_a_program_are_harmless(bad: str) -> None:
    snapshot = Snapshot([node(1, replace(stack(101, [bad]), command=bad))], 1.0)
    assert "\x1b" not in text(snapshot)
    assert text(snapshot).count("\n") == 2
    shown = markdown_text(probe_report(snapshot, WELL, {}, False))
    assert "\x1b" not in shown
    assert "\n# head" not in shown
