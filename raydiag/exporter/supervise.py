"""The watchdog: starts the exporter again when it ended and nobody had told it to.

It says what it does in the words of the watchdog that jobs have run so far, so that whoever reads
those logs reads these. Each start is a fresh interpreter, and so takes up code that was replaced
meanwhile. A signal to end goes on to the exporter, and the watchdog ends after it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from raydiag import confinement, environment
from raydiag.errors import CannotRun
from raydiag.exporter.signals import Signals

PARENT = "RAYDIAG_EXPORTER_WATCHDOG"  # in the environment of the exporter: the watchdog's pid
MOST_RESTARTS = 50
ENDS = (0, 128 + signal.SIGTERM, 128 + signal.SIGINT)  # somebody wanted it to end
_GRACE_S = 10.0  # from the signal to end to SIGKILL


class RestartPace(NamedTuple):
    """How long to wait before a restart, in seconds."""

    first_s: float = 5.0
    most_s: float = 300.0
    good_s: float = 600.0  # an exporter that ran that long starts again after the first delay


USUAL_PACE = RestartPace()


def own_command() -> list[str]:
    """The command that started this process."""
    words = getattr(sys, "orig_argv", None)  # since Python 3.10
    return [sys.executable, *(words[1:] if words else ("-m", "raydiag", *sys.argv[1:]))]


def supervise(
    command: Sequence[str],
    log: Callable[[str], None],
    pace: RestartPace = USUAL_PACE,
    label: str = "Metrics Exporter",
) -> int:
    """Run the command until it ends as told, or too often; returns the exit code.

    Each line for `log` is whole. Raises CannotRun when the command cannot be started at all.
    """
    signals = Signals(other_signals=(signal.SIGCHLD,))
    restarts, delay_s = 0, pace.first_s
    try:
        while True:
            started = time.monotonic()
            code = _run_once(command, signals)
            if signals.told or code in ENDS:
                return code
            if restarts >= MOST_RESTARTS:
                log(f"{_now()} [{label}] Watchdog: too many restarts ({MOST_RESTARTS}), giving up")
                return code
            restarts += 1
            log(f"{_now()} [{label}] Watchdog: exited with code {code}, restart #{restarts}")
            if time.monotonic() - started >= pace.good_s:
                delay_s = pace.first_s
            _sleep(delay_s, signals)
            if signals.told:
                return 128 + signals.told
            delay_s = min(pace.most_s, 2 * delay_s)
    finally:
        signals.restore()


def end_with_watchdog() -> None:
    """In the exporter: end when its watchdog does, or the next would find the port taken."""
    parent = os.environ.pop(PARENT, "")
    if parent:
        confinement.die_with_parent()
        if str(os.getppid()) != parent:
            os._exit(1)  # it ended before we asked to end with it


def _run_once(command: Sequence[str], signals: Signals) -> int:
    """Start the command and wait for its end; its exit code as a shell says it."""
    variables = {**environment.named(), PARENT: str(os.getpid())}
    try:
        process = subprocess.Popen(command, env=variables)
    except OSError as error:
        raise CannotRun(f"{command[0]}: cannot be started: {error.strerror}") from None
    told_at = 0.0
    while process.poll() is None:
        if signals.told and not told_at:
            process.terminate()  # our own child, not yet reaped
            told_at = time.monotonic()
        if told_at and time.monotonic() - told_at > _GRACE_S:
            process.kill()  # the same
            if time.monotonic() - told_at > _GRACE_S + 1:
                return 128 + signal.SIGKILL  # it hangs in the kernel: leave it
        signals.wait(0.2 if told_at else None)
    code = process.returncode
    return code if code >= 0 else 128 - code


def _sleep(delay_s: float, signals: Signals) -> None:
    """So long, or less when told to end."""
    until = time.monotonic() + delay_s
    while not signals.told and time.monotonic() < until:
        signals.wait(until - time.monotonic())


def _now() -> str:
    return time.strftime("[%Y-%m-%dT%H:%M:%SZ]", time.gmtime())
