"""Whole jobs, from the log's text to the verdict: each row fails without the rule it is for."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from raydiag.cli import main
from tests import schemas
from tests.triage.logs import (
    HARMLESS,
    START,
    cancelled,
    header,
    steps,
    summary,
    traceback,
    unhealthy,
)

RUNNING, ENDED = ("--job-state", "running"), ("--job-state", "ended")
LOG_END = ("--now", "log-end")
HOUR = 3600.0

Triage = Callable[..., dict[str, Any]]


@pytest.fixture
def triage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Triage:
    """`triage(lines, *arguments)`: the JSON of a job with that log, which fits the schema."""

    def run(lines: Sequence[str], *arguments: str) -> dict[str, Any]:
        log = tmp_path / "outputs" / "41-demo.log"
        log.parent.mkdir(exist_ok=True)
        log.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        code = main(["triage", str(log), "--format", "json", *arguments])
        document: dict[str, Any] = json.loads(capsys.readouterr().out)
        schemas.fits(document, "triage")
        return {**document, "exit": code}

    return run


@dataclass(frozen=True)
class Row:
    """One job and what has to be said of it."""

    name: str
    lines: Sequence[str] = field(repr=False)
    status: str
    primary: str | None
    arguments: Sequence[str] = LOG_END
    rule: str = ""  # part of it
    cascade: Sequence[str] = ()  # these, in this order
    task: str | None = None
    host: str | None = None
    exit: int | None = None
    says: Sequence[str] = ()  # parts of "what happened"


def at(seconds: float) -> tuple[str, str]:
    """`--now` so long after the job's start."""
    return "--now", str(START + seconds)


def verl(first: int, last: int) -> list[str]:
    return [f"step:{step} - actor/pg_loss:0.1 - timing_s/step:70" for step in range(first, last)]


CLOCKED = header() + steps(0, 120, clock=START)  # the last step ends 1210 s after the start

STATUS = [
    Row(
        "completed",
        header(50) + steps(0, 49) + summary("SUCCESS", 0),
        "completed",
        None,
        exit=0,
    ),
    Row(
        "failed",
        header() + steps(0, 30) + traceback("ValueError: bad batch") + summary("FAILED", 1),
        "failed",
        "python-exception",
        exit=1,
        says=["ValueError: bad batch"],
    ),
    Row("cancelled", header() + steps(0, 119) + cancelled(), "cancelled", "cancelled", exit=0),
    Row(
        "cancelled by Ctrl-C",
        header() + steps(0, 119) + summary("FAILED", 130),
        "cancelled",
        "cancelled",
        exit=0,
    ),
    Row("running", CLOCKED, "running", None, at(1300), exit=0),
    Row("running, no clock", header() + steps(0, 30), "running", None, RUNNING, exit=0),
    Row("running at the end of its log", header() + steps(0, 30), "running", None, LOG_END),
    Row("hanging", CLOCKED, "hanging", "hang", (*at(1210 + HOUR), *RUNNING), exit=1),
    Row("hanging by the steps alone", CLOCKED, "hanging", "hang", at(1210 + HOUR)),
    Row(
        "unknown death",
        CLOCKED,
        "unknown",
        "unknown-death",
        ENDED,
        exit=1,
        says=["without a summary"],
    ),
    Row("nobody can tell", header() + steps(0, 30), "unknown", None, at(0), exit=3),
    Row(
        "summary without status",
        header() + steps(0, 30) + summary("FAILED", 1)[:5],
        "unknown",
        None,
        rule="summary without status",
    ),
    Row(
        "summary without status after the last step",
        header(31) + steps(0, 30) + summary("FAILED", 1)[:5],
        "completed",
        None,
        rule="summary without status",
    ),
    Row(
        "no summary, all steps done",
        header(31) + steps(0, 30),
        "completed",
        None,
        ENDED,
    ),
    Row(
        "a summary of an earlier run in the same file",
        header() + steps(0, 60) + cancelled() + steps(50, 90, clock=START),
        "running",
        None,
        LOG_END,
    ),
]

SOFT = [
    Row(
        "one rank fails in the shut-down",
        header(31) + steps(0, 30) + ["NODE_EXIT host=n3 exit=1"] + summary("FAILED", 1),
        "failed",
        "soft-success",
        says=["Nothing is lost"],
    ),
    Row(
        "all ranks are told to end after the last step",
        header(31) + steps(0, 30) + cancelled(),
        "cancelled",
        "soft-success",
    ),
    Row(
        "without a summary, what starts the job complains after the last step",
        header(31) + steps(0, 30) + ["Job 'raysubmit_a1' failed"],
        "failed",
        "soft-success",
        ENDED,
    ),
    Row(
        "the last save was killed",
        header(31)
        + steps(0, 30)
        + [
            "Saving checkpoint at step 31...",
            "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0",
        ],
        "failed",
        "oom-host",
        ENDED,
    ),
    Row(
        "one step is missing",
        header(32) + steps(0, 30) + ["NODE_EXIT host=n3 exit=1"] + summary("FAILED", 1),
        "failed",
        "node-fail",
    ),
    Row(
        "the last checkpoint failed",
        header(31)
        + steps(0, 30)
        + ["0: Training stopped: Checkpointing failed for step 30"]
        + summary("FAILED", 1),
        "failed",
        "checkpoint-fs-error",
    ),
]

