"""Tasks that stay in uninterruptible sleep: a GPU driver fault, or another queue without end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from raydiag import catalog
from raydiag.model import Confidence, Evidence, Finding, NodeReport, Severity, Snapshot
from raydiag.probes.d_state import BlockedTask
from raydiag.rules.nodes import by_host, distinct

_ACCUMULATION = 5
_DRIVER_PREFIXES = ("amdgpu_ras_", "amdgpu_cper_")
_PS_WIDTH = 30  # `ps -o wchan:30` cuts longer names


def driver_faults(snapshot: Snapshot) -> Iterator[Finding]:
    """Hosts where tasks, or readers of ours, hang in the RAS or CPER paths of the GPU driver.

    One sign alone is likely; `judge` confirms it when the kernel log says the same.
    """
    symbols = frozenset(catalog.driver_fault_symbols())
    for host, reports in by_host(snapshot).items():
        faulty, _ = _split(_blocked(reports), symbols)
        pids = {task.pid for task in faulty}
        readers = {
            reader.pid: reader
            for report in reports
            for reader in report.stuck
            if reader.pid not in pids and _is_driver_symbol(reader.wchan, symbols)
        }
        time = reports[0].collected_at or None
        evidence = _evidence(faulty, symbols, time) + tuple(
            Evidence(reader.source, f"pid {pid} (reader of raydiag) in {reader.wchan}", time=time)
            for pid, reader in readers.items()
        )
        if not evidence:
            continue
        pids |= readers.keys()
        yield Finding(
            "gpu-driver-fault",
            host=host,
            pid=min(pids) if len(pids) == 1 else None,
            confidence=Confidence.LIKELY,
            evidence=evidence,
        )


def d_state_accumulation(snapshot: Snapshot) -> Iterator[Finding]:
    """Hosts where many tasks stay in state D. A few in short I/O are normal everywhere.

    Kernel threads and raydiag's own readers do not count, nor what a driver fault accounts for.
    """
    symbols = frozenset(catalog.driver_fault_symbols())
    for host, reports in by_host(snapshot).items():
        _, others = _split(_blocked(reports), symbols)
        waiting = [
            task
            for task in others
            if task.state == "D" and not task.kernel_thread and not task.raydiag_reader
        ]
        if len(waiting) < _ACCUMULATION:
            continue
        yield Finding(
            "d-state-accumulation",
            host=host,
            severity=Severity.WARNING,
            evidence=_evidence(waiting, symbols, reports[0].collected_at or None),
        )


def _blocked(reports: Sequence[NodeReport]) -> list[BlockedTask]:
    """Tasks that were stuck in both samples: in state D, or running and deaf to SIGKILL (R)."""
    tasks: list[BlockedTask] = distinct(reports, "d_state", "pid", "start_ticks")
    return [task for task in tasks if task.persistent]


def _split(
    tasks: Iterable[BlockedTask], symbols: frozenset[str]
) -> tuple[list[BlockedTask], list[BlockedTask]]:
    """(those of a driver fault, the others).

    A task whose stack is hidden belongs to the fault when it waits where a faulty one waits.
    """
    tasks = list(tasks)
    channels = {task.wchan for task in tasks if task.wchan and _driver_symbol(task, symbols)}
    faulty: list[BlockedTask] = []
    others: list[BlockedTask] = []
    for task in tasks:
        alike = task.wchan in channels and not task.stack
        (faulty if alike or _driver_symbol(task, symbols) else others).append(task)
    return faulty, others


def _driver_symbol(task: BlockedTask, symbols: frozenset[str]) -> str:
    """The symbol that gives the driver fault away; empty when there is none."""
    for frame in (task.wchan, *task.stack):
        if _is_driver_symbol(frame, symbols):
            return _bare(frame)
    return ""


def _is_driver_symbol(frame: str, symbols: frozenset[str]) -> bool:
    name = _bare(frame)
    cut = len(name) == _PS_WIDTH and any(symbol.startswith(name) for symbol in symbols)
    return name in symbols or cut or name.startswith(_DRIVER_PREFIXES)


def _bare(frame: str) -> str:
    """`[<0>] name.isra.0+0x6a/0x2f0 [module]` -> `name`."""
    name = frame.removeprefix("[<0>]").strip()
    return name.partition("+")[0].partition(".")[0]


def _evidence(
    tasks: Sequence[BlockedTask], symbols: frozenset[str], time: float | None
) -> tuple[Evidence, ...]:
    """One piece for each place where tasks wait, the most crowded first."""
    groups: dict[tuple[str, str], list[BlockedTask]] = {}
    for task in tasks:
        place = _driver_symbol(task, symbols) or task.wchan or "an unknown place"
        groups.setdefault((task.state, place), []).append(task)
    crowded = sorted(groups.items(), key=lambda group: (-len(group[1]), group[0]))
    return tuple(
        Evidence(
            f"/proc/{members[0].pid}",
            f"{_named(members)} in state {state} in {place}",
            value=float(len(members)),
            time=time,
        )
        for (state, place), members in crowded
    )


def _named(tasks: Sequence[BlockedTask]) -> str:
    first = f"pid {tasks[0].pid} ({tasks[0].comm})"
    return first if len(tasks) == 1 else f"{first} and {len(tasks) - 1} more"
