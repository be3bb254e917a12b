"""Kernel log text: every form gives the same message, and no text is too odd."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydiag.kernel_text import LogLine, Parser, log_lines
from raydiag.model import Status, Unread
from raydiag.probes.kernel_log import WordFilter

NOW = 1_790_000_000.0  # 21 September 2026
TEXT = "NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus."


def parsed(line: str) -> LogLine:
    return Parser(NOW).parse(line.encode(), 1)


@pytest.mark.parametrize(
    ("header", "wall_s", "boot_s", "level", "host"),
    [
        ("3,412,5140900,-;", None, 5.1409, 3, ""),
        ("3,412,5140900,-,caller=T77;", None, 5.1409, 3, ""),
        ("<4>[   12.345678] ", None, 12.345678, 4, ""),
        ("[   12.345678] ", None, 12.345678, -1, ""),
        ("[   12.345678] [  T4242] ", None, 12.345678, -1, ""),
        ("[   12.345678][    C3] ", None, 12.345678, -1, ""),
        ("[Mon Sep 14 10:20:30 2026] ", 1789381230.0, None, -1, ""),
        ("[Mo Sep 14 10:20:30 2026] ", 1789381230.0, None, -1, ""),
        ("kern  :err   : [   12.345678] ", None, 12.345678, 3, ""),
        ("kern  :warn  : 2026-09-14T10:20:30,500000+02:00 ", 1789374030.5, None, 4, ""),
        ("2026-09-14T10:20:30,500000+00:00 ", 1789381230.5, None, -1, ""),
        ("2026-09-14T10:20:30+0000 node7 kernel: ", 1789381230.0, None, -1, "node7"),
        ("2026-09-14T10:20:30.25Z node7 kernel: [   12.345678] ", 1789381230.25, 12.345678, -1,
         "node7"),
        ("Sep 14 10:20:30 node7 kernel: ", 1789381230.0, None, -1, "node7"),
        ("Sep 14 10:20:30.500000 node7 kernel: ", 1789381230.5, None, -1, "node7"),
        ("Sep 14 10:20:30 kernel: ", 1789381230.0, None, -1, ""),
        ("Dec 31 10:20:30 node7 kernel: ", 1767176430.0, None, -1, "node7"),  # last year
        ("[   12.345678] node7 kernel: ", None, 12.345678, -1, "node7"),
        ("[2026-09-14 10:20:30] [   12.345678] ", 1789381230.0, 12.345678, -1, ""),
        ("node7: [   12.345678] ", None, 12.345678, -1, "node7"),
        ("node7: [Mon Sep 14 10:20:30 2026] ", 1789381230.0, None, -1, "node7"),
        ("[Sep14 10:20] ", None, None, -1, ""),
        ("[  +0.000312] ", None, None, -1, ""),
        ("kernel: ", None, None, -1, ""),
        ("", None, None, -1, ""),
    ],
)  # fmt: skip
def test_every_form_gives_the_message(
    header: str, wall_s: float | None, boot_s: float | None, level: int, host: str
) -> None:
    line = parsed(header + TEXT)
    assert line.text == TEXT
    assert (line.dated, line.since_boot_s) == (wall_s is not None, boot_s)
    assert (line.level, line.host, line.facility) == (level, host, 0)
    expected = wall_s if wall_s is not None else boot_s
    assert math.isnan(line.time_s) if expected is None else line.time_s == expected


@pytest.mark.parametrize(
    "line",
    [
        "Sep 14 10:20:30 node7 sshd[812]: said something",
        "2026-09-14T10:20:30+00:00 node7 agent[5]: said something",
        "14,412,5140900,-;said something",
        "<14>[    5.140900] said something",
        "user  :info  : [    5.140900] said something",
    ],
)
def test_program_is_not_the_kernel(line: str) -> None:
    seen = parsed(line)
    assert seen.facility != 0
    assert seen.text == "said something"


def test_line_without_a_time_belongs_to_the_one_before() -> None:
    parser = Parser(NOW)
    first = parser.parse(b"Sep 14 10:20:30 node7 kernel: NVRM: The NVIDIA GPU 0000:1b:00.0", 1)
    second = parser.parse(b"               NVRM: (PCI ID: 10de:2330) installed in this system", 2)
    assert (second.time_s, second.dated, second.host) == (first.time_s, True, "node7")


@given(st.text(max_size=200))
def test_any_text_is_a_line(text: str) -> None:
    line = parsed(text)
    assert text.endswith(line.text)


@given(st.lists(st.sampled_from(["mce", "12 Link", "Xid", "0", "error", " \t"]), max_size=30))
def test_filter_misses_no_word(parts: list[str]) -> None:
    words = ["link", "mce&error|xid"]
    lines = ["".join(parts[start : start + 4]) for start in range(0, len(parts), 4)]
    hits = WordFilter(words).lines_with("\n".join(lines).encode())
    for number, line in enumerate(lines):
        lower = line.lower()
        if "link" in lower or ("mce" in lower and ("error" in lower or "xid" in lower)):
            assert number in hits


def found(path: Path | str, *words: str) -> list[LogLine]:
    items = list(log_lines(str(path), words or ("xid",), NOW))
    return [item for item in items if isinstance(item, LogLine)]


def unread(path: Path | str) -> list[Unread]:
    return [item for item in log_lines(str(path), ("xid",), NOW) if isinstance(item, Unread)]


def test_lines_are_numbered_across_blocks(tmp_path: Path) -> None:
    log = tmp_path / "log"
    dull = "[    1.000000] nothing of note in this line\n"
    log.write_text(dull * 60_000 + f"[    2.000000] {TEXT}\n" + dull + f"[    3.000000] {TEXT}")
    assert log.stat().st_size > 2 << 20
    assert [line.number for line in found(log)] == [1, 60_001, 60_003]


def test_half_a_line_and_zeros_of_a_crash_do_no_harm(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(f"[    2.000000] {TEXT}\n[    3.0000".encode() + b"\0" * 5000)
    assert [line.text for line in found(log)] == [TEXT]


def test_crlf_and_bytes_that_are_no_utf8(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"[    2.000000] NVRM: Xid \xff\xfe\r\n")
    assert [line.text for line in found(log)] == ["NVRM: Xid \\xff\\xfe"]


def test_line_that_never_ends_is_cut_and_told(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"NVRM: Xid " + b"x" * (5 << 20) + b"\n[    2.000000] NVRM: Xid\n")
    assert [len(line.text) for line in found(log)] == [4096, 9]
    assert "longer than 64 KiB" in unread(log)[0].reason


@pytest.mark.parametrize(
    ("content", "status", "reason"),
    [
        (b"", Status.NO_DATA, "empty"),
        (b"\x1f\x8b\x08\0\0\0", Status.ERROR, "zcat"),
        (b"LPKSHHRH" + b"\0" * 100, Status.ERROR, "journalctl"),
        (bytes(range(256)) * 40, Status.ERROR, "binary"),
    ],
)
def test_what_is_no_log_is_said(
    tmp_path: Path, content: bytes, status: Status, reason: str
) -> None:
    log = tmp_path / "log"
    log.write_bytes(content)
    assert found(log) == []
    (item,) = unread(log)
    assert (item.source, item.status) == (str(log), status)
    assert reason in item.reason


def test_missing_file_directory_and_refusal(tmp_path: Path) -> None:
    assert unread(tmp_path / "none")[0].status is Status.NO_DATA
    assert "directory" in unread(tmp_path)[0].reason
    log = tmp_path / "log"
    log.write_text(TEXT)
    log.chmod(0)
    if os.geteuid() != 0:
        assert unread(log)[0].status is Status.DENIED
