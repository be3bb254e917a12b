"""Every line that holds a literal is selected, with hyperscan and without it."""

from __future__ import annotations

import importlib.util
import random
import re
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raydiag.joblog.line_selection import Finder, fewest, finder, selector
from raydiag.joblog.log_line import Selector
from raydiag.joblog.prefixes import plain

LITERALS = [b"NCCL WARN", b"[Errno 28]", b"completed step: ", b" Killed", b"(exit=", b"$|^.*"]
WAYS = [
    pytest.param(
        True,
        marks=pytest.mark.skipif(
            importlib.util.find_spec("hyperscan") is None, reason="hyperscan is not installed"
        ),
        id="fast",
    ),
    pytest.param(False, id="plain"),
]
Make = Callable[[Iterable[bytes]], Selector]


@pytest.fixture(params=WAYS)
def make(request: Any) -> Make:
    return lambda literals: selector(literals, fast=request.param)


def segments(chunk: bytes, offsets: Iterable[int]) -> list[bytes]:
    """The segments that offsets lie in, as the reader cuts them."""
    found = []
    for offset in offsets:
        start = max(chunk.rfind(end, 0, offset) for end in (b"\n", b"\r")) + 1
        ends = [at for at in (chunk.find(b"\n", offset), chunk.find(b"\r", offset)) if at >= 0]
        found.append(chunk[start : min(ends, default=len(chunk))])
    return list(dict.fromkeys(found))


def expected(chunk: bytes, literals: Iterable[bytes]) -> list[bytes]:
    """The slow truth: each segment as it is matched."""
    lines = dict.fromkeys(re.split(rb"[\r\n]", chunk))
    texts = {line: plain(line.decode("utf-8", "replace")).encode() for line in lines}
    return [line for line in lines if any(literal in texts[line] for literal in literals)]


def test_line_with_a_literal_is_selected(make: Make) -> None:
    chunk = b"all is well\n3: NCCL WARN x\nNCCL INFO y\n[Errno 28] z\n"
    assert segments(chunk, make(LITERALS)(chunk)) == [b"3: NCCL WARN x", b"[Errno 28] z"]


def test_nothing_is_selected_from_a_dull_chunk(make: Make) -> None:
    assert list(make(LITERALS)(b"all is well\n" * 100)) == []


@pytest.mark.parametrize("chunk", [b"", b"\n", b"\r\n\r\n", b"\0" * 100, b"\xff\xfe" * 50])
def test_chunk_without_text_has_no_line(make: Make, chunk: bytes) -> None:
    assert list(make(LITERALS)(chunk)) == []


def test_pieces_between_carriage_returns_are_lines(make: Make) -> None:
    chunk = b"10%|x\r20%|NCCL WARN\r30%|x\r\nx\n"
    assert segments(chunk, make(LITERALS)(chunk)) == [b"20%|NCCL WARN"]


@pytest.mark.parametrize(
    "line",
    [
        b"NC\x1b[31mCL W\x1b[0mARN",
        b"NCCL\x00 WARN",
        b"NCCL ^[[36mWARN",
        b"\x1b]0;title\x07NCCL\x1b[1;31m WARN",
        b"NCCL\x7f\x08 WARN",
    ],
)
def test_colours_inside_of_a_literal_hide_nothing(make: Make, line: bytes) -> None:
    select = make(LITERALS)
    chunk = b"\x1b[32mfine\x1b[0m\n" * 3 + line + b"\nx\n"
    assert segments(chunk, select(chunk)) == [line]
    assert list(select(b"all is well\n")) == []  # a chunk without colours after one with them
    assert segments(chunk, select(chunk)) == [line]


def test_digits_do_not_tell_shapes_apart(make: Make) -> None:
    select = make([b"exit=137"])
    lines = b"".join(b"NODE_EXIT exit=%d\n" % code for code in (0, 137, 1))
    assert segments(lines, select(lines)) == [b"NODE_EXIT exit=137"]


