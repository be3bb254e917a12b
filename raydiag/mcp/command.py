"""One command of raydiag as a child process: its document, or why there is none.

The child has its own standard streams. When the call is cancelled it is interrupted as by Ctrl-C,
so that it takes its job off the cluster, and ended when it does not go.
"""

import json
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import anyio
from anyio.abc import Process

_LONGEST_OUTPUT = 128 << 20
_LONGEST_ERROR = 4000
_LEAVES_IN_S = 15.0
_HAS_DOCUMENT = (0, 1, 3)


@dataclass(frozen=True)
class Answered:
    """How a command ended."""

    exit_code: int
    text: str  # of the document; "" without one
    document: dict[str, Any]
    complaint: str  # why there is none


async def answered(words: Sequence[str], stdin: str | None) -> Answered:
    """Run `raydiag WORDS` to its end."""
    command = [sys.executable, "-m", "raydiag", *words]
    async with await anyio.open_process(command, env=dict(os.environ)) as process:
        output, errors = bytearray(), bytearray()
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_feed, process, stdin)
                tasks.start_soon(_read, process.stdout, output, _LONGEST_OUTPUT)
                tasks.start_soon(_read, process.stderr, errors, _LONGEST_ERROR)
            await process.wait()
        finally:
            with anyio.CancelScope(shield=True):
                await _ended(process)
    return _answered(process.returncode or 0, bytes(output), bytes(errors))


async def _feed(process: Process, text: str | None) -> None:
    assert process.stdin is not None
    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
        if text:
            await process.stdin.send(text.encode())
        await process.stdin.aclose()


async def _read(stream: Any, content: bytearray, limit: int) -> None:
    async for chunk in stream:
        if len(content) < limit:
            content += chunk


async def _ended(process: Process) -> None:
    """Interrupt it, and end it when it does not go."""
    if process.returncode is not None:
        return
    process.send_signal(signal.SIGINT)
    with anyio.move_on_after(_LEAVES_IN_S):
        await process.wait()
        return
    process.kill()
    await process.wait()


def _answered(exit_code: int, output: bytes, errors: bytes) -> Answered:
    complaint = errors.decode("utf-8", "replace")
    if exit_code not in _HAS_DOCUMENT:
        return Answered(exit_code, "", {}, _message(complaint) or f"exit code {exit_code}")
    if len(output) > _LONGEST_OUTPUT:
        return Answered(exit_code, "", {}, "the document is over 128 MiB: ask for fewer nodes")
    text = output.decode("utf-8", "replace")
    return Answered(exit_code, text, json.loads(text), complaint)


def _message(complaint: str) -> str:
    """What the error document says; the last line where it is none."""
    last_line = (complaint.strip().splitlines() or [""])[-1]
    try:
        return str(json.loads(last_line)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return last_line
