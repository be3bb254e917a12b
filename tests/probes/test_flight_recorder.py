from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from raydiag.errors import Denied, NoData, ParseError
from raydiag.host import Host
from raydiag.model import Status, Unread
from raydiag.probes.flight_recorder import RankTrace, flight_recorder, traces
from tests.flight_dumps import as_json, document, entries, entry, leave, pickled


@pytest.mark.parametrize("written", [pickled, as_json])
def test_ok_a_rank_that_waits(written: type) -> None:
    (trace,) = traces(written(document(entries(57, 56))), "/tmp/nccl_trace_rank_3", 3, 1.0)
    assert (trace.rank, trace.group, trace.description) == (3, "0", "default_pg")
    assert trace.members == (0, 1, 2, 3)
    assert (trace.last, trace.waits) == (57, 57)
    assert trace.waits_what == "all_reduce [1024, 16] BFloat16"
    assert trace.waits_since == pytest.approx(1_700_000_001.0)


def test_point_to_point_has_numbers_of_its_own() -> None:
    odd = entry(900, "started", is_p2p=True)
    (trace,) = traces(pickled(document([*entries(56, 56), odd])), "p", 0, 1.0)
    assert (trace.last, trace.waits) == (56, None)


def test_a_rank_that_entered_nothing_yet() -> None:
    (trace,) = traces(pickled(document([])), "p", 0, 1.0)
    assert (trace.last, trace.waits, trace.last_what) == (0, None, "")


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[1]", b'{"entries": 7}', b"core\0dump", b"\x80\x02]."]
)
def test_malformed_dump(data: bytes) -> None:
    with pytest.raises(ParseError, match="/tmp/x: "):
        traces(data, "/tmp/x", 0, 1.0)


def test_reads_what_lies_on_the_node(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    place = tmp_path / "tmp"
    for rank in (0, 1):
        leave(place, rank, 57)
    old = leave(place, 2, 57)
    os.utime(old, (time.time() - 90_000,) * 2)
    (place / "nccl_trace_rank_3").write_bytes(b"\x80\x02cos\nsystem\n.")
    (place / "nccl_trace_rank_x").write_bytes(b"")
    (place / "nccl_trace_rank_4").symlink_to("/dev/zero")
    found = list(flight_recorder(Host(str(tmp_path))))
    read = [each.rank for each in found if isinstance(each, RankTrace)]
    refused = [each.source for each in found if isinstance(each, Unread)]
    assert (read, refused) == ([0, 1], ["/tmp/nccl_trace_rank_3"])


def test_no_data_on_a_node_without_a_dump(tmp_path: Path) -> None:
    with pytest.raises(NoData):
        list(flight_recorder(Host(str(tmp_path))))


def test_denied_to_read_a_dump(tmp_path: Path) -> None:
    class Refusing(Host):
        def read_bytes(self, path: str, limit: int = 0) -> bytes:
            raise Denied(f"{path}: permission denied")

    leave(tmp_path / "tmp", 0, 57)
    (unread,) = flight_recorder(Refusing(str(tmp_path)))
    assert isinstance(unread, Unread)
    assert (unread.status, unread.source) == (Status.DENIED, "/tmp/nccl_trace_rank_0")
