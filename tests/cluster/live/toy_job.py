"""A toy training: one rank on each host, which all wait for each other after every step.

Run as a program on the head: `toy_job.py <directory> <saves> <data>`. Files in the first steer it:

- `fault-<rank>`: "spin", or by how much that rank is slower;
- `phase`: "compile 60", "evaluate 60" or "save 60": what rank 0 does next, for so many seconds;
- `loss`: what every rank prints as its loss from now on;
- `chatter`: lines that rank 0 prints with every step;
- `patient`: the driver waits for all ranks, whichever has died;
- `children`: what trains are child processes of Ray's workers, which wait for each other over TCP
  and print as Megatron does, the last rank alone;
- `finish`: all ranks end after the next step.

Every rank prints one line a step. Every twentieth step it reads a file below `data` and writes one
to `saves`, as a checkpoint does.
"""

from __future__ import annotations

import itertools
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

WORK_S, POLL_S = 0.4, 0.05
SAVE_STEPS, SAVE_BYTES = 20, 100_000
TRAINER = "Trainer"
_PORT = 29_500
_LINE = (
    "completed step: {step}, seconds: {seconds:.3f}, TFLOP/s/device: {rate:.3f}, "
    "Tokens/s/device: {tokens:.3f}, total_weights: 65536, loss: {loss}\n"
)


def step_line(step: int, seconds: float, loss: str = "") -> str:
    """As MaxText prints it."""
    loss = loss or f"{3.0 + 5.0 / (step + 1):.3f}"
    return _LINE.format(
        step=step, seconds=seconds, rate=155 / seconds, tokens=1105 / seconds, loss=loss
    )


def iteration_line(step: int, seconds: float, loss: str = "") -> str:
    """As Megatron prints it."""
    at, loss = time.strftime("%Y-%m-%d %H:%M:%S"), loss or f"{3.0 + 5.0 / (step + 1):.6E}"
    counts = f"iteration {step:8d}/  500000 | consumed samples: {step * 16:12d}"
    took = f"elapsed time per iteration (ms): {1000 * seconds:.1f}"
    return f" [{at}] {counts} | {took} | learning rate: 1.5E-04 | lm loss: {loss} |\n"


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return ""


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _work(fault: Path) -> None:
    """One step's work, or what the file says instead."""
    said = _text(fault) or "1"
    while said == "spin":
        pass
    time.sleep(WORK_S * float(said))


def _phase(file: Path, step: int) -> None:
    """What is asked for besides steps: once, and with what MaxText prints of it."""
    name, _, seconds = _text(file).partition(" ")
    if not seconds:
        return
    file.unlink()
    end = time.monotonic() + float(seconds)
    if name == "compile":
        _say("Compiling train_step for this topology, this may take minutes")
    while time.monotonic() < end:
        time.sleep(2)
        if name == "evaluate":
            _say(f"Completed eval step {int(end - time.monotonic())}")
    if name == "save":
        _say(f"saved a checkpoint at step {step}")


def _save(rank: int, saves: Path, data: Path) -> None:
    """A checkpoint's share of this rank."""
    (data / "index").read_text()
    with (saves / f"shard-{rank}").open("wb") as file:
        file.write(b"0" * SAVE_BYTES)
        file.flush()
        os.fsync(file.fileno())


def _gather(ranks: int, server: socket.socket, finish: Path) -> None:
    """Rank 0 hears of every rank that it has come, and then lets all go on, or end."""
    peers = [server.accept()[0] for _ in range(ranks)]
    while all(peer.recv(1) for peer in peers):
        said = b"e" if finish.exists() else b"."
        for peer in peers:
            peer.sendall(said)


def _child(rank: int, ranks: int, address: str, directory: str, saves: str, data: str) -> None:
    """One rank, in a process that Ray does not know."""
    if rank == 0:
        server = socket.create_server(("", _PORT))
        threading.Thread(
            target=_gather, args=(ranks, server, Path(directory, "finish")), daemon=True
        ).start()
    peer = _connected(address)
    for step in itertools.count(1):
        began = time.monotonic()
        if rank == 0:
            _phase(Path(directory, "phase"), step)
        _work(Path(directory, f"fault-{rank}"))
        if step % SAVE_STEPS == 0:
            _save(rank, Path(saves), Path(data))
        peer.sendall(b".")
        said = peer.recv(1)
        if not said:
            raise ConnectionError(f"rank {rank}: Connection closed by peer [{address}]:{_PORT}")
        if rank == ranks - 1:
            loss = _text(Path(directory, "loss"))
            sys.stdout.write(iteration_line(step, time.monotonic() - began, loss))
            sys.stdout.flush()
        if said == b"e":
            return


def _connected(address: str) -> socket.socket:
    end = time.monotonic() + 60
    while True:
        try:
            return socket.create_connection((address, _PORT))
        except ConnectionRefusedError:
            if time.monotonic() > end:
                raise
            time.sleep(0.5)


def _train(directory: str, saves: str, data: str) -> None:
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

        def lead(self, rank: int, ranks: int, address: str) -> None:
            argv = [sys.executable, str(Path(directory, "toy_job.py")), "rank", str(rank)]
            argv += [str(ranks), address, directory, saves, data]
            subprocess.run(argv, check=True)

        def train(self, rank: int, barrier: object) -> None:
            step, last = 0, sys.maxsize
            while step <= last:
                began = time.monotonic()
                if rank == 0:
                    _phase(Path(directory, "phase"), step)
                _work(Path(directory, f"fault-{rank}"))
                if step % SAVE_STEPS == SAVE_STEPS - 1:
                    _save(rank, Path(saves), Path(data))
                slowest = -1
                while slowest < step:
                    slowest, last = ray.get(barrier.arrive.remote(rank, step))  # type: ignore[attr-defined]
                    if slowest < step:
                        time.sleep(POLL_S)
                loss = _text(Path(directory, "loss"))
                sys.stdout.write(step_line(step, time.monotonic() - began, loss))
                sys.stdout.flush()
                if rank == 0 and (chatter := _text(Path(directory, "chatter"))):
                    _say(chatter)
                step += 1

    ray.init(address="auto", logging_level="ERROR")
    nodes = sorted(filter(_is_alive, ray.nodes()), key=_address)
    names = [node["NodeManagerHostname"] for node in nodes]
    sys.stdout.write(f"NNODES={len(names)}\nJOB_NODELIST={','.join(names)}\n")
    sys.stdout.flush()
    placed = [NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in nodes]
    barrier = Barrier.options(scheduling_strategy=placed[0]).remote(len(nodes))  # type: ignore[attr-defined]
    trainers = [Trainer.options(scheduling_strategy=place).remote() for place in placed]  # type: ignore[attr-defined]
    if Path(directory, "children").exists():
        Path(directory, "toy_job.py").write_text(Path(__file__).read_text())
        first = str(nodes[0]["NodeManagerAddress"])
        trained = [each.lead.remote(rank, len(nodes), first) for rank, each in enumerate(trainers)]
    else:
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
    if sys.argv[1] == "rank":
        _child(int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
    else:
        _train(*sys.argv[1:])
