"""Times in log lines, with and without year and zone."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydiag.joblog.clock import Clock
from tests.joblog.joblogs import facts_of

MTIME = datetime(2026, 3, 5, tzinfo=timezone.utc).timestamp()


def utc(*parts: int) -> float:
    return datetime(*parts, tzinfo=timezone.utc).timestamp()  # type: ignore[arg-type,misc]


@pytest.mark.parametrize(
    ("line", "time"),
    [
        ("2026-02-12 19:58:10,125 INFO x", utc(2026, 2, 12, 19, 58, 10) + 0.125),
        ("[2026-02-12T19:58:10Z] x", utc(2026, 2, 12, 19, 58, 10)),
        ("[2026-02-12T19:58:10+01:00] x", utc(2026, 2, 12, 18, 58, 10)),
        ("2026-02-12 19:58:10 -0530 x", utc(2026, 2, 13, 1, 28, 10)),
        ("2026/02/12 19:58:10.5 x", utc(2026, 2, 12, 19, 58, 10) + 0.5),
        ("[2026-02-12 19:58:10,125 I 123 456] x", utc(2026, 2, 12, 19, 58, 10) + 0.125),
        ("[NeMo I 2026-02-12 19:58:10 exp:1] x", utc(2026, 2, 12, 19, 58, 10)),
        ("I0212 19:58:10.250000 12 x.cc:1] x", utc(2026, 2, 12, 19, 58, 10) + 0.25),
        ("[rank4]:[E212 19:58:10.250000231 x.cpp:1] x", utc(2026, 2, 12, 19, 58, 10) + 0.25),
        ("E1231 23:59:59.000000 12 x.cc:1] x", utc(2025, 12, 31, 23, 59, 59)),
        ("INFO 02-12 19:58:10 [core.py:1] x", utc(2026, 2, 12, 19, 58, 10)),
        ("[Thu Feb 12 07:58:10 PM UTC 2026] x", utc(2026, 2, 12, 19, 58, 10)),
        ("Thu Feb 12 19:58:10 2026 x", utc(2026, 2, 12, 19, 58, 10)),
        ("slurmstepd: error: *** STEP 1.0 ON n CANCELLED AT 2026-02-12T19:58:10 DUE", 1770926290.0),
        ("x 19:58:10 x", None),
        ("2026-13-45 19:58:10 x", None),
        ("2026-02-12 25:58:10 x", None),
        ("a" * 170 + " 2026-02-12 19:58:10", None),
        ("", None),
    ],
)
def test_times_of_every_form(line: str, time: float) -> None:
    assert Clock(MTIME).time(line.encode()) == time


def test_a_year_that_is_not_printed_is_that_of_the_lines_around(tmp_path: Path) -> None:
    clock = Clock(utc(2031, 6, 1))
    clock.time(b"2025-12-31 23:00:00 start")
    assert clock.time(b"I1231 23:30:00.000000 1 x] a") == utc(2025, 12, 31, 23, 30)
    assert clock.time(b"I0101 00:30:00.000000 1 x] a") == utc(2026, 1, 1, 0, 30)


@given(st.binary(max_size=200))
def test_no_bytes_break_it(line: bytes) -> None:
    time = Clock(MTIME).time(line)
    assert time is None or 0 <= time < 8e9


def test_times_are_found_without_any_candidate(tmp_path: Path) -> None:
    quiet = "".join(
        f"2026-03-01 10:{n // 60:02d}:{n % 60:02d} busy {'x' * 900}\n" for n in range(900)
    )
    late = "".join(
        f"2026-03-01 12:{n // 60:02d}:{n % 60:02d} busy {'x' * 900}\n" for n in range(900)
    )
    facts = facts_of(quiet + late, tmp_path)
    assert facts.first_time == utc(2026, 3, 1, 10) and facts.last_time == utc(
        2026, 3, 1, 12, 14, 59
    )
    assert facts.last_time_line == 1800


def test_a_wrong_clock_runs_backwards_afterwards(tmp_path: Path) -> None:
    facts = facts_of(
        "2026-03-01 10:00:00 Error a\n2031-03-01 10:00:00 Error b\n2026-03-01 10:02:00 Error c\n"
        "2026-03-01 10:04:00 Error d\n",
        tmp_path,
    )
    assert facts.clock_jumps == 1
