"""Reports as text for a terminal: wrapped, in colour where that is wanted, harmless to print."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from raydiag.render import report as blocks
from raydiag.render.escape import terminal
from raydiag.render.report import Report, Section, Tone, Toned, Words, plain_text, tone_of

_COLOURS = {Tone.BAD: "31", Tone.GOOD: "32", Tone.DOUBTFUL: "33"}
_NARROWEST_PAGE = 40
_NARROWEST_COLUMN = 12
_INDENT = "  "
_GAP = "  "  # between columns
_CUT = " ..."  # at the end of a row whose rest is left out
_LEAST_ROOM = 8  # columns of text beside an indent, however narrow the page is


def text(report: Report, width: int, colour: bool = False, bars: str = "") -> str:
    """The report in lines of `width` columns where possible; ASCII but for what was read.

    `bars`: letters of growing height, to draw plots with; none are drawn without.
    """
    writer = _TextWriter(max(width, _NARROWEST_PAGE), colour, bars)
    shown = report.without(blocks.HostGrid if bars else blocks.Picture)
    sections = list(map("\n".join, map(writer.section, shown.on_a_terminal())))
    if report.footer:
        sections.append("\n".join(writer.wrap(report.footer)))
    return "\n\n".join(sections) + "\n"


@dataclass(frozen=True)
class _TextWriter:
    width: int  # columns
    colour: bool  # ANSI colours
    bars: str = ""  # for plots

    def section(self, section: Section) -> Iterator[str]:
        """Lines of the heading, then of each block."""
        yield from self._heading(section)
        indent = _INDENT if section.title and not section.is_chapter else ""
        writers: Mapping[type, Callable[[Any, str], Iterable[str]]] = {
            blocks.Paragraph: self._paragraph,
            blocks.Bullets: self._bullets,
            blocks.Steps: self._steps,
            blocks.Quote: self._quote,
            blocks.KeyValues: self._key_values,
            blocks.Table: self._table,
            blocks.Story: self._timeline,
            blocks.Plot: self._plot,
        }
        for block in section.blocks:
            if not block.is_empty:
                yield from writers[type(block)](block, indent)

    def wrap(self, words: str, first: str = "", rest: str = "") -> list[str]:
        """Escaped, in lines of the page's width."""
        return wrap(terminal(words), self.width, first, rest)

    def _paint(self, words: str, tone: Tone) -> str:
        code = _COLOURS.get(tone)
        return f"\x1b[{code}m{words}\x1b[0m" if self.colour and code else words

    def _painted_start(self, lines: list[str], start: Toned) -> list[str]:
        """`lines` with the words that they start with painted; an indent stays as it is."""
        end = lines[0].find(start.text) + len(start.text)
        head = lines[0][:end].removesuffix(start.text)
        return [head + self._paint(start.text, start.tone) + lines[0][end:], *lines[1:]]

    def _heading(self, section: Section) -> list[str]:
        if not section.title and not section.label:
            return []
        if section.is_chapter:
            return self.wrap(section.title, "", _INDENT)
        start = section.label or Toned(_capitals(section.title), section.tone)
        title = f"{start.text} {section.title}" if section.label else start.text
        facts = map(plain_text, section.facts)
        lines = self.wrap(_GAP.join(filter(None, [title, *facts])), "", _INDENT * 2)
        return self._painted_start(lines, start)

    def _paragraph(self, block: blocks.Paragraph, indent: str) -> Iterator[str]:
        for line in self.wrap(block.text, indent, indent):
            yield self._paint(line, block.tone)

    def _bullets(self, block: blocks.Bullets, indent: str) -> Iterator[str]:
        for bullet in block.entries:
            lines = self.wrap(bullet.whole_text, indent, indent + _INDENT)
            yield from self._painted_start(lines, bullet.badge) if bullet.badge else lines
            for detail in bullet.details:
                yield from self.wrap(detail, indent + _INDENT, indent + _INDENT * 2)

    def _timeline(self, block: blocks.Story, indent: str) -> Iterator[str]:
        return self._bullets(block.in_words(), indent)

    def _plot(self, block: blocks.Plot, indent: str) -> Iterator[str]:
        from raydiag.render.sparkline import plot_lines  # numpy, which most reports do without

        for line in plot_lines(block.course, self.width - len(indent), self.bars):
            yield indent + terminal(line)

    def _steps(self, block: blocks.Steps, indent: str) -> Iterator[str]:
        lead = f"{indent}{block.label}: " if block.label else indent
        if block.label and len(block.steps) == 1:
            yield from self.wrap(block.steps[0], lead, " " * len(lead))
            return
        for number, step in enumerate(block.steps, 1):
            start = f"{lead}{number}. "
            yield from self.wrap(step, start, " " * len(start))
            lead = " " * len(lead)  # the label stands before the first one

    def _quote(self, block: blocks.Quote, indent: str) -> Iterator[str]:
        if block.marked is None:
            indent += _INDENT
        for number, line in enumerate(block.marked_lines()):
            rows = self.wrap(line, indent, indent + _INDENT)
            if block.around and number != block.marked and len(rows) > 1:
                rows = [(indent + terminal(line))[: self.width - len(_CUT)] + _CUT]
            yield from rows

    def _key_values(self, block: blocks.KeyValues, indent: str) -> Iterator[str]:
        start = len(indent) + max(map(len, dict(block.rows))) + len(": ")
        for name, value in block.rows:
            lead = f"{indent}{name}: ".ljust(start)
            lines = self.wrap(plain_text(value), lead, " " * start)
            lines[0] = lead + self._paint(lines[0][len(lead) :], tone_of(value))
            yield from lines

    def _table(self, block: blocks.Table, indent: str) -> Iterator[str]:
        header = list(map(_capitals, block.header))
        columns = zip(header, *(map(_escaped, row.cells) for row in block.rows))
        widths = [max(map(len, column)) for column in columns]
        _shrink(widths, self.width - len(indent) - len(_GAP) * (len(widths) - 1))
        yield from self._row(header, widths, indent)
        for row in block.rows:
            yield from self._row(row.cells, widths, indent)
            if row.notes:
                yield from self.wrap("; ".join(row.notes), indent + "    ", indent + "    ")

    def _row(self, cells: Sequence[Words], widths: Sequence[int], indent: str) -> Iterator[str]:
        columns = []
        for cell, width in zip(cells, widths):
            lines = wrap(_escaped(cell), width)
            columns.append([self._paint(line.ljust(width), tone_of(cell)) for line in lines])
        for parts in zip_longest(*columns):
            filled = [part or " " * width for part, width in zip(parts, widths)]
            yield f"{indent}{_GAP.join(filled)}".rstrip()


