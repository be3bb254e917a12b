"""A command of raydiag as a child, with an end: whatever it meets, the watcher goes on.

It is interrupted as by Ctrl-C when its time is up, so that it takes its job off the cluster.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_LEAVES_IN_S = 15.0
_HAS_DOCUMENT = (0, 1, 3)


@dataclass(frozen=True)
class CommandAnswer:
    """The document of a command; without one, why."""

    document: dict[str, Any]
    complaint: str = ""


def answer_of(words: Sequence[str], limit_s: float) -> CommandAnswer:
    """Run `raydiag WORDS --format json` for at most `limit_s` seconds."""
    command = [sys.executable, "-m", "raydiag", *words, "--format", "json"]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(os.environ),  # it is raydiag, and needs the cluster's token as we do
    )
    try:
        output, errors = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        _end(process)
        return CommandAnswer({}, f"`raydiag {words[0]}` took longer than {limit_s:.0f} s")
    except BaseException:
        _end(process)
        raise
    if process.returncode not in _HAS_DOCUMENT:
        return CommandAnswer({}, _message(errors))
    try:
        document = json.loads(output)
    except ValueError:
        return CommandAnswer({}, f"`raydiag {words[0]}` printed no JSON")
    return CommandAnswer(document)


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.send_signal(signal.SIGINT)
    try:
        process.communicate(timeout=_LEAVES_IN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()


def _message(errors: bytes) -> str:
    """What the error document says; the last line where it is none."""
    last_line = (errors.decode("utf-8", "replace").strip().splitlines() or ["no message"])[-1]
    try:
        return str(json.loads(last_line)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return last_line
