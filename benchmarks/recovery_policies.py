"""What policies of recovery are worth: a trace of real faults, replayed over jobs of many sizes.

    python benchmarks/recovery_policies.py --trace fault-trace.json

The trace is a JSON list of {node_id, event_time in days, event_type: fault_start or fault_end,
fault_type: {Class, Desc}}. Goodput is the time of training that a save held, over all time.

Assumed, the same for all policies unless told:
- A node of a job is a server of the trace, drawn with replacement and shifted in time, so that two
  copies do not fail together. Servers without a fault are drawn too. A spare node is one likewise.
- A job computes on all of its nodes; a fault of any one of them ends it, after the time-out of a
  collective. A node is of no use until the trace ends its fault. Only what takes a server out of
  service is in the trace: what a second attempt survives by itself is not.
- A diagnosis names the host of those faults only that a kernel or a GPU tells of (`_CLASSES`), and
  of those the share --named; of all others the cause is "unknown". It never names a wrong host.
- A person comes after a time of log-normal distribution, finds every faulty node and replaces it.
  That person also comes where raydiag's policy says STOP or DIAGNOSE; then its budgets begin anew.
- Blind requeue starts at once on the same nodes, again and again.
- The oracle ends a job at the moment of the fault and replaces the right nodes; what no save holds
  is lost to it too.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from raydiag.recovery.decision import EndedAttempt, RecoveryAction, RecoveryHistory, decide
from raydiag.recovery.policy import RecoveryPolicy

_DAY_S = 86_400.0
_SERVERS = 400  # of the trace, with those that had no fault
_SIZES = (64, 128, 256, 512, 1024, 2048)
# What the trace calls a fault -> what a diagnosis calls it. The rest is unknown to it.
_CLASSES = {
    "GPU DBE(Double Bit ECC) > Threshold": "gpu-memory-error",
    "GPU xid Error": "nvidia-xid",
    "GPU Lost": "gpu-missing",
    "GPU device not found": "gpu-missing",
    "GPU PCI link width low": "pcie-degraded",
    "Link Down": "rdma-port-down",
    "NIC Lost": "rdma-port-down",
    "Machine Check Exception ( Uncorrectable )": "mce",
    "Server down": "node-death",
    "Kernel Panic": "kernel-panic",
    "FS Readonly": "fs-readonly-remount",
}


@dataclass(frozen=True)
class ServerFault:
    """Times in seconds."""

    start: float
    end: float
    failure_class: str  # "unknown" for what no diagnosis sees


@dataclass(frozen=True)
class NodeFault:
    """A fault of one node of a simulated cluster."""

    start: float
    end: float
    node: int
    failure_class: str


@dataclass(frozen=True)
class Assumptions:
    """Seconds, and shares from 0 to 1."""

    days: float = 30.0
    spare: float = 0.05
    save_every: float = 1800.0
    start_up: float = 600.0
    time_out: float = 600.0  # of a collective, until the job has ended
    diagnosis: float = 60.0
    person: float = 2400.0  # median
    person_sigma: float = 1.0  # of its logarithm
    named: float = 0.9


@dataclass
class SimulatedRun:
    """A job on its way through its cluster's faults."""

    size: int
    pool: int  # nodes, with the spare ones
    faults: Sequence[NodeFault]
    assumed: Assumptions
    chance: random.Random
    now: float = 0.0
    kept: float = 0.0  # seconds of training that a save holds
    restarts: int = 0
    calls: int = 0  # of a person
    nodes: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.nodes = set(range(self.size))

    @property
    def horizon(self) -> float:
        """When the simulation ends."""
        return self.assumed.days * _DAY_S

    def faulty(self) -> dict[int, NodeFault]:
        """What is wrong now, by node."""
        active = [fault for fault in self.faults if fault.start <= self.now < fault.end]
        return {fault.node: fault for fault in active}

    def attempt(self, time_out: float) -> bool:
        """One attempt, until the job has ended; whether it came to a save."""
        begun = self.now
        broken = self.nodes & self.faulty().keys()
        starts = [f.start for f in self.faults if f.start > begun and f.node in self.nodes]
        struck = begun + self.assumed.start_up if broken else min(starts, default=math.inf)
        last = min(struck, self.horizon)
        trained = max(0.0, last - begun - self.assumed.start_up)
        kept = trained // self.assumed.save_every * self.assumed.save_every
        self.kept += kept
        self.now = last if last == self.horizon else last + time_out
        return kept > 0

    def call_person(self) -> None:
        """Wait for a person, who finds all that is wrong."""
        spread = self.chance.lognormvariate(0.0, self.assumed.person_sigma)
        self.now += self.assumed.person * spread
        self.calls += 1
        self.swap(lambda: self.nodes & self.faulty().keys(), lambda: set(self.faulty()))

    def swap(self, out: Callable[[], set[int]], unusable: Callable[[], set[int]]) -> None:
        """Replace nodes by spare ones; wait for repairs where there are too few of those."""
        while self.now < self.horizon:
            leaving = out()
            spare = sorted(set(range(self.pool)) - self.nodes - unusable())
            if len(spare) >= len(leaving):
                self.nodes -= leaving
                self.nodes.update(self.chance.sample(spare, len(leaving)))
                return
            ends = [fault.end for fault in self.faults if fault.end > self.now]
            self.now = min([*ends, self.horizon])

    def goodput(self) -> float:
        """Percent."""
        return 100 * self.kept / self.horizon


