"""A command of raydiag as a child, with an end: whatever it meets, who asked goes on.

It leads a process group of its own, so that Ctrl-C on a terminal reaches it once, from us: then it
takes its job off the cluster before it goes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

LEAVES_IN_S = 15.0
_HAS_DOCUMENT = (0, 1, 3)


@dataclass(frozen=True)
class CommandAnswer:
    """The document of a command; without one, why."""

    document: dict[str, Any]
    text: str = ""  # of the document, as it was printed
    complaint: str = ""


def command_line(words: Sequence[str]) -> list[str]:
    """As a child is started."""
    return [sys.executable, "-m", "raydiag", *words]


def answer_of(words: Sequence[str], limit_s: float) -> CommandAnswer:
    """Run `raydiag WORDS --format json` for at most `limit_s` seconds."""
    process = subprocess.Popen(
        command_line([*words, "--format", "json"]),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(os.environ),  # it is raydiag, and needs the cluster's token as we do
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        _end(process)
        complaint = f"`raydiag {words[0]}` took longer than {limit_s:.0f} s"
        return CommandAnswer({}, complaint=complaint)
    except BaseException:
        _end(process)
        raise
    return read_answer(words[0], process.returncode, output, errors)


def read_answer(command: str, exit_code: int, output: bytes, errors: bytes) -> CommandAnswer:
    """What a command has printed until it ended."""
    if exit_code not in _HAS_DOCUMENT:
        message = _message(errors) or f"`raydiag {command}` ended with exit code {exit_code}"
        return CommandAnswer({}, complaint=message)
    text = output.decode("utf-8", "replace")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        message = _message(errors) or f"`raydiag {command}` printed no JSON"
        return CommandAnswer({}, complaint=message)
    return CommandAnswer(document, text)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGINT)
    try:
        process.communicate(timeout=LEAVES_IN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()


def _message(errors: bytes) -> str:
    """What the error document says; the last line where it is none."""
    lines = errors.decode("utf-8", "replace").strip().splitlines()
    last_line = next(reversed(lines), "")
    try:
        return str(json.loads(last_line)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return last_line
