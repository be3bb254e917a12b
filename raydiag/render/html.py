"""Reports as one HTML file that needs no network and no script, for a screen, a phone and paper.

What was read is escaped as for a terminal (`escape.terminal`: secrets masked, nothing invisible),
then for HTML. The page forbids itself scripts and requests. `report.css` has its looks. Plots need
matplotlib, the extra `report`: without it the page has all words, and says how to get the plots.
"""

import html
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import resources
from itertools import count, groupby
from typing import TYPE_CHECKING, Any

from raydiag.render import report as blocks
from raydiag.render.escape import terminal
from raydiag.render.report import Report, Section, Tone, Toned, Words, plain_text, tone_of

if TYPE_CHECKING:  # numpy, which reports without series do without
    from raydiag.timeline.courses import Course

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_LONG_LINE = 600  # characters, from which on a line is folded
_MOST_OF_LINE = 400  # of which these stand in the text
_SHORT_CELL = 16  # characters that stay on one line
_FEW = 4  # sections, which need no list of contents
_SPACIOUS = 16  # nodes; more of them stand closer together
_HOW_TO_GET_PLOTS = "The plots are left out here: pip install 'raydiag[report]' draws them."
# A tone's sign differs in shape as well as in colour.
_SIGNS = {Tone.BAD: "&#10005;", Tone.DOUBTFUL: "!", Tone.GOOD: "&#10003;", Tone.PLAIN: "&#8226;"}
Draw = Callable[["Course", int], str]


def html_text(report: Report, title: str) -> str:
    """The whole page. `title` says what it is a report of, such as `raydiag diagnose`."""
    sections = report.on_a_page()
    page = _Page()
    body = "\n".join(page.sections(sections))
    style = resources.files(__package__).joinpath("report.css").read_text("utf-8")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<title>{escaped(_page_title(sections, title))}</title>
<style>
{style}</style>
</head>
<body>
<header class="top"><h1>{escaped(title)}</h1>{page.contents()}</header>
<main>
{body}
</main>
<footer><p>{escaped(report.footer)}</p></footer>
</body>
</html>
"""


def escaped(text: str) -> str:
    """Text for an element or an attribute."""
    return html.escape(terminal(text))


def _page_title(sections: Iterable[Section], title: str) -> str:
    """With the answer, so that tabs and bookmarks tell reports apart."""
    for section in sections:
        if section.comes_first and section.facts:
            answer = " ".join(map(plain_text, section.facts[:2]))
            return f"{answer} - {title}"
    return title


def _drawing() -> Draw | None:
    """What draws; None where the extra is not installed, or has no place for its cache."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it remarks on where its cache is
    try:
        from raydiag.render.plots import svg
    except (ImportError, OSError):
        return None
    return svg


