"""Messages through a job's log: framed, numbered, digest-checked.

A Ray job's log mixes our lines with Ray's own, with colour codes and warnings. Each message is cut
into lines of the form

    @raydiag <nonce> <message> <part>/<parts> <digest> <base64>

so that the reader picks its own lines out of any noise and notices a lost or damaged one. `digest`
covers the whole message with its number and stands in every part. It has no key, see SECURITY.md:
whoever writes to that log can forge a message, and what gives him away is the true one beside it.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator

_MARK = "@raydiag"
DISPUTED = "two different messages came in {}: somebody else writes to that log, none is believed"
_PART_BYTES = 24 * 1024  # of payload a line: below what any log reader cuts


def encode(nonce: str, number: int, payload: bytes) -> Iterator[str]:
    """Lines (without their ends) that carry message `number`."""
    digest = _digest(number, payload)
    parts = max(1, -(-len(payload) // _PART_BYTES))
    for part in range(parts):
        data = base64.b64encode(payload[part * _PART_BYTES : (part + 1) * _PART_BYTES]).decode()
        yield f"{_MARK} {nonce} {number} {part + 1}/{parts} {digest} {data}"


class Decoder:
    """Collects messages from log text that is read again and again from its start."""

    def __init__(self, nonce: str) -> None:
        self._prefix = f"{_MARK} {nonce} "
        self._parts: dict[tuple[int, str], dict[int, bytes]] = {}
        self._position = 0
        self._digests: dict[int, str] = {}
        self.messages: dict[int, bytes] = {}  # the whole ones, by number
        self.disputed: set[int] = set()  # of which there was another one

    def feed(self, log: str) -> None:
        """Take in the log so far; complete lines that were seen before are not read again."""
        end = log.rfind("\n") + 1
        for line in log[self._position : end].split("\n"):
            start = line.find(self._prefix)
            if start >= 0:
                self._line(line[start + len(self._prefix) :].split())
        self._position = max(self._position, end)

    def _line(self, fields: list[str]) -> None:
        try:
            number, digest = int(fields[0]), fields[2]
            part, parts = (int(text) for text in fields[1].split("/"))
            data = base64.b64decode(fields[3], validate=True) if len(fields) > 3 else b""
        except (ValueError, IndexError):
            return  # a damaged line is a missing part
        received = self._parts.setdefault((number, digest), {})
        received[part] = data
        if len(received) == parts:
            payload = b"".join(received[index] for index in sorted(received))
            if _digest(number, payload) == digest:
                self._take(number, digest, payload)

    def _take(self, number: int, digest: str, payload: bytes) -> None:
        if self._digests.setdefault(number, digest) == digest:
            self.messages[number] = payload
        else:
            self.disputed.add(number)


def _digest(number: int, payload: bytes) -> str:
    return hashlib.sha256(b"%d " % number + payload).hexdigest()[:16]
