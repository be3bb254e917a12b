"""What a job says about itself before training."""

from __future__ import annotations

from pathlib import Path

import pytest

from raydiag.joblog.header import arguments
from raydiag.triage.signatures import Classifier
from tests.joblog.joblogs import facts_at, facts_of, maxtext, write

HEADER = """JOB_ID=4711
JOB_NAME=llama
NNODES=3
JOB_NODELIST=mi[08-10]
JAX_COORDINATOR_PORT=34001
RAY_PORT=34002
PASSTHROUGH_ARGS="warmup_steps=7 steps=1000 enable_checkpointing=true run_name='a b'"
MODEL_NAME=llama2-70b
MODEL_NAME_ALIAS=l70
EXP_TAG=night
==STAGE TIMEOUTS (override: STAGE_TIMEOUTS="stage:seconds,...")==
  preflight    900s
  pull         none
== Preflight BEGIN (timeout=900s) ==
0: Config param checkpoint_period: 100
0: Config param steps: 4000
0: Config param async_checkpointing: False
0: Config param jax_distributed_heartbeat_timeout_seconds: 600
#SBATCH --comment='{"APS": {"auto_resume_mode": "requeue", "max_requeue_times": 1}}'
"""


def test_the_header_of_a_job(tmp_path: Path) -> None:
    header = facts_of(HEADER, tmp_path).header
    assert (header.job_id, header.job_name, header.nnodes) == ("4711", "llama", 3)
    assert header.nodelist == ("mi08", "mi09", "mi10")
    assert header.ray
    assert (header.model_name, header.model_alias, header.exp_tag) == ("llama2-70b", "l70", "night")
    assert header.passthrough["run_name"] == "a b"
    assert header.steps == 1000, (
        "what was passed beats the configuration, warmup_steps is not steps"
    )
    assert (header.checkpoint_period, header.enable_checkpointing) == (100, True)
    assert (header.async_checkpointing, header.heartbeat_timeout_s) == (False, 600.0)
    assert header.max_requeue_times == 1


def test_older_keys_and_no_ray(tmp_path: Path) -> None:
    header = facts_of("SLURM_JOB_ID=1\nSLURM_JOB_NUM_NODES=2\nSLURM_JOB_NODELIST=a1,b2\n", tmp_path)
    assert (header.header.job_id, header.header.nnodes) == ("1", 2)
    assert header.header.nodelist == ("a1", "b2") and not header.header.ray


@pytest.mark.parametrize(
    "comment", ["'{\"APS\": 5}'", "'{not json}'", '\'{"APS": {"max_requeue_times": "5"}}\'', "'[]'"]
)
def test_a_comment_that_is_something_else(comment: str, tmp_path: Path) -> None:
    header = facts_of(f"#SBATCH --comment={comment}\n", tmp_path).header
    assert header.max_requeue_times is None


def test_totals_of_other_frameworks(tmp_path: Path) -> None:
    titan = "[rank0]:[titan] Trainer is initialized with seq 8, total steps 1000 (warmup 2)\n"
    assert facts_of(titan, tmp_path).header.steps == 1000
    megatron = "  train_iters ......... 500\n  save_interval ......... 50\n"
    header = facts_of(megatron, tmp_path).header
    assert (header.steps, header.checkpoint_period) == (500, 50)


def test_tasks_are_nodes_in_the_order_of_the_list(tmp_path: Path) -> None:
    facts = facts_of(HEADER + maxtext(0, prefix="2: "), tmp_path)
    assert facts.hosts == {0: "mi08", 1: "mi09", 2: "mi10"}
    assert facts.steps and facts.steps.writers[0].host == "mi10"


def test_lines_that_name_task_and_host_beat_the_list(tmp_path: Path) -> None:
    lines = "0: NODE_EXIT host=mi09 exit=1\nsrun: error: mi08: task 1: Exited with exit code 1\n"
    facts = facts_of(HEADER + lines, tmp_path)
    assert facts.hosts == {0: "mi09", 1: "mi08"}


def test_a_line_from_an_actors_node_does_not_say_where_the_drivers_task_runs(
    tmp_path: Path,
) -> None:
    line = "0: (Trainer pid=7, ip=10.0.0.9) mi09:7:8 [0] init.cc:12 NCCL WARN slow path\n"
    assert facts_of(HEADER + line, tmp_path).hosts[0] == "mi08"