# ---- the policies


def no_recovery(run: SimulatedRun) -> None:
    """It ends with its first fault."""
    run.attempt(run.assumed.time_out)


def by_a_person(run: SimulatedRun) -> None:
    """Each time somebody has to come."""
    while run.now < run.horizon:
        run.attempt(run.assumed.time_out)
        run.call_person()
        run.restarts += 1


def blind_requeue(run: SimulatedRun) -> None:
    """The same nodes again, at once."""
    while run.now < run.horizon:
        run.attempt(run.assumed.time_out)
        run.restarts += 1


def oracle(run: SimulatedRun) -> None:
    """Nothing is lost but what no save held, and the start."""
    while run.now < run.horizon:
        run.attempt(0.0)
        run.swap(lambda: run.nodes & run.faulty().keys(), lambda: set(run.faulty()))
        run.restarts += 1


def by_policy(policy: RecoveryPolicy) -> Callable[[SimulatedRun], None]:
    """What `raydiag.recovery.decision` decides."""

    def _run(run: SimulatedRun) -> None:
        past = RecoveryHistory()
        while run.now < run.horizon:
            saved = run.attempt(run.assumed.time_out)
            ended = run.now
            run.now += run.assumed.diagnosis
            attempt = _diagnosed(run, saved, ended)
            past = _handled(run, policy, past, attempt)
            run.restarts += 1

    return _run


def _diagnosed(run: SimulatedRun, saved: bool, ended: float) -> EndedAttempt:
    """Every host that shows the cause of the first one that shows any."""
    seen = {}
    for node, fault in sorted(run.faulty().items()):
        is_named = fault.failure_class != "unknown" and run.chance.random() < run.assumed.named
        if node in run.nodes and is_named:
            seen[node] = fault.failure_class
    attempt = EndedAttempt("failed", is_over=True, saved=saved, ended=ended, diagnosed=run.now)
    if not seen:
        return attempt
    cause = next(iter(seen.values()))
    hosts = tuple(str(node) for node, failure_class in seen.items() if failure_class == cause)
    return replace(attempt, failure_class=cause, confidence="confirmed", hosts=hosts)


def _handled(
    run: SimulatedRun, policy: RecoveryPolicy, past: RecoveryHistory, attempt: EndedAttempt
) -> RecoveryHistory:
    decision = decide(attempt, policy, past, run.now)
    if decision.action in (RecoveryAction.STOP, RecoveryAction.DIAGNOSE):
        run.call_person()
        return RecoveryHistory()
    if decision.action is RecoveryAction.EVICT:
        leaving = set(map(int, decision.hosts))
        evicted = set(map(int, past.evicted)) | leaving
        run.swap(lambda: leaving, lambda: evicted | _visibly_faulty(run))
    run.now = max(run.now, decision.not_before)
    return RecoveryHistory(
        (*past.attempts, attempt),
        (*past.restarted, run.now),
        (*past.evicted, *decision.hosts),
    )


def _visibly_faulty(run: SimulatedRun) -> set[int]:
    """Spare nodes that a probe would not take; others may be faulty all the same."""
    return {node for node, fault in run.faulty().items() if fault.failure_class != "unknown"}


# ---- the trace


def read_trace(path: Path) -> list[list[ServerFault]]:
    """The faults of each server, also of those that had none. Raises ValueError, OSError."""
    began: dict[tuple[str, str, str], float] = {}
    faults: dict[str, list[ServerFault]] = defaultdict(list)
    for event in json.loads(path.read_text("utf-8")):
        node, kind = event["node_id"], event["fault_type"]
        key = (node, kind["Class"], kind["Desc"])
        if event["event_type"] == "fault_start":
            began[key] = event["event_time"]
        else:
            name = _CLASSES.get(kind["Desc"], "unknown")
            start, end = began.pop(key) * _DAY_S, event["event_time"] * _DAY_S
            faults[node].append(ServerFault(start, end, name))
    empty = max(0, _SERVERS - len(faults))
    return [faults[node] for node in sorted(faults)] + [[] for _ in range(empty)]


