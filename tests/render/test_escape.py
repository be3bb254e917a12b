"""Nothing that a node said may steer the terminal."""

from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from raydiag.render import escape
from raydiag.render.secrets import masked_text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text, 50 % of it: [ok] \\n", "plain text, 50 % of it: [ok] \\n"),
        ("Zürich 東京", "Zürich 東京"),
        ("\x1b[2J\x1b[31mred", "\\x1b[2J\\x1b[31mred"),
        ("a\tb\r\nc\0", "a\\x09b\\x0d\\x0ac\\x00"),
        ("\x7f\x9b31m", "\\x7f\\x9b31m"),
        ("\u202egnp.exe\u2066\u200f", "\\u202egnp.exe\\u2066\\u200f"),
        ("one\u2028two\u2029three", "one\\u2028two\\u2029three"),
        ("\udc80", "\\udc80"),
        ("zero\u200bwidth\ufeff", "zero\\u200bwidth\\ufeff"),
        ("tag\U000e0041", "tag\\U000e0041"),
    ],
)
def test_escapes(text: str, shown: str) -> None:
    assert escape.terminal(text) == shown


@given(st.text(st.characters(codec=None)))
@example("0:\U00018cd6@0")
def test_no_character_that_acts_is_left(text: str) -> None:
    shown = escape.terminal(text)
    assert {unicodedata.category(char) for char in shown}.isdisjoint(
        {"Cc", "Cf", "Cs", "Zl", "Zp", "Co", "Cn"}
    )
    # An escaped character may be as long as a password.
    assert escape.terminal(shown) == masked_text(shown)


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126)))
@example("0:0000000;@0")
def test_printable_ascii_stays(text: str) -> None:
    """Unless it has the form of a secret, as a user with a password before a host."""
    assert escape.terminal(text) == masked_text(text)


@pytest.mark.parametrize(
    "text",
    [
        "@octocat", "ops@example.com", "#123", "!45", "GH-7", "org/repo#12", "http://a.b/c",
        "https://a.b", "ftp://a", "www.example.com", "WWW.a.b", "(@x)", "::@team/ops",
    ],
)  # fmt: skip
def test_trackers_make_no_link_of_a_nodes_text(text: str) -> None:
    shown = escape.markdown(text)
    links = r"@\w|[#!]\d|://|\bwww\.|\bGH-\d"
    assert re.search(links, text, re.IGNORECASE)
    assert not re.search(links, shown, re.IGNORECASE)


@pytest.mark.parametrize("text", ["10.0.0.4:9400", "a # b", "50 %!", "user @ host", "GHz", "wwwa"])
def test_what_no_tracker_links_stays(text: str) -> None:
    assert "\u200b" not in escape.markdown(text)
