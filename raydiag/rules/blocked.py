"""Tasks that stay in uninterruptible sleep: a GPU driver fault, or many tasks blocked elsewhere."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from operator import attrgetter

from raydiag import catalog
from raydiag.model import Confidence, Evidence, Finding, Severity, Snapshot, StuckReader
from raydiag.probes.d_state import BlockedTask
from raydiag.rules.machines import Machine, machines

_ACCUMULATION = 5
_DRIVER_PREFIXES = ("amdgpu_ras_", "amdgpu_cper_")
_PS_WIDTH = 30  # `ps -o wchan:30` cuts longer names


def driver_faults(snapshot: Snapshot) -> Iterator[Finding]:
    """Hosts where tasks, or readers of ours, hang in the RAS or CPER paths of the GPU driver.

    One sign alone is likely; `judge` confirms it when the kernel log says the same.
    """
    for machine in machines(snapshot):
        tasks, _ = _split_by_fault(machine)
        pids = set(map(attrgetter("pid"), tasks))
        readers = _readers_in_driver(machine, pids)
        if not tasks and not readers:
            continue
        pids |= readers.keys()
        evidence = (*_task_evidence(machine, tasks), *_reader_evidence(machine, readers))
        pid = min(pids) if len(pids) == 1 else None
        yield machine.finding("gpu-driver-fault", *evidence, pid=pid, confidence=Confidence.LIKELY)


def d_state_accumulation(snapshot: Snapshot) -> Iterator[Finding]:
    """Hosts where many tasks stay in state D. A few in short I/O are normal everywhere.

    Kernel threads and raydiag's own readers do not count, nor what a driver fault explains.
    """
    for machine in machines(snapshot):
        _, unexplained = _split_by_fault(machine)
        waiting = []
        for task in unexplained:
            if task.state == "D" and not task.kernel_thread and not task.raydiag_reader:
                waiting.append(task)
        if len(waiting) >= _ACCUMULATION:
            evidence = _task_evidence(machine, waiting)
            yield machine.finding("d-state-accumulation", *evidence, severity=Severity.WARNING)


def fault_symbols(machine: Machine) -> list[tuple[BlockedTask, str]]:
    """Tasks that a driver fault blocks, each with the kernel function that gives it away."""
    tasks, _ = _split_by_fault(machine)
    return [(task, _driver_symbol(task) or task.wchan) for task in tasks]


def _readers_in_driver(machine: Machine, known_pids: set[int]) -> Mapping[int, StuckReader]:
    """Stuck readers of ours in the driver, by pid, without those that are known as tasks."""
    readers = {}
    for reader in chain.from_iterable(map(attrgetter("stuck"), machine.reports)):
        if reader.pid not in known_pids and _is_driver_symbol(reader.wchan):
            readers[reader.pid] = reader
    return readers


def _split_by_fault(machine: Machine) -> tuple[list[BlockedTask], list[BlockedTask]]:
    """Tasks blocked in both samples: (those of a driver fault, all others).

    A task whose stack is hidden belongs to the fault when it waits where a faulty one waits.
    """
    tasks = list(filter(attrgetter("persistent"), machine.records(BlockedTask)))
    faulty_channels = {task.wchan for task in tasks if task.wchan and _driver_symbol(task)}
    groups: dict[bool, list[BlockedTask]] = {True: [], False: []}
    for task in tasks:
        waits_alike = task.wchan in faulty_channels and not task.stack
        groups[waits_alike or bool(_driver_symbol(task))].append(task)
    return groups[True], groups[False]


def _driver_symbol(task: BlockedTask) -> str:
    """The symbol that gives the driver fault away; empty when there is none."""
    for frame in (task.wchan, *task.stack):
        if _is_driver_symbol(frame):
            return _bare(frame)
    return ""


def _is_driver_symbol(frame: str) -> bool:
    name, symbols = _bare(frame), catalog.kernel_table().driver_fault_symbols
    if name in symbols or name.startswith(_DRIVER_PREFIXES):
        return True
    return len(name) == _PS_WIDTH and any(symbol.startswith(name) for symbol in symbols)


def _bare(frame: str) -> str:
    """`[<0>] name.isra.0+0x6a/0x2f0 [module]` -> `name`."""
    name = frame.removeprefix("[<0>]").strip()
    return name.partition("+")[0].partition(".")[0]


def _task_evidence(machine: Machine, tasks: Sequence[BlockedTask]) -> Iterator[Evidence]:
    """One piece for each kernel function where tasks wait, the most crowded first."""
    groups: dict[tuple[str, str], list[BlockedTask]] = {}
    for task in tasks:
        symbol = _driver_symbol(task) or task.wchan or "an unknown place"
        groups.setdefault((task.state, symbol), []).append(task)
    crowded_first = sorted(groups.items(), key=lambda group: (-len(group[1]), group[0]))
    for (state, symbol), members in crowded_first:
        text = f"{_first_of(members)} in state {state} in {symbol}"
        yield machine.evidence(f"/proc/{members[0].pid}", text, float(len(members)))


def _reader_evidence(machine: Machine, readers: Mapping[int, StuckReader]) -> Iterator[Evidence]:
    for pid, reader in readers.items():
        text = f"pid {pid} (reader process of raydiag) in {reader.wchan}"
        yield machine.evidence(reader.source, text)


def _first_of(tasks: Sequence[BlockedTask]) -> str:
    first = f"pid {tasks[0].pid} ({tasks[0].comm})"
    return first if len(tasks) == 1 else f"{first} and {len(tasks) - 1} more"
