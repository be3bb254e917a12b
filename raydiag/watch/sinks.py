"""Where events go besides the terminal: a command, and whatever apprise reaches.

Each delivery has a thread of its own and a limit: a sink that hangs holds nothing up. The same
event is sent once in a while only. Addresses with secrets come from a file or the environment, and
are never shown.
"""

import functools
import json
import shlex
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from raydiag import environment
from raydiag.errors import UsageError

_TRIES, _BETWEEN_S, _LIMIT_S = 3, 5.0, 20.0
_SAME_AGAIN_S = 1800.0
_MOST_AN_HOUR = 30


def checked_program(command: str) -> list[str]:
    """The words of a command. Raises UsageError where there is no such program."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageError(f"--run {command!r}: {error}") from None
    if not words or shutil.which(words[0]) is None:
        raise UsageError(f"--run {command!r}: there is no such program")
    return words


@dataclass
class Sinks:
    """`programs` get the event as JSON on stdin; `addresses` are apprise's URLs."""

    programs: Sequence[Sequence[str]] = ()
    addresses: Sequence[str] = ()
    complain: Callable[[str], None] = print
    _sent: dict[str, float] = field(default_factory=dict)
    _threads: list[threading.Thread] = field(default_factory=list)
    _running: set["subprocess.Popen[bytes]"] = field(default_factory=set)

    def send(self, event: Mapping[str, Any]) -> None:
        """Begin to deliver; returns at once. What ends a watch is always delivered."""
        now, text = time.monotonic(), str(event["text"])
        recent = [at for at in self._sent.values() if now - at < 3600]
        is_repeated = now - self._sent.get(text, -_SAME_AGAIN_S) < _SAME_AGAIN_S
        if event["kind"] != "ended" and (is_repeated or len(recent) >= _MOST_AN_HOUR):
            return
        self._sent[text] = now
        for words in self.programs:
            self._start(functools.partial(self._run, words, event))
        if self.addresses:
            self._start(functools.partial(self._notify, event))

    def finish(self, limit_s: float) -> None:
        """Wait for what is on its way, but no longer; what does not end by then is ended."""
        end = time.monotonic() + limit_s
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        late = [thread for thread in self._threads if thread.is_alive()]
        if late:
            self.complain(f"{len(late)} notifications had not arrived when watching ended")
        for process in list(self._running):
            process.kill()

    def _start(self, deliver: Callable[[], str]) -> None:
        thread = threading.Thread(target=self._deliver, args=(deliver,), daemon=True)
        self._threads = [other for other in self._threads if other.is_alive()]
        self._threads.append(thread)
        thread.start()

    def _deliver(self, deliver: Callable[[], str]) -> None:
        problem = ""
        for attempt in range(_TRIES):
            time.sleep(attempt * _BETWEEN_S)
            problem = deliver()
            if not problem:
                return
        self.complain(f"a notification did not arrive: {problem}")

    def _run(self, words: Sequence[str], event: Mapping[str, Any]) -> str:
        """Why it failed; "" when it worked."""
        try:
            process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment.named(),
            )
        except OSError as error:
            return f"{words[0]}: {error.strerror}"
        self._running.add(process)
        try:
            process.communicate(json.dumps(event).encode(), timeout=_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return f"{words[0]} took longer than {_LIMIT_S:.0f} s"
        finally:
            self._running.discard(process)
        return f"{words[0]}: exit code {process.returncode}" if process.returncode else ""

    def _notify(self, event: Mapping[str, Any]) -> str:
        import apprise

        notifier = apprise.Apprise()
        for address in self.addresses:
            notifier.add(address)
        title = f"raydiag: {event['job']}"
        if notifier.notify(body=str(event["text"]), title=title):
            return ""
        return f"apprise could not reach one of {len(self.addresses)} addresses"
