"""The HTML page: every kind of block, strictly well-formed, and harmless whatever was read."""

from __future__ import annotations

import builtins
import re
import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Any
from xml.etree.ElementTree import Element

import html5lib
import numpy as np
import pytest

from raydiag.render import report as blocks
from raydiag.render.course_words import caption
from raydiag.render.html import html_text
from raydiag.render.probe import probe_report
from raydiag.render.report import (
    Block,
    Bullet,
    Event,
    HostTile,
    Paragraph,
    Report,
    Row,
    Section,
    Tone,
    Toned,
)
from raydiag.timeline.courses import SAVE, STALL, Course, Curve, Range, Stretch
from tests.render import cluster_samples as samples

HOSTILE = "<script>alert(1)</script> \u202egnp.exe <img src=x onerror=a> \x1b[2J & \"q\" 'p' $x^2$"


def page(*sections: Section, footer: str = "") -> str:
    return html_text(Report(sections, footer), "raydiag diagnose")


def tree(text: str) -> Element:
    """Parsed as a browser does; strict: raises on the first error of the standard."""
    parser = html5lib.HTMLParser(strict=True, namespaceHTMLElements=False)
    parsed: Element = parser.parse(text)
    return parsed


def body_of(*all_blocks: Block) -> Element:
    body = tree(page(Section("Part", all_blocks))).find("body/main")
    assert body is not None
    return body


def words(element: Element) -> str:
    return " ".join("".join(element.itertext()).split())


def course(**changes: Any) -> Course:
    at = 1.8e9 + np.arange(0.0, 3600.0, 15.0)
    flat = np.zeros(at.size)
    rising = np.where(at < at[120], 0.0, 800.0)
    rising[10:14] = np.nan
    values: dict[str, Any] = {
        "title": "RDMA retransmits",
        "unit": "packets/s",
        "at": at,
        "curves": (Curve("mi263", rising),),
        "others": Range("6 others", flat, flat + 1.0, flat + 3.0),
        "stretches": (
            Stretch(SAVE, at[20], at[30]),
            Stretch(SAVE, at[60], at[70]),
            Stretch(STALL, at[200], at[-1]),
        ),
        "onset": float(at[120]),
        "extent": (float(at[0]), float(at[-1])),
    }
    return Course(**{**values, **changes})


EVERY_BLOCK: Sequence[Block] = (
    Paragraph("said"),
    Paragraph("said loudly", Tone.BAD, strong=True),
    blocks.Bullets([Bullet("entry", ["detail"], Toned("CRITICAL", Tone.BAD)), Bullet("plain")]),
    blocks.Steps(["only"], label="Next"),
    blocks.Steps(["first", "second"]),
    blocks.Quote(["a line", "the line"], marked=1),
    blocks.KeyValues([("Status", Toned("ok", Tone.GOOD))]),
    blocks.KeyValues([("Metric", "1")], columns=("Name", "Value")),
    blocks.Table(["Host", "State"], [Row(["mi1", Toned("bad", Tone.BAD)], ["a note"])]),
    blocks.Story([Event("2026-11-20 03:12:07Z", "rccl-hang", ("mi1",), "Hang", "2 s later")]),
    blocks.HostGrid([HostTile("mi1", Toned("well", Tone.GOOD), [Toned("GPU 0", Tone.GOOD)])]),
    blocks.Plot(course()),
)


@pytest.mark.parametrize("block", EVERY_BLOCK, ids=lambda block: type(block).__name__)
def test_every_block_is_well_formed(block: Block) -> None:
    assert len(list(body_of(block).iter())) > 3


def test_no_kind_of_block_is_without_a_test() -> None:
    kinds = {kind for kind in vars(blocks).values() if isinstance(kind, type)}
    concrete = {kind for kind in kinds if issubclass(kind, Block)} - {Block, blocks.Picture}
    assert concrete == set(map(type, EVERY_BLOCK))


