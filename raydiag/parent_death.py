"""Commands that end when their parent does.

Source: prctl(2) PR_SET_PDEATHSIG
"""

from __future__ import annotations

import signal
import sys

_BECOME = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, int(sys.argv[1]), 0, 0, 0); "
    "sys.argv[2] in ('0', str(os.getppid())) or sys.exit(1); os.execv(sys.argv[3], sys.argv[3:])"
)


def ending_with(parent: int, number: signal.Signals) -> list[str]:
    """Words before a command that gets the signal when its parent ends; 0: whoever that is.

    PDEATHSIG outlives an exec, so a fresh interpreter sets it and becomes the command: after a
    fork, nothing may be called safely.
    """
    return [sys.executable, "-I", "-S", "-c", _BECOME, str(int(number)), str(parent)]
