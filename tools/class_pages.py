"""A page for each failure class, from the catalog, and one of NVIDIA's error numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from raydiag import catalog
from raydiag.catalog.entries import SXID, XID, CatalogEntry, ExampleLine, entry_of
from raydiag.catalog.failure_classes import FailureClass
from raydiag.render.escape import fenced, markdown

_INDEX = """# Failure classes

What a finding may be called. `raydiag explain CLASS` shows a page of these in the terminal.
Severity is that of most findings of the class.

| class | | what it is |
|---|---|---|
"""
_NUMBERS = """# Xid and SXid numbers

What NVIDIA's driver means by a number in its lines `NVRM: Xid (PCI:...): 79, ...`, and by one of
the switches' in `SXid`. `raydiag explain xid 79` shows the same in the terminal,
`raydiag kmsg FILE` finds them in a kernel log.
"""


def pages() -> Iterator[tuple[str, str]]:
    """(name, Markdown) of the index, of the numbers, and of each class."""
    classes = sorted(catalog.failures())
    yield "classes/index.md", _INDEX + "".join(map(_index_row, classes))
    yield "classes/nvidia-numbers.md", _NUMBERS + _numbers(XID) + _numbers(SXID)
    for name in classes:
        yield f"classes/{name}.md", _page(entry_of(name))


def _index_row(name: str) -> str:
    entry = catalog.failure(name)
    return f"| [{name}]({name}.md) | {entry.severity.value} | {markdown(entry.title)} |\n"


def _page(entry: CatalogEntry) -> str:
    failure_class = entry.failure_class
    parts = [
        f"# {entry.id}",
        f"**{markdown(entry.title)}** · {failure_class.severity.value}",
        markdown(failure_class.explanation),
        *_chapter("Next steps", _steps(failure_class)),
        *_chapter("What causes it", _links(entry.caused_by)),
        *_chapter("What it can cause", _links(entry.can_cause)),
        *_chapter("Lines of a job's log that show it", _lines(entry.log_lines)),
        *_chapter("Lines of the kernel log that show it", _lines(entry.kernel_lines)),
        *_chapter("Playbooks that look for it", _words(failure_class.playbooks)),
        *_chapter("Sources", _words(entry.sources)),
        f"```text\nraydiag explain -v {entry.id}\n```",
    ]
    return "\n\n".join(parts) + "\n"


def _chapter(title: str, text: str) -> list[str]:
    """A heading with its text; nothing without text."""
    return [f"## {title}", text] if text else []


def _steps(failure_class: FailureClass) -> str:
    """Numbered; a step that is for some jobs only says for which."""
    lines = []
    for number, (step, needed) in enumerate(failure_class.conditions.items(), 1):
        condition = ", ".join(f"{name}: {value}" for name, value in needed.items())
        lines.append(f"{number}. {markdown(step)}" + (f" *({condition})*" if condition else ""))
    return "\n".join(lines)


def _links(classes: Iterable[FailureClass]) -> str:
    return "\n".join(f"- [{entry.id}]({entry.id}.md): {markdown(entry.title)}" for entry in classes)


def _lines(lines: Sequence[ExampleLine]) -> str:
    return fenced([line.text for line in lines]) if lines else ""


def _words(names: Iterable[str]) -> str:
    return "\n".join(f"- {markdown(name)}" for name in names)


def _numbers(family: str) -> str:
    """A chapter for each number of a family, so that a search for it ends at its words."""
    parts = []
    for number in sorted(catalog.nvidia_numbers(family)):
        entry = entry_of(f"{family} {number}")
        name = entry.failure_class.id
        facts = f"{entry.severity.value}, " if entry.severity else ""
        parts.append(
            f"\n## {entry.id}\n\n**{markdown(entry.title)}** ({facts}[{name}]({name}.md))\n"
        )
        parts.append(f"\nWhat to do first: {markdown(entry.next_steps[0])}\n")
    return "".join(parts)
