"""What asking does to nodes that limp: nodes that raydiag probes beside nodes that it does not.

`python -m tests.cluster.live.control [--only WORDS] [--trials N] [--seconds S]` makes all nodes of
a cluster but the head limp, in one way after the other. Half of them are probed, one probe after
the other; nobody asks the rest. On each an actor makes steps. It prints how many nodes Ray declared
dead, after how long, until when their steps went on, and how likely so large a difference is by
chance. Ways that have to do with the head take a cluster for each trial, `BATCH` of them at a time.
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from math import comb
from pathlib import Path
from statistics import median

from tests.cluster import namespaces
from tests.cluster.conftest import RAYDIAG, environment
from tests.cluster.simulated_hosts import Cluster

BATCH = 5
_STEP_S = 0.5
_START_S, _ASK_S = 240.0, 120.0
_LOOK_S = 2.0
# Ray's own: the simulated hosts find a dead node sooner, for tests that want one.
_RAY_DEFAULTS = {
    "RAY_health_check_initial_delay_ms": "5000",
    "RAY_health_check_period_ms": "3000",
    "RAY_health_check_timeout_ms": "10000",
    "RAY_health_check_failure_threshold": "5",
}
_PROBE = (*RAYDIAG, "probe", "--address", "http://127.0.0.1:8265", "--format", "json")


@dataclass(frozen=True)
class Limp:
    """One way in which a node limps."""

    name: str
    process: str = ""  # which of Ray's processes, by its name
    stopped_s: float = 0.0  # of each turn; 0: it stays stopped
    runs_s: float = 0.0
    of_head: bool = False
    command: str = ""  # those with this in their command line, as `pkill -f` chooses


_DASHBOARD_AGENT, _RUNTIME_ENV_AGENT = "ray::DashboardAgent", "ray::RuntimeEnvAgent"
LIMPS = (
    Limp("well"),
    Limp("raylet slow: stops 2.5 of 3 s", "raylet", 2.5, 0.5),
    Limp("raylet slower: stops 6 of 7 s", "raylet", 6.0, 1.0),
    Limp("runtime-env agent stopped", _RUNTIME_ENV_AGENT),
    Limp("dashboard agent stopped", _DASHBOARD_AGENT),
    # A raylet's own command line holds those of its agents: who stops an agent so stops both.
    Limp("stopped by the agent's file name", command="dashboard/agent.py"),
    Limp("head's runtime-env agent stopped", _RUNTIME_ENV_AGENT, of_head=True),
    Limp("head's dashboard agent stopped", _DASHBOARD_AGENT, of_head=True),
)


@dataclass(frozen=True)
class Outcome:
    """What became of one node within the time that it was watched."""

    asked: bool
    dead_after_s: float | None  # by Ray's list of nodes; None: it lives
    steps_end_s: float | None  # None: they went on

    @property
    def is_well(self) -> bool:
        """Whether nothing happened to it."""
        return self.dead_after_s is None and self.steps_end_s is None


@contextmanager
def stepping_cluster(workers: int, env: dict[str, str]) -> Iterator[Cluster]:
    """A head and so many workers, an actor that makes steps on each."""
    names = [f"node{number:03}" for number in range(1, workers + 2)]
    with Cluster(names, env=env, start_deadline_s=_START_S) as cluster, ExitStack() as stack:
        _start_steps(cluster, stack)
        yield cluster


def limped(cluster: Cluster, limp: Limp, asked: Sequence[str], seconds: float) -> list[Outcome]:
    """Let nodes limp, some of them asked, and watch them: all workers, or the head alone."""
    hosts = [cluster.head] if limp.of_head else list(cluster.hosts)[1:]
    with ExitStack() as stack:
        stack.enter_context(_probing(cluster, asked))
        began, began_at = time.monotonic(), time.time()
        stack.enter_context(_limping(cluster, hosts, limp))
        died: dict[str, float] = {}
        while time.monotonic() - began < seconds:
            for host, state in cluster.node_states().items():
                if state == "DEAD":
                    died.setdefault(host, time.monotonic() - began)
            time.sleep(_LOOK_S)
        ended = {host: _steps_ended(cluster, host) for host in hosts}
    return [
        Outcome(host in asked, died.get(host), None if at is None else at - began_at)
        for host, at in ended.items()
    ]


@contextmanager
def _probing(cluster: Cluster, hosts: Sequence[str]) -> Iterator[None]:
    """Probes of these nodes that follow each other, until it is left."""
    end, counts = threading.Event(), [0]

    def ask() -> None:
        while not end.is_set():
            with suppress(subprocess.TimeoutExpired):
                argv = [*_PROBE, "--node", *hosts]
                cluster.run_on(cluster.head, argv, env=environment(), timeout=_ASK_S)
                counts[0] += 1

    thread = threading.Thread(target=ask, daemon=True)
    if hosts:
        thread.start()
    try:
        yield
    finally:
        end.set()
        if hosts:
            thread.join(_ASK_S)
            _say(f"{'':32} {counts[0]} probes of {len(hosts)} nodes")


@contextmanager
def _limping(cluster: Cluster, hosts: Sequence[str], limp: Limp) -> Iterator[None]:
    """The process of each host stopped, all the time or in turns, until it is left."""
    pids = [pid for host in hosts for pid in _chosen(cluster, host, limp)]
    wanted = limp.process or limp.command
    if wanted and len(pids) < len(hosts):
        raise RuntimeError(f"{wanted} on {len(pids)} of {len(hosts)} hosts")
    end = threading.Event()

    def in_turns() -> None:
        for number in itertools.cycle((signal.SIGSTOP, signal.SIGCONT)):
            _signal_all(pids, number)
            if end.wait(limp.stopped_s if number == signal.SIGSTOP else limp.runs_s):
                return

    thread = threading.Thread(target=in_turns, daemon=True)
    if limp.stopped_s:
        thread.start()
    else:
        _signal_all(pids, signal.SIGSTOP)
    try:
        yield
    finally:
        end.set()
        if limp.stopped_s:
            thread.join(20)
        _signal_all(pids, signal.SIGCONT)


def _chosen(cluster: Cluster, host: str, limp: Limp) -> list[int]:
    """The host's processes that limp; of a name the kernel keeps 15 characters."""
    pids = cluster.processes(host)
    if limp.command:
        return [pid for pid in pids if limp.command in _command_line(pid)]
    return [pid for pid in pids if limp.process and namespaces.comm(pid) == limp.process[:15]]


