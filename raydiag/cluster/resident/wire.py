"""What caller and resident agent say to each other over one TCP connection on loopback.

Whoever opens the agent's port has to know the secret of this start, which only the Jobs API hands
out, and the agent proves that it knows it too: another user of the head may take a port that is
free, or knock at ours. Each side answers the other's challenge with an HMAC, so that the secret
never travels.

    agent  -> caller   MAGIC, 32 random bytes
    caller -> agent    32 random bytes, HMAC(secret, "caller" + both challenges)
    agent  -> caller   HMAC(secret, "agent" + both challenges)

Then messages go both ways: 4 bytes length, 32 bytes HMAC over the number of the message and its
content, zlib-compressed JSON: who relays the connection can change and repeat none of them.
Standard library only: it travels.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import socket
import struct
import time
import zlib
from collections.abc import Mapping
from typing import Any

from raydiag.untrusted import inflated

MAGIC = b"raydiag agent 2\n"
_CHALLENGE_BYTES, _PROOF_BYTES = 32, 32
_MESSAGE_LIMIT_BYTES = 64 << 20
_LENGTH, _NUMBER = struct.Struct(">I"), struct.Struct(">Q")


class NotTrusted(Exception):
    """The other side is no agent or caller of this start, or did not prove it in time."""


class _Seal:
    """Signs the messages of one direction, in their order."""

    def __init__(self, secret: str, side: bytes, challenges: bytes) -> None:
        self._key = _proof(secret, b"messages of the " + side, challenges)
        self._messages = 0

    def of_next(self, packed: bytes) -> bytes:
        """The HMAC of the next message."""
        self._messages += 1
        number = _NUMBER.pack(self._messages)
        return hmac.new(self._key, number + packed, hashlib.sha256).digest()


class Channel:
    """A connection whose other side has proved that it knows the secret."""

    def __init__(self, connection: socket.socket, ours: _Seal, theirs: _Seal) -> None:
        self._connection, self._ours, self._theirs = connection, ours, theirs

    def send(self, message: Mapping[str, Any]) -> None:
        """Raises OSError when the other side is gone, or does not take it in time."""
        packed = zlib.compress(json.dumps(message).encode(), 1)
        seal = self._ours.of_next(packed)
        self._connection.sendall(_LENGTH.pack(len(packed)) + seal + packed)

    def receive(self, limit_s: float) -> dict[str, Any]:
        """The next message. Raises OSError, EOFError, ValueError for what is none."""
        until = time.monotonic() + limit_s
        (length,) = _LENGTH.unpack(_exactly(self._connection, _LENGTH.size, until))
        if length > _MESSAGE_LIMIT_BYTES:
            raise ValueError("a message is over the size limit")
        seal = _exactly(self._connection, _PROOF_BYTES, until)
        packed = _exactly(self._connection, length, until)
        if not hmac.compare_digest(seal, self._theirs.of_next(packed)):
            raise ValueError("a message is not of who proved the secret")
        message = inflated(packed, _MESSAGE_LIMIT_BYTES)
        if not isinstance(message, dict):
            raise ValueError("a message is not an object")
        return message


def admitted(connection: socket.socket, secret: str, limit_s: float) -> Channel:
    """The agent's side. Raises NotTrusted; nothing was told by then but MAGIC and a challenge."""
    until = time.monotonic() + limit_s
    ours = secrets.token_bytes(_CHALLENGE_BYTES)
    try:
        connection.settimeout(limit_s)
        connection.sendall(MAGIC + ours)
        theirs = _exactly(connection, _CHALLENGE_BYTES, until)
        proof = _exactly(connection, _PROOF_BYTES, until)
        challenges = ours + theirs
        if not hmac.compare_digest(proof, _proof(secret, b"caller", challenges)):
            raise NotTrusted("a caller without the secret")
        connection.sendall(_proof(secret, b"agent", challenges))
    except (OSError, EOFError) as error:
        raise NotTrusted(f"a caller that broke off: {error}") from None
    seals = (_Seal(secret, b"agent", challenges), _Seal(secret, b"caller", challenges))
    return Channel(connection, *seals)


def introduced(connection: socket.socket, secret: str, limit_s: float) -> Channel:
    """The caller's side. Raises NotTrusted for a stranger at that port."""
    until = time.monotonic() + limit_s
    ours = secrets.token_bytes(_CHALLENGE_BYTES)
    try:
        connection.settimeout(limit_s)
        greeting = _exactly(connection, len(MAGIC) + _CHALLENGE_BYTES, until)
        if not greeting.startswith(MAGIC):
            raise NotTrusted("something else answers at its port")
        challenges = greeting[len(MAGIC) :] + ours
        connection.sendall(ours + _proof(secret, b"caller", challenges))
        proof = _exactly(connection, _PROOF_BYTES, until)
    except (OSError, EOFError) as error:
        raise NotTrusted(f"it does not answer: {error}") from None
    if not hmac.compare_digest(proof, _proof(secret, b"agent", challenges)):
        raise NotTrusted("who answers at its port does not know the secret")
    seals = (_Seal(secret, b"caller", challenges), _Seal(secret, b"agent", challenges))
    return Channel(connection, *seals)


def _proof(secret: str, side: bytes, challenges: bytes) -> bytes:
    return hmac.new(secret.encode(), side + challenges, hashlib.sha256).digest()


def _exactly(connection: socket.socket, length: int, until: float) -> bytes:
    received = bytearray()
    while len(received) < length:
        connection.settimeout(max(0.001, until - time.monotonic()))
        chunk = connection.recv(min(length - len(received), 1 << 20))
        if not chunk:
            raise EOFError("the connection was closed")
        received += chunk
    return bytes(received)
