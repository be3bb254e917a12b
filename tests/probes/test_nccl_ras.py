"""Against a TCP server that speaks as NCCL's source says RAS does; texts are made up."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from raydiag.errors import Denied, NoData, ParseError, ReadError
from raydiag.probes import nccl_ras
from raydiag.probes.nccl_ras import ask, parse_status

SUMMARY = """NCCL version 2.27.3 compiled with CUDA 12.8

Job summary
===========

Communicators... (0.01s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         2         4         8         8   RUNNING  {errors}

"""
BEHIND = """Warnings
========

#0-0 (1f2e3d4c5b6a7988) MISMATCH
  Communicator ranks have different AllReduce operation counts
  7 ranks have launched up to operation 340
  Rank 5 has launched up to operation 339 -- GPU 1 managed by process 8105 on node 10.7.0.12

"""
TWO_BEHIND = """#0-0 (1f2e3d4c5b6a7988) MISMATCH
  Communicator ranks have different collective operation counts
  6 ranks have launched up to operation 340
  2 ranks have launched up to operation 338
  Rank 2 -- GPU 2 managed by process 7002 on node 10.7.0.11
  Rank 3 -- GPU 3 managed by process 7003 on node 10.7.0.11
"""
GONE = """Errors
======

INCOMPLETE
  Missing communicator data from 1 job process
  Process 8107 on node 10.7.0.12 managing GPU 3

#0-0 (1f2e3d4c5b6a7988) INCOMPLETE
  Missing communicator data from 1 rank
  Rank 7 -- GPU 3 managed by process 8107 on node 10.7.0.12

DEAD
  1 job process is considered dead (unreachable via the RAS network)
  Process 8106 on node 10.7.0.12 managing GPU 2
"""
AHEAD = """#0-0 (1f2e3d4c5b6a7988) MISMATCH
  Communicator ranks have different AllReduce operation counts
  7 ranks have launched up to operation 340
  Rank 5 has launched up to operation 341 -- GPU 1 managed by process 8105 on node 10.7.0.12
"""


def test_ok_one_rank_behind() -> None:
    (rank,) = parse_status(SUMMARY.format(errors="MISMATCH") + BEHIND)
    assert (rank.state, rank.rank, rank.pid, rank.node) == ("behind", 5, 8105, "10.7.0.12")
    assert (rank.operation, rank.launched, rank.most) == ("AllReduce", 339, 340)


def test_several_behind_are_listed() -> None:
    assert [(rank.rank, rank.launched) for rank in parse_status(TWO_BEHIND)] == [(2, 338), (3, 338)]


def test_who_does_not_answer() -> None:
    states = [(rank.state, rank.rank, rank.pid) for rank in parse_status(GONE)]
    assert states == [("missing", None, 8107), ("missing", 7, 8107), ("dead", None, 8106)]


@pytest.mark.parametrize("text", ["", SUMMARY.format(errors="OK"), AHEAD, "Rank 3 -- nonsense"])
def test_nobody_is_behind(text: str) -> None:
    assert parse_status(text) == []


@contextmanager
def serving(answer: Callable[[socket.socket], None]) -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                answer(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        thread.join(timeout=10)


def line(connection: socket.socket) -> bytes:
    data = b""
    while not data.endswith(b"\n"):
        part = connection.recv(1)
        if not part:
            break
        data += part
    return data


def as_ras(connection: socket.socket) -> None:
    assert line(connection).startswith(b"CLIENT PROTOCOL ")
    connection.sendall(b"SERVER PROTOCOL 2\n")
    assert line(connection) == b"TIMEOUT 2\n"
    connection.sendall(b"OK\n")
    assert line(connection) == b"STATUS\n"
    text = (SUMMARY.format(errors="MISMATCH") + BEHIND).encode()
    connection.sendall(text[:100])
    connection.sendall(text[100:])


def test_asks_as_nccls_own_client_does() -> None:
    with serving(as_ras) as port:
        (rank,) = parse_status(ask(port))
    assert rank.rank == 5


def test_what_is_no_ras_gets_one_line() -> None:
    heard = []

    def as_web_server(connection: socket.socket) -> None:
        heard.append(line(connection))
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        heard.append(line(connection))

    with serving(as_web_server) as port, pytest.raises(NoData, match="no RAS"):
        ask(port)
    assert heard == [b"CLIENT PROTOCOL 2\n", b""]


def test_malformed_answer_to_a_limit_ends_it() -> None:
    def refuse(connection: socket.socket) -> None:
        line(connection)
        connection.sendall(b"SERVER PROTOCOL 2\n")
        line(connection)
        connection.sendall(b"ERROR\n")

    with serving(refuse) as port, pytest.raises(ParseError, match="refused"):
        ask(port)


def test_one_that_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl_ras, "_HELLO_S", 0.1)

    def silent(connection: socket.socket) -> None:
        line(connection)
        line(connection)

    with serving(silent) as port, pytest.raises(ReadError, match="in time"):
        ask(port)


def test_no_data_where_nothing_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(NoData, match="nothing listens"):
        ask(port)


def test_denied_by_the_confinement_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> socket.socket:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(socket, "create_connection", refuse)
    with pytest.raises(Denied, match="Operation not permitted"):
        ask(1)
