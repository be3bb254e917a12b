"""Windows over a log, whatever it holds and whatever happens to it meanwhile."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest

from raydiag.errors import Denied, NoData, ParseError, ReadError
from raydiag.joblog.lines import Source, open_log, windows
from tests.joblog.joblogs import facts_at, facts_of, write


def test_windows_cover_a_log_once_and_end_where_lines_do(tmp_path: Path) -> None:
    content = b"".join(b"line %d\n" % n for n in range(60000))
    path = write(tmp_path / "job.log", content)
    seen = b""
    for window in windows(Source(open_log(str(path))), chunk=100_000):
        assert window.offset + window.begin == len(seen)
        assert window.line == seen.count(b"\n") + 1
        seen += window.data[window.begin : window.end]
        assert seen.endswith(b"\n")
    assert seen == content


def test_a_log_that_shrinks_while_it_is_read_is_told(tmp_path: Path) -> None:
    path = write(tmp_path / "job.log", b"x\n" * 500_000)
    source = Source(open_log(str(path)))
    source.read(1000)
    os.truncate(path, 2000)
    while source.read(4096):
        pass
    assert source.trouble == "became shorter while it was read"
    assert source.read_bytes == 2000


def test_a_log_that_grows_is_read_to_where_it_ended(tmp_path: Path) -> None:
    path = write(tmp_path / "job.log", b"x\n")
    source = Source(open_log(str(path)))
    with path.open("ab") as log:
        log.write(b"y\n")
    assert source.read(100) == b"x\n"
    assert source.read(100) == b"" and source.trouble == ""


def test_a_log_that_is_replaced_while_it_is_read_is_told(tmp_path: Path) -> None:
    path = write(tmp_path / "job.log", b"x\n")
    source = Source(open_log(str(path)))
    os.replace(write(tmp_path / "new", b"y\n"), path)
    source.close()
    assert source.trouble == "was replaced by another file while it was read"


def test_what_cannot_be_opened_says_why(tmp_path: Path) -> None:
    with pytest.raises(NoData, match="does not exist"):
        open_log(str(tmp_path / "none.log"))
    with pytest.raises(ParseError, match="not a regular file"):
        open_log(str(tmp_path))
    os.mkfifo(tmp_path / "pipe.log")
    with pytest.raises(ParseError, match="not a regular file"):
        open_log(str(tmp_path / "pipe.log"))
    zstd = write(tmp_path / "job.log.zst", b"\x28\xb5\x2f\xfd1234")
    try:
        open_log(str(zstd))
    except ReadError as error:
        assert "zstandard" in str(error)
    if os.geteuid():
        secret = write(tmp_path / "secret.log", b"x")
        secret.chmod(0)
        with pytest.raises(Denied, match="permission denied"):
            open_log(str(secret))


def test_empty_and_binary_logs_have_nothing_to_say(tmp_path: Path) -> None:
    empty = facts_of(b"", tmp_path, "empty.log")
    assert (empty.files[0].lines, empty.tail, empty.tail_first_line) == (0, (), 0)
    assert empty.last_line_complete and empty.steps is None and empty.first_time is None
    binary = facts_of((bytes(range(256)) + b"\0" * 20) * 64, tmp_path, "binary.log")
    assert binary.files[0].binary
    assert binary.steps is None and binary.matches == ()
    packed = facts_of(bytes(range(255, 0, -1)) * 64, tmp_path, "packed.log")
    assert packed.files[0].binary
    coloured = facts_of(b"\x1b[32mstep\x1b[0m\r\x1b[A\b\b\x07" * 64, tmp_path, "coloured.log")
    assert not coloured.files[0].binary


def test_nul_bytes_in_a_line_do_not_hide_it(tmp_path: Path) -> None:
    facts = facts_of(b"\0\0\0NCCL WARN\0 late\n" + b"\0" * 4096, tmp_path)
    assert [m.text for m in facts.matches] == ["NCCL WARN late"]
    assert not facts.last_line_complete


def test_a_huge_line_stays_small_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    with path.open("wb") as log:
        for _ in range(64):
            log.write(b"abc def " * 131072)
        log.write(b"\nNCCL WARN end\n")
    tracemalloc.start()
    facts = facts_at(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20 * 2**20
    assert [m.line for m in facts.matches] == [2]
    assert facts.files[0].lines == 2