HANGS = [
    Row(
        "cancelled after a silence in the wall time",
        header() + steps(0, 119, tasks=(0, 1, 2, 3)) + cancelled("1h 0m 0s"),
        "cancelled",
        "hang",
        cascade=["hang", "cancelled"],
        says=["All 4 tasks stopped at the same step"],
    ),
    Row(
        "cancelled, and half an hour of set-up is no hang",
        header() + steps(0, 119) + cancelled("50m 0s"),
        "cancelled",
        "cancelled",
    ),
    Row(
        "one task stays behind",
        header()
        + steps(0, 110, tasks=(0, 1, 2, 3))
        + steps(111, 119, tasks=(0, 1, 3))
        + cancelled("1h 30m 0s"),
        "cancelled",
        "hang",
        task="2",
        says=["task 2 on n3 (step 110)"],
    ),
    Row(
        "a training timeout ends a hang",
        [
            *header(),
            "== Training BEGIN (timeout=7200s) ==",
            *steps(0, 119),
            "== Training TIMEOUT (7200s/7200s) ==",
            *summary("FAILED", 124, "Training TIMEOUT (7200s/7200s)", "2h 0m 0s"),
        ],
        "failed",
        "hang",
        cascade=["hang", "train-timeout"],
    ),
    Row(
        "before the first step",
        header()
        + [f"{task}: Synchronizing hosts before training loop" for task in range(4)]
        + cancelled("2h 0m 0s"),
        "cancelled",
        "hang",
        says=["first collective"],
    ),
    Row(
        "not all tasks came to the barrier",
        header()
        + [f"{task}: Synchronizing hosts before training loop" for task in range(3)]
        + ["2026-03-01 12:00:00,000 INFO waiting on n4"],
        "unknown",
        None,
        at(2 * HOUR),
    ),
    Row(
        "a slow save is no hang",
        header() + steps(0, 100, clock=START),
        "running",
        None,
        (*at(1010 + 1500), *RUNNING),
    ),
    Row(
        "a save that takes too long",
        header() + steps(0, 100, clock=START),
        "hanging",
        "hang",
        (*at(1010 + 1900), *RUNNING),
    ),
    Row(
        "an error before the stall is its cause",
        [*CLOCKED, "2: RuntimeError: NCCL error: unhandled system error"],
        "hanging",
        "nccl-error",
        (*at(1210 + HOUR), *RUNNING),
    ),
]

HEARTBEATS = [
    Row(
        "a false alarm in the middle of training",
        header() + steps(0, 120) + unhealthy([2, 3]) + summary("FAILED", 1, wall="22m 0s"),
        "failed",
        "heartbeat-timeout",
        task="2",
        says=["task 2 (n3), 3 (n4)", "false alarm"],
    ),
    Row(
        "before the first step",
        header() + unhealthy([1]) + summary("FAILED", 1, wall="22m 0s"),
        "failed",
        "heartbeat-timeout",
        says=["No step was completed"],
    ),
    Row(
        "an accused task that reports it was alive",
        header()
        + steps(0, 120)
        + unhealthy([2])
        + ["2: Terminating process because the JAX distributed service detected fatal errors."]
        + summary("FAILED", 1, wall="22m 0s"),
        "failed",
        "heartbeat-timeout",
        says=["Task 2 reported the error too"],
    ),
    Row(
        "an accused task that had failed",
        header()
        + steps(0, 120)
        + ["2: Fatal Python error: Segmentation fault"]
        + unhealthy([2])
        + summary("FAILED", 1, wall="22m 0s"),
        "failed",
        "signal-kill",
        task="2",
    ),
    Row(
        "a hang that blocks the heartbeats",
        header()
        + steps(0, 120, tasks=(0, 1, 2, 3))
        + unhealthy([2])
        + summary("FAILED", 1, wall="1h 40m 0s"),
        "failed",
        "hang",
        cascade=["hang", "heartbeat-timeout"],
        rule="hang blocks the heartbeats",
    ),
]

