from __future__ import annotations

from typing import Any

import pytest

from raydiag.model import Confidence, Severity, StuckReader
from raydiag.probes.d_state import BlockedTask
from raydiag.rules.blocked import d_state_accumulation, driver_faults
from tests.rules.snapshots import report, snapshot


def task(pid: int = 100, **values: Any) -> BlockedTask:
    fields = {
        "pid": pid,
        "start_ticks": 7000 + pid,
        "comm": "bash",
        "state": "D",
        "kernel_thread": False,
        "wchan": "",
        "stack": (),
        "persistent": True,
        "sample_gap_s": 1.0,
        "kill_pending": False,
        "raydiag_reader": False,
    }
    return BlockedTask(**{**fields, **values})


@pytest.mark.parametrize(
    "values",
    [
        {"wchan": "amdgpu_cper_ring_write"},
        {"wchan": "amdgpu_cper_generate_ce_record"},  # cut to 30 characters
        {"wchan": "amdgpu_ras_query_error_status"},
        {"stack": ("__mutex_lock+0x2c/0x90", "[<0>] aca_sysfs_read.isra.0+0x1e/0x30 [amdgpu]")},
        {
            "stack": ("amdgpu_cper_ring_get_ent_sz",),
            "state": "R",
            "kill_pending": True,
        },
        {"wchan": "amdgpu_cper_ring_write", "raydiag_reader": True},
    ],
)
def test_a_task_stuck_in_the_driver(values: dict[str, Any]) -> None:
    (finding,) = driver_faults(snapshot(report("a", d_state=[task(**values)])))
    assert (finding.failure_class, finding.host, finding.pid) == ("gpu-driver-fault", "a", 100)
    assert finding.confidence is Confidence.LIKELY
    assert "pid 100 (bash)" in finding.evidence[0].text


@pytest.mark.parametrize(
    "values",
    [
        {"wchan": "amdgpu_cper_ring_write", "persistent": False},
        {"wchan": "request_wait_answer"},
        {"wchan": ""},
        {"wchan": "amdgpu_cper_ring_write", "state": "R", "persistent": False},
    ],
)
def test_a_passing_or_foreign_wait_is_silent(values: dict[str, Any]) -> None:
    seen = snapshot(report("a", d_state=[task(**values)]))
    assert not [*driver_faults(seen), *d_state_accumulation(seen)]


def test_a_reader_of_ours_stuck_in_the_driver_is_a_sign_too() -> None:
    reader = StuckReader("/sys/ras/umc", "ras", 31, 4.0, wchan="amdgpu_cper_ring_write")
    other = StuckReader("/data", "storage", 32, 4.0, wchan="rpc_wait_bit_killable")
    (finding,) = driver_faults(snapshot(report("a", stuck=[reader, other])))
    assert finding.pid == 31
    assert [piece.source for piece in finding.evidence] == ["/sys/ras/umc"]


def test_many_tasks_in_one_place_are_one_piece_of_evidence() -> None:
    tasks = [task(pid, wchan="amdgpu_cper_ring_write") for pid in range(200, 230)]
    seen = snapshot(report("a", d_state=tasks))
    (finding,) = driver_faults(seen)
    assert finding.pid is None
    assert [piece.value for piece in finding.evidence] == [30.0]
    assert "and 29 more in state D in amdgpu_cper_ring_write" in finding.evidence[0].text
    assert not list(d_state_accumulation(seen))


def test_who_waits_where_a_faulty_task_waits_belongs_to_the_fault() -> None:
    holder = task(1, wchan="__mutex_lock", stack=("__mutex_lock", "amdgpu_cper_ring_write"))
    hidden = [task(pid, wchan="__mutex_lock") for pid in range(10, 20)]
    elsewhere = [
        task(pid, wchan="__mutex_lock", stack=("__mutex_lock", "ext4_sync_file"))
        for pid in range(20, 26)
    ]
    seen = snapshot(report("a", d_state=[holder, *hidden, *elsewhere]))
    (fault,) = driver_faults(seen)
    assert sum(piece.value or 0 for piece in fault.evidence) == 11
    (crowd,) = d_state_accumulation(seen)
    assert [piece.value for piece in crowd.evidence] == [6.0]


def test_five_tasks_are_an_accumulation_grouped_by_place() -> None:
    tasks = [task(pid, wchan="io_schedule") for pid in range(3)]
    tasks += [task(pid, wchan="rpc_wait_bit_killable") for pid in range(3, 5)]
    (finding,) = d_state_accumulation(snapshot(report("a", d_state=tasks)))
    assert finding.severity is Severity.WARNING
    assert [piece.value for piece in finding.evidence] == [3.0, 2.0]
    assert "io_schedule" in finding.evidence[0].text


@pytest.mark.parametrize(
    "fifth", [{"kernel_thread": True}, {"raydiag_reader": True}, {"persistent": False}]
)
def test_kernel_threads_and_our_own_readers_do_not_accumulate(fifth: dict[str, Any]) -> None:
    tasks = [task(pid, wchan="io_schedule") for pid in range(4)]
    tasks.append(task(4, wchan="io_schedule", **fifth))
    assert not list(d_state_accumulation(snapshot(report("a", d_state=tasks))))


def test_two_ray_nodes_of_one_machine_see_the_same_tasks() -> None:
    tasks = [task(pid, wchan="io_schedule") for pid in range(3)]
    seen = snapshot(
        report("a", node_id="1", d_state=tasks), report("a", node_id="2", d_state=tasks)
    )
    assert not list(d_state_accumulation(seen))
