"""One command of raydiag for an agent, without holding up the server.

When the call is cancelled it is interrupted as by Ctrl-C, so that it takes its job off the cluster,
and ended when it does not go.
"""

import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import anyio
from anyio.abc import Process

from raydiag.own_command import LEAVES_IN_S, CommandAnswer, command_line, read_answer

_LONGEST_OUTPUT = 128 << 20
_LONGEST_ERROR = 4000


async def answered(words: Sequence[str], stdin: str | None) -> CommandAnswer:
    """Run `raydiag WORDS` to its end."""
    command, environment = command_line(words), dict(os.environ)
    output, errors = bytearray(), bytearray()
    async with await anyio.open_process(
        command, env=environment, start_new_session=True
    ) as process:
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_feed, process, stdin)
                tasks.start_soon(_read, process.stdout, output, _LONGEST_OUTPUT)
                tasks.start_soon(_read, process.stderr, errors, _LONGEST_ERROR)
            await process.wait()
        finally:
            with anyio.CancelScope(shield=True):
                await _ended(process)
    if len(output) > _LONGEST_OUTPUT:
        return CommandAnswer({}, complaint="the document is over 128 MiB: ask for fewer nodes")
    return read_answer(words[0], process.returncode or 0, bytes(output), bytes(errors))


async def _feed(process: Process, text: str | None) -> None:
    assert process.stdin is not None
    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
        if text:
            await process.stdin.send(text.encode())
        await process.stdin.aclose()


async def _read(stream: Any, content: bytearray, limit: int) -> None:
    async for chunk in stream:
        if len(content) <= limit:
            content += chunk


async def _ended(process: Process) -> None:
    """Interrupt it, and end it when it does not go."""
    if process.returncode is not None:
        return
    process.send_signal(signal.SIGINT)
    with anyio.move_on_after(LEAVES_IN_S):
        await process.wait()
        return
    process.kill()
    await process.wait()