def _hostile(value: Any) -> Any:
    """The block with HOSTILE in each of its texts."""
    if isinstance(value, str):
        return HOSTILE
    if isinstance(value, (list, tuple)):
        return type(value)(map(_hostile, value))
    if isinstance(value, (Block, Bullet, Toned, Row, Event, HostTile, Curve, Range)):
        fields = {name: _hostile(held) for name, held in vars(value).items()}
        return type(value)(**fields)
    if isinstance(value, Course):
        curves, others = _hostile(value.curves), _hostile(value.others)
        return course(title=HOSTILE, unit=HOSTILE, curves=curves, others=others)
    return value


@pytest.mark.parametrize("block", EVERY_BLOCK, ids=lambda block: type(block).__name__)
def test_what_was_read_is_text_and_nothing_else(block: Block) -> None:
    parsed = tree(page(Section(HOSTILE, [_hostile(block)], Toned(HOSTILE)), footer=HOSTILE))
    for element in parsed.iter():
        assert element.tag not in ("script", "img", "iframe", "object", "link")
        assert not [name for name in element.attrib if str(name).lower().startswith("on")]
    shown = "".join(parsed.itertext())
    assert "<script>alert(1)</script>" in shown
    assert not set(shown) & set("\u202e\x1b")
    assert "\\u202e" in shown


def test_a_plot_calls_hosts_by_name_and_takes_no_formula() -> None:
    hostile = course(curves=(Curve("a$b$ <b>", np.ones(240)),))
    assert "a$b$ <b>" in words(body_of(blocks.Plot(hostile)))


def test_a_line_of_100_kb_is_folded_and_whole() -> None:
    line = "A" * 100_000 + " password=hunter2"
    body = body_of(blocks.Quote([line]))
    (folded,) = body.iter("details")
    (summary,) = folded.iter("summary")
    assert len(words(summary)) < 600
    assert "A" * 99_000 in "".join(folded.itertext())
    assert "hunter2" not in "".join(folded.itertext())


def test_a_secret_at_the_fold_is_masked() -> None:
    line = "B" * 390 + " password=hunter2hunter2" + "C" * 100
    assert "hunter" not in "".join(body_of(blocks.Quote([line])).itertext())


def test_the_page_asks_for_nothing() -> None:
    text = page(Section("All", EVERY_BLOCK))
    assert "default-src 'none'" in text
    urls = set(re.findall(r"https?://[^\s\"'<>]+", text))
    assert urls <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    for element in tree(text).iter():
        for name, value in element.attrib.items():
            if str(name).rpartition("}")[2] in ("href", "src"):
                assert value.startswith("#")


def test_ids_are_unique_and_what_refers_to_them_finds_them() -> None:
    plots = [blocks.Plot(course()), blocks.Plot(course(title="Another")), blocks.Plot(course())]
    text = page(Section("Plots", plots), *(Section(f"Part {n}", [Paragraph("x")]) for n in "abc"))
    parsed = tree(text)
    ids = [value for element in parsed.iter() if (value := element.get("id"))]
    assert len(set(ids)) == len(ids)
    referred = set(re.findall(r'(?:href="#|url\(#)([\w-]+)', text))
    for element in parsed.iter():
        for attribute in ("aria-labelledby",):
            referred.update((element.get(attribute) or "").split())
    assert referred <= set(ids)


def test_landmarks_language_and_headings() -> None:
    verdict = Section(
        "Verdict", [Paragraph("s")], tone=Tone.BAD, facts=["hang", "mi1"], comes_first=True
    )
    chapter = Section("Job 1", [Paragraph("x")], is_chapter=True)
    parsed = tree(page(chapter, verdict, Section("More", [Paragraph("x")])))
    assert parsed.get("lang") == "en"
    title = parsed.find("head/title")
    assert title is not None and title.text == "hang mi1 - raydiag diagnose"
    tags = [element.tag for element in parsed.iter()]
    assert [tags.count(tag) for tag in ("header", "main", "footer", "h1")] == [1, 1, 1, 1]
    levels = [int(tag[1]) for tag in tags if re.fullmatch(r"h\d", str(tag))]
    assert all(later - earlier <= 1 for earlier, later in pairwise(levels))


