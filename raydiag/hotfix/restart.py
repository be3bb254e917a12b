"""End an exporter so that its watchdog starts it anew, with nothing left on its port.

The server that hands out the metrics is a child of the exporter and outlives it: the new exporter
could not listen then, and would go on without a server. So both are ended in one go, the exporter
first: were we killed in between, the old server would still hand out what the new exporter writes.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator, Sequence

from raydiag.errors import ParseError
from raydiag.host import Host
from raydiag.hotfix import discovery, process
from raydiag.hotfix.found_exporter import FoundExporter
from raydiag.hotfix.journal import Journal, JournalError
from raydiag.hotfix.log_tail import size
from raydiag.hotfix.messages import RAYDIAG, ProcessInfo, Restart, Restarted
from raydiag.hotfix.process import Aim, Doubt, Gone
from raydiag.hotfix.watchdog_log import MOST_RESTARTS
from raydiag.listening import holds_socket, sockets_of_port

# The watchdog waits 5 s before it starts the exporter again.
_GONE_S, _FREE_S = 2.0, 3.0
_LOOK_S = 0.02


def refusals(discovered: FoundExporter, least_left: int) -> tuple[str, ...]:
    """Why the exporter that was found may not be ended; none when it may."""
    reasons, watchdog = list(discovered.doubts), discovered.watchdog
    if watchdog and watchdog.left < max(2, least_left):
        reasons.append(f"the watchdog has {watchdog.left} of {MOST_RESTARTS} restarts left")
    if watchdog and watchdog.gave_up:
        reasons.append("the watchdog has given up")
    return tuple(reasons)


def restart(request: Restart, journal: Journal) -> Restarted:
    """End exactly the planned exporter and its server, when there is no doubt about either.

    Raises Doubt or JournalError; nothing was ended then.
    """
    discovered = discovery.look(request)
    reason = _refusal(request, discovered)
    watchdog = discovered.watchdog
    if reason or watchdog is None:
        return Restarted("refused", reason)
    log_bytes, plugin_log_bytes = size(watchdog.log), size(request.plugin_log)
    before = (watchdog.restarts, watchdog.log, log_bytes, plugin_log_bytes, time.time())
    ended, doubt = _end_all(request, journal, discovered.processes())
    is_port_free = bool(ended) and _wait_until_free(request.port)
    if not doubt and not is_port_free:
        doubt = f"something still listens on port {request.port}"
    with contextlib.suppress(JournalError):  # it has happened, and the watchdog's log shows it
        names = [f"{process.role} {process.pid}" for process in ended]
        journal.append(request.rollout, request.who, "restarted", ended=names, reason=doubt)
    outcome = "ended"
    if doubt:
        outcome = "failed" if ended else "refused"
    return Restarted(outcome, doubt, tuple(ended), *before, is_port_free)


def _refusal(request: Restart, discovered: FoundExporter) -> str:
    """Why nothing is ended; "" when the exporter is the planned one and may be."""
    exporter = discovered.exporter
    reasons = refusals(discovered, request.least_left)
    if reasons or exporter is None or discovered.watchdog is None:
        return "; ".join(reasons) or "no exporter runs here"
    if (exporter.pid, exporter.start_ticks) != (request.pid, request.start_ticks):
        return f"pid {exporter.pid} is not the exporter that was planned"
    if not _is_theirs(request, discovered.processes()):
        return f"port {request.port} belongs to another process"
    return ""


def _end_all(
    request: Restart, journal: Journal, targets: Sequence[ProcessInfo]
) -> tuple[list[ProcessInfo], str]:
    """Those that were ended, and the doubt that spared the others or keeps them from being gone.

    All are verified and held before the first is ended. Raises Doubt or JournalError; none was
    ended then.
    """
    ended: list[ProcessInfo] = []
    with contextlib.ExitStack() as held:
        aims = []
        for target in targets:
            with _may_be_gone(target):
                aim = Aim(target, request.metrics_file, request.port, request.root)
                held.callback(aim.close)
                aims.append((target, aim))
        processes = [f"{process.role} {process.pid} {process.start_ticks}" for process, _ in aims]
        journal.append(request.rollout, request.who, "restart intent", processes=processes)
        for target, aim in aims:
            try:
                with _may_be_gone(target):
                    process.end(aim)
                    ended.append(target)
            except Doubt as error:
                _wait_until_gone(ended)
                return ended, str(error)
    all_gone = _wait_until_gone(ended)
    return ended, "" if all_gone else "what was ended is still there: it hangs in the kernel"


@contextlib.contextmanager
def _may_be_gone(target: ProcessInfo) -> Iterator[None]:
    """A server ends by itself when the port is taken; when the exporter does, the plan is old."""
    try:
        yield
    except Gone:
        if target.role == "exporter":
            raise


def _is_theirs(request: Restart, targets: Sequence[ProcessInfo]) -> bool:
    """Whether nobody would be left on the port: the server of raydiag's exporter ends with it."""
    host, listening = Host(), sockets_of_port(Host(), request.port)
    pids = {process.pid for process in targets}
    if request.exporter == RAYDIAG:
        pids.update(process.descendants(targets[0].pid, process.processes()))
    return not listening or any(holds_socket(host, pid, listening) for pid in pids)


def _wait_until_gone(ended: Sequence[ProcessInfo]) -> bool:
    deadline = time.monotonic() + _GONE_S
    while any(_is_there(process) for process in ended):
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK_S)
    return True


def _is_there(ended: ProcessInfo) -> bool:
    with contextlib.suppress(OSError, ParseError):
        now = process.see(ended.pid)
        return now.start_ticks == ended.start_ticks and now.state not in ("Z", "X")
    return False


def _wait_until_free(port: int) -> bool:
    """Whether nothing takes connections on that port any more."""
    deadline = time.monotonic() + _FREE_S
    while time.monotonic() <= deadline:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as connection:
            connection.settimeout(1.0)
            if connection.connect_ex(("127.0.0.1", port)) != 0:
                return True
        time.sleep(_LOOK_S)
    return False
