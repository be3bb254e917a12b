"""Who wrote a line, whatever stands before it."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydiag.joblog.log_line import Prefix
from raydiag.joblog.prefixes import host_stems, plain, split

CASES = [
    ("  3: text", Prefix(task=3), "text"),
    ("12: text", Prefix(task=12), "text"),
    ("[rank3]:text", Prefix(rank=3), "text"),
    ("[rank7]:[rank7]: text", Prefix(rank=7), "text"),
    ("[Rank 5] text", Prefix(rank=5), "text"),
    ("Rank0: text", Prefix(rank=0), "text"),
    ("[default2]:text", Prefix(local_rank=2), "text"),
    ("  1: [default2]:[rank10]: text", Prefix(task=1, local_rank=2, rank=10), "text"),
    ("[1,6]<stderr>: text", Prefix(rank=6), "text"),
    ("(Engine pid=514, ip=10.0.0.2) text", Prefix(actor="Engine", pid=514, ip="10.0.0.2"), "text"),
    ("(Engine pid=514) text", Prefix(actor="Engine", pid=514), "text"),
    ("(pid=514) text", Prefix(pid=514), "text"),
    ("(Worker(rank=3) pid=9) text", Prefix(actor="Worker(rank=3)", pid=9, rank=3), "text"),
    ("(W rank=1 pid=9) text", Prefix(actor="W rank=1", pid=9, rank=1), "text"),
    ("(raylet, ip=10.0.0.3) text", Prefix(actor="raylet", ip="10.0.0.3"), "text"),
    ("0: (Engine pid=514) text", Prefix(task=0, actor="Engine", pid=514), "text"),
    ("(Engine pid=5) text [repeated 15x across cluster]", Prefix(actor="Engine", pid=5), "text"),
    ("2026-03-10T08:09:57.123456789Z stdout F text", Prefix(), "text"),
    ("2026-03-10T08:09:57.1Z stderr F [rank3]: text", Prefix(rank=3), "text"),
    ("[pod/llama-worker-3/pytorch] text", Prefix(host="llama-worker-3"), "text"),
    ("[pod/llama-0/main] [rank1]: text", Prefix(host="llama-0", rank=1), "text"),
    ("[2026-03-10 10:00:00] (Engine pid=5) text", Prefix(actor="Engine", pid=5), "text"),
    ("2026-03-10 10:00:00,123 [rank2]:text", Prefix(rank=2), "text"),
    ("[2026-03-10 10:00:00] mi07: text", Prefix(host="mi07"), "text"),
    ("[2026-03-10 10:00:00] text", Prefix(), "[2026-03-10 10:00:00] text"),
    ("trainer-1  | text", Prefix(), "text"),
    ("trainer-1  |     text", Prefix(), "    text"),
    ("loss | text", Prefix(), "loss | text"),
    ("iteration  10 | text", Prefix(), "iteration  10 | text"),
    ("mi07: text", Prefix(host="mi07"), "text"),
    ("mi07:812:955 [3] NCCL WARN x", Prefix(host="mi07"), "mi07:812:955 [3] NCCL WARN x"),
    ("2: mi07:812:955 [3] NCCL x", Prefix(task=2, host="mi07"), "mi07:812:955 [3] NCCL x"),
    ("ValueError: text", Prefix(), "ValueError: text"),
    ("2026-03-10 10:00:00 text", Prefix(), "2026-03-10 10:00:00 text"),
    ("", Prefix(), ""),
]


@pytest.mark.parametrize(("line", "prefix", "text"), CASES)
def test_prefixes_are_taken_off_and_kept(line: str, prefix: Prefix, text: str) -> None:
    assert split(line, {"mi07"}) == (prefix, text)


@pytest.mark.parametrize(
    ("lines", "stems"),
    [
        ([f"mi{n}: text" for n in range(10)], {"mi"}),
        ([f"[2026-03-10 10:00:0{n}] mi{n}: text" for n in range(10)], {"mi"}),
        ([*(f"mi{n}: text" for n in range(9)), "", "text"], {"mi"}),
        ([*(f"mi{n}: text" for n in range(5)), *["text"] * 5], set()),
        ([f"mi{n}: text" for n in range(4)], set()),
        ([f"INFO: step {n}" for n in range(10)], set()),
        ([f"{n}: text" for n in range(10)], set()),
    ],
)
def test_hosts_before_nearly_every_line_are_known_without_a_list(
    lines: list[str], stems: set[str]
) -> None:
    assert host_stems(lines) == stems


def test_a_word_before_a_colon_is_a_host_only_when_the_job_has_that_node() -> None:
    assert split("mi07: text") == (Prefix(), "mi07: text")


@pytest.mark.parametrize(
    ("prefix", "where"),
    [
        (Prefix(), ""),
        (Prefix(task=3), "3"),
        (Prefix(task=3, rank=25), "25"),
        (Prefix(task=3, local_rank=1), "3.1"),
        (Prefix(local_rank=1), "local 1"),
        (Prefix(actor="Engine", pid=5, ip="10.0.0.2"), "Engine 5 10.0.0.2"),
        (Prefix(pid=5), "pid 5"),
    ],
)
def test_the_short_name_of_a_writer(prefix: Prefix, where: str) -> None:
    assert prefix.where == where


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ("\x1b[36m(Engine pid=5)\x1b[0m a", "(Engine pid=5) a"),
        ("^[[36m(Engine pid=5)^[[0m a", "(Engine pid=5) a"),
        ("Status: \x1b(B\x1b[mFAILED", "Status: FAILED"),
        ("\x1b]0;title\x07a", "a"),
        ("a\x00b\x08\tc", "ab\tc"),
        ("loss \u2014 \u00e9", "loss \u2014 \u00e9"),
    ],
)
def test_escapes_are_not_text(raw: str, text: str) -> None:
    assert plain(raw) == text


@given(st.text())
def test_nothing_but_prefixes_is_ever_lost(text: str) -> None:
    _, rest = split(plain(text))
    assert plain(text).endswith(rest) or "repeated" in text


def test_time_does_not_run_away_on_lines_made_for_it() -> None:
    lines = ["(" * 60000, "\x1b]" * 30000, "[rank1]:" * 8000, "(a pid=" * 9000, " " * 60000]
    start = time.process_time()
    for line in lines:
        split(plain(line), {"x"})
    assert time.process_time() - start < 1.0
