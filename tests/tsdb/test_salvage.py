from __future__ import annotations

import os
from pathlib import Path

import pytest

from raydiag.event_file import crc32c
from raydiag.tsdb import salvage
from raydiag.tsdb.connection import open_directory
from raydiag.tsdb.promql import duration
from raydiag.tsdb.series import Query
from tests.tsdb import samples


def counted(data: Path) -> tuple[dict[str, int], list[str]]:
    """Samples by metric, gpu and host, over the whole range; and what was not read."""
    span = duration(samples.END - samples.START + 1)
    with open_directory(str(data)) as found:
        answer = found.client.ask(Query.at("q", f'{{__name__!=""}}[{span}]', samples.END))
        assert answer.ok, answer.reason
        names = ("__name__", "host", "instance", "gpu")
        rows = {
            " ".join(one.labels.get(name, "") for name in names): len(one) for one in answer.series
        }
        return rows, [item.reason for item in found.unread]


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 0.8, 0.999])
def test_whole_chunks_of_a_file_that_is_cut_short_are_read(data: Path, share: float) -> None:
    whole, unread = counted(data)
    assert unread == []
    (block,) = data.iterdir()
    chunks = block / "chunks" / "000001"
    size = chunks.stat().st_size
    os.truncate(chunks, max(8, int(size * share)))
    rest, unread = counted(data)
    assert len(unread) == 1 and unread[0].startswith("cut short: ")
    # What is there is there in full: a series of one chunk is never half.
    assert rest.items() < whole.items()
    assert abs(len(rest) / len(whole) - share) < 0.3
    lost = salvage.loss(block)
    assert (lost.series, lost.of_series) == (len(whole) - len(rest), len(whole))
    assert f"in {lost.series} of {lost.of_series} series" in unread[0]


def test_nothing_is_lost_of_a_whole_block(blocks: Path) -> None:
    (block,) = blocks.iterdir()
    assert not salvage.is_cut_short(block)
    lost = salvage.loss(block)
    assert lost.chunks == () and lost.of_series == 24


def test_marks_are_added_to_those_that_a_block_has(blocks: Path) -> None:
    (block,) = blocks.iterdir()
    known = salvage.tombstones(salvage.Loss((salvage.Chunk(3, -5, 700, 0, 8),), 1, 1))
    both = salvage.tombstones(salvage.Loss((salvage.Chunk(300, 1, 2, 0, 8),), 1, 1), known)
    assert both[:5] == known[:5] and both[5:-4] == known[5:-4] + bytes([0xAC, 0x02, 2, 4])
    assert known[5:-4] == bytes([3, 9, 0xF8, 0x0A])
    assert (block / "tombstones").read_bytes() == salvage.tombstones(salvage.Loss((), 0, 0))


def test_the_check_sum_is_castagnolis() -> None:
    assert crc32c(b"123456789") == 0xE3069283
