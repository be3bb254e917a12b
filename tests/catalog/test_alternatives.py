"""Parts of a pattern that no example needs are found, whatever the pattern looks like."""

from __future__ import annotations

import pytest

from tools.alternatives import unneeded_alternatives


@pytest.mark.parametrize(
    ("pattern", "examples", "unneeded"),
    [
        ("link (?:down|lost)", ["link down"], ["lost"]),
        ("link (?:down|lost)", ["link down", "link lost"], []),
        ("link down|no link", ["link down"], ["no link"]),
        ("a (?:b (?:c|d)|e)", ["a b c", "a e"], ["d"]),
        ("link (?:is )?down", ["link down"], ["(?:is )?"]),
        ("link (?:is )?down", ["link is down"], []),
        ("(?i:link (?:Down|Lost))", ["LINK DOWN"], ["Lost"]),
        (r"[|(] (?:a|b) \| \(", ["| a | ("], ["b"]),
        (r"[]|)] (?:a|b)", ["| a"], ["b"]),
        (r"[^]|)\]] (?:a|b)", ["x a"], ["b"]),
        ("fail|failed|failure", ["failed", "failure"], ["fail", "failed", "failure"]),
        (r"\b(?:fail|failed|failure)\b", ["failed", "fail"], ["failure"]),
    ],
)
def test_part_without_an_example_is_found(
    pattern: str, examples: list[str], unneeded: list[str]
) -> None:
    assert unneeded_alternatives(pattern, examples) == unneeded


def test_group_needs_an_example_where_it_holds_something() -> None:
    pattern = r"Xid (?P<code>\d+)(?:, pid=(?:unknown|(?P<pid>\d+)))?"
    assert unneeded_alternatives(pattern, ["Xid 3, pid=unknown"]) == [r"(?P<pid>\d+)"]
    assert unneeded_alternatives(pattern, ["Xid 3, pid=7"]) == ["unknown"]
    assert unneeded_alternatives(pattern, ["Xid 3, pid=7", "Xid 3, pid=unknown"]) == []
    assert unneeded_alternatives(pattern, ["Xid 3"]) == [
        "unknown",
        r"(?P<pid>\d+)",
        r"(?:, pid=(?:unknown|(?P<pid>\d+)))?",
    ]


def test_alternative_of_a_negative_lookahead_needs_a_near_miss() -> None:
    pattern = r"\b(?!veth|docker)\w+: down"
    assert unneeded_alternatives(pattern, ["eth0: down"]) == []
    assert unneeded_alternatives(pattern, ["eth0: down"], ["veth1: down"]) == ["docker"]
    assert unneeded_alternatives(pattern, ["eth0: down"], ["veth1: down", "docker0: down"]) == []


def test_part_that_something_refers_to_is_needed() -> None:
    assert unneeded_alternatives("(?P<quote>['\"])?x(?P=quote)", ["'x'"]) == []
