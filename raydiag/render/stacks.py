"""Python stacks of all ranks, equal ones folded: who is at the same place, and who is not."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from raydiag.model import NodeReport, ProbeResult, Snapshot, Status
from raydiag.nodeset import fold
from raydiag.render.escape import fenced, markdown, terminal
from raydiag.render.layout import ReportPage, count

PROBE = "stacks"
_RUNS_TASKS = "ray/_private/function_manager.py"  # below every task, in whatever thread it runs
_NAMED = 4  # of so many processes each is named, of more the nodes and how many there are


@dataclass(frozen=True)
class StackGroup:
    """Threads that are at the same place."""

    threads: Sequence[tuple[str, Any]]  # name of the node, record of the probe

    @property
    def first(self) -> Any:
        return self.threads[0][1]

    @property
    def leads(self) -> bool:
        """Whether it is a main thread or runs a task: the others serve these."""
        return self.first.main or any(_RUNS_TASKS in frame for frame in self.first.frames)

    def heading(self, verbose: bool) -> str:
        """`2 main threads on node[1-2], idle: node1 pid 7 (train); ...`. Not escaped."""
        stacks = [stack for _, stack in self.threads]
        names = sorted({stack.thread for stack in stacks if stack.thread})
        what = "main thread" if self.first.main else "thread"
        named = "" if self.first.main else f" {names[0]!r}" if len(names) == 1 else ""
        active = sum(stack.active for stack in stacks)
        holds = sum(stack.owns_gil for stack in stacks)
        does = [f"{active} active" if active < len(stacks) else "active"] if active else ["idle"]
        does += [f"{holds} with the interpreter lock"] if holds else []
        where = fold({host for host, _ in self.threads})
        text = f"{count(len(stacks), what)}{named} on {where}, {', '.join(does)}"
        processes = "; ".join(self._processes(verbose))
        return f"{text}: {processes}" if processes else text

    def _processes(self, verbose: bool) -> Iterator[str]:
        """Which ones, by host, where they are few; `verbose` names every one."""
        by_host: dict[str, dict[int, Any]] = defaultdict(dict)
        for host, stack in self.threads:
            by_host[host][stack.pid] = stack
        if not verbose and sum(map(len, by_host.values())) > _NAMED:
            return
        for host, processes in sorted(by_host.items()):
            named = [f"pid {pid} ({one.command})" for pid, one in sorted(processes.items())]
            yield f"{host} {', '.join(named)}"

    def frames(self) -> list[str]:
        """Innermost first. Not escaped."""
        left_out = self.first.frames_left_out
        more = [f"(+{count(left_out, 'frame')} further out)"] if left_out else []
        return [*self.first.frames, *more] or ["(no Python frame)"]


def stack_groups(snapshot: Snapshot) -> list[StackGroup]:
    """Main threads and tasks of Ray, then the others; in each the largest group first."""
    alike: dict[object, list[tuple[str, Any]]] = defaultdict(list)
    for name, result in _results(snapshot):
        for stack in result.records:
            alike[stack.main, stack.frames, stack.frames_left_out].append((name, stack))
    found = [StackGroup(threads) for threads in alike.values()]
    # By size, and then by place: the same cluster gives the same report.
    return sorted(
        found,
        key=lambda group: (not group.leads, -len(group.threads), group.first.frames),
    )


def stacks_section(snapshot: Snapshot, page: ReportPage, verbose: bool) -> list[str]:
    """Lines of the text report; none when nobody asked for stacks."""
    results = _results(snapshot)
    if not results:
        return []
    groups = stack_groups(snapshot)
    lines = page.wrap(terminal(f"STACKS  {_summary(results, groups)}"))
    for group in groups:
        lines += page.wrap(terminal(group.heading(verbose)), "  ", "      ")
        for frame in group.frames():
            lines += page.wrap(terminal(frame), "    ", "      ")
    for text in _not_looked_at(results):
        lines += page.wrap(terminal(text), "  ", "    ")
    return lines


def stacks_markdown(snapshot: Snapshot, verbose: bool) -> list[str]:
    """Blocks of the Markdown report, with the same content."""
    results = _results(snapshot)
    if not results:
        return []
    groups = stack_groups(snapshot)
    blocks = ["## Stacks", f"{markdown(_summary(results, groups))}."]
    for group in groups:
        blocks += [markdown(group.heading(verbose)), fenced(group.frames())]
    missing = "\n".join(f"- {markdown(text)}" for text in _not_looked_at(results))
    return [*blocks, missing] if missing else blocks


def _results(snapshot: Snapshot) -> list[tuple[str, ProbeResult]]:
    """What the nodes answered, by name; machines of one name have their address."""
    asked = [report for report in snapshot.nodes if PROBE in report.probes]
    times = Counter(report.node.host for report in asked)

    def name(report: NodeReport) -> str:
        node = report.node
        return node.host if times[node.host] == 1 else f"{node.host} ({node.address})"

    return [(name(report), report.probes[PROBE]) for report in asked]


def _summary(results: Iterable[tuple[str, ProbeResult]], groups: Iterable[StackGroup]) -> str:
    processes = {(name, stack.pid) for name, result in results for stack in result.records}
    number, nodes = len(processes), len({name for name, _ in processes})
    places = sum(group.leads for group in groups)
    several = "process" if number == 1 else "processes"
    seen = f"{number} {several} on {count(nodes, 'node')}"
    return f"{seen}, main threads and tasks at {count(places, 'place')}"


def _not_looked_at(results: Iterable[tuple[str, ProbeResult]]) -> Iterator[str]:
    """Processes and nodes without stacks; equal reasons share a line. Not escaped."""
    places: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name, result in results:
        for item in result.unread:
            pid = item.source.removeprefix("/proc/")
            pids = places[item.reason.removeprefix("no stack: ")][name]
            pids += [pid] if pid.isdigit() else []
        if result.status is not Status.OK:
            places[result.reason or result.status.value][name] += []
    for reason, by_name in places.items():
        parts = [f"{name} pid {', '.join(pids)}" for name, pids in sorted(by_name.items()) if pids]
        whole = fold(name for name, pids in by_name.items() if not pids)
        yield f"not looked at: {'; '.join([*parts, *([whole] if whole else [])])}: {reason}"
