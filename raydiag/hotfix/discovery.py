"""Which exporter runs on this node, its files' directory, its watchdog; found, never guessed.

Source: proc(5); /proc/<pid>/{wchan,stack}
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

from raydiag import records
from raydiag.hotfix import guarded_request, own_exporter, plugin_log, process, shell_exporter
from raydiag.hotfix.found_exporter import FoundExporter
from raydiag.hotfix.messages import RAYDIAG, NodeRequest
from raydiag.hotfix.process import SeenProcess

_LOOK_LIMIT_S = 5.0
_STACK_BYTES = 1 << 16


def look(request: NodeRequest) -> FoundExporter:
    """`find`, in a guarded reader: the arguments of a process that hangs may block their reader."""
    fields = {field.name: getattr(request, field.name) for field in dataclasses.fields(NodeRequest)}
    looks_as = guarded_request.LOOKS_AS
    try:
        answer = guarded_request.ask(_serve, fields, "processes", looks_as, _LOOK_LIMIT_S)
    except guarded_request.NoAnswer as error:
        return FoundExporter(doubts=(str(error),))
    return records.decode(FoundExporter, answer)


def _serve(fields: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """In the reader."""
    yield {"answer": dataclasses.asdict(find(NodeRequest(**fields)))}


def find(request: NodeRequest) -> FoundExporter:
    """Look at the processes; may block, see `look`. Reads no arguments of training processes."""
    doubt = process.numbers_doubt()
    if doubt:
        return FoundExporter(doubts=(doubt,))
    if request.exporter == RAYDIAG:
        return own_exporter.find(request)
    return shell_exporter.find(request)


def driver_fault(request: NodeRequest) -> str:
    """What shows the GPU driver fault here, or may; "" when nothing does.

    Besides what the request says: a process that waits in one of the driver's functions, and
    timeouts of the GPU plugin, which are what the fault looks like from outside.
    """
    if request.driver_fault:
        return request.driver_fault
    for seen in process.processes().values() if request.driver_fault_symbols else ():
        for symbol in _waits_in(seen, request.driver_fault_symbols):
            return f"pid {seen.pid} waits in {symbol}"
    timeouts = plugin_log.gpu_timeouts(request.plugin_log)
    return f"gpu_metrics_plugin timed out {timeouts} times" if timeouts else ""


def _waits_in(seen: SeenProcess, symbols: tuple[str, ...]) -> Iterator[str]:
    """Which of these kernel functions a process in state D waits in."""
    for name in ("wchan", "stack") if seen.state == "D" else ():
        with contextlib.suppress(OSError), open(f"/proc/{seen.pid}/{name}") as file:
            text = file.read(_STACK_BYTES)
            yield from (symbol for symbol in symbols if symbol in text)