def _command_line(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    return ""


def _signal_all(pids: Sequence[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _start_steps(cluster: Cluster, stack: ExitStack) -> None:
    """An actor on each host that prints a line every half second, and waits for nobody."""
    driver = cluster.popen_on(
        cluster.head,
        [sys.executable, "-m", "tests.cluster.live.control", "steps"],
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    stack.callback(cluster.signal, driver, signal.SIGKILL)
    end = time.monotonic() + _START_S
    while not all(_last_step_at(cluster, host) for host in cluster.hosts):
        if time.monotonic() > end:
            raise TimeoutError("the actors do not make steps")
        time.sleep(0.5)


def _last_step_at(cluster: Cluster, host: str) -> float:
    """By the file that the host's actor writes; 0: it has not begun."""
    logs = cluster.directory / host / "ray"
    times = [0.0]
    for file in logs.glob("session_2*/logs/worker-*.out"):
        with suppress(OSError):
            if "completed step" in file.read_text(errors="replace"):
                times.append(file.stat().st_mtime)
    return max(times)


def _steps_ended(cluster: Cluster, host: str) -> float | None:
    """When the host's last step was; None when they go on."""
    at = _last_step_at(cluster, host)
    return at if time.time() - at > 10 * _STEP_S else None


def _steps() -> None:
    """The driver: until it is ended."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    @ray.remote(num_cpus=0)
    class Trainer:
        def train(self) -> None:
            for step in itertools.count():
                sys.stdout.write(f"completed step: {step}, seconds: {_STEP_S}\n")
                sys.stdout.flush()
                time.sleep(_STEP_S)

    ray.init(address="auto", logging_level="ERROR", log_to_driver=False)
    ids = [node["NodeID"] for node in ray.nodes()]
    placed = [NodeAffinitySchedulingStrategy(node_id, soft=False) for node_id in ids]
    trainers = [Trainer.options(scheduling_strategy=place).remote() for place in placed]  # type: ignore[attr-defined]
    training = [each.train.remote() for each in trainers]
    while training:
        _, training = ray.wait(training, num_returns=1)


# ---- the comparison


def chance(dead: int, of: int, dead_asked: int, of_asked: int) -> float:
    """How likely at least so many more deaths among those that were asked are (Fisher's test)."""
    total, deaths = of + of_asked, dead + dead_asked
    ways = comb(total, deaths)
    more = range(dead_asked, min(deaths, of_asked) + 1)
    return sum(comb(of_asked, each) * comb(of, deaths - each) for each in more) / ways


def chance_of_sooner(unasked: Sequence[float], asked: Sequence[float]) -> float:
    """How likely it is that times of the asked are sooner at least so often (rank sums, exact)."""
    times = [*unasked, *asked]
    ranks = [
        sum(other < each for other in times) + sum(other == each for other in times) / 2
        for each in times
    ]
    seen, size = sum(ranks[len(unasked) :]), len(asked)
    counts: dict[tuple[int, float], int] = {(0, 0.0): 1}
    for rank in ranks:
        for (number, total), ways in list(counts.items()):
            key = (number + 1, total + rank)
            if number < size:
                counts[key] = counts.get(key, 0) + ways
    of_size = {total: ways for (number, total), ways in counts.items() if number == size}
    return sum(ways for total, ways in of_size.items() if total <= seen) / sum(of_size.values())


def _told(limp: Limp, outcomes: Sequence[Outcome], seconds: float) -> None:
    """Both groups, and what the difference is worth; who lives longer than watched is the last."""
    times: dict[bool, list[float]] = {}
    for asked in (False, True):
        group = [outcome for outcome in outcomes if outcome.asked is asked]
        died = _known(outcome.dead_after_s for outcome in group)
        ended = _known(outcome.steps_end_s for outcome in group)
        times[asked] = sorted(died + [seconds] * (len(group) - len(died)))
        words = f"{len(died):2} of {len(group):2} dead{_span(died)}; "
        words += f"steps ended on {len(ended):2}{_span(ended)}"
        _say(f"{limp.name:32} {'probed' if asked else 'not   '}: {words}")
    dead = {asked: sum(each < seconds for each in times[asked]) for asked in times}
    more = chance(dead[False], len(times[False]), dead[True], len(times[True]))
    sooner = chance_of_sooner(times[False], times[True])
    _say(f"{'':32} by chance so many more dead: p = {more:.2f}, so much sooner: p = {sooner:.2f}")


def _known(times: Iterable[float | None]) -> list[float]:
    return [time for time in times if time is not None]


def _span(times: Sequence[float]) -> str:
    if not times:
        return ""
    return f", after {min(times):.1f} to {max(times):.1f} s (median {median(times):.1f})"


def run(limps: Sequence[Limp], trials: int, seconds: float, env: dict[str, str]) -> None:
    """All of them, on clusters of `BATCH` nodes that are asked and as many that are not."""
    outcomes: dict[Limp, list[Outcome]] = {}
    for _ in range(0, trials, BATCH):
        waiting = [limp for limp in limps if not limp.of_head]
        while waiting:
            _on_one_cluster(waiting, min(trials, BATCH), seconds, env, outcomes)
    for limp in limps:
        if limp.of_head:
            outcomes[limp] = _heads(limp, trials, seconds, env)
            _told(limp, outcomes[limp], seconds)
    _say("all together:")
    for limp in limps:
        _told(limp, outcomes[limp], seconds)


def _on_one_cluster(
    waiting: list[Limp],
    trials: int,
    seconds: float,
    env: dict[str, str],
    outcomes: dict[Limp, list[Outcome]],
) -> None:
    """As many as there are while nothing happens to its nodes."""
    with stepping_cluster(2 * trials, env) as cluster:
        asked = [*cluster.hosts][1::2]
        while waiting:
            limp = waiting.pop(0)
            of_limp = limped(cluster, limp, asked, seconds)
            _told(limp, of_limp, seconds)
            outcomes.setdefault(limp, []).extend(of_limp)
            if not all(outcome.is_well for outcome in of_limp):
                return


def _heads(limp: Limp, trials: int, seconds: float, env: dict[str, str]) -> list[Outcome]:
    """Of so many heads that are asked, and so many that are not."""

    def watched(asked: bool) -> list[Outcome]:
        with stepping_cluster(0, env) as cluster:
            return limped(cluster, limp, [cluster.head] if asked else [], seconds)

    with ThreadPoolExecutor(BATCH) as pool:
        return [each for of_one in pool.map(watched, [False, True] * trials) for each in of_one]


def main() -> int:
    """Everything that was chosen."""
    if sys.argv[1:2] == ["steps"]:
        _steps()
        return 0
    parser = argparse.ArgumentParser(
        prog="python -m tests.cluster.live.control",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", nargs="+", default=[], help="ways whose name has one of these")
    parser.add_argument("--trials", type=int, default=10, help="nodes that are asked, of each way")
    parser.add_argument("--seconds", type=float, default=110.0, help="how long nodes are watched")
    words = "Ray's own intervals of health checks, not those of the simulated hosts"
    parser.add_argument("--ray-defaults", action="store_true", help=words)
    options = parser.parse_args()
    if reason := namespaces.unavailable():
        raise SystemExit(reason)
    chosen = []
    for limp in LIMPS:
        if not options.only or any(word in limp.name for word in options.only):
            chosen.append(limp)
    env = _RAY_DEFAULTS if options.ray_defaults else {}
    run(chosen, options.trials, options.seconds, env)
    return 0


def _say(text: str) -> None:
    load = os.getloadavg()[0]
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} load {load:4.1f}  {text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
