"""Python stacks of all ranks, equal ones folded: who is at the same place, and who is not."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import starmap
from operator import attrgetter, itemgetter
from typing import Any

from raydiag.model import NodeReport, ProbeResult, Snapshot, Status
from raydiag.nodeset import fold
from raydiag.render.formats import count, filled
from raydiag.render.report import Block, Paragraph, Quote, Section, bullets

PROBE = "stacks"
_RUNS_TASKS = "ray/_private/function_manager.py"  # below every task, in whatever thread it runs
_MOST_NAMED = 4  # so many processes are named each; of more, the nodes and how many there are


@dataclass(frozen=True)
class StackGroup:
    """Threads that are at the same place."""

    threads: Sequence[tuple[str, Any]]  # name of the node, record of the probe

    @property
    def first(self) -> Any:
        """The record that stands for all of them."""
        return self.threads[0][1]

    @property
    def leads(self) -> bool:
        """Whether it is a main thread or runs a task: the others serve these."""
        return self.first.main or _RUNS_TASKS in "\n".join(self.first.frames)

    def heading(self, verbose: bool) -> str:
        """`2 main threads on node[1-2], idle: node1 pid 7 (train); ...`."""
        hosts = fold(dict(self.threads))
        heading = f"{self._kind()} on {hosts}, {self._activity()}"
        return heading + filled(": {}", "; ".join(self._processes(verbose)))

    def _kind(self) -> str:
        """`2 main threads`, `8 threads 'loader'`."""
        if self.first.main:
            return count(len(self.threads), "main thread")
        names = set(self._values("thread")) - {""}
        kind = count(len(self.threads), "thread")
        return f"{kind} {names.pop()!r}" if len(names) == 1 else kind

    def _activity(self) -> str:
        """`idle`, `active`, `1 active, 1 with the interpreter lock`."""
        active = sum(self._values("active"))
        activity = {0: "idle", len(self.threads): "active"}.get(active, f"{active} active")
        locking = sum(self._values("owns_gil"))
        return activity + filled(", {} with the interpreter lock", locking or None)

    def _values(self, field: str) -> Iterator[Any]:
        """What the records say in a field, one for each thread."""
        return map(attrgetter(field), map(itemgetter(1), self.threads))

    def _processes(self, verbose: bool) -> Iterator[str]:
        """Which ones, by host, where they are few; `verbose` names every one."""
        commands: dict[str, dict[int, str]] = defaultdict(dict)
        for host, stack in self.threads:
            commands[host][stack.pid] = stack.command
        if not verbose and sum(map(len, commands.values())) > _MOST_NAMED:
            return
        for host, command_of in sorted(commands.items()):
            named = starmap("pid {} ({})".format, sorted(command_of.items()))
            yield f"{host} {', '.join(named)}"

    def frames(self) -> list[str]:
        """Innermost first."""
        frames = list(self.first.frames)
        if self.first.frames_left_out:
            frames.append(f"(+{count(self.first.frames_left_out, 'frame')} further out)")
        return frames or ["(no Python frame)"]


def stack_groups(snapshot: Snapshot) -> list[StackGroup]:
    """Main threads and tasks of Ray, then the others; in each the largest group first."""
    alike: dict[object, list[tuple[str, Any]]] = defaultdict(list)
    for node_name, result in _results(snapshot):
        for stack in result.records:
            alike[stack.main, stack.frames, stack.frames_left_out].append((node_name, stack))
    # By size, and then by frames: the same cluster gives the same report.
    return sorted(
        map(StackGroup, alike.values()),
        key=lambda group: (not group.leads, -len(group.threads), group.first.frames),
    )


def stacks_section(snapshot: Snapshot, verbose: bool) -> Section:
    """Every group with its frames; empty when nobody asked for stacks."""
    results = _results(snapshot)
    if not results:
        return Section()
    groups = stack_groups(snapshot)
    blocks: list[Block] = []
    for group in groups:
        blocks += [Paragraph(group.heading(verbose)), Quote(group.frames())]
    blocks.append(bullets(_not_looked_at(results)))
    return Section("Stacks", blocks, facts=[_summary(results, groups)])


def _results(snapshot: Snapshot) -> list[tuple[str, ProbeResult]]:
    """What the nodes answered, by name; machines of one name have their address."""
    reports = [report for report in snapshot.nodes if PROBE in report.probes]
    times = Counter(map(attrgetter("node.host"), reports))
    return [(_node_name(report, times), report.probes[PROBE]) for report in reports]


def _node_name(report: NodeReport, times: Mapping[str, int]) -> str:
    node = report.node
    return node.host if times[node.host] == 1 else f"{node.host} ({node.address})"


def _summary(results: Iterable[tuple[str, ProbeResult]], groups: Iterable[StackGroup]) -> str:
    pids = Counter[str]()
    for node_name, result in results:
        pids[node_name] += len(set(map(attrgetter("pid"), result.records)))
    nodes = +pids  # without nodes that have none
    places = sum(map(attrgetter("leads"), groups))
    processes = count(pids.total(), "process", "processes")
    at_places = f"main threads and tasks at {count(places, 'place')}"
    return f"{processes} on {count(len(nodes), 'node')}, {at_places}"


def _not_looked_at(results: Iterable[tuple[str, ProbeResult]]) -> Iterator[str]:
    """Processes and nodes without stacks; equal reasons share a line."""
    pids_by_reason: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for node_name, result in results:
        for gap in result.unread:
            pids = pids_by_reason[gap.reason.removeprefix("no stack: ")][node_name]
            pid = gap.source.removeprefix("/proc/")
            if pid.isdigit():
                pids.append(pid)
        if result.status is not Status.OK:
            # The whole node, unless some of its processes are named with the same reason.
            pids_by_reason[result.reason or result.status.value].setdefault(node_name, [])
    for reason, pids_of in pids_by_reason.items():
        yield f"not looked at: {_places(pids_of)}: {reason}"


def _places(pids_of: Mapping[str, Sequence[str]]) -> str:
    """`node1 pid 7, 8; node[2-3]`: processes by node, then nodes as a whole."""
    places = [f"{name} pid {', '.join(pids)}" for name, pids in sorted(pids_of.items()) if pids]
    whole_nodes = fold(name for name, pids in pids_of.items() if not pids)
    return "; ".join(filter(None, [*places, whole_nodes]))
