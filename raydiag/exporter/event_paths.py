"""Which event files are this host's, below a directory that other jobs and hosts may share.

Source: names as of `raydiag.event_file`; RAYDIAG_JOB_START, else SLURM_JOB_START_TIME (Unix
seconds, sbatch(1)), in the environment
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Optional

from raydiag import event_file
from raydiag.errors import ReadError
from raydiag.host import Host

HOST = "RAYDIAG_HOST"  # in the environment: the name to go by besides the machine's
_JOB_STARTS = ("RAYDIAG_JOB_START", "SLURM_JOB_START_TIME")
_RESCAN_S = 60.0  # a walk over a network file system costs it something
_DEEPEST, _MOST_DIRECTORIES = 3, 64

# By root and directory: when (monotonic); files, and when they were created.
_listings: dict[tuple[str, str], tuple[float, dict[str, float]]] = {}


def listed(host: Host, directory: str) -> dict[str, float]:
    """Path and time of creation of each; looked for once a minute. Raises NoData, ReadError."""
    key = (host.root, directory)
    when, files = _listings.get(key, (0.0, {}))
    if not files or time.monotonic() - when > _RESCAN_S:
        files = dict(_event_files(host, directory))
        _listings[key] = (time.monotonic(), files)
    return files


def job_start() -> Optional[float]:
    """Unix seconds; None where nobody says."""
    for name in _JOB_STARTS:
        text = os.environ.get(name, "").strip()
        if text.replace(".", "", 1).isdigit():
            return float(text)
    return None


def _event_files(host: Host, top: str) -> Iterator[tuple[str, float]]:
    """Path and time of creation of this host's files below a directory.

    A directory of checkpoints is often the same one: those are named by numbers, and not entered.
    """
    ours = {os.uname().nodename, os.environ.get(HOST, "") or os.uname().nodename}
    waiting, entered = [(top.rstrip("/"), 0)], 0
    while waiting and entered < _MOST_DIRECTORIES:
        directory, depth = waiting.pop(0)
        entered += 1
        try:
            names = host.listdir(directory)
        except ReadError:
            if depth == 0:
                raise
            continue
        for entry in names:
            name = event_file.name_of(entry)
            if name is not None:
                if any(name.is_of(host_name) for host_name in ours):
                    yield f"{directory}/{entry}", name.created
            elif depth < _DEEPEST and "." not in entry and not entry.isdigit():
                waiting.append((f"{directory}/{entry}", depth + 1))
