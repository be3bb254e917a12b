"""A toy training job: some ranks that do a step together, one of which stops in the middle.

`python toy_training.py RANKS STEP`, as a job on a Ray cluster. Every rank prints a line a step, as
MaxText does. At that step the last rank stops itself, as a debugger or a frozen cgroup would stop
it, and all others wait.
"""

from __future__ import annotations

import os
import signal
import sys
import time

os.environ["RAY_DEDUP_LOGS"] = "0"  # every rank's line, when it is printed

import ray

STEP_S = 0.4


@ray.remote(num_cpus=0)
class Trainer:
    """One rank."""

    def __init__(self, stops_at: int | None) -> None:
        self.stops_at = stops_at

    def step(self, number: int) -> None:
        """Work a little, and say so."""
        if number == self.stops_at:
            os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(STEP_S)
        loss = 3.0 + 5.0 / (number + 1)
        print(
            f"completed step: {number}, seconds: {STEP_S:.3f}, TFLOP/s/device: 310.125, "
            f"Tokens/s/device: 2210.500, total_weights: 65536, loss: {loss:.3f}",
            flush=True,
        )


def main(ranks: int, stops_at: int) -> None:
    """Step after step, each when all ranks have done the one before."""
    ray.init(logging_level="ERROR")
    trainers = [
        Trainer.options(name=f"trainer-{rank}").remote(stops_at if rank == ranks - 1 else None)  # type: ignore[attr-defined]
        for rank in range(ranks)
    ]
    for number in range(10_000):
        ray.get([trainer.step.remote(number) for trainer in trainers])


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
