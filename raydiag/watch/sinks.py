"""Where events go besides the terminal: a command, and whatever apprise reaches.

Each delivery has a thread of its own and a limit: a sink that hangs holds nothing up. The same
event is sent once in a while only. Addresses with secrets come from a file or the environment, and
are never shown.
"""

import json
import shlex
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from raydiag import environment

_TRIES, _BETWEEN_S, _LIMIT_S = 3, 5.0, 20.0
_SAME_AGAIN_S = 1800.0
_MOST_AN_HOUR = 30


@dataclass
class Sinks:
    """`commands` get the event as JSON on stdin; `addresses` are apprise's URLs."""

    commands: Sequence[str] = ()
    addresses: Sequence[str] = ()
    complain: Callable[[str], None] = print
    _sent: dict[str, float] = field(default_factory=dict)
    _threads: list[threading.Thread] = field(default_factory=list)

    def send(self, event: Mapping[str, Any]) -> None:
        """Begin to deliver; returns at once."""
        now = time.monotonic()
        recent = [at for at in self._sent.values() if now - at < 3600]
        text = str(event["text"])
        is_repeated = now - self._sent.get(text, -_SAME_AGAIN_S) < _SAME_AGAIN_S
        if is_repeated or len(recent) >= _MOST_AN_HOUR:
            return
        self._sent[text] = now
        for command in self.commands:
            self._start(self._run_command, command, event)
        if self.addresses:
            self._start(self._notify, "notification", event)

    def finish(self, limit_s: float) -> None:
        """Wait for what is on its way, but no longer."""
        end = time.monotonic() + limit_s
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))

    def _start(
        self, deliver: Callable[[str, Mapping[str, Any]], str], sink: str, event: Mapping[str, Any]
    ) -> None:
        thread = threading.Thread(target=self._deliver, args=(deliver, sink, event), daemon=True)
        self._threads = [other for other in self._threads if other.is_alive()]
        self._threads.append(thread)
        thread.start()

    def _deliver(
        self, deliver: Callable[[str, Mapping[str, Any]], str], sink: str, event: Mapping[str, Any]
    ) -> None:
        problem = ""
        for attempt in range(_TRIES):
            time.sleep(attempt * _BETWEEN_S)
            problem = deliver(sink, event)
            if not problem:
                return
        self.complain(f"a notification did not arrive: {problem}")

    def _run_command(self, command: str, event: Mapping[str, Any]) -> str:
        """Why it failed; "" when it worked."""
        words = shlex.split(command)
        try:
            ended = subprocess.run(
                words, input=json.dumps(event).encode(), capture_output=True,
                timeout=_LIMIT_S, check=False, env=environment.named(),
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return f"{words[0]} took longer than {_LIMIT_S:.0f} s"
        except OSError as error:
            return f"{words[0]}: {error.strerror}"
        return f"{words[0]}: exit code {ended.returncode}" if ended.returncode else ""

    def _notify(self, _: str, event: Mapping[str, Any]) -> str:
        import apprise

        notifier = apprise.Apprise()
        for address in self.addresses:
            notifier.add(address)
        title = f"raydiag: {event['job']}"
        if notifier.notify(body=str(event["text"]), title=title):
            return ""
        return f"apprise could not reach one of {len(self.addresses)} addresses"
