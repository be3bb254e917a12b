"""What every report is made of, whatever it is written as: sections of plain blocks.

Nothing here is escaped, wrapped or coloured: `text.py`, `markdown.py` and `html.py` write it, each
in its way. Pictures are for HTML, plots for a terminal too on demand;
else they are left out. Secrets are masked as soon as a report is made, so that no writer shows one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from operator import itemgetter
from typing import TYPE_CHECKING

from raydiag.model import Severity
from raydiag.render.secrets import masked_part

if TYPE_CHECKING:  # numpy, which reports without series do without
    from raydiag.timeline.courses import Course


class Tone(Enum):
    """How good the news is; colour on a terminal, nothing in Markdown."""

    PLAIN = "plain"
    GOOD = "good"
    DOUBTFUL = "doubtful"
    BAD = "bad"


TONES = {Severity.CRITICAL: Tone.BAD, Severity.WARNING: Tone.DOUBTFUL, Severity.INFO: Tone.PLAIN}


@dataclass(frozen=True)
class Toned:
    """Words that carry a tone; `label` says what they are, where there is room for it."""

    text: str
    tone: Tone = Tone.PLAIN
    label: str = ""


Words = str | Toned


def plain_text(words: Words) -> str:
    """The words without their tone."""
    return words.text if isinstance(words, Toned) else words


def tone_of(words: Words) -> Tone:
    """The tone of words that carry one."""
    return words.tone if isinstance(words, Toned) else Tone.PLAIN


class Block:
    """What stands below a heading. The first field of each kind is its content."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to write."""
        return not next(iter(vars(self).values()))

    def or_else(self, otherwise: str) -> Block:
        """The block; a paragraph with `otherwise` where it is empty."""
        return Paragraph(otherwise) if self.is_empty else self


@dataclass(frozen=True)
class Paragraph(Block):
    """Running text; `strong` stands out in Markdown."""

    text: str
    tone: Tone = Tone.PLAIN
    strong: bool = False


@dataclass(frozen=True)
class Bullet:
    """One entry of a list, with what belongs to it below; `badge` stands before the text."""

    text: str
    details: Sequence[str] = ()
    badge: Toned | None = None

    @property
    def whole_text(self) -> str:
        """The badge and the text."""
        return f"{self.badge.text} {self.text}" if self.badge else self.text


@dataclass(frozen=True)
class Bullets(Block):
    """A list without an order of its own."""

    entries: Sequence[Bullet]


@dataclass(frozen=True)
class Steps(Block):
    """What to do, in this order; a single labelled step has no number."""

    steps: Sequence[str]
    label: str = ""


@dataclass(frozen=True)
class Quote(Block):
    """Lines as they were read, such as evidence; one of them may be `marked` by its index.

    A terminal shows one row of each line that is not marked, where they are `around` it.
    """

    lines: Sequence[str]
    marked: int | None = None
    around: bool = False

    def marked_lines(self) -> list[str]:
        """The lines, with a `>` before the marked one."""
        if self.marked is None:
            return list(self.lines)
        marks = ["  "] * len(self.lines)
        marks[self.marked] = "> "
        return list(map(str.__add__, marks, self.lines))


@dataclass(frozen=True)
class KeyValues(Block):
    """Names with their values; a table in Markdown where `columns` names its two columns."""

    rows: Sequence[tuple[str, Words]]
    columns: tuple[str, str] | None = None


@dataclass(frozen=True)
class Row:
    """Cells of one row, as many as the header has; notes are about the whole row."""

    cells: Sequence[Words]
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Table(Block):
    """Columns of text."""

    header: Sequence[str]
    rows: Sequence[Row]

    @property
    def is_empty(self) -> bool:
        """Without rows a header says nothing."""
        return not self.rows


@dataclass(frozen=True)
class Event:
    """Something that happened: when, what, where and how sure; what it means; how it is known."""

    when: str
    what: str
    facts: Sequence[str] = ()
    meaning: str = ""  # only where there is room
    later: str = ""  # how long after the first one; only where there is room
    details: Sequence[str] = ()
    tone: Tone = Tone.PLAIN


