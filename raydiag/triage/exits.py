"""What exit codes and signals mean."""

from __future__ import annotations

from typing import Optional

# Exit code of a process -> what it says of its end.
_CODES = {
    1: "an error of the program itself",
    2: "wrong usage, or an error of the program itself",
    124: "ended by `timeout`",
    126: "the command could not be executed",
    127: "the command was not found",
    130: "SIGINT: interrupted",
    134: "SIGABRT: an assertion or abort; a core dump is likely",
    135: "SIGBUS: memory that is gone, often a full /dev/shm",
    136: "SIGFPE: arithmetic error",
    137: "SIGKILL: the host ran out of memory, or somebody killed it",
    139: "SIGSEGV: a crash; a core dump is likely",
    143: "SIGTERM: it was told to end",
}
_SIGNALS = {
    1: "SIGHUP",
    2: "SIGINT",
    3: "SIGQUIT",
    4: "SIGILL",
    6: "SIGABRT",
    7: "SIGBUS",
    8: "SIGFPE",
    9: "SIGKILL",
    11: "SIGSEGV",
    15: "SIGTERM",
}


def meaning(code: Optional[int], signal: Optional[int] = None) -> str:
    """`137 (SIGKILL: ...)`; empty without either."""
    if code is not None and code < 0:
        code = 128 - code
    if signal and not code:
        code = 128 + signal
    if code is None:
        return ""
    known = _CODES.get(code)
    if known is None and 128 < code <= 128 + 64:
        known = _SIGNALS.get(code - 128, f"signal {code - 128}")
    return f"{code} ({known})" if known else str(code)
