"""What caller and resident agent say to each other over one TCP connection on loopback.

Whoever opens the agent's port has to know the secret of this start, which only the Jobs API hands
out, and the agent proves that it knows it too: another user of the head may take a port that is
free, or knock at ours. Each side answers the other's challenge with an HMAC, so that the secret
never travels.

    agent  -> caller   MAGIC, 32 random bytes
    caller -> agent    32 random bytes, HMAC(secret, "caller" + both challenges)
    agent  -> caller   HMAC(secret, "agent" + both challenges)

Then messages go both ways: 4 bytes length, zlib-compressed JSON. Standard library only: it travels.
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

MAGIC = b"raydiag agent 1\n"
_CHALLENGE_BYTES, _PROOF_BYTES = 32, 32
_MESSAGE_LIMIT_BYTES = 64 << 20
_LENGTH = struct.Struct(">I")


class NotTrusted(Exception):
    """The other side is no agent or caller of this start, or did not prove it in time."""


class Channel:
    """A connection whose other side has proved that it knows the secret."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def send(self, message: Mapping[str, Any]) -> None:
        """Raises OSError when the other side is gone, or does not take it in time."""
        packed = zlib.compress(json.dumps(message).encode(), 1)
        self._connection.sendall(_LENGTH.pack(len(packed)) + packed)

    def receive(self, limit_s: float) -> dict[str, Any]:
        """The next message. Raises OSError, EOFError, ValueError for what is none."""
        until = time.monotonic() + limit_s
        (length,) = _LENGTH.unpack(_exactly(self._connection, _LENGTH.size, until))
        if length > _MESSAGE_LIMIT_BYTES:
            raise ValueError("a message is over the size limit")
        message = inflated(_exactly(self._connection, length, until), _MESSAGE_LIMIT_BYTES)
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
        if not hmac.compare_digest(proof, _proof(secret, b"caller", ours + theirs)):
            raise NotTrusted("a caller without the secret")
        connection.sendall(_proof(secret, b"agent", ours + theirs))
    except (OSError, EOFError) as error:
        raise NotTrusted(f"a caller that broke off: {error}") from None
    return Channel(connection)


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
    return Channel(connection)


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
