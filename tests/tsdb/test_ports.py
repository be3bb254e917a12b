from __future__ import annotations

import socket
from pathlib import Path

import pytest

from raydiag.errors import CannotRun
from raydiag.tsdb import ports

TABLE = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:23E6 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1
   1: 0100007F:23E7 0100007F:1234 01 00000000:00000000 00:00000000 00000000     0        0 2 1
   2: nonsense
"""
TABLE6 = """\
  sl  local_address                         remote_address                        st ...
   0: 00000000000000000000000000000000:23E8 00000000000000000000000000000000:0000 0A 0 0 0 0 0 3
"""


def test_listeners_are_read_from_the_kernels_tables(tmp_path: Path) -> None:
    tables = tmp_path / "proc/net"
    tables.mkdir(parents=True)
    (tables / "tcp").write_text(TABLE)
    (tables / "tcp6").write_text(TABLE6)
    assert ports.listening(str(tmp_path)) == {9190, 9192}
    assert ports.listening(str(tmp_path / "nothing")) == frozenset()


def test_a_port_that_is_taken_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """What other programs listen on in the meantime changes nothing: the port is the kernel's."""
    monkeypatch.setattr(ports, "_LAST", 1 << 16)
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        assert taken in ports.listening()
        assert ports.free(first=taken) > taken
        monkeypatch.setattr(ports, "listening", frozenset)  # as where the kernel does not tell
        assert ports.free(first=taken) > taken


def test_the_first_port_that_is_not_avoided_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "listening", lambda: frozenset([ports.FIRST + 1]))
    monkeypatch.setattr(ports, "_can_bind", lambda port: True)
    assert ports.free() == ports.FIRST
    assert ports.free(avoid=[ports.FIRST]) == ports.FIRST + 2


def test_no_port_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "listening", lambda: frozenset(range(1 << 16)))
    with pytest.raises(CannotRun, match="no free port"):
        ports.free()