def drawn(
    servers: Sequence[Sequence[ServerFault]], size: int, assumed: Assumptions, seed: str
) -> SimulatedRun:
    """A cluster for a job of that size; the same for the same seed."""
    chance = random.Random(seed)
    length = max(fault.end for faults in servers for fault in faults)
    pool = size + max(2, round(size * assumed.spare))
    faults: list[NodeFault] = []
    for node in range(pool):
        faults += _shifted(chance.choice(servers), chance.uniform(0, length), length, node)
    span = assumed.days * _DAY_S
    near = [fault for fault in faults if fault.end > 0 and fault.start < span]
    near.sort(key=lambda fault: (fault.start, fault.node))
    return SimulatedRun(size, pool, near, assumed, chance)


def _shifted(
    faults: Sequence[ServerFault], by: float, length: float, node: int
) -> Iterator[NodeFault]:
    """As if time went round in a circle."""
    for fault in faults:
        for turn in (0.0, length):
            start, end = fault.start - by + turn, fault.end - by + turn
            yield NodeFault(start, end, node, fault.failure_class)


# ---- the tables


@dataclass(frozen=True)
class PolicyResult:
    """Means over the runs of one policy at one size."""

    goodput: float  # percent
    restarts: float
    calls: float  # of a person


def measured(
    servers: Sequence[Sequence[ServerFault]],
    size: int,
    policy: Callable[[SimulatedRun], None],
    assumed: Assumptions,
    seeds: Sequence[str],
) -> PolicyResult:
    """The same clusters for every policy."""
    runs = []
    for seed in seeds:
        run = drawn(servers, size, assumed, f"{seed}/{size}")
        policy(run)
        runs.append(run)
    return PolicyResult(
        statistics.fmean(run.goodput() for run in runs),
        statistics.fmean(run.restarts for run in runs),
        statistics.fmean(run.calls for run in runs),
    )


def policies() -> Mapping[str, Callable[[SimulatedRun], None]]:
    """Those that are compared, by name."""
    return {
        "no recovery": no_recovery,
        "a person": by_a_person,
        "blind requeue": blind_requeue,
        "raydiag": by_policy(RecoveryPolicy()),
        "oracle": oracle,
    }


def variants() -> Mapping[str, Callable[[SimulatedRun], None]]:
    """The default policy, and what another value of one key would do."""
    usual = RecoveryPolicy()
    changed = {
        "default": usual,
        "evict_broken_at_once: false": replace(usual, evict_broken_at_once=False),
        "unknown: diagnose": replace(usual, unknown="diagnose"),
        "most_bad: 0": replace(usual, most_bad=0),
        "most_bad: 2": replace(usual, most_bad=2),
        "most_bad: 4": replace(usual, most_bad=4),
        "most_bad: 8": replace(usual, most_bad=8),
        "wait: 0.0": replace(usual, wait=0.0),
        "wait: 120.0": replace(usual, wait=120.0),
        "most_in_window: 6": replace(usual, most_in_window=6),
        "most_in_window: 24": replace(usual, most_in_window=24),
        "most_evicted: 4": replace(usual, most_evicted=4),
        "most_evicted: 16": replace(usual, most_evicted=16),
        "most_evicted_at_once: 1": replace(usual, most_evicted_at_once=1),
    }
    return {name: by_policy(policy) for name, policy in changed.items()}


def table(
    servers: Sequence[Sequence[ServerFault]],
    compared: Mapping[str, Callable[[SimulatedRun], None]],
    assumed: Assumptions,
    seeds: Sequence[str],
) -> Iterator[str]:
    """Markdown: goodput in percent, and how often a person was called."""
    yield "| nodes | " + " | ".join(map(str, _SIZES)) + " |"
    yield "|---" * (len(_SIZES) + 1) + "|"
    for name, policy in compared.items():
        cells = []
        for size in _SIZES:
            result = measured(servers, size, policy, assumed, seeds)
            cells.append(f"{result.goodput:.2f} ({result.calls:.1f})")
        yield f"| {name} | " + " | ".join(cells) + " |"


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trace", type=Path, required=True, metavar="FILE")
    parser.add_argument("--runs", type=int, default=20, metavar="N", help="clusters of each size")
    parser.add_argument("--seed", default="1", metavar="TEXT")
    parser.add_argument("--named", type=float, default=Assumptions.named, metavar="SHARE")
    parser.add_argument("--variants", action="store_true", help="which value of a key is best")
    arguments = parser.parse_args()
    try:
        servers = read_trace(arguments.trace)
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"{arguments.trace}: no fault trace: {error!r}", file=sys.stderr)
        return 2
    assumed = replace(Assumptions(), named=arguments.named)
    seeds = [f"{arguments.seed}/{number}" for number in range(arguments.runs)]
    print(f"{assumed}, {arguments.runs} runs; goodput in % (calls of a person)\n")
    compared = variants() if arguments.variants else policies()
    for line in table(servers, compared, assumed, seeds):
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
