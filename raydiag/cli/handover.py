"""`raydiag handover`: a note for whoever comes next, from what `raydiag watch` remembers.

examples:
  raydiag handover                                 of the job that was watched last
  raydiag handover --state watch.json
  raydiag handover --format markdown -o handover.md

exit codes:
  0 the job completed, or goes on without an alarm    1 there are alarms, or it ended otherwise
  2 usage                                             4 nothing was watched
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from raydiag.cli import options
from raydiag.errors import CannotRun

HELP = "a note for whoever comes next: where a watched job stands, and the first command to run"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    words = "the file of `raydiag watch` (default: the newest below ~/.raydiag/watch)"
    parser.add_argument("--state", metavar="FILE", help=words)
    options.add_output(parser)


def run(arguments: argparse.Namespace) -> int:
    """Read and show; returns the exit code."""
    from raydiag.render.watch import handover_document, handover_report
    from raydiag.watch import watch_state

    path = Path(arguments.state) if arguments.state else watch_state.newest_path()
    state = None if path is None else watch_state.read_state(path)
    if state is None:
        raise CannotRun(f"{arguments.state or '~/.raydiag/watch'}: no job was watched")
    now = time.time()
    options.show(
        arguments,
        lambda: handover_document(state, now),
        lambda: handover_report(state, now),
    )
    is_well = state.memory.ended in ("", "completed") and not state.memory.open_alarms
    return 0 if is_well else 1