CASCADES = [
    Row(
        "one node out of memory, the others miss it",
        header()
        + steps(0, 120)
        + ["1: Memory cgroup out of memory: Killed process 812 (python3) total-vm:9000kB"]
        + ["0: [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType="]
        + unhealthy([1])
        + summary("FAILED", 1, wall="22m 0s"),
        "failed",
        "oom-host",
        cascade=["oom-host", "nccl-timeout", "heartbeat-timeout"],
        task="1",
        rule="runs out of memory",
    ),
    Row(
        "the consequences are printed first",
        header()
        + steps(0, 120)
        + ["0: NCCL error: remote process exited or there was a network error"]
        + traceback("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", 3)
        + summary("FAILED", 1),
        "failed",
        "oom-gpu",
        task="3",
    ),
    Row(
        "the network fails and the training stage times out",
        header()
        + steps(0, 120)
        + [
            "1: n2:5:6 [0] net_ib.cc:1296 NCCL WARN NET/IB : Got completion from peer 10.1.2.3 with"
            " error 12, opcode 0, len 0, vendor err 129"
        ]
        + ["== Training TIMEOUT (7200s/7200s) =="]
        + summary("FAILED", 124, "Training TIMEOUT (7200s/7200s)"),
        "failed",
        "nccl-error",
        cascade=["nccl-error", "train-timeout"],
        task="1",
    ),
    Row(
        "a node dies and the others wait for it",
        header()
        + steps(0, 120)
        + ["NODE_EXIT host=n3 exit=137"]
        + ["NODE_EXIT host=n1 exit=143", "NODE_EXIT host=n2 exit=143", "NODE_EXIT host=n4 exit=143"]
        + summary("FAILED", 137),
        "failed",
        "node-fail",
        says=["n3: exit 137", "SIGKILL"],
    ),
    Row(
        "the compiler fails, then the exception, then the process",
        [
            *header(),
            "0: INTERNAL: Failed to compile: the kernel needs too many registers",
            *traceback("jaxlib.xla_extension.XlaRuntimeError: INTERNAL: Failed to compile"),
            "0: Training subprocess exited with code 1",
            *summary("FAILED", 1),
        ],
        "failed",
        "xla-compile-fail",
        cascade=["xla-compile-fail", "subprocess-fail"],
    ),
    Row(
        "a task raises, its peers time out",
        header()
        + steps(0, 120)
        + traceback("ValueError: shapes (3,) and (4,) differ", 2)
        + ["0: [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType="]
        + summary("FAILED", 1),
        "failed",
        "python-exception",
        task="2",
    ),
    Row(
        "the earliest of several hard errors",
        [
            *header(),
            "[ERROR] Pull failed for registry.example.com/a:1",
            "WARNING: No GPU devices detected (no /dev/kfd, no nvidia-smi)",
            *summary("FAILED", 1),
        ],
        "failed",
        "container-pull-fail",
        cascade=["container-pull-fail", "no-gpu"],
        rule="the earliest hard error",
    ),
    Row(
        "a heartbeat timeout that ends the job while peers finish their steps",
        header()
        + steps(0, 20)
        + ["0: UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats):"]
        + steps(21, 23)
        + summary("FAILED", 1),
        "failed",
        "heartbeat-timeout",
    ),
    Row(
        "a heartbeat timeout long before the end",
        header()
        + steps(0, 20)
        + ["0: UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats):"]
        + steps(21, 119)
        + summary("FAILED", 1),
        "failed",
        "stage-fail",
    ),
    Row(
        "an error that training got over",
        header()
        + steps(0, 20)
        + ["1: NCCL error: unhandled system error"]
        + steps(21, 119)
        + traceback("KeyError: 'mask'", 3)
        + summary("FAILED", 1),
        "failed",
        "python-exception",
        task="3",
    ),
    Row(
        "an exception that the trainer caught, and its word that it is done",
        [
            *traceback("ConnectionResetError: [Errno 104] Connection reset by peer"),
            "{'loss': 2.1, 'grad_norm': 0.4, 'learning_rate': 5e-05, 'epoch': 0.5}",
            "{'train_runtime': 421.1, 'train_steps_per_second': 2.2, 'epoch': 1.0}",
        ],
        "completed",
        None,
    ),
    Row(
        "a node that Ray lost, and its word that the job succeeded all the same",
        [
            "(raylet) The node with node id: 00aa and address: 10.0.0.9 has been marked dead",
            "Restored on 10.0.0.4 from checkpoint: Checkpoint(path=/ckpt/3)",
            "SUCC cli.py:65 -- Job 'raysubmit_Ab3' succeeded",
        ],
        "completed",
        None,
    ),
    Row(
        "an error that ended training, and a shell that ended well all the same",
        [
            *steps(0, 40),
            *traceback("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"),
            "SUCC cli.py:65 -- Job 'raysubmit_Ab3' succeeded",
        ],
        "failed",
        "oom-gpu",
    ),
    Row(
        "memory that ran out after the word that training is done",
        [
            "{'train_runtime': 421.1, 'train_steps_per_second': 2.2, 'epoch': 1.0}",
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        ],
        "failed",
        "oom-gpu",
    ),
    Row(
        "memory that ran out on a task, the word of another, and an end with an error",
        [
            "3: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
            "0: {'train_runtime': 421.1, 'train_steps_per_second': 2.2, 'epoch': 1.0}",
            "srun: error: n2: task 3: Exited with exit code 1",
        ],
        "failed",
        "oom-gpu",
        task="3",
    ),
    Row(
        "a trial of Ray Tune that was tried again, and all that terminated",
        [*traceback("ConnectionResetError: reset"), "Number of trials: 4/4 (4 TERMINATED)"],
        "completed",
        None,
    ),
    Row(
        "a trial of Ray Tune that was not tried again",
        [
            *traceback("ConnectionResetError: reset"),
            "Number of trials: 2/2 (1 ERROR, 1 TERMINATED)",
        ],
        "failed",
        "python-exception",
    ),
    Row(
        "a rank that never joined a collective",
        [
            "[rank2]: [Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9)",
            "[rank5]: [Rank 5] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9)",
            "     [7] finished collective #8, but didn't join collective #9 (count from 1)",
        ],
        "failed",
        "nccl-timeout",
        task="7",
    ),
    Row(
        "an exception of the rank that then joined no collective",
        [
            *traceback("KeyError: 'mask'", 7),
            "5: [Rank 5] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9)",
            "     [7] finished collective #8, but didn't join collective #9 (count from 1)",
        ],
        "failed",
        "python-exception",
        task="7",
    ),
    Row(
        "a process of a launcher that names its rank before those that it ends",
        [
            "ERROR:composer.cli.launcher:Rank 5 crashed with exit code -7.",
            "ERROR:composer.cli.launcher:Global rank 0 (PID 90) exited with code -15",
        ],
        "failed",
        "signal-kill",
        task="5",
    ),
    Row(
        "an extension that one rank fails to build and the others then miss",
        [
            *traceback("RuntimeError: Error building extension 'fused_adam'", 0),
            "1: ImportError: /opt/ext/fused_adam.so: cannot open shared object file: No such file",
        ],
        "failed",
        "subprocess-fail",
        task="0",
    ),
    Row(
        "a rank by the launcher's own table, whose last entry was the first to fail",
        [
            "RuntimeError: CUDA error: uncorrectable ECC error encountered",
            "  rank      : 14 (local_rank: 6)",
            "  exitcode  : -6 (pid: 91)",
            "Root Cause (first observed failure):",
            "[0]:",
            "  host      : n2",
            "  rank      : 13 (local_rank: 5)",
            "  exitcode  : -6 (pid: 90)",
        ],
        "failed",
        "gpu-hardware-error",
        task="13",
        host="n2",
    ),
    Row(
        "a rank on another node, which its agent knows by its number there only",
        [
            "HW Exception by GPU node-8 (Agent handle: 0x1b0fc990) reason :GPU Hang",
            "failed (exitcode: -6) local_rank: 6 (pid: 90) of binary: /usr/bin/python3",
            "  rank      : 22 (local_rank: 6)",
            "  exitcode  : -6 (pid: 90)",
        ],
        "failed",
        "gpu-hardware-error",
        task="22",
    ),
    Row(
        "the node that Ray names beside a cause of its own",
        [
            "ray.exceptions.RayTaskError(OutOfDiskError): ray::Map() (pid=12, ip=10.0.0.3)",
            "ray.exceptions.OutOfDiskError: Local disk is full",
        ],
        "failed",
        "disk-full",
        host="10.0.0.3",
    ),
    Row(
        "an error that the job got over again and again",
        [
            *verl(1, 20),
            *traceback("RecursionError: too deep"),
            *verl(21, 40),
            *traceback("RecursionError: too deep"),
            "reward=0.0",
        ],
        "running",
        None,
    ),
    Row(
        "an error that the job got over once, and its last word",
        [*verl(1, 40), *traceback("RecursionError: too deep")],
        "failed",
        "python-exception",
    ),
    Row(
        "a script that says completed after an exception",
        [*traceback("KeyError: 'mask'"), "Training completed"],
        "failed",
        "python-exception",
    ),
    Row(
        "MLPerf's word that a run is done",
        ['0: :::MLLOG {"key": "run_stop", "value": null, "metadata": {"status": "success"}}'],
        "completed",
        None,
    ),
    Row(
        "memory that ran out where Slurm says it",
        [
            "slurmstepd: error: Detected 2 oom_kill events in StepId=41.0. Some were OOM Killed.",
            "srun: error: n2: task 3: Out Of Memory",
        ],
        "failed",
        "oom-host",
        task="3",
        host="n2",
    ),
    Row(
        "memory that ran out where Ray says it",
        [
            "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing it.",
            "\tclass_name: Trainer",
            "\tpid: 514",
            "\tip: 10.0.0.3",
            "The actor is dead. Task was killed due to the node running low on memory.",
            "Memory on the node (IP: 10.0.0.3, ID: 00ff) where the task was running was 31.2GB / "
            "32.0GB (0.975), which exceeds the memory usage threshold of 0.95.",
        ],
        "failed",
        "oom-host",
        host="10.0.0.3",
    ),
    Row(
        "cancelled because of an earlier error",
        header()
        + steps(0, 120)
        + ["2: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9000000000 bytes."]
        + cancelled(),
        "cancelled",
        "oom-gpu",
        cascade=["oom-gpu", "cancelled"],
    ),
    Row(
        "all nodes end by SIGTERM: a clean cancellation",
        header()
        + steps(0, 119)
        + [f"NODE_EXIT host=n{n} exit=143" for n in range(1, 5)]
        + cancelled(),
        "cancelled",
        "cancelled",
        exit=0,
    ),
    Row(
        "what processes print when they are told to end",
        header() + steps(0, 119) + traceback("KeyboardInterrupt") + cancelled(),
        "cancelled",
        "cancelled",
    ),
]

