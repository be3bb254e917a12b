"""A job of ours that works with the nodes in several steps: the driver on the head.

Like the coordinator of a probe it says everything as frames in the job's log:

    0        start: the cluster
    1..      what the work has to say, as it comes
    999,999  end: the document, or {"usage": ...} or {"failed": ...}

Signs of life are frames numbered from 1,000,000 up.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import ray

from raydiag.cluster import actor as actor_module
from raydiag.cluster import coordinator, frames
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
        payload = zlib.compress(json.dumps(message).encode())
        for line in frames.encode(self._nonce, number, payload):
            sys.stdout.write(line + "\n")
            sys.stdout.flush()

    def watch(self) -> None:
        """End the process when it hangs; run in a thread of its own."""
        while time.monotonic() - self._spoke < _STUCK_S:
            time.sleep(1)
        os._exit(1)


def main(modules: Mapping[str, str], request: Mapping[str, Any], work: Work) -> None:
    """Entry of the job. Exits 0 when the end message is out."""
    # Who reads the log may go away; the work goes on.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    speaker = Speaker(str(request["nonce"]))
    threading.Thread(target=speaker.watch, daemon=True).start()
    ray.init(address="auto", namespace="raydiag", log_to_driver=False, logging_level="ERROR")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ray.init installed its own
    ray.cloudpickle.register_pickle_by_value(actor_module)
    context = ray.get_runtime_context()
    start = {"time": time.time(), "gcs_address": context.gcs_address}
    session = {"session_name": coordinator.session_name(context), "ray_version": ray.__version__}
    speaker.write(0, {**start, **session})
    try:
        speaker.write(END, _outcome(modules, request, work, speaker))
    finally:
        sys.stdout.flush()
        finish = threading.Timer(3, os._exit, args=(0,))
        finish.daemon = True
        finish.start()
        ray.shutdown()


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
