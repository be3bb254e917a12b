"""A training-like job: one actor per host that prints a step line and takes its time.

Run as a program on the head: `training.py <plans as JSON> <address>`. It says "ready" when every
actor is at work, and ends with its stdin. See `Plan` for what each host's actor does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.cluster.simulated_hosts import Cluster

STEP_S = 0.2


@dataclass(frozen=True)
class Plan:
    """What the trainer of one host does."""

    first_step: int = 100
    stops_at: int | None = None  # the last step that it completes; None: it goes on
    env: Mapping[str, str] = field(default_factory=dict)  # of its process


@contextmanager
def training(
    cluster: Cluster, plans: Mapping[str, Plan] | None = None, address: str = "auto"
) -> Iterator[None]:
    """Train on every host of the cluster; the job is over when the block is left."""
    wanted = {host: asdict((plans or {}).get(host, Plan())) for host in cluster.hosts}
    process = cluster.popen_on(
        cluster.head,
        [sys.executable, __file__, json.dumps(wanted), address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    said = []
    try:
        for line in process.stdout:
            if line == "ready\n":
                break
            said.append(line)
        else:
            raise RuntimeError(f"the training did not begin: {''.join(said)[-2000:]}")
        yield
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait(30)


def _train(plans: Mapping[str, Mapping[str, object]], address: str) -> None:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    @ray.remote(num_cpus=0)
    class Trainer:
        def train(self, first_step: int, stops_at: int | None) -> None:
            step = first_step
            while stops_at is None or step <= stops_at:
                sys.stdout.write(
                    f"completed step: {step}, seconds: {STEP_S:.3f}, TFLOP/s/device: 310.125, "
                    f"Tokens/s/device: 2210.500, total_weights: 65536, loss: 3.125\n"
                )
                sys.stdout.flush()
                step += 1
                time.sleep(STEP_S)
            time.sleep(3600)

        def here(self) -> str:
            return os.uname().nodename

    ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    trainers = []
    for node in ray.nodes():
        plan = plans.get(node["NodeManagerHostname"])
        if plan is None or not node["Alive"]:
            continue
        pinned = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        trainer = Trainer.options(  # type: ignore[attr-defined]
            scheduling_strategy=pinned,
            max_concurrency=2,
            runtime_env={"env_vars": plan["env"]} if plan["env"] else {},
        ).remote()
        trainers.append(trainer)
        trainer.train.remote(plan["first_step"], plan["stops_at"])
    ray.get([trainer.here.remote() for trainer in trainers])
    time.sleep(5 * STEP_S)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    _train(json.loads(sys.argv[1]), sys.argv[2])