@pytest.mark.parametrize(
    "line",
    [
        "[Node 2] Actor failed: Training subprocess exited with code 1",
        "mi10:7:8 [0] init.cc:12 NCCL WARN slow path",
    ],
)
def test_an_actors_line_is_of_its_own_node_and_not_of_the_drivers_task(
    line: str, tmp_path: Path
) -> None:
    actor = "0: (Trainer pid=7, ip=10.0.0.9) "
    facts = facts_of(f"{HEADER}{actor}Error: launch failed\n{actor}{line}\n", tmp_path)
    match = next(match for match in facts.matches if match.row == "error")
    assert (match.task, match.host) == (2, "mi10")
    assert [gone.task for gone in facts.exits] in ([], [2])


@pytest.mark.parametrize(
    ("codes", "host"),
    [
        ((143, 143, 1), "mi10"),
        ((1, 143, 143), "10.0.0.9"),  # the driver's own node has no address on its lines
        ((143, 1, 1), "10.0.0.9"),
        ((143, 143, 143), "10.0.0.9"),
    ],
)
def test_the_only_actor_that_failed_ran_on_the_only_node_that_did(
    codes: tuple[int, ...], host: str, tmp_path: Path
) -> None:
    actor = "0: (Trainer pid=7, ip=10.0.0.9) "
    lines = [f"{actor}Traceback (most recent call last):", f"{actor}KeyError: 'decoder'"]
    for task, (name, code) in enumerate(zip(("mi08", "mi09", "mi10"), codes, strict=True)):
        lines.append(f"{task}: NODE_EXIT host={name} exit={code}")
    facts = facts_of(HEADER + "\n".join(lines) + "\n", tmp_path, judge=Classifier())
    assert {match.host for match in facts.matches if match.ip} == {host}


@pytest.mark.parametrize(
    "more",
    [
        ["0: (Trainer pid=8, ip=10.0.0.11) mi10:8:8 [0] init.cc:12 NCCL WARN slow path"],
        ["2: Error: mi10 has an error of its own"],
        ["0: (Trainer pid=8, ip=10.0.0.7) Error: another actor's"],
        [maxtext(step, prefix="0: ").rstrip() for step in range(60)],
        500 * ["0: something else"],
        ["2: NODE_EXIT host=mi10 exit=137"],
    ],
)
def test_a_node_that_failed_by_something_else_is_not_the_actors(
    more: list[str], tmp_path: Path
) -> None:
    lines = ["0: (Trainer pid=7, ip=10.0.0.9) Error: 'decoder'", *more]
    lines.append("2: NODE_EXIT host=mi10 exit=1")
    matches = facts_of(HEADER + "\n".join(lines) + "\n", tmp_path).matches
    assert {match.host for match in matches if match.ip == "10.0.0.9"} == {"10.0.0.9"}


def test_an_actors_address_that_no_line_names_stays_an_address(tmp_path: Path) -> None:
    line = "0: (Trainer pid=7, ip=10.0.0.9) Error: launch failed\n"
    (match,) = facts_of(HEADER + line, tmp_path).matches
    assert (match.task, match.host) == (None, "10.0.0.9")


def test_more_tasks_than_nodes_have_no_host_by_the_list(tmp_path: Path) -> None:
    facts = facts_of(HEADER.replace("NNODES=3", "NNODES=4"), tmp_path)
    assert facts.hosts == {}


def test_arguments_with_and_without_quotes() -> None:
    assert arguments("--a=1 b='x y' flag") == {"a": "1", "b": "x y", "flag": "true"}
    assert arguments("a=it's broken") == {"a": "it's", "broken": "true"}


def test_the_batch_script_tells_what_the_log_does_not(tmp_path: Path) -> None:
    write(tmp_path / "7-a.log", "JOB_ID=7\n")
    comment = '\'{"APS": {"max_requeue_times": 3}}\''
    write(tmp_path / "7-a" / "job.sbatch", f"#!/bin/bash\n#SBATCH --comment={comment}\n")
    header = facts_at(tmp_path / "7-a").header
    assert header.max_requeue_times == 3
