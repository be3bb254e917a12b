"""Reports as Markdown, to paste into a ticket; what was read is escaped or in a code block."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from raydiag.render import report as blocks
from raydiag.render.escape import fenced, markdown
from raydiag.render.report import Report, Row, Section, Words, plain_text

_LINE_BREAK = "  \n"


def markdown_text(report: Report) -> str:
    """The report, all of its sections, in the order of a document."""
    sections = report.without(blocks.Picture).in_documents()
    has_chapters = any(section.is_chapter for section in sections)
    written: list[str] = []
    for section in sections:
        marks = "##" if section.is_chapter or not has_chapters else "###"
        written += _section(section, marks)
    if report.footer:
        written += ["---", markdown(report.footer)]
    return "\n\n".join(written) + "\n"


def _section(section: Section, marks: str) -> Iterator[str]:
    if section.title or section.label:
        label = section.label.text if section.label else ""
        yield " ".join(filter(None, [marks, label, markdown(section.title)]))
    facts = list(filter(None, map(plain_text, section.facts)))
    if facts:
        yield " · ".join(map(markdown, facts))
    for block in section.blocks:
        if not block.is_empty:
            yield _WRITERS[type(block)](block)


def _paragraph(block: blocks.Paragraph) -> str:
    return f"**{markdown(block.text)}**" if block.strong else markdown(block.text)


def _bullets(block: blocks.Bullets) -> str:
    lines = []
    for bullet in block.entries:
        lines.append(f"- {markdown(bullet.whole_text)}")
        for detail in bullet.details:
            lines.append(f"  - {markdown(detail)}")
    return "\n".join(lines)


def _timeline(block: blocks.Story) -> str:
    return _bullets(block.in_words())


def _steps(block: blocks.Steps) -> str:
    if block.label and len(block.steps) == 1:
        return markdown(f"{block.label}: {block.steps[0]}")
    lines = [f"{block.label}:\n"] if block.label else []
    for number, step in enumerate(block.steps, 1):
        lines.append(f"{number}. {markdown(step)}")
    return "\n".join(lines)


def _quote(block: blocks.Quote) -> str:
    return fenced(block.marked_lines())


def _key_values(block: blocks.KeyValues) -> str:
    if block.columns is not None:
        return _table(blocks.Table(block.columns, list(map(Row, block.rows))))
    return _LINE_BREAK.join(f"**{markdown(name)}:** {_cell(value)}" for name, value in block.rows)


def _table(block: blocks.Table) -> str:
    header, rows = list(block.header), [list(map(_cell, row.cells)) for row in block.rows]
    if any(row.notes for row in block.rows):
        header.append("Notes")
        for cells, row in zip(rows, block.rows):
            cells.append(markdown("; ".join(row.notes)))
    return "\n".join(map(_line, [header, ["---"] * len(header), *rows]))


def _cell(words: Words) -> str:
    plain = plain_text(words)
    return plain if plain == "-" else markdown(plain)


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


_WRITERS: Mapping[type, Callable[[Any], str]] = {
    blocks.Paragraph: _paragraph,
    blocks.Bullets: _bullets,
    blocks.Steps: _steps,
    blocks.Quote: _quote,
    blocks.KeyValues: _key_values,
    blocks.Table: _table,
    blocks.Story: _timeline,
}