SERIES = [
    Row(
        "the loss is no number until the end",
        header() + steps(0, 60) + steps(61, 90, loss="nan") + cancelled(),
        "cancelled",
        "loss-divergence",
    ),
    Row(
        "a loss that recovered",
        header() + steps(0, 60) + steps(61, 61, loss="inf") + steps(62, 119) + cancelled(),
        "cancelled",
        "cancelled",
    ),
]


KILLED_LOADER = "RuntimeError: DataLoader worker (pid 99) is killed by signal: Terminated."
NOISE = [f"0: batch {number} is ready" for number in range(300)]

ENDS = [
    Row(
        "a weak sign far above the end of a log",
        [*header(), *traceback("ValueError: no such cache, building it"), *NOISE],
        "running",
        None,
    ),
    Row(
        "the same at the end",
        [*header(), *NOISE, *traceback("ValueError: no such cache")],
        "failed",
        "python-exception",
    ),
    Row(
        "a line that sounds like an error, and one that raises",
        [*header(), "Error: No such file or directory", *traceback("RuntimeError: bad shape")],
        "failed",
        "python-exception",
    ),
    Row(
        "an error before the steps of a second run",
        [*header(), *steps(0, 100), *traceback("RuntimeError: bad shape"), *steps(61, 90)],
        "running",
        None,
    ),
    Row(
        "an error before the closing word",
        [*header(None), *steps(0, 60), "0: Training subprocess exited with code 3", "QUEUE DONE"],
        "failed",
        "subprocess-fail",
    ),
    Row(
        "a rough teardown after the closing word",
        [
            *header(None),
            *steps(0, 60),
            "Training completed: 61 steps in 610s",
            *traceback("RuntimeError: cannot join thread"),
        ],
        "completed",
        None,
        exit=0,
    ),
    Row(
        "cancelled by Slurm, and what is printed then",
        [
            *header(),
            *steps(0, 60),
            "slurmstepd: error: *** JOB 41 ON n1 CANCELLED AT 2026-03-01T12:20:00 ***",
            *traceback("RuntimeError: broken pipe to the loader"),
        ],
        "cancelled",
        "cancelled",
        exit=0,
    ),
    Row(
        "an exception that the signal made",
        [*header(), *steps(0, 119), *traceback(KILLED_LOADER), *cancelled()],
        "cancelled",
        "cancelled",
    ),
    Row(
        "a task fails, and Slurm cancels the others",
        [
            *header(),
            *steps(0, 60),
            *traceback("RuntimeError: bad shape", 2),
            "slurmstepd: error: *** STEP 41.0 ON n1 CANCELLED AT 2026-03-01T12:20:00 ***",
        ],
        "failed",
        "python-exception",
        task="2",
    ),
    Row(
        "the loss is no number, and the job fails",
        [*header(), *steps(0, 60), *steps(61, 90, loss="nan"), *summary("FAILED", 1)],
        "failed",
        "loss-divergence",
    ),
    Row(
        "an exception because of it",
        [
            *header(),
            *steps(0, 60),
            *steps(61, 90, loss="inf"),
            *traceback("ValueError: inf in the scale"),
            *summary("FAILED", 1),
        ],
        "failed",
        "loss-divergence",
    ),
    Row(
        "a single loss that is no number, at the end",
        [*header(), *steps(0, 118), *steps(119, 119, loss="nan"), *cancelled()],
        "cancelled",
        "cancelled",
    ),
    Row(
        "an accused task that raised long before",
        [
            *header(),
            *steps(0, 60),
            *traceback("RuntimeError: bad shape", 2),
            *NOISE,
            *NOISE,
            *unhealthy([2]),
            *summary("FAILED", 1),
        ],
        "failed",
        "python-exception",
        rule="an accused task had failed before",
        task="2",
    ),
]


