"""A training-like tree of processes that writes down every signal it gets.

Run as a program: `training_tree.py DIRECTORY bash /opt/utils/metrics_exporter.sh`. The words after
the directory are a trap for whoever looks for the exporter by a pattern. A parent and two workers
have `DIRECTORY/dev/kfd` open; each writes `DIRECTORY/signals/<pid>`: its start time when it is
ready, and a line for each signal.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

WORKERS = 2
TRAP = ("bash", "/opt/utils/metrics_exporter.sh", "--port", "9400")
_OWN_WAY = {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}


def start_ticks(pid: int) -> int | None:
    """Field 22 of /proc/<pid>/stat; None when it has ended."""
    with suppress(OSError):
        rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if rest[0] in "ZX" else int(rest[19])
    return None


def untouched(directory: Path) -> list[str]:
    """What happened to the tree: empty when all of it lives and nobody sent it a signal."""
    notes = sorted((directory / "signals").iterdir())
    trouble = [] if len(notes) == WORKERS + 1 else [f"{len(notes)} processes, not {WORKERS + 1}"]
    for note in notes:
        first, *signals = note.read_text().splitlines()
        state = Path(f"/proc/{note.name}/stat")
        if start_ticks(int(note.name)) != int(first):
            trouble.append(f"{note.name} has ended")
        elif state.read_text().rpartition(")")[2].split()[0] in "Tt":
            trouble.append(f"{note.name} is stopped")
        trouble += [f"{note.name} got {one}" for one in signals]
    return trouble


def is_ready(directory: Path) -> bool:
    with suppress(OSError):
        notes = list((directory / "signals").iterdir())
        return len(notes) == WORKERS + 1 and all(note.read_text() for note in notes)
    return False


def _live(directory: Path) -> None:
    note = os.open(
        directory / "signals" / str(os.getpid()), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600
    )

    def write_down(number: int, _: object) -> None:
        os.write(note, f"{signal.Signals(number).name}\n".encode())

    for number in signal.valid_signals() - _OWN_WAY:
        with suppress(OSError, ValueError):
            signal.signal(number, write_down)
    os.open(directory / "dev" / "kfd", os.O_RDWR)
    os.write(note, f"{start_ticks(os.getpid())}\n".encode())
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    place = Path(sys.argv[1])
    (place / "signals").mkdir(parents=True, exist_ok=True)
    (place / "dev").mkdir(exist_ok=True)
    (place / "dev" / "kfd").touch()
    for _ in range(WORKERS):
        if os.fork() == 0:
            break
    _live(place)
