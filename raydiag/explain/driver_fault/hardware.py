"""The GPUs of a node in an investigation: names, counts, resets, and what hangs in their driver."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from math import isfinite
from operator import attrgetter, methodcaller
from typing import TypeVar

from raydiag import catalog
from raydiag.catalog.driver_fault import words
from raydiag.explain.driver_fault.types import GpuEvent, GpuState, StuckTasks
from raydiag.model import Snapshot, Status
from raydiag.probes.bad_pages import BadPages
from raydiag.probes.d_state import BlockedTask
from raydiag.probes.kernel_log import KernelLine
from raydiag.probes.nvidia import NvidiaGpu
from raydiag.probes.pids import Pids
from raydiag.probes.ras import RasCount
from raydiag.rules.blocked import fault_symbols
from raydiag.rules.kernel_events import KernelEventSeen, events
from raydiag.rules.machines import Machine
from raydiag.rules.ranks import Ranks, gpu_names

_FAMILIES = ("amdgpu-", "kfd-", "nvidia-", "nvlink")
_READ = frozenset((Status.OK, Status.NO_DATA))
_Gpu = TypeVar("_Gpu", BadPages, NvidiaGpu)
_RESETS = ("amdgpu-reset", "amdgpu-reset-failed")


def gpu_events(machine: Machine) -> list[GpuEvent]:
    """What its kernel log says of GPUs and their drivers, in the order of the log."""
    indexes = {name.address: name.gpu for name in gpu_names(machine)}
    return list(_gpu_events(kernel_lines(machine), indexes))


def kernel_lines(machine: Machine) -> Sequence[KernelLine]:
    """Its kernel log; several Ray nodes of one machine read the same."""
    logs = map(methodcaller("records", "kernel_log"), machine.reports)
    return next(filter(None, logs), ())


def _gpu_events(lines: Sequence[KernelLine], indexes: dict[str, int]) -> Iterator[GpuEvent]:
    for event in events(lines):
        is_of_gpu = event.event.startswith(_FAMILIES) or event.finding in words().classes
        if not is_of_gpu or event.userspace:
            continue
        entry = catalog.failure(event.finding)
        meaning, next_step = entry.title, entry.next_steps[0]
        if event.meaning:
            meaning = f"{event.meaning.name}: {event.meaning.title}"
            next_step = event.meaning.next_step
        yield GpuEvent(
            event=event.event,
            failure_class=event.finding,
            device=event.device,
            gpu=indexes.get(event.device or ""),
            count=event.count,
            first=event.first_s if isfinite(event.first_s) else 0.0,
            last=event.last_s if isfinite(event.last_s) else 0.0,
            uncertainty_s=event.lines[0].uncertainty_s,
            not_later_than=event.not_later_than,
            meaning=meaning,
            next_step=next_step,
            severity=event.severity,
            text=event.lines[0].text.strip(),
            reset=_reset(event),
        )


def _reset(event: KernelEventSeen) -> str:
    if event.event not in _RESETS:
        return ""
    return "ended" if event.row.recovers or event.event == "amdgpu-reset-failed" else "begun"


def gpu_states(
    machine: Machine, snapshot: Snapshot, seen_events: Iterable[GpuEvent]
) -> list[GpuState]:
    """Each GPU that a probe saw, by index."""
    ranks, resets = Ranks(machine, snapshot), Counter[tuple[str | None, str]]()
    for event in seen_events:
        resets[event.device, event.reset] += event.count
    pages, nvidia = _by_address(machine, BadPages), _by_address(machine, NvidiaGpu)
    states = []
    for name in gpu_names(machine):
        rank, bad, smi = ranks.on_gpu(name.gpu), pages.get(name.address), nvidia.get(name.address)
        errors = {
            count.block: (count.ue, count.ce, count.deferred)
            for count in machine.records(RasCount)
            if count.address == name.address
        }
        if smi is not None and smi.ecc_uncorrected is not None:
            errors["ECC"] = (smi.ecc_uncorrected, smi.ecc_corrected, None)
        states.append(
            GpuState(
                *name,
                driver="nvidia" if smi is not None else "amdgpu",
                rank=rank.text if rank else "",
                errors=errors,
                bad_pages=(bad.retired, bad.pending, bad.failed) if bad else _remaps(smi),
                resets=max(resets[name.address, "begun"], resets[name.address, "ended"]),
            )
        )
    return states


def _remaps(smi: NvidiaGpu | None) -> tuple[int, int, int] | None:
    """Rows that NVIDIA GPUs replace, in the place of pages; None where they were not asked for."""
    if smi is None or smi.rows_remapped is None:
        return None
    return smi.rows_remapped, int(bool(smi.remap_pending)), int(bool(smi.remap_failed))


def _by_address(machine: Machine, kind: type[_Gpu]) -> dict[str, _Gpu]:
    """Records of a kind by the PCI address of their GPU."""
    records = machine.records(kind)
    return dict(zip(map(attrgetter("address"), records), records, strict=True))


def stuck_tasks(machine: Machine) -> StuckTasks:
    """Tasks, and readers of ours, that hang in the driver's error path."""
    pids = next(iter(machine.records(Pids)), None)
    symbol_of = dict(fault_symbols(machine))
    tasks, symbols = list(symbol_of), catalog.kernel_table().driver_fault_symbols
    known, own = set(map(attrgetter("pid"), tasks)), []
    for reader in chain.from_iterable(map(attrgetter("stuck"), machine.reports)):
        if reader.wchan in symbols and reader.pid not in known:
            own.append(reader)
    channels = Counter([*symbol_of.values(), *map(attrgetter("wchan"), own)])
    is_read = not _READ.isdisjoint(map(attrgetter("status"), machine.results("d_state")))
    starts = sorted(map(partial(_started, pids), tasks)) if pids else []
    return StuckTasks(
        count=len(tasks) + len(own) if is_read or own else None,
        channels=dict(channels.most_common()),
        readers=len(own) + sum(map(attrgetter("raydiag_reader"), tasks)),
        first_start=starts[0] if starts else None,
        last_start=starts[-1] if starts else None,
        pid_max=pids.maximum if pids else None,
        pids_in_use=pids.in_use if pids else None,
    )


def _started(pids: Pids, task: BlockedTask) -> float:
    return pids.boot_s + task.start_ticks / pids.ticks_per_s