def megatron(first: int, last: int) -> list[str]:
    return [
        f" [2026-03-01 12:00:{step % 60:02d}] iteration {step:8d}/     500 | consumed samples: 9 | "
        "elapsed time per iteration (ms): 1012.3 | lm loss: 2.5E+00 |"
        for step in range(first, last + 1)
    ]


def torchtitan(first: int, last: int) -> list[str]:
    return [
        f"[rank0]:[titan] 2026-03-01 12:00:{step % 60:02d},123 - root - INFO - step: {step:2d}  "
        "loss:  4.1234  grad_norm:  1.2  memory: 40.00GiB(50.00%)  tps: 5,000  tflops: 300.12"
        for step in range(first, last + 1)
    ]


def own_loop(first: int, last: int) -> list[str]:
    return [
        f"2026-03-01 12:00:{step % 60:02d} | INFO | train | step {step}/500 | loss 2.3456 | lr 1e-4"
        for step in range(first, last + 1)
    ]


def bar(first: int, last: int) -> list[str]:
    return [
        f"{step // 2:3d}%|{'#' * (step // 20)}| {step}/200 [01:00<01:00,  1.00s/it, loss=2.1]"
        for step in range(first, last + 1)
    ]


PLANNED = {
    "minutes": [*megatron(1, 90), "[exiting program after 230.1 minutes] datetime: 2026-03-01"],
    "an iteration": [*megatron(1, 90), "[exiting program at iteration 90] datetime: 2026-03-01"],
    "minutes of an own loop": [*own_loop(1, 90), "12:09 | INFO | exiting after 230 minutes"],
    "Ray": [*header(), *steps(0, 90), "SUCC cli.py:64 -- Job 'raysubmit_Ab3' succeeded"],
    "a full bar": bar(1, 200),
    "the last step": own_loop(1, 500),
}
SURVIVED = {
    "retried": ["12:02 WARNING storage - OSError: [Errno 28] No space left on device, retrying"],
    "caught": [*traceback("ValueError: bad sample 17"), "skipping sample 17"],
    "data": ['event=restart status=ok note="RuntimeError: NCCL error: unhandled system error"'],
}
KEYBOARD = [
    "srun: sending Ctrl-C to StepId=41.0",
    *traceback("KeyboardInterrupt"),
    *traceback("KeyboardInterrupt", 1),
    "srun: error: n1: tasks 0-1: Exited with exit code 1",
]


