"""Find the shell exporter: the bash whose child is the server of our file and port.

Without a server it is known by its arguments alone. Where two processes could be it, none is.

Source: proc(5): /proc/<pid>/{stat,cmdline,exe,cwd}
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Optional

from raydiag.host import Host
from raydiag.hotfix import found_exporter, process
from raydiag.hotfix.found_exporter import NO_WATCHDOG, FoundExporter, process_info
from raydiag.hotfix.messages import NodeRequest, ProcessInfo, Watchdog
from raydiag.hotfix.process import SeenProcess
from raydiag.hotfix.watchdog_log import CLOCK_S, watchdog_of
from raydiag.listening import holds_socket, sockets_of_port

_SEVERAL = "several processes look like the exporter"
_SETTLE_S, _LOOK_S = 2.5, 0.05


def find(request: NodeRequest) -> FoundExporter:
    """Look until one process is the exporter: a subshell for a plugin is gone in a moment."""
    deadline = time.monotonic() + _SETTLE_S
    while True:
        discovered = _Search(request).run()
        several = any(doubt.startswith(_SEVERAL) for doubt in discovered.doubts)
        if not several or time.monotonic() > deadline:
            return discovered
        time.sleep(_LOOK_S)


@dataclass
class _Search:
    """One look at all processes."""

    request: NodeRequest
    seen: Mapping[int, SeenProcess] = field(default_factory=process.processes)
    shells: dict[int, tuple[str, ...]] = field(default_factory=dict)  # pid -> argv of the script
    hidden: list[int] = field(default_factory=list)  # pids of such that may not be looked at
    servers: list[ProcessInfo] = field(default_factory=list)  # of our file and port

    def run(self) -> FoundExporter:
        """What this look has found."""
        self._collect_shells()
        self._collect_servers()
        orphans: list[ProcessInfo] = []
        children: dict[int, ProcessInfo] = {}  # by the shell that started them
        for server in self.servers:
            parent = self.seen[server.pid].parent
            if parent in self.shells:
                children.setdefault(parent, server)
            else:
                orphans.append(replace(server, role="orphan"))
        candidates = set(children) or set(self.shells)
        if len(candidates) > 1:
            pids = ", ".join(map(str, sorted(candidates)))
            return FoundExporter(doubts=(f"{_SEVERAL}: {pids}",))
        if candidates:
            (pid,) = candidates
            return self._described(pid, children.get(pid), tuple(orphans))
        if self.hidden:
            doubt = f"pid {self.hidden[0]} may be the exporter and belongs to another user"
            return FoundExporter(doubts=(doubt,))
        return FoundExporter(orphans=tuple(orphans), doubts=("no exporter runs here",))

    def _described(
        self, pid: int, server: Optional[ProcessInfo], orphans: tuple[ProcessInfo, ...]
    ) -> FoundExporter:
        exporter = process_info(self.seen[pid], self.shells[pid], "exporter")
        watchdog, doubt = watchdog_of(pid)
        if watchdog is not None:
            doubt = self._watchdog_doubt(exporter, watchdog)
        directory, elsewhere = _directory(exporter)
        doubts = tuple(filter(None, (doubt, elsewhere)))
        known = (watchdog, directory, elsewhere, doubts, found_exporter.environment_of(pid))
        return FoundExporter(exporter, server, orphans, *known)

    def _collect_shells(self) -> None:
        """Shells that run the exporter's script, unless their arguments name another port."""
        for seen in self.seen.values():
            if not seen.name.startswith(("bash", process.SCRIPT[:15])):
                continue
            argv = process.arguments(seen)
            is_ours = _port_argument(argv) in (None, self.request.port)
            if not process.is_exporter(argv) or not is_ours:
                continue
            program = process.program(seen.pid)
            if program.startswith("bash"):
                self.shells[seen.pid] = argv
            elif not program:
                self.hidden.append(seen.pid)

    def _collect_servers(self) -> None:
        """Servers of our file and port; exporters of other ports are no candidates any more."""
        listening = sockets_of_port(Host(), self.request.port)
        of_other_ports: set[int] = set()
        for seen in self.seen.values():
            # Only what can be the server is asked for its arguments: a trainer is a Python as well.
            if not seen.name.startswith("python"):
                continue
            is_child = seen.parent in self.shells
            if not is_child and not (listening and holds_socket(Host(), seen.pid, listening)):
                continue
            argv = process.arguments(seen)
            if process.is_server(argv, self.request.metrics_file, self.request.port):
                self.servers.append(process_info(seen, argv, "server"))
            elif is_child and process.served_port(argv) not in (None, self.request.port):
                of_other_ports.update((seen.parent, *process.descendants(seen.parent, self.seen)))
        for pid in of_other_ports & self.shells.keys():
            del self.shells[pid]

    def _watchdog_doubt(self, exporter: ProcessInfo, watchdog: Watchdog) -> str:
        """Why the watchdog may not be there to start the exporter again; "" when it is."""
        parent = self.seen.get(self.seen[exporter.pid].parent)
        if parent is None or parent.pid <= 1 or not process.program(parent.pid).startswith("bash"):
            return NO_WATCHDOG
        argv = process.arguments(parent)
        if not argv:
            return f"pid {parent.pid} above the exporter cannot be looked at"
        grandparent = self.seen.get(parent.parent)
        is_subshell = grandparent is not None and process.arguments(grandparent) == argv
        started_at = found_exporter.started_at(parent)
        has_restarted = (watchdog.last_restart_at or 0.0) > started_at - CLOCK_S
        if not is_subshell and argv != exporter.argv and not has_restarted:
            return f"pid {parent.pid} above the exporter may be no watchdog"
        return ""


def _port_argument(argv: tuple[str, ...]) -> Optional[int]:
    """The port that the arguments name; None when they leave it to the environment."""
    for option, value in zip(argv[2:], argv[3:]):
        if option in ("--port", "-p") and value.isascii() and value.isdigit():
            return int(value)
    return None


def _directory(exporter: ProcessInfo) -> tuple[Optional[str], str]:
    """Where the script lies, from argv[1] and the working directory; or why that is not known."""
    pid = exporter.pid
    doubt = found_exporter.files_doubt(pid)
    if doubt:
        return None, doubt
    try:
        path = os.path.join(os.readlink(f"/proc/{pid}/cwd"), exporter.argv[1])
        os.stat(path)
    except OSError as error:
        return None, f"pid {pid}: its directory is not known: {error.strerror}"
    directory = os.path.dirname(path)
    plain = os.path.normpath(directory)
    # The kernel follows a link before `..` and a shell's `cd` does not: they mean two directories.
    if os.path.realpath(plain) != os.path.realpath(directory):
        return None, f"pid {pid}: {directory} and {plain} are not one directory"
    return plain, ""
