"""Does a probe slow training down? Twenty of them beside a training, interleaved with quiet times.

    python benchmarks/beside_training.py [PAIRS] [--agent]

With --agent they go through the resident agent, which is up in the quiet times as well. On four
simulated hosts ranks make steps and wait for each other after each. A quiet time follows each probe
and is as long; the mean step of both makes a ratio. Printed is their geometric mean with its 95 %
interval, of the ratios and of their logarithms' spread. All hosts share this machine's CPUs, which
real nodes do not: the ratio is an upper bound. Afterwards nothing may be left: after each probe,
after Ctrl-C and after kill -9 of the command. Needs root.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.cluster.conftest import RAYDIAG, environment, job_states, own_processes
from tests.cluster.live import toy_job
from tests.cluster.simulated_hosts import Cluster, HostSpec

_HOSTS = [f"node{number:03}" for number in range(1, 5)]
_PROBE = (*RAYDIAG, "probe", "--address", "http://127.0.0.1:8265", "--format", "json")
_SECONDS = re.compile(r"completed step: \d+, seconds: ([\d.]+)")
_AFTERWARDS_S = 20.0  # until the command's last errand is done: its entry leaves Ray's list
_LEFT_S = 90.0  # for a command that was killed: its job ends by its own deadline
# Student's t for 95 %, by degrees of freedom; beyond them 2.
_T = {4: 2.776, 9: 2.262, 14: 2.145, 19: 2.093, 29: 2.045}
_RUNNING = ("PENDING", "RUNNING")


class Training:
    """The toy job, until the end of the block."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._directory = cluster.directory / "toy"

    def __enter__(self) -> Training:
        self._directory.mkdir()
        data = self._directory / "data"
        data.mkdir()
        (data / "index").write_text("0\n")
        argv = [sys.executable, str(Path(toy_job.__file__)), str(self._directory), "/mnt"]
        self._driver = _started(self._cluster, [*argv, str(data)])
        while len(self.steps()) < 20:
            time.sleep(0.5)
        return self

    def __exit__(self, *_: object) -> None:
        self._cluster.signal(self._driver, signal.SIGKILL)

    def steps(self) -> list[float]:
        """How long each step of the last rank took, in seconds."""
        logs = self._cluster.directory / _HOSTS[-1] / "ray"
        seconds: list[float] = []
        for file in logs.glob("session_2*/logs/worker-*.out"):
            seconds += map(float, _SECONDS.findall(file.read_text(errors="replace")))
        return seconds


def main() -> None:
    """Measure, then look for what is left."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("pairs", nargs="?", type=int, default=20)
    arguments.add_argument("--agent", action="store_true")
    pairs, is_warm = vars(arguments.parse_args()).values()
    specs = [HostSpec(name, tmpfs={"/mnt": 8_000_000}) for name in _HOSTS]
    with Cluster(specs, start_deadline_s=240) as cluster, Training(cluster) as training:
        if is_warm:
            up = [*RAYDIAG, "agent", "up"]
            cluster.run_on(cluster.head, up, env=environment(), timeout=120).check_returncode()
        ratios = [_ratio(cluster, training, is_warm) for _ in range(pairs)]
        logs = list(map(math.log, ratios))
        mean, half = statistics.fmean(logs), 0.0
        if pairs > 1:
            half = _T.get(pairs - 1, 2.0) * statistics.stdev(logs) / math.sqrt(pairs)
        low, middle, high = map(math.exp, (mean - half, mean, mean + half))
        _say(
            f"step time, probe : quiet, {pairs} pairs: {middle:.4f} (95 %: {low:.4f} to {high:.4f})"
        )
        endings = (("Ctrl-C", signal.SIGINT), ("kill -9", signal.SIGKILL))
        for name, number in () if is_warm else endings:
            _say(f"left after {name}: {_left_after(cluster, number)}")


def _ratio(cluster: Cluster, training: Training, is_warm: bool) -> float:
    """Of the mean steps of a probe's time and of a quiet time after it."""
    before, began = len(training.steps()), time.monotonic()
    done = cluster.run_on(cluster.head, _PROBE, env=environment(), timeout=120)
    took_s = time.monotonic() - began
    during = training.steps()[before:]
    if not is_warm and (left := _left(cluster, _AFTERWARDS_S)):
        _say(f"left after a probe (exit {done.returncode}): {left}")
    before = len(training.steps())
    time.sleep(took_s)
    quiet = training.steps()[before:]
    ratio = statistics.fmean(during[1:]) / statistics.fmean(quiet[1:])
    _say(f"probe {took_s:4.1f} s, {len(during):3} steps; quiet {len(quiet):3} steps: {ratio:.4f}")
    return ratio


def _left_after(cluster: Cluster, number: int) -> str:
    """What is there some time after the command was ended in the middle of its work."""
    command = _started(cluster, _PROBE)
    time.sleep(3)
    cluster.signal(command, number)
    command.wait(30)
    began = time.monotonic()
    left = _left(cluster, _LEFT_S)
    return f"{left}" if left else f"nothing, {time.monotonic() - began:.1f} s later"


def _left(cluster: Cluster, limit_s: float) -> list[str]:
    """Processes and jobs of ours; as soon as there are none, or when time is up."""
    end = time.monotonic() + limit_s
    while True:
        running = [name for name, state in job_states(cluster).items() if state in _RUNNING]
        left = [*own_processes(cluster), *(name for name in running if "raydiag" in str(name))]
        if not left or time.monotonic() > end:
            return left
        time.sleep(0.5)


def _started(cluster: Cluster, argv: Sequence[str]) -> subprocess.Popen[str]:
    """A command on the head whose output nobody reads."""
    nowhere = subprocess.DEVNULL
    return cluster.popen_on(cluster.head, argv, env=environment(), stdout=nowhere, stderr=nowhere)


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} load {os.getloadavg()[0]:4.1f}  {text}", flush=True)


if __name__ == "__main__":
    main()