@pytest.mark.parametrize("name", PLANNED)
def test_an_end_that_was_planned(name: str, triage: Triage) -> None:
    document = triage(PLANNED[name], *ENDED)
    assert (document["status"], document["primary"], document["exit"]) == ("completed", None, 0)


def test_giving_up_is_no_planned_end(triage: Triage) -> None:
    lines = [*own_loop(1, 90), "12:09 | ERROR | no peer answers: exiting after 30 minutes"]
    assert triage(lines, *ENDED)["status"] == "unknown"


def test_ray_says_that_its_job_failed_or_was_stopped(triage: Triage) -> None:
    log = [*header(), *steps(0, 90)]
    failed = triage([*log, "ERR cli.py:72 -- Job 'raysubmit_Ab3' failed"], *ENDED)
    assert (failed["status"], failed["primary"]) == ("failed", "subprocess-fail")
    assert triage([*log, "Job 'raysubmit_Ab3' was stopped"], *ENDED)["primary"] == "cancelled"


@pytest.mark.parametrize("form", [megatron, torchtitan, own_loop])
@pytest.mark.parametrize("name", SURVIVED)
def test_what_steps_followed_is_no_cause(
    form: Callable[[int, int], list[str]], name: str, triage: Triage
) -> None:
    lines = [*form(1, 30), *SURVIVED[name], *form(31, 50)]
    assert triage(lines, *ENDED)["primary"] == "unknown-death"
    assert triage([*lines, *KEYBOARD], *ENDED)["primary"] == "cancelled"


def test_a_loss_that_is_left_out_because_it_is_no_number(triage: Triage) -> None:
    """Megatron leaves the loss out then, and goes on."""
    lost = [line.replace("lm loss: 2.5E+00", "grad norm: nan") for line in megatron(51, 90)]
    for lines, is_lost in ((megatron(1, 90), False), ([*megatron(1, 50), *lost], True)):
        classes = {finding["class"] for finding in triage(lines, *ENDED)["findings"]}
        assert ("loss-divergence" in classes) == is_lost
    told = triage([*megatron(1, 50), lost[0], *megatron(52, 90)], *ENDED)
    (finding,) = [finding for finding in told["findings"] if finding["class"] == "loss-divergence"]
    assert finding["severity"] == "info"
    assert finding["evidence"][0]["text"] == "gradient norm: nan from step 51 on"


@pytest.mark.parametrize(
    "lines", [steps(0, 60), [f"{t}: Synchronizing hosts before training loop" for t in range(4)]]
)
def test_a_time_above_is_no_time_of_what_stands_below(lines: list[str], triage: Triage) -> None:
    settings = [f"export SETTING_{number}=x" for number in range(100)]
    log = [*header(), *settings, "submitted 2026-03-01 12:00:00", *lines]
    assert triage(log, *RUNNING)["status"] == "running"
    assert triage([*log, "2026-03-01 12:20:00 still here"], *RUNNING)["status"] == "hanging"


@pytest.mark.parametrize(
    "row",
    [*STATUS, *SOFT, *HANGS, *HEARTBEATS, *CASCADES, *SERIES, *ENDS],
    ids=lambda row: row.name,
)
def test_a_job(row: Row, triage: Triage) -> None:
    told = triage(row.lines, *row.arguments)
    assert (told["status"], told["primary"]) == (row.status, row.primary), told["rule"]
    assert row.rule in told["rule"]
    assert [one for one in told["cascade"] if one in row.cascade] == list(row.cascade)
    if row.primary is not None:
        assert told["findings"][0]["class"] == row.primary
        assert told["cascade"][0] == row.primary
    if row.task is not None:
        assert told["findings"][0]["task"] == row.task
    if row.host is not None:
        assert told["findings"][0]["host"] == row.host
    if row.exit is not None:
        assert told["exit"] == row.exit
    for part in row.says:
        assert part in told["what_happened"]


