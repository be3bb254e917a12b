"""A job of ours that works with the nodes in several steps: the driver on the head.

Like the coordinator of a probe it says everything as frames in the job's log:

    0        start: the cluster
    1..      what the work has to say, as it comes
    999,999  end: the document, or {"usage": ...} or {"failed": ...}

Signs of life are frames numbered from 1,000,000 up.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from raydiag.cluster import coordinator
from raydiag.cluster.coordinator import END, PROGRESS
from raydiag.cluster.node_actors import NodeActors
from raydiag.errors import RaydiagError, UsageError

_STUCK_S = 300.0  # without a beat: Ray itself hangs, and a stop request could not reach us

Say = Callable[[Mapping[str, Any]], None]
Work = Callable[[Mapping[str, Any], NodeActors, Say], dict[str, Any]]


class Speaker:
    """Numbers the messages, and notices when nothing is said any more."""

    def __init__(self, nonce: str) -> None:
        self._nonce = nonce
        self._number = 0
        self.started = self._spoke = time.monotonic()

    def say(self, message: Mapping[str, Any]) -> None:
        """Write the next message."""
        self._number += 1
        self.write(self._number, message)

    def beat(self) -> None:
        """Show that the driver is alive."""
        self.write(PROGRESS + int((time.monotonic() - self.started) * 1000), {})

    def write(self, number: int, message: Mapping[str, Any]) -> None:
        """Write one message to the log, as frames."""
        self._spoke = time.monotonic()
        coordinator.say(self._nonce, number, message)

    def watch(self) -> None:
        """End the process when it hangs; run in a thread of its own."""
        while time.monotonic() - self._spoke < _STUCK_S:
            time.sleep(1)
        os._exit(1)


def main(modules: Mapping[str, str], request: Mapping[str, Any], work: Work) -> None:
    """Entry of the job. Exits 0 when the end message is out."""
    # Who reads the log may go away; the work goes on.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    speaker = Speaker(str(request["nonce"]))
    threading.Thread(target=speaker.watch, daemon=True).start()
    with coordinator.joined_cluster():
        speaker.write(0, coordinator.cluster_joined())
        speaker.write(END, _outcome(modules, request, work, speaker))


def _outcome(
    modules: Mapping[str, str], request: Mapping[str, Any], work: Work, speaker: Speaker
) -> dict[str, Any]:
    try:
        with contextlib.closing(NodeActors(modules, request, speaker.beat)) as team:
            return {"document": work(request["work"], team, speaker.say)}
    except (coordinator.Selection, UsageError) as error:
        return {"usage": str(error)}
    except (coordinator.NoNodes, RaydiagError) as error:
        return {"failed": str(error)}
