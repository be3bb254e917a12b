"""A toy training: one rank on each host, which all wait for each other after every step.

Run as a program on the head: `toy_job.py <directory>`. Files in that directory steer it:
`fault-<rank>` holds "spin" or by how much that rank is slower, and once `finish` is there all ranks
end after the next step. With `patient` the driver waits for all ranks, whichever has died. Every
rank prints one line a step.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

WORK_S, POLL_S = 0.4, 0.1
TRAINER = "Trainer"
_LINE = (
    "completed step: {step}, seconds: {seconds:.3f}, TFLOP/s/device: {rate:.3f}, "
    "Tokens/s/device: {tokens:.3f}, total_weights: 65536, loss: {loss:.3f}\n"
)


def step_line(step: int, seconds: float) -> str:
    """As MaxText prints it."""
    loss = 3.0 + 5.0 / (step + 1)
    return _LINE.format(
        step=step, seconds=seconds, rate=155 / seconds, tokens=1105 / seconds, loss=loss
    )


def _work(fault: Path) -> None:
    """One step's work, or what the file says instead."""
    try:
        said = fault.read_text().strip()
    except FileNotFoundError:
        said = "1"
    while said == "spin":
        pass
    time.sleep(WORK_S * float(said))


def _train(directory: str) -> None:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    @ray.remote(num_cpus=0)
    class Barrier:
        """Every rank asks it whether all have come."""

        def __init__(self, ranks: int) -> None:
            self.reached, self.last = [-1] * ranks, sys.maxsize

        def arrive(self, rank: int, step: int) -> tuple[int, int]:
            self.reached[rank] = step
            if self.last == sys.maxsize and Path(directory, "finish").exists():
                self.last = max(self.reached) + 1
            return min(self.reached), self.last

    @ray.remote(num_cpus=0)
    class Trainer:
        """One rank."""

        def train(self, rank: int, barrier: object) -> None:
            step, last = 0, sys.maxsize
            while step <= last:
                began = time.monotonic()
                _work(Path(directory, f"fault-{rank}"))
                slowest = -1
                while slowest < step:
                    slowest, last = ray.get(barrier.arrive.remote(rank, step))  # type: ignore[attr-defined]
                    if slowest < step:
                        time.sleep(POLL_S)
                sys.stdout.write(step_line(step, time.monotonic() - began))
                sys.stdout.flush()
                step += 1

    ray.init(address="auto", logging_level="ERROR")
    nodes = sorted(filter(_is_alive, ray.nodes()), key=_address)
    names = [node["NodeManagerHostname"] for node in nodes]
    sys.stdout.write(f"NNODES={len(names)}\nJOB_NODELIST={','.join(names)}\n")
    sys.stdout.flush()
    placed = [NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in nodes]
    barrier = Barrier.options(scheduling_strategy=placed[0]).remote(len(nodes))  # type: ignore[attr-defined]
    trainers = [Trainer.options(scheduling_strategy=place).remote() for place in placed]  # type: ignore[attr-defined]
    trained = [each.train.remote(rank, barrier) for rank, each in enumerate(trainers)]
    if Path(directory, "patient").exists():
        ray.wait(trained, num_returns=len(trained))
    ray.get(trained)
    time.sleep(1)  # until Ray has brought the last lines
    sys.stdout.write(f"{'=' * 26} JOB SUMMARY {'=' * 26}\n  Status: SUCCESS\n")


def _is_alive(node: dict[str, object]) -> bool:
    return bool(node["Alive"])


def _address(node: dict[str, object]) -> str:
    return str(node["NodeManagerAddress"])


if __name__ == "__main__":
    _train(sys.argv[1])
