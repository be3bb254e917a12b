"""Caller and resident agent: who proves what to whom before anything is said."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from raydiag.cluster.resident import caller as caller_module
from raydiag.cluster.resident import wire

SECRET = "5" * 64


def both(agent: Callable[[socket.socket], Any], caller: Callable[[socket.socket], Any]) -> Any:
    """Run the two sides over one connection; what the caller's returns or raises."""
    ours, theirs = socket.socketpair()
    outcome: list[Any] = []

    def serve() -> None:
        with closing(ours):
            try:
                outcome.append(agent(ours))
            except wire.NotTrusted as error:
                outcome.append(error)

    thread = threading.Thread(target=serve)
    thread.start()
    with closing(theirs):
        try:
            return caller(theirs), outcome
        finally:
            theirs.close()
            thread.join(10)


def test_messages_go_both_ways() -> None:
    def agent(connection: socket.socket) -> None:
        channel = wire.admitted(connection, SECRET, 5)
        channel.send({"heard": channel.receive(5), "long": "x" * 3_000_000})

    def caller(connection: socket.socket) -> Any:
        channel = wire.introduced(connection, SECRET, 5)
        channel.send({"do": "status"})
        return channel.receive(5)

    answer, _ = both(agent, caller)
    assert answer["heard"] == {"do": "status"}
    assert len(answer["long"]) == 3_000_000


def test_a_caller_with_another_secret_gets_nothing_but_a_challenge() -> None:
    said: list[bytes] = []

    def caller(connection: socket.socket) -> None:
        said.append(connection.recv(1000))
        connection.sendall(b"\0" * 64)
        while chunk := connection.recv(1000):
            said.append(chunk)

    _, outcome = both(lambda connection: wire.admitted(connection, SECRET, 5), caller)
    assert isinstance(outcome[0], wire.NotTrusted)
    assert len(b"".join(said)) == len(wire.MAGIC) + 32
    assert b"".join(said).startswith(wire.MAGIC)


def test_who_took_the_port_learns_no_secret_and_is_not_believed() -> None:
    heard: list[bytes] = []

    def impostor(connection: socket.socket) -> None:
        connection.sendall(wire.MAGIC + b"\1" * 32)
        heard.append(connection.recv(1000))
        connection.sendall(b"\2" * 32)

    with pytest.raises(wire.NotTrusted, match="does not know the secret"):
        both(impostor, lambda connection: wire.introduced(connection, SECRET, 5))
    assert SECRET.encode() not in heard[0]


def test_the_agents_own_proof_is_no_proof_of_a_caller() -> None:
    """A caller that mirrors what it gets is not let in."""

    def mirror(connection: socket.socket) -> None:
        challenge = connection.recv(1000)[len(wire.MAGIC) :]
        connection.sendall(challenge + challenge)
        assert connection.recv(1000) == b""

    _, outcome = both(lambda connection: wire.admitted(connection, SECRET, 5), mirror)
    assert isinstance(outcome[0], wire.NotTrusted)


@pytest.mark.parametrize("greeting", [b"SSH-2.0-OpenSSH_9.2\r\n" * 5, b"", wire.MAGIC[:4]])
def test_something_else_at_the_port(greeting: bytes) -> None:
    def stranger(connection: socket.socket) -> None:
        connection.sendall(greeting)

    with pytest.raises(wire.NotTrusted):
        both(stranger, lambda connection: wire.introduced(connection, SECRET, 1))


@pytest.mark.parametrize("sent", [b"\xff\xff\xff\xff", b"\0\0\0\4abcd", b"\0\0\0\4ab"])
def test_a_message_that_is_none(sent: bytes) -> None:
    def agent(connection: socket.socket) -> None:
        wire.admitted(connection, SECRET, 5)
        connection.sendall(sent)

    def caller(connection: socket.socket) -> None:
        wire.introduced(connection, SECRET, 5).receive(5)

    with pytest.raises((ValueError, EOFError)):
        both(agent, caller)


def test_a_relay_changes_and_repeats_nothing() -> None:
    """Whoever stands between sees the handshake, and may send on what he likes."""

    def agent(connection: socket.socket) -> None:
        channel = wire.admitted(connection, SECRET, 5)
        said: list[bytes] = []
        original = connection.sendall

        class Recorder:
            sendall = staticmethod(said.append)

        channel._connection = Recorder()  # type: ignore[assignment]
        channel.send({"nodes": 3})
        original(said[0] + said[0])

    def caller(connection: socket.socket) -> Any:
        channel = wire.introduced(connection, SECRET, 5)
        first = channel.receive(5)
        with pytest.raises(ValueError, match="not of who proved"):
            channel.receive(5)
        return first

    assert both(agent, caller)[0] == {"nodes": 3}


def test_an_agent_that_hangs_in_a_round_costs_seconds_and_not_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(caller_module, "_SILENCE_S", 0.3)
    job = caller_module.AgentJob("raydiag-agent-1", SECRET, "", "1", "", None)
    done = threading.Event()

    def agent(connection: socket.socket) -> None:
        channel = wire.admitted(connection, SECRET, 5)
        channel.receive(5)
        channel.send({"number": 0, "nodes": []})
        channel.send({"number": caller_module.PROGRESS + 1, "answered": 0, "asked": 2})
        done.wait(10)

    def caller(connection: socket.socket) -> None:
        began = time.monotonic()
        conversation = caller_module.Conversation(job, wire.introduced(connection, SECRET, 5))
        conversation.say("probe", request={})
        try:
            with pytest.raises(caller_module.NoAgent, match="raydiag-agent-1 broke off"):
                conversation.round({"deadline_s": 60.0}, lambda *_: None)
        finally:
            done.set()
        assert time.monotonic() - began < 10

    both(agent, caller)


def test_an_agent_at_another_round_says_so() -> None:
    job = caller_module.AgentJob("raydiag-agent-1", SECRET, "", "1", "", None)

    def agent(connection: socket.socket) -> None:
        wire.admitted(connection, SECRET, 5).send({"number": caller_module.END, "busy": True})

    def caller(connection: socket.socket) -> None:
        conversation = caller_module.Conversation(job, wire.introduced(connection, SECRET, 5))
        with pytest.raises(caller_module.NoAgent, match="another caller's round"):
            conversation.round({"deadline_s": 60.0}, lambda *_: None)

    both(agent, caller)