def test_nothing_is_told_by_colour_alone() -> None:
    for tone in (Tone.BAD, Tone.DOUBTFUL, Tone.GOOD):
        told = words(body_of(blocks.Table(["A"], [Row([Toned("state", tone)])])))
        assert told.endswith("state") and not told.endswith("A state")  # a sign stands before it


def test_the_answer_comes_first_and_asides_are_folded_last() -> None:
    text = page(
        Section("Findings", [Paragraph("x")]),
        Section("Queries", [Paragraph("x")], only_in_documents=True),
        Section("Verdict", [Paragraph("x")], tone=Tone.BAD, facts=["hang"], comes_first=True),
        Section("Coverage", [Paragraph("x")]),
        Section("Empty", [blocks.NONE]),
    )
    places = [text.index(f">{title}</h2>") for title in ("Verdict", "Findings", "Coverage")]
    assert places == sorted(places) and text.index(">Queries</h2>") > places[-1]
    assert "Empty" not in text
    assert "<details><summary><h2" in text


def test_a_plot_has_words_for_who_cannot_see_it() -> None:
    body = body_of(blocks.Plot(course()))
    (drawing,) = (element for element in body.iter() if str(element.tag).endswith("svg"))
    assert drawing.get("role") == "img"
    labels = {element.get("id"): words(element) for element in body.iter() if element.get("id")}
    told = " ".join(labels[name] for name in (drawing.get("aria-labelledby") or "").split())
    assert told == (
        "RDMA retransmits mi263: 0 before the onset, then 800 packets/s (800 at most). "
        "6 others: 1 packets/s before the onset and after it (from 0 to 3)."
    )


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"onset": None},
            "mi263: 800 packets/s (800 at most). 6 others: 1 packets/s (from 0 to 3).",
        ),
        ({"others": None, "onset": None, "unit": ""}, "mi263: 800 (800 at most)."),
        (
            {"curves": (Curve("mi1", np.full(240, np.nan)),), "others": None},
            "mi1: nothing measured.",
        ),
    ],
)
def test_caption(changes: dict[str, Any], expected: str) -> None:
    assert caption(course(**changes)) == expected


def test_a_plot_takes_the_colours_of_the_page() -> None:
    text = page(Section("Plots", [blocks.Plot(course())]))
    drawing = text[text.index("<svg") : text.index("</svg>")]
    assert "var(--bad)" in drawing and "var(--peers)" in drawing
    assert set(re.findall(r"#[0-9a-f]{6}\b", drawing)) <= {"#000000"}
    assert "DejaVu" not in drawing and "<metadata" not in drawing
    assert "mi263" in drawing and "no step" in drawing and "onset" in drawing  # text, not outlines


@pytest.mark.parametrize(
    "changes",
    [
        {"curves": (), "others": None},
        {"at": np.empty(0), "curves": (Curve("a", np.empty(0)),), "others": None, "extent": None},
        {"curves": (Curve("a", np.full(240, np.inf)),)},
        {
            "over_steps": True,
            "at": np.arange(240.0),
            "onset": None,
            "stretches": (),
            "extent": None,
        },
    ],
    ids=["nothing", "no times", "infinite", "steps"],
)
def test_odd_courses_are_drawn(changes: dict[str, Any]) -> None:
    assert "<svg" in page(Section("Plots", [blocks.Plot(course(**changes))]))


def test_without_the_library_all_words_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name.partition(".")[0] == "matplotlib":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.delitem(sys.modules, "raydiag.render.plots", raising=False)
    text = page(Section("Plots", [blocks.Plot(course()), blocks.Plot(course(title="Other"))]))
    assert text.count("pip install &#x27;raydiag[report]&#x27;") == 1
    assert "<svg" not in text and "RDMA retransmits" in text
    assert "mi263: 0 before the onset, then 800" in text


def test_a_probe_of_a_sick_cluster() -> None:
    snapshot, diagnosis = samples.sick_cluster()
    text = html_text(probe_report(snapshot, diagnosis, samples.CLUSTER, True), "raydiag probe")
    parsed = tree(text)
    headers = [element.get("scope") for element in parsed.iter("th")]
    assert headers and None not in headers
    assert len(text) < 200_000