# Class -> a line that is the whole of the evidence, and whether training has begun.
ERRORS = {
    "container-pull-fail": ("[ERROR] Authenticated pull failed", False),
    "container-load-fail": (
        *("[ERROR] Unable to determine image name or ID from docker load output", False),
    ),
    "no-gpu": ("WARNING: No GPU devices detected (no /dev/kfd, no nvidia-smi)", False),
    "nccl-nic-fail": (
        *("NCCL FATAL n1: Failed to auto-detect NCCL_SOCKET_IFNAME; ABORTING", False),
    ),
    "port-fail": ("FATAL: Could not find a free port for Ray", False),
    "model-not-found": ("!!! Unknown model: demo-8b", False),
    "patch-branch-fail": ("[FAIL] Failed to check out hotfix/41", False),
    "ray-start-fail": ("[Ray] HEAD timeout", False),
    "preflight-timeout": ("== Preflight TIMEOUT (900s/900s) ==", False),
    "pull-timeout": ("== Docker pull TIMEOUT (900s/900s) ==", False),
    "ecc-timeout": ("== ECC check TIMEOUT (300s/300s) ==", False),
    "train-timeout": ("== Training TIMEOUT (900s/900s) ==", True),
    "stage-fail": ("== ECC check FAILED (exit=3, 12s) ==", False),
    "oom-host": ("0: Memory cgroup out of memory: Killed process 9 (python3)", True),
    "oom-gpu": ("0: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9 bytes.", True),
    "nccl-timeout": ("0: NCCL WARN Timeout waiting for connect from peer 3", True),
    "nccl-error": ("0: ncclSystemError: System call (e.g. socket, malloc) failed", True),
    "xla-compile-fail": ("0: XLA compilation failed: no lowering", True),
    "signal-kill": ("0: Training subprocess killed by SIGSEGV (signal 11)", True),
    "subprocess-fail": ("0: Training subprocess exited with code 3", True),
    "actor-fail": ("0: [Node 0] Actor failed: it was lost", True),
    "checkpoint-fs-error": ("0: Training stopped: Checkpointing failed", True),
    "node-fail": ("NODE_EXIT host=n2 exit=1", True),
    "import-error": ("0: ModuleNotFoundError: No module named 'demo'", False),
    "disk-full": ("0: OSError: [Errno 28] No space left on device", True),
    "gpu-hardware-error": (
        *("0: Memory access fault by GPU node-3 (Agent handle: 0x1) on address 0x2.", True),
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_a_class_by_its_own_line(name: str, triage: Triage) -> None:
    line, training = ERRORS[name]
    lines = header() + (steps(0, 60) if training else []) + [line]
    told = triage(lines + summary("FAILED", 1), *LOG_END)
    assert (told["status"], told["primary"]) == ("failed", name)
    assert told["exit"] == 1
    quoted = told["findings"][0]["evidence"][0]
    assert quoted["text"] == line
    assert quoted["source"].endswith(f"41-demo.log:{len(lines)}")


@pytest.mark.parametrize(
    ("line", "confidence"),
    [
        ("0: OSError: [Errno 28] No space left on device", "likely"),
        ("0: RuntimeError: CUDA error: unspecified launch failure", "likely"),
        ("0: XLA compilation failed: no lowering", "confirmed"),
    ],
)
def test_a_line_that_leaves_its_cause_open_confirms_none(
    line: str, confidence: str, triage: Triage
) -> None:
    told = triage([*header(), *steps(0, 60), line, *summary("FAILED", 1)], *LOG_END)
    assert told["findings"][0]["confidence"] == confidence


GCS = "[2026-03-01 12:00:05,678 {} 41 41] gcs_rpc_client.h:151: Failed to connect to GCS at address"
GCS_SLOW = f"{GCS.format('W')} 10.0.0.3:6379 within 5 seconds."
GCS_DEAD = f"{GCS.format('E')} 10.0.0.3:6379 within 60 seconds. GCS may have been killed."


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("more", [[], ["NODE_EXIT host=n2 exit=1"]])
def test_a_head_that_is_gone(training: bool, more: list[str], triage: Triage) -> None:
    lines = [*header(ray=True), *(steps(0, 60) if training else []), GCS_DEAD, *more]
    told = triage(lines, *ENDED)
    assert (told["status"], told["primary"]) == ("failed", "ray-node-dead")


def test_a_head_that_answers_late_is_no_cause(triage: Triage) -> None:
    lines = [*header(ray=True), GCS_SLOW, *traceback("KeyError: 'decoder'")]
    assert triage([*lines, "NODE_EXIT host=n2 exit=1"], *ENDED)["primary"] == "python-exception"


WATCHDOG = (
    "0: [rank0]:[E301 12:00:00.000 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective "
    "operation timeout: WorkNCCL(SeqNum=12) ran for 600031 milliseconds before timing out."
)
FAILED_OR_TIMED_OUT = (
    "0: [rank0]:[E301 12:00:00.100 ProcessGroupNCCL.cpp:684] [Rank 0] Some NCCL operations have "
    "failed or timed out. Due to the asynchronous nature of CUDA kernels, data may be corrupted."
)


@pytest.mark.parametrize(
    ("lines", "classes"),
    [
        ([WATCHDOG, FAILED_OR_TIMED_OUT], ["nccl-timeout"]),
        ([ERRORS["nccl-error"][0], FAILED_OR_TIMED_OUT], ["nccl-error"]),
        ([FAILED_OR_TIMED_OUT], ["nccl-error"]),
    ],
)
def test_operations_that_failed_or_timed_out_are_of_what_stands_beside(
    lines: list[str], classes: list[str], triage: Triage
) -> None:
    told = triage([*header(), *steps(0, 60), *lines], *ENDED)
    assert [finding["class"] for finding in told["findings"]] == classes
    texts = [evidence["text"] for evidence in told["findings"][0]["evidence"]]
    assert FAILED_OR_TIMED_OUT in texts


@pytest.mark.parametrize(
    "line",
    [
        "0: W0301 12:00:00.000 41 utils.py:12] Cannot find a working triton installation, falling "
        "back to eager",
        "0: [W301 12:00:00.000 utils.py:12] TritonMissing: Cannot find a working triton install",
    ],
)
def test_triton_that_a_job_does_without(line: str, triage: Triage) -> None:
    told = triage([*header(), *steps(0, 60), line], *ENDED)
    assert (told["primary"], told["findings"][1:]) == ("unknown-death", [])


EPOCHS = [f"Epoch: [3][{batch}/3125]  Time 0.1  Loss 3.4975e+00" for batch in range(0, 900, 300)]
ELASTIC_EXIT = (
    "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -6) local_rank: 2 "
    "(pid: 7121) of binary: /opt/python"
)
ELASTIC_RESTART = (
    "INFO:torch.distributed.elastic.agent.server.api:[default] Worker group FAILED. 3/3 attempts "
    "left; will restart worker group"
)


def test_a_failure_that_an_elastic_launcher_got_over_is_history(triage: Triage) -> None:
    failure = [*EPOCHS, ELASTIC_EXIT, ELASTIC_RESTART]
    told = triage([*failure, *EPOCHS], *LOG_END)
    assert (told["status"], told["primary"]) == ("running", None)
    done = triage([*failure, *EPOCHS, "Training completed after 8 iterations"], *ENDED)
    assert (done["status"], done["primary"]) == ("completed", None)
    for lines in (failure, [*failure, *EPOCHS, ELASTIC_EXIT]):
        assert triage(lines, *LOG_END)["primary"] == "signal-kill"


@pytest.mark.parametrize("line", HARMLESS, ids=lambda line: line[:40])
def test_a_harmless_line_is_never_mentioned(line: str, triage: Triage) -> None:
    lines = [*header(50), line, *steps(0, 49), line, *summary("SUCCESS", 0)]
    told = triage(lines, *LOG_END)
    assert (told["status"], told["findings"], told["exit"]) == ("completed", [], 0)


VERDICTS = [row for row in [*STATUS, *SOFT, *HANGS, *CASCADES] if row.arguments == LOG_END]


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    number=st.sampled_from(range(len(VERDICTS))),
    extra=st.lists(st.sampled_from(HARMLESS), min_size=1, max_size=8),
)
def test_harmless_lines_never_change_the_verdict(
    number: int, extra: list[str], triage: Triage
) -> None:
    row = VERDICTS[number]
    told = triage([*row.lines, *extra], *row.arguments)
    assert (told["status"], told["primary"]) == (row.status, row.primary)


def test_what_the_job_got_over_is_a_remark(triage: Triage) -> None:
    early = [*header(50), *steps(0, 9), "1: NCCL error: unhandled system error", *steps(10, 49)]
    told = triage([*early, *summary("SUCCESS", 0)], *LOG_END)
    assert [(one["class"], one["severity"]) for one in told["findings"]] == [("nccl-error", "info")]
    assert told["exit"] == 0
    failed = triage([*early, *traceback("ValueError: bad"), *summary("FAILED", 2)], *LOG_END)
    assert [one["severity"] for one in failed["findings"]] == ["critical", "info"]


def test_the_cancellation_behind_a_hang_is_a_remark(triage: Triage) -> None:
    told = triage([*header(), *steps(0, 119), *cancelled("1h 0m 0s")], *LOG_END)
    severities = {one["class"]: one["severity"] for one in told["findings"]}
    assert severities == {"hang": "critical", "cancelled": "info"}


def test_the_stage_is_the_one_that_is_open(triage: Triage) -> None:
    begun = [*header(), "== Preflight BEGIN (timeout=900s) =="]
    told = triage([*begun, *summary("FAILED", 1)], *LOG_END)
    assert told["stage"] == "Preflight"
    told = triage([*begun, *steps(0, 60), *cancelled("2h 0m 0s")], *LOG_END)
    assert (told["primary"], told["stage"]) == ("hang", "training")


def test_slower_training_is_a_finding_of_a_job_that_runs(triage: Triage) -> None:
    lines = [*header(), *steps(0, 99), *steps(100, 250, tokens=1500.0)]
    told = triage(lines, *LOG_END)
    assert (told["status"], told["primary"], told["exit"]) == ("running", None, 1)
    assert [one["class"] for one in told["findings"]] == ["tgs-degradation"]
    speed = told["progress"]["throughput"]
    assert (speed["change_percent"], speed["pattern"], speed["degraded"]) == (-25, "constant", True)


def test_the_traceback_of_a_driver_whose_actor_died_is_no_exception_of_training(
    triage: Triage,
) -> None:
    """It says the same as Ray's own line, and where that is."""
    lost = (
        "(raylet) A worker died or was killed while executing a task by an unexpected system "
        "error. Worker IP address: 10.0.0.3 Worker port: 10016 Worker PID: 1942"
    )
    raised = [
        "Traceback (most recent call last):",
        '  File "train.py", line 9, in <module>',
        "    ray.get(done)",
        "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.",
        "\tclass_name: Trainer",
        "\tactor_id: 83bc111f785511a5fd434eaa0b000000",
        "\tpid: 1942",
        "\tip: 10.0.0.3",
        "The actor is dead because its worker process has died.",
    ]
    found = triage([*header(), *steps(0, 30), lost, *raised], *ENDED)["findings"]
    failures = [(one["class"], one["host"], one["pid"]) for one in found]
    assert failures == [("actor-fail", "10.0.0.3", 1942)]
