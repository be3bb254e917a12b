"""A toy training job: some ranks that do a step together, one of which stops in the middle.

`python toy_training.py [RANKS]`, as a job on a Ray cluster. Every rank prints a line a step, as
MaxText does. At step `STOPS_AT` the last rank stops itself, as a debugger or a frozen cgroup would
stop it, and all others wait.
"""

from __future__ import annotations

import os
import signal
import sys
import time

import ray

STEP_S = 0.4
STOPS_AT = 25


@ray.remote(num_cpus=0)
class Trainer:
    """One rank."""

    def __init__(self, rank: int, stops: bool) -> None:
        self.rank, self.stops = rank, stops

    def step(self, number: int) -> None:
        """Work a little, and say so."""
        if self.stops and number == STOPS_AT:
            os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(STEP_S)
        loss = 3.0 + 5.0 / (number + 1)
        print(
            f"completed step: {number}, seconds: {STEP_S:.3f}, TFLOP/s/device: 310.125, "
            f"Tokens/s/device: 2210.500, total_weights: 65536, loss: {loss:.3f}",
            flush=True,
        )


def main() -> None:
    """Step after step, each when all ranks have done the one before."""
    ranks = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    ray.init(logging_level="ERROR")
    trainers = [
        Trainer.options(name=f"trainer-{rank}").remote(rank, rank == ranks - 1)  # type: ignore[attr-defined]
        for rank in range(ranks)
    ]
    for number in range(10_000):
        ray.get([trainer.step.remote(number) for trainer in trainers])


if __name__ == "__main__":
    main()
