"""From a GPU, or from a process that the kernel names, to the rank of the training and its step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from raydiag.explain.diagnosis import explain
from raydiag.model import Actor, Finding, NodeReport, Snapshot
from raydiag.probes.kernel_log import KernelLine
from raydiag.probes.processes import RayProcess
from raydiag.probes.ray_logs import RayLog
from raydiag.rules.machines import machines
from raydiag.rules.ranks import Ranks, rank_in
from raydiag.rules.visible_gpus import visible_gpus
from tests.rules.gpu_records import ADDRESSES, amd_gpus, nvidia_gpus
from tests.rules.snapshots import NOW, report, snapshot

UUIDS = [f"GPU-{gpu:x}c0ffee" for gpu in range(8)]
RING = "amdgpu {}: amdgpu: ring gfx_0.0.0 timeout, signaled seq=7, emitted seq=9"


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ({}, None),
        ({"CUDA_VISIBLE_DEVICES": "5"}, [5]),
        ({"CUDA_VISIBLE_DEVICES": ""}, []),
        ({"HIP_VISIBLE_DEVICES": "2, 3"}, [2, 3]),
        ({"ROCR_VISIBLE_DEVICES": "4,5,6,7", "HIP_VISIBLE_DEVICES": "1"}, [5]),
        ({"ROCR_VISIBLE_DEVICES": "7", "CUDA_VISIBLE_DEVICES": "0"}, [7]),
        ({"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "6"}, [1]),
        ({"ROCR_VISIBLE_DEVICES": "GPU-3c0ffee"}, [3]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-6C0"}, [6]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-"}, None),  # any of them
        ({"CUDA_VISIBLE_DEVICES": "MIG-1/2/3"}, None),
        ({"CUDA_VISIBLE_DEVICES": "1,9,2"}, [1]),  # what follows a wrong ordinal is not visible
        ({"CUDA_VISIBLE_DEVICES": "-1"}, []),
    ],
)
def test_visible_gpus(place: Mapping[str, str], expected: Sequence[int] | None) -> None:
    assert visible_gpus(place, UUIDS) == expected


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("maxtext_trainer_13", "13"),
        ("llama3_405", ""),
        ("Trainer(rank=3)", "3"),
        ("Trainer", ""),
        ("rank: 4", "4"),
        ("trainer_" + "9" * 5000, ""),
    ],
)
def test_rank_in_a_name(name: str, rank: str) -> None:
    assert rank_in(name, 16) == rank


def process(pid: int, worker_pid: int, place: Mapping[str, str]) -> RayProcess:
    role = "worker" if pid == worker_pid else "child"
    return RayProcess(
        pid, 1, NOW - 900, "python3", "python3 -u train.py", role, worker_pid, "S", 9, 1, {},
        place=dict(place),
    )  # fmt: skip


def worker_log(pid: int, step: int, **values: Any) -> RayLog:
    known: dict[str, Any] = {
        "component": "worker", "path": f"/logs/worker-{pid}.out", "session": "s",
        "session_from": "raylet", "size_bytes": 9, "log_changed_s": 2.0, "pid": pid,
        "actor": "Trainer", "title": "Trainer", "step": step, "step_format": "MaxText",
        "step_age_s": 7.0,
    }  # fmt: skip
    return RayLog(**{**known, **values})


def actor(pid: int, rank: int, alive: bool = True) -> Actor:
    return Actor("id-x", pid, "Trainer", f"trainer_{rank}", alive)


def elsewhere(count: int) -> list[Actor]:
    """The workers of the other nodes."""
    return [Actor("id-y", 900 + index, "Trainer", "", True) for index in range(count)]


def node(
    places: Mapping[int, Mapping[str, str]], *texts: str, gpus: Sequence[Any] = (), **more: Any
) -> NodeReport:
    """Workers by pid, with the variables of each."""
    lines = [KernelLine(n, NOW - 60 + n, 1.0, 3, 0, text, True, 0) for n, text in enumerate(texts)]
    logs = [worker_log(pid, 118) for pid in places]
    records: dict[str, Any] = {
        "processes": [process(pid, pid, place) for pid, place in places.items()],
        "ray_logs": logs,
        "kernel_log": lines,
        "gpu_sensors": list(gpus) or amd_gpus(),
    }
    return report("x", **{**records, **more})


def ranks(reported: NodeReport, *actors: Actor) -> Ranks:
    seen = replace(snapshot(reported), actors=actors)
    return Ranks(machines(seen)[0], seen)


def findings(reported: NodeReport, *actors: Actor) -> list[Finding]:
    seen: Snapshot = replace(snapshot(reported, job_start=NOW - 900), actors=actors)
    return list(explain(seen).findings)


def test_a_ring_timeout_names_gpu_rank_and_last_step_in_one_line() -> None:
    places = {100 + gpu: {"HIP_VISIBLE_DEVICES": str(gpu)} for gpu in range(8)}
    actors = [*(actor(100 + gpu, 8 + gpu) for gpu in range(8)), *elsewhere(8)]
    reported = node(places, RING.format(ADDRESSES[5]))
    (finding,) = [f for f in findings(reported, *actors) if f.gpu == 5]
    assert (finding.failure_class, finding.task) == ("amdgpu-ring-timeout", "trainer_13")
    assert finding.evidence[0].text == (
        f"GPU 5 ({ADDRESSES[5]}) of x runs rank 13 (trainer_13, pid 105), "
        "last step 118 (2023-11-14 22:13:13 UTC) (HIP_VISIBLE_DEVICES=5)"
    )


def test_ordinals_count_among_what_rocr_left() -> None:
    places = {
        100: {"ROCR_VISIBLE_DEVICES": "0,1,2,3", "HIP_VISIBLE_DEVICES": "1"},
        101: {"ROCR_VISIBLE_DEVICES": "4,5,6,7", "HIP_VISIBLE_DEVICES": "1"},
    }
    found = ranks(node(places))
    assert [getattr(found.on_gpu(gpu), "pid", None) for gpu in (1, 5, 6)] == [100, 101, None]


def test_a_uuid_names_a_gpu_of_either_vendor() -> None:
    amd = [replace(gpu, unique_id=f"3f1c9a0e5d7b224{gpu.gpu}") for gpu in amd_gpus()]
    found = ranks(node({7: {"ROCR_VISIBLE_DEVICES": "GPU-3f1c9a0e5d7b2246"}}, gpus=amd))
    rank = found.on_gpu(6)
    assert rank is not None and rank.pid == 7
    reported = node({7: {"CUDA_VISIBLE_DEVICES": "GPU-4"}}, gpu_sensors=[], nvidia=nvidia_gpus())
    assert getattr(ranks(reported).on_gpu(4), "pid", None) == 7


def test_a_child_with_a_local_rank_is_its_own_rank() -> None:
    launcher = process(50, 50, {})
    children = [
        process(60 + gpu, 50, {"RANK": f"{16 + gpu}", "LOCAL_RANK": f"{gpu}"}) for gpu in range(8)
    ]
    found = ranks(node({50: {}}, processes=[launcher, *children]))
    rank = found.on_gpu(3)
    assert rank is not None and (rank.rank, rank.why) == ("19", "LOCAL_RANK=3")


def test_the_only_worker_of_a_node_has_all_its_gpus() -> None:
    rank = ranks(node({77: {}}), actor(77, 2), *elsewhere(2)).on_gpu(5)
    assert rank is not None and (rank.rank, rank.task) == ("2", "trainer_2")
    assert rank.why == "the only worker on its node that trains"


@pytest.mark.parametrize(
    ("name", "place", "rank"),
    [
        ("llama3_405", {"RANK": "2"}, "2"),
        ("trainer_1", {"RANK": "2"}, "2"),  # the variable is what the training goes by
        ("llama3_405", {}, ""),  # there are not so many workers
        ("trainer_3", {}, "3"),
        ("trainer_3", {"RANK": ""}, "3"),
        ("Trainer(rank=405)", {}, "405"),  # it says what it is
        ("trainer_3", {"SLURM_PROCID": "1"}, "3"),  # inherited from srun's raylet: its node's
        ("llama3_405", {"SLURM_PROCID": "1"}, "1"),
    ],
)
def test_a_number_in_a_name_is_a_rank_only_where_there_can_be_one(
    name: str, place: Mapping[str, str], rank: str
) -> None:
    found = ranks(node({77: place}), Actor("id-x", 77, "Trainer", name, True), *elsewhere(3))
    told = found.on_gpu(5)
    assert told is not None and (told.rank, told.task) == (rank, name)


@pytest.mark.parametrize(
    "places",
    [
        {},
        {7: {}, 8: {}},  # either
        {7: {"CUDA_VISIBLE_DEVICES": "0,1"}, 8: {"CUDA_VISIBLE_DEVICES": "0,1"}},
        {7: {"CUDA_VISIBLE_DEVICES": "MIG-9"}, 8: {}},
    ],
)
def test_nobody_is_guessed(places: Mapping[int, Mapping[str, str]]) -> None:
    assert ranks(node(places)).on_gpu(1) is None


def test_what_the_kernel_says_of_a_process_outweighs_its_place() -> None:
    page_fault = (
        f"amdgpu {ADDRESSES[5]}: amdgpu: [gfxhub0] page fault (src_id:0 ring:24 vmid:3 pasid:32781)"
    )
    places = {pid: {"HIP_VISIBLE_DEVICES": "5"} for pid in (105,)}
    (finding,) = [f for f in findings(node(places, page_fault), actor(105, 5)) if f.gpu == 5]
    assert finding.task == "trainer_5"


def test_a_killed_rank_has_its_last_step_in_the_same_line() -> None:
    text = "Out of memory: Killed process 105 (ray::Trainer.st) total-vm:1kB, anon-rss:1kB"
    ended = worker_log(105, 417, component="ended worker", process_age_s=None)
    reported = node({106: {}}, text, ray_logs=[worker_log(106, 419), ended])
    (finding,) = [
        f
        for f in findings(reported, actor(105, 13, alive=False), actor(106, 14), *elsewhere(14))
        if f.failure_class.startswith("oom-")
    ]
    assert finding.task == "trainer_13"
    assert (
        "Killed pid 105 (ray::Trainer.st) was Ray worker Trainer (trainer_13, rank 13), "
        "last step 417 (2023-11-14 22:13:13 UTC)."
    ) in finding.explanation
