"""Which variables of the environment are passed on: those named here, so that no token travels.

A child that was only forked shows in `/proc/<pid>/environ` what its parent was started with,
whatever it has set since. So that memory is overwritten as well.

Source: proc(5): env_start and env_end in /proc/<pid>/stat
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable

_PASSED_ON = """
PATH HOME USER LOGNAME SHELL LANG LANGUAGE TZ TMPDIR HOSTNAME XDG_RUNTIME_DIR LD_LIBRARY_PATH
ROCM_PATH CUDA_HOME CUDA_VISIBLE_DEVICES NVIDIA_VISIBLE_DEVICES HIP_VISIBLE_DEVICES
ROCR_VISIBLE_DEVICES NODE_RANK NNODES RAY_TMPDIR SLURM_CONF SLURM_CLUSTERS SLURM_NODEID
SLURM_PROCID SLURM_NNODES SLURM_JOB_ID SLURM_JOBID SLURM_JOB_NAME SLURM_JOB_NODELIST
SLURM_JOB_START_TIME SLURM_JOB_END_TIME RAYDIAG_HOST RAYDIAG_JOB_START RAYDIAG_CONFIG
RAYDIAG_TENSORBOARD_DIR RAYDIAG_PROMETHEUS RAYDIAG_EXPORTER_WATCHDOG RAYDIAG_TRACEBACK
"""
_NAMES = frozenset(_PASSED_ON.split())
_PREFIXES = ("LC_", "PYTHON")
_ENV_START, _ENV_END = 47, 48  # fields of stat after the name

_also: set[str] = set()


def allow(names: Iterable[str]) -> None:
    """Pass on these as well."""
    _also.update(names)


def named(more: Iterable[str] = (), *prefixes: str) -> dict[str, str]:
    """What of our environment a child may have; `more` and what begins so: this one besides."""
    names, begins = _NAMES.union(_also, more), (*_PREFIXES, *prefixes)
    variables = os.environ.items()
    return {name: value for name, value in variables if name in names or name.startswith(begins)}


def forget() -> None:
    """Leave nothing but those variables in this process and in what it starts from now on."""
    kept = named()
    with open("/proc/self/stat", "rb") as file:
        fields = file.read(2048).rsplit(b")", 1)[-1].split()
    start, end = int(fields[_ENV_START]), int(fields[_ENV_END])
    os.environ.clear()
    libc = ctypes.CDLL(None)
    libc.clearenv()  # nothing points into that memory any more
    if 0 < start < end:
        text = "".join(f"{name}={value}\0" for name, value in kept.items())
        shown = text.encode("utf-8", "surrogateescape")[: end - start].ljust(end - start, b"\0")
        ctypes.memmove(start, shown, end - start)
    os.environ.update(kept)