@dataclass(frozen=True)
class Story(Block):
    """Events, each of which led to the next."""

    events: Sequence[Event]

    def in_words(self) -> Bullets:
        """As a list: an entry for each event."""
        entries = []
        for event in self.events:
            words = filter(None, (event.when, event.what, *event.facts))
            entries.append(Bullet("  ".join(words), event.details))
        return Bullets(entries)


class Picture(Block):
    """What a report without pictures does without: all that it says stands in words as well."""


@dataclass(frozen=True)
class Plot(Picture):
    """A course over time, or over steps; `caption` says in a sentence what it shows."""

    course: Course
    caption: str = ""

    @property
    def is_empty(self) -> bool:
        """A course always has samples."""
        return False


@dataclass(frozen=True)
class HostTile:
    """One node in a grid of them, and its GPUs in their order."""

    name: str
    state: Toned
    gpus: Sequence[Toned] = ()


@dataclass(frozen=True)
class HostGrid(Picture):
    """All nodes at a glance."""

    hosts: Sequence[HostTile]


NONE = Paragraph("None.")  # a terminal does without the section that holds nothing else


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it.

    `label` is a word before the title that carries the tone of the whole, such as CRITICAL; without
    one the title carries `tone`. `facts` follow the title. A chapter opens a report about one
    thing of several. On a terminal, what `comes_first` stands at the top of its chapter, and
    what is `only_in_documents` is left out; nowhere else is what is `only_on_a_terminal`, a shorter
    version of what `has_brief`.
    """

    title: str = ""
    blocks: Sequence[Block] = ()
    label: Toned | None = None
    tone: Tone = Tone.PLAIN
    facts: Sequence[Words] = ()
    is_chapter: bool = False
    comes_first: bool = False
    only_in_documents: bool = False
    has_brief: bool = False
    only_on_a_terminal: bool = False

    def without(self, kind: type[Block]) -> Section:
        """Without blocks of that kind."""
        return replace(self, blocks=[block for block in self.blocks if not isinstance(block, kind)])

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to write but a title."""
        return self.is_none and NONE not in self.blocks

    @property
    def is_none(self) -> bool:
        """Whether all that it says is that there is nothing to say."""
        if self.is_chapter or self.label or self.facts:
            return False
        return all(block.is_empty or block == NONE for block in self.blocks)


@dataclass(frozen=True)
class Report:
    """The whole report; the footer says what made it, from what and when."""

    sections: Sequence[Section]
    footer: str = ""

    def __post_init__(self) -> None:
        for name, part in (("sections", self.sections), ("footer", self.footer)):
            object.__setattr__(self, name, masked_part(part))

    def in_documents(self) -> list[Section]:
        """Those that say anything, in the order of a document."""
        filled = [section for section in self.sections if not section.is_empty]
        return [section for section in filled if not section.only_on_a_terminal]

    def on_a_terminal(self) -> list[Section]:
        """Those that say anything, in each chapter the answer first."""
        shown = []
        for section in self.sections:
            is_left_out = section.only_in_documents or section.has_brief or section.is_none
            shown += [] if is_left_out else [section]
        return _answer_first(shown)

    def on_a_page(self) -> list[Section]:
        """What documents have, in each chapter the answer first."""
        return _answer_first(section for section in self.in_documents() if not section.is_none)

    def without(self, kind: type[Block]) -> Report:
        """Without blocks of that kind."""
        return replace(self, sections=[section.without(kind) for section in self.sections])


def _answer_first(sections: Iterable[Section]) -> list[Section]:
    ordered: list[tuple[int, tuple[bool, bool], Section]] = []
    chapter = 0
    for section in sections:
        chapter += section.is_chapter
        is_later = not section.is_chapter, not section.comes_first
        ordered.append((chapter, is_later, section))
    ordered.sort(key=itemgetter(0, 1))
    return list(map(itemgetter(2), ordered))


def bullets(texts: Iterable[str]) -> Bullets:
    """A list of texts without details; empty texts are left out."""
    return Bullets(list(map(Bullet, filter(None, texts))))


def table(header: Sequence[str], rows: Iterable[Sequence[Words]]) -> Table:
    """A table whose rows have no notes."""
    return Table(header, list(map(Row, rows)))


def severity_label(severity: Severity) -> Toned:
    """`CRITICAL` in its tone."""
    return Toned(severity.value.upper(), TONES[severity])