def _escaped(words: Words) -> str:
    return terminal(plain_text(words))


def _capitals(title: str) -> str:
    """The title in capitals, up to a colon or parenthesis: what follows may be a name."""
    name = re.split(r"(?=[:(])", title, maxsplit=1)
    return "".join([name[0].upper(), *name[1:]])


def _shrink(widths: list[int], room: int) -> None:
    """Make the widest columns narrower until all of them fit, if they can."""
    while sum(widths) > room:
        widest = widths.index(max(widths))
        if widths[widest] <= _NARROWEST_COLUMN:
            return
        widths[widest] -= 1


def wrap(text: str, width: int, first: str = "", rest: str = "") -> list[str]:
    """`text` in lines of `width`, the first indented by `first`, the others by `rest`.

    Cut at double blanks, else blanks or commas, else anywhere; other blanks are kept.
    """
    lines: list[str] = []
    indent = first
    while True:
        room = max(width - len(indent), _LEAST_ROOM)
        if len(text) <= room:
            return [*lines, indent + text]
        cut = _cut(text, room)
        lines.append((indent + text[:cut]).rstrip())
        text, indent = text[cut:].lstrip(" "), rest


def _cut(text: str, room: int) -> int:
    # Double blanks part the fields of a heading, which are easier to read in one piece.
    between_fields = text.rfind("  ", room // 2, room + 2)
    if between_fields > 0:
        return between_fields
    between_words = max(text.rfind(" ", 0, room + 1), text.rfind(",", 0, room) + 1)
    return between_words if between_words > 0 else room
