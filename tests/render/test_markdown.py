"""The Markdown report: the same content as text, and nothing of a node acts in it."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydiag.model import (
    Blind,
    Coverage,
    Diagnosis,
    Evidence,
    Finding,
    HostUnread,
    Node,
    NodeStatus,
    ProbeResult,
    Severity,
    Status,
)
from raydiag.render.escape import fenced, markdown, terminal
from raydiag.render.markdown import markdown_text
from raydiag.render.probe import probe_report
from raydiag.render.text import text as terminal_text
from tests.render import cluster_samples as samples

Golden = Callable[[str, str], None]
ATTACK = (
    "x`` ```\n```\n# head\n| a | b |\n[l](http://e) ![i](http://e) <script>x</script> "
    "*b* _i_ $m$ ~s~"
)


def sick(verbose: bool = False) -> str:
    return markdown_text(probe_report(*samples.sick_cluster(), samples.CLUSTER, verbose))


@pytest.mark.parametrize("verbose", [False, True])
def test_sick_cluster(golden: Golden, verbose: bool) -> None:
    golden(f"sick{'-verbose' if verbose else ''}.md", sick(verbose))


def test_healthy_cluster(golden: Golden) -> None:
    report = probe_report(*samples.all_well(64), samples.CLUSTER, False)
    golden("well-64.md", markdown_text(report))


def test_says_what_text_says_in_its_order() -> None:
    def words(text: str) -> list[str]:
        # Without what only one of them has: indents, numbers of steps, rulers, notes of rows.
        found = re.findall(r"[a-z][a-z0-9]{3,}", text.replace("\\", "").lower())
        return [word for word in found if word not in ("text", "next", "steps", "notes")]

    text = terminal_text(probe_report(*samples.sick_cluster(), samples.CLUSTER, False), 400)
    head, table = text.partition("\nNODES")[0], text.partition("\nNODES")[2]
    own_head, own_table = sick().partition("\n## Nodes")[0], sick().partition("\n## Nodes")[2]
    assert words(own_head) == words(head)
    assert sorted(set(words(own_table)) - {"nodes"}) == sorted(set(words(table)) - {"nodes"})


def hostile() -> str:
    finding = Finding(
        "hung-read",
        ATTACK,
        device=ATTACK,
        task=ATTACK,
        severity=Severity.CRITICAL,
        evidence=[Evidence(ATTACK, ATTACK), Evidence("f", "````` five")],
        explanation=ATTACK,
        title=ATTACK,
        next_steps=[ATTACK, "# no heading", "1. no list"],
    )
    well = samples.healthy_node(1)
    mount = replace(well.records("storage")[0], mount_point=ATTACK, free_bytes=1)
    mount = replace(mount, available_bytes=1)
    node = replace(
        well,
        node=Node("1", ATTACK.replace(".", ""), ATTACK),
        status=NodeStatus.PARTIAL,
        reason=ATTACK,
        probes={
            **well.probes,
            ATTACK: ProbeResult(ATTACK, Status.ERROR, reason=ATTACK),
            "storage": ProbeResult("storage", Status.OK, records=[mount]),
        },
        sandbox={ATTACK: {ATTACK: ATTACK}},
    )
    coverage = Coverage(
        2, 1, [Blind(ATTACK, ATTACK)], [HostUnread(ATTACK, ATTACK, Status.DENIED, "")]
    )
    cluster = dict.fromkeys(("address", "session_name", "ray_version", "ssh"), ATTACK)
    diagnosis = Diagnosis([finding], [], coverage)
    return markdown_text(probe_report(samples.snapshot([node]), diagnosis, cluster, False))


def test_nothing_of_a_node_acts() -> None:
    outside, fence = [], ""
    for line in hostile().splitlines():
        if fence:
            fence = "" if line == fence else fence
        elif opened := re.match("`{3,}", line):
            fence = opened[0]
            assert fence == "``````"  # one more than the longest run inside
        else:
            outside.append(line)
    assert fence == ""
    assert [line for line in outside if line.startswith("#")] == [
        "## CRITICAL hung-read",
        "## Nodes",
        "## Coverage",
    ]
    columns = {line.count("|") for line in outside if line.startswith("|")}
    assert len(columns) == 1
    rest = re.sub(r"\\.", "", "\n".join(outside))
    rest = rest.replace("**", "")
    for char in "`<>[]$~":
        assert char not in rest, char
    assert not re.search(r"[*]|\b_|_\b", rest)
    acting = {c for c in hostile() if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")}
    assert acting == {"\n", "\u200b"}  # the latter is ours: `terminal` shows others


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("node[001-004]", r"node\[001-004\]"),
        ("gpu_sensors of _x_", r"gpu_sensors of \_x\_"),
        ("a|b & <c>", "a&#124;b &amp; &lt;c&gt;"),
        ("# a", r"\# a"),
        ("- a", r"\- a"),
        ("12. a", r"12\. a"),
        ("12) a", r"12\) a"),
        ("3.25 s", "3.25 s"),
        ("45-52C", "45-52C"),
        ("---", r"\---"),
        ("-", r"\-"),
        ("-5", "-5"),
        ("===", r"\==="),
        ("&lt;", "&amp;lt;"),
        ("a\\|b", r"a\\&#124;b"),
        ("  a \t b", r"a \\x09 b"),
    ],
)
def test_escape(text: str, shown: str) -> None:
    assert markdown(text) == shown


@given(st.text())
def test_escaped_text_reads_back(text: str) -> None:
    """What a Markdown reader takes away again is what was put there."""
    shown = markdown(text)
    assert "\n" not in shown
    back = re.sub(r"\\([!-/:-@\[-`{-~])", lambda match: f"\0{ord(match[1])}\0", shown)
    back = back.replace("&lt;", "<").replace("&gt;", ">").replace("&#124;", "|")
    back = back.replace("&amp;", "&").replace("\u200b", "")  # which `terminal` would show
    back = re.sub("\0(\\d+)\0", lambda match: chr(int(match[1])), back)
    assert back == " ".join(terminal(text).split())


@given(st.lists(st.text("`~ a\n")))
def test_fence_holds(lines: list[str]) -> None:
    first, *inside, last = fenced(lines).splitlines()
    assert first == f"{last}text"
    assert len(inside) == len(lines)
    assert not any(last in line for line in inside)