class _Page:
    """Writes sections, and remembers their titles for the list of contents."""

    def __init__(self) -> None:
        self._titles: dict[str, str] = {}  # by id
        self._chapter = ""  # the id of the one that is written
        self._has_chapters = False  # several of them: each report about one thing
        self._only_chapter: str | None = None
        self._numbers, self._plots = count(1), count(1)
        self._writers: Mapping[type, Callable[[Any], str]] = {
            blocks.Paragraph: _paragraph,
            blocks.Bullets: _bullets,
            blocks.Steps: _steps,
            blocks.Quote: _quote,
            blocks.KeyValues: _key_values,
            blocks.Table: _table,
            blocks.Story: _timeline,
            blocks.HostGrid: _host_grid,
        }

    def sections(self, sections: Sequence[Section]) -> Iterator[str]:
        """All of them; what comes first in its chapter side by side, where there is room."""
        chapters = [section.title for section in sections if section.is_chapter]
        self._has_chapters = len(chapters) > 1
        self._only_chapter = chapters[0] if len(chapters) == 1 else None
        for place, group in groupby(_folded_last(sections), _place):
            written = "\n".join(map(self._section, group))
            yield f'<div class="{place}">\n{written}\n</div>' if place else written

    def contents(self) -> str:
        """Links to all sections; of several chapters, to each as a whole."""
        if len(self._titles) < _FEW:
            return ""
        links = (f'<li><a href="#{name}">{title}</a></li>' for name, title in self._titles.items())
        return f'<nav aria-label="Contents"><ul>{"".join(links)}</ul></nav>'

    def _section(self, section: Section) -> str:
        body = "\n".join([_facts(section), *self._blocks(section.blocks)])
        tone = (section.label or Toned("", section.tone)).tone.value
        if not section.title and not section.label:
            return f'<section class="card lead-in {tone}" aria-label="Summary">\n{body}\n</section>'
        title, name = escaped(section.title), f"s{next(self._numbers)}"
        if self._is_listed(section):
            self._titles[name] = title
        if section.is_chapter:
            self._chapter = name
            return f'<div class="chapter"><h2 id="{name}">{title}</h2>\n{body}\n</div>'
        badge = f"{_badge(section.label)} " if section.label else ""
        level = 3 if self._chapter else 2
        heading = f'<h{level} id="{name}">{badge}{title}</h{level}>'
        if _is_folded(section):
            return f"<details><summary>{heading}</summary>\n{body}\n</details>"
        # Chapters have sections of the same names, which the chapter's own tells apart.
        label = f"{self._chapter} {name}" if self._has_chapters and self._chapter else name
        start = f'<section class="card {tone}" aria-labelledby="{label}">'
        return f"{start}\n{heading}\n{body}\n</section>"

    def _is_listed(self, section: Section) -> bool:
        if _is_folded(section) or section.title == self._only_chapter:
            return False
        return section.is_chapter or not (self._has_chapters and self._chapter)

    def _blocks(self, all_blocks: Iterable[blocks.Block]) -> Iterator[str]:
        """Each block; plots beside each other."""
        filled = (block for block in all_blocks if not block.is_empty)
        for kind, group in groupby(filled, type):
            if kind is blocks.Plot:
                yield self._plot_group(group)
            else:
                yield from map(self._writers[kind], group)

    def _plot_group(self, plots: Iterable[Any]) -> str:
        draw = _drawing()
        figures = [self._plot(plot, draw) for plot in plots]
        if draw is None:
            figures.append(f'<p class="note">{escaped(_HOW_TO_GET_PLOTS)}</p>')
        return '<div class="plots">\n{}\n</div>'.format("\n".join(figures))

    def _plot(self, plot: blocks.Plot, draw: Draw | None) -> str:
        from raydiag.render.course_words import caption

        number, course = next(self._plots), plot.course
        drawing = ""
        if draw is not None:
            label = f'role="img" aria-labelledby="t{number} c{number}"'
            drawing = draw(course, number).replace("<svg", f"<svg {label}", 1)
        title = f'<span class="title" id="t{number}">{escaped(course.title)}</span>'
        words = f'<span id="c{number}">{escaped(caption(course))}</span>'
        return f"<figure>\n<figcaption>{title}</figcaption>\n{drawing}\n<p>{words}</p>\n</figure>"


def _is_folded(section: Section) -> bool:
    return section.only_in_documents and not section.is_chapter


def _place(section: Section) -> str:
    """The class of what sections stand in together; "" for those by themselves."""
    return "first" if section.comes_first else "folded card" if _is_folded(section) else ""


def _folded_last(sections: Iterable[Section]) -> Iterator[Section]:
    """Of each chapter."""
    folded: list[Section] = []
    for section in sections:
        if section.is_chapter:
            yield from folded
            folded = []
        if _is_folded(section):
            folded.append(section)
        else:
            yield section
    yield from folded


def _facts(section: Section) -> str:
    """What follows a heading; the answer of the whole report in large letters."""
    facts = [fact for fact in section.facts if plain_text(fact)]
    if not facts:
        return ""
    answer = ""
    if section.comes_first and section.tone is not Tone.PLAIN:
        sign = f'<span class="sign" aria-hidden="true">{_SIGNS[section.tone]}</span>'
        answer = f'<p class="answer">{sign} {escaped(plain_text(facts[0]))}</p>'
        facts = facts[1:]
    return f'{answer}<ul class="facts">{"".join(map(_fact, facts))}</ul>'


def _fact(words: Words) -> str:
    label = words.label if isinstance(words, Toned) else ""
    name = f'<span class="label">{escaped(label)}</span> ' if label else ""
    return f"<li>{name}{escaped(plain_text(words))}</li>"


def _badge(words: Toned) -> str:
    return f'<span class="badge {words.tone.value}">{_sign(words.tone)}{escaped(words.text)}</span>'


def _sign(tone: Tone) -> str:
    return f'<span class="sign" aria-hidden="true">{_SIGNS[tone]}</span> '


def _words(words: Words) -> str:
    """In their tone; in a good or bad one with its sign."""
    tone, text = tone_of(words), escaped(plain_text(words))
    if tone is Tone.PLAIN:
        return text
    return f'<span class="tone {tone.value}">{_sign(tone)}{text}</span>'


def _paragraph(block: blocks.Paragraph) -> str:
    kind = ' class="lead"' if block.strong else ""
    return f"<p{kind}>{_words(Toned(block.text, block.tone))}</p>"