def test_literal_of_digits_only(make: Make) -> None:
    chunk = b"a 42\nb 7\n"
    assert segments(chunk, make([b"42"])(chunk)) == [b"a 42"]


@pytest.mark.parametrize("literal", [b"", b"a\nb", b"a\rb"])
def test_literal_that_cannot_be_in_a_line_is_refused(make: Make, literal: bytes) -> None:
    with pytest.raises(ValueError, match="literal"):
        make([literal])


def test_longer_literals_that_hold_shorter_ones_are_left_out() -> None:
    assert fewest([b"abcd", b"bc", b"xbcx", b"d", b"bc", b"e"]) == [b"d", b"e", b"bc"]


WORDS = [*LITERALS, b"NCCL", b"WARN", b"Errno"]


@cache
def selector_of_literals(fast: bool) -> Selector:
    """Made once: that takes longer than an example. What it remembers must not matter."""
    return selector(LITERALS, fast=fast)


@cache
def finder_of_words(fast: bool) -> Finder:
    """The same for what finds words in a text."""
    return finder(WORDS, fast=fast)


TEXT = st.lists(
    st.one_of(
        st.sampled_from(LITERALS),
        st.sampled_from([b"\n", b"\r", b"\r\n", b"\x1b[31m", b"\x1b", b"^[[0m", b"\0", b"\t"]),
        st.sampled_from([b"NCCL", b" WARN", b"[Errno ", b"28]", b"completed", b" step", b": "]),
        st.binary(max_size=6),
        st.integers(0, 10**9).map(lambda number: b"%d" % number),
    ),
    max_size=40,
).map(b"".join)


@pytest.mark.parametrize("fast", WAYS)
@settings(deadline=None, max_examples=150)
@given(chunks=st.lists(TEXT, min_size=1, max_size=3))
def test_lines_with_a_literal_are_selected_and_no_others(fast: bool, chunks: list[bytes]) -> None:
    select = selector_of_literals(fast)
    for chunk in chunks:
        found = segments(chunk, select(chunk))
        assert sorted(expected(chunk, LITERALS)) == sorted(found)


@pytest.mark.parametrize("fast", WAYS)
@settings(deadline=None, max_examples=60)
@given(chunk=TEXT)
def test_offsets_ascend_and_lie_in_the_chunk(fast: bool, chunk: bytes) -> None:
    offsets = list(selector_of_literals(fast)(chunk))
    assert offsets == sorted(offsets)
    assert all(0 <= offset < len(chunk) and chunk[offset] not in b"\r\n" for offset in offsets)


@pytest.mark.parametrize("fast", WAYS)
def test_planted_lines_are_found_in_a_long_log(fast: bool) -> None:
    chance = random.Random(3)
    select = selector(LITERALS, fast=fast)
    for _ in range(20):
        lines = [b"%d: step %x of %x" % (n, n * 7919, n * 31) for n in range(2000)]
        planted = {chance.randrange(2000): chance.choice(LITERALS) for _ in range(5)}
        for number, literal in planted.items():
            lines[number] += literal
        chunk = b"\n".join(lines) + b"\n"
        assert segments(chunk, select(chunk)) == [lines[number] for number in sorted(planted)]


def test_what_is_remembered_is_bounded() -> None:
    select: Any = selector(LITERALS, fast=False)
    for start in range(0, 70_000, 10_000):
        names = range(start, start + 10_000)
        select(b"".join(b"%s\n" % b"".join(b"%c" % (97 + int(d)) for d in str(n)) for n in names))
    assert len(select._hot_shapes) <= 32768


@pytest.mark.parametrize("fast", WAYS)
@settings(deadline=None, max_examples=100)
@given(text=TEXT)
def test_literals_of_a_text_are_found(fast: bool, text: bytes) -> None:
    found = finder_of_words(fast)(text)
    assert sorted(found) == [n for n, word in enumerate(WORDS) if word in text]
