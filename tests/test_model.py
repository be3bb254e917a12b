from __future__ import annotations

import pytest

from raydiag.model import Node


@pytest.mark.parametrize(
    ("hostname", "host"),
    [
        ("node001.example.net", "node001"),
        ("node001", "node001"),
        ("7.example.net", "7"),
        ("10.0.0.1", "10.0.0.1"),
        ("fe80::1", "fe80::1"),
        ("::ffff:10.0.0.1", "::ffff:10.0.0.1"),
        ("", "10.9.9.9"),
    ],
)
def test_the_short_host_name_of_a_node(hostname: str, host: str) -> None:
    node = Node("id", hostname, "10.9.9.9")
    assert node.host == host
    assert node.machine == (host, "10.9.9.9")