def _line(text: str) -> str:
    """A line of evidence; of a very long one the rest is folded away."""
    if len(text) <= _LONG_LINE:
        return f'<div class="line">{escaped(text)}</div>'
    # Masked and escaped as a whole: a cut could part a secret from its name.
    shown = terminal(text)
    start, rest = html.escape(shown[:_MOST_OF_LINE]), html.escape(shown[_MOST_OF_LINE:])
    summary = f"{start}<b> ... and {len(shown) - _MOST_OF_LINE} more characters</b>"
    return f'<details class="line"><summary>{summary}</summary>{rest}</details>'


def _lines(texts: Iterable[str]) -> str:
    return "".join(map(_line, texts))


def _bullets(block: blocks.Bullets) -> str:
    entries = []
    for bullet in block.entries:
        badge = f"{_badge(bullet.badge)} " if bullet.badge else ""
        entries.append(f"<li>{badge}{escaped(bullet.text)}{_lines(bullet.details)}</li>")
    return "<ul>\n{}\n</ul>".format("\n".join(entries))


def _steps(block: blocks.Steps) -> str:
    label = f"<b>{escaped(block.label)}:</b> " if block.label else ""
    if block.label and len(block.steps) == 1:
        return f"<p>{label}{escaped(block.steps[0])}</p>"
    entries = "".join(f"<li>{escaped(step)}</li>" for step in block.steps)
    return f"{label and f'<p>{label}</p>'}<ol>{entries}</ol>"


def _quote(block: blocks.Quote) -> str:
    lines = list(map(_line, block.lines))
    if block.marked is not None:
        lines[block.marked] = f"<mark>{lines[block.marked]}</mark>"
    return f'<div class="quote">{"".join(lines)}</div>'


def _key_values(block: blocks.KeyValues) -> str:
    if block.columns is not None:
        return _table(blocks.Table(block.columns, list(map(blocks.Row, block.rows))))
    rows = []
    for name, value in block.rows:
        rows.append(f"<div><dt>{escaped(name)}</dt><dd>{_words(value)}</dd></div>")
    return f"<dl>{''.join(rows)}</dl>"


def _table(block: blocks.Table) -> str:
    header = "".join(map(_column, block.header))
    rows = "\n".join(map(_row, block.rows))
    name = escaped(f"Table: {', '.join(filter(None, block.header))}")
    return (
        f'<div class="scroll" role="group" tabindex="0" aria-label="{name}"><table>\n'
        f"<thead><tr>{header}</tr></thead>\n<tbody>\n{rows}\n</tbody></table></div>"
    )


def _cell(words: Words) -> str:
    kind = ' class="short"' if len(plain_text(words)) <= _SHORT_CELL else ""
    return f"<td{kind}>{_words(words)}</td>"


def _column(name: str) -> str:
    return f'<th scope="col">{escaped(name)}</th>' if name else "<td></td>"


def _row(row: blocks.Row) -> str:
    first = _words(row.cells[0])
    written = "".join(map(_cell, row.cells[1:]))
    if row.notes:
        first += f'<span class="notes">{escaped("; ".join(row.notes))}</span>'
    return f'<tr><th scope="row">{first}</th>{written}</tr>'


def _timeline(block: blocks.Story) -> str:
    return '<ol class="timeline">\n{}\n</ol>'.format("\n".join(map(_event, block.events)))


def _event(event: blocks.Event) -> str:
    later = f' <span class="later">{escaped(event.later)}</span>' if event.later else ""
    facts = "".join(map(_fact, filter(None, event.facts)))
    meaning = f"<p>{escaped(event.meaning)}</p>" if event.meaning else ""
    return (
        f'<li class="{event.tone.value}"><p class="when">{escaped(event.when)}{later}</p>'
        f'<p class="what">{_sign(event.tone)}<b>{escaped(event.what)}</b></p>'
        f'<ul class="facts">{facts}</ul>{meaning}{_lines(event.details)}</li>'
    )


def _host_grid(block: blocks.HostGrid) -> str:
    kind = "hosts dense" if len(block.hosts) > _SPACIOUS else "hosts"
    hosts = "\n".join(map(_host, block.hosts))
    return f'<ul class="{kind}">\n{hosts}\n</ul>'


def _host(host: blocks.HostTile) -> str:
    """A node; its GPUs as little squares for the eye, and the sick ones in words for everybody."""
    squares = "".join(f'<i class="{gpu.tone.value}">{_SIGNS[gpu.tone]}</i>' for gpu in host.gpus)
    sick = [gpu.text for gpu in host.gpus if gpu.tone is not Tone.GOOD]
    words = "".join(f'<span class="sick">{escaped(text)}</span>' for text in sick)
    gpus = f'<span class="gpus" aria-hidden="true">{squares}</span>' if squares else ""
    state = f'<span class="state">{_words(host.state)}</span>'
    return (
        f'<li class="{host.state.tone.value}"><b>{escaped(host.name)}</b>{state}{gpus}{words}</li>'
    )
