"""Job logs for the scenarios, composed line by line in the forms that launchers print."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from typing import Optional

START = datetime(2026, 3, 1, 12, 0, tzinfo=timezone.utc).timestamp()

# Of jobs that are well: each alone means nothing.
HARMLESS = (
    "2: E0301 12:00:09.100000 41 cuda_executor.cc:1228] Failed call to cuInit: UNKNOWN ERROR (303)",
    "1: n2:900:977 [3] init.cc:2095 NCCL WARN MSCCL++: Feature not enabled",
    "0: Token indices sequence length is longer than the specified maximum sequence length for "
    "this model (9001 > 8192)",
    "OCI runtime exec failed: exec failed: unable to start container process: error executing "
    "setns process: exit status 1: unknown",
    "[exec] docker exec failed (rc=1), falling back to host-level kill",
    "[cgroup] Sent SIGKILL to 0/0 processes",
    "3: topology.cc:120] Cannot read CPU core 97",
    "0: No hardware is found. Using default TPU version: jellyfish",
    "0: trace.cc:88] No device identifiers found",
    "0: Enabling PjRt/TPU event dependency logging",
    "0: init-domain.cc:77] Fiber init: default domain = futex, concurrency: 96",
    "Error response from daemon: cannot remove container job41: could not kill container: tried to "
    "kill container, but did not receive an exit event",
    "srun: error: n3: task 2: Exited with exit code 143",
    "srun: Terminating StepId=41.0",
    "(raylet) Failed to establish connection to the metrics exporter agent. Metrics will not be "
    "exported.",
)


def header(
    steps: Optional[int] = 500, period: Optional[int] = 100, ray: bool = False, more: str = ""
) -> list[str]:
    """The first lines: four nodes, checkpoints on where a period is given."""
    arguments = [f"steps={steps}" if steps else "", "warmup_steps=7"]
    arguments += ["enable_checkpointing=true"] if period else []
    lines = [
        "JOB_ID=41",
        "JOB_NAME=demo",
        "NNODES=4",
        "JOB_NODELIST=n[1-4]",
        "JAX_COORDINATOR_PORT=34011",
        *(["RAY_PORT=34012"] if ray else []),
        f'PASSTHROUGH_ARGS="{" ".join(one for one in [*arguments, more] if one)}"',
        "MODEL_NAME=demo-7b",
    ]
    return lines + ([f"0: Config param checkpoint_period: {period}"] if period else [])


def steps(
    first: int,
    last: int,
    *,
    seconds: float = 10.0,
    tasks: Sequence[int] = (0,),
    clock: Optional[float] = None,
    loss: str = "4.500",
    tokens: float = 2000.0,
) -> list[str]:
    """MaxText's step lines; with `clock` they print the time at which each one ended."""
    lines = []
    for step in range(first, last + 1):
        for task in tasks:
            when = ""
            if clock is not None:
                moment = datetime.fromtimestamp(clock + (step - first + 1) * seconds, timezone.utc)
                when = f"{moment:%Y-%m-%d %H:%M:%S},000 INFO "
            lines.append(
                f"{task}: {when}completed step: {step}, seconds: {seconds:.3f}, TFLOP/s/device: "
                f"400.000, Tokens/s/device: {tokens:.3f}, total_weights: 196608, loss: {loss}"
            )
    return lines


def summary(word: str, code: int, reason: str = "", wall: str = "20m 0s") -> list[str]:
    """The closing block."""
    told = f" — {reason}" if reason else ""
    return [
        "========================== JOB SUMMARY ==========================",
        "  Job:    41 (demo)",
        "  Model:  demo-7b",
        "  Nodes:  4",
        f"  Wall:   {wall}",
        f"  Status: {word} (exit {code}){told}",
        "=================================================================",
    ]


def cancelled(wall: str = "20m 0s") -> list[str]:
    return summary("FAILED", 143, "CANCELLED (scancel / SIGTERM)", wall)


def traceback(exception: str, task: int = 0) -> list[str]:
    """An exception as Python prints it."""
    return [
        f"{task}: Traceback (most recent call last):",
        f'{task}:   File "/opt/train/loop.py", line 88, in train_step',
        f"{task}:     state = step_fn(state, batch)",
        f"{task}: {exception}",
    ]


def unhealthy(tasks: Iterable[int]) -> list[str]:
    """JAX's coordination service gives tasks up for lost."""
    return [
        "0: E0301 12:40:00.000000 77 coordination_service_agent.cc:332] Polled an error from "
        "coordination service (this can be an error from this or another task).",
        "0: UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats):",
        *(f"0: /job:jax_worker/replica:0/task:{task}" for task in tasks),
        "0: The tasks have crashed. Check the task logs for an earlier error.",
    ]
