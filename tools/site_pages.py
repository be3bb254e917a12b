"""What mkdocs asks while it builds the site: pages that are made, and pages from elsewhere.

`make docs` builds the site. Pages of commands come from the parser, those of failure classes from
the catalog, runbooks from the alert rules. README, ARCHITECTURE and their likes are pages as they
are, with links that lead to pages of the site.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from tools import class_pages, command_pages, runbook_pages

REPOSITORY = Path(__file__).resolve().parents[1]
# File of the repository -> its page.
PAGES = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "deploy/README.md": "deploy.md",
    "examples/README.md": "examples.md",
}
_LINK = re.compile(r"(!?)\[([^\]\[]*)\]\(([^)\s]+)\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that do not stand in docs/."""
    for name, text in made_pages():
        files.append(File.generated(config, name, content=text))
    return files


def made_pages() -> Iterator[tuple[str, str]]:
    """(name below docs/, Markdown) of each page that is made or comes from elsewhere."""
    yield from command_pages.pages()
    yield from class_pages.pages()
    yield from runbook_pages.pages()
    for source, page in PAGES.items():
        text = (REPOSITORY / source).read_text(encoding="utf-8")
        yield page, published(text, source)


def published(text: str, source: str) -> str:
    """A document of the repository as a page: links lead to pages, or are the words alone."""

    def _link(match: re.Match[str]) -> str:
        mark, words, target = match.groups()
        if "://" in target or target.startswith("#"):
            return match[0]
        path, hash_sign, anchor = target.partition("#")
        place = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        if place in PAGES:
            return f"{mark}[{words}]({PAGES[place]}{hash_sign}{anchor})"
        if place.startswith("docs/"):
            return f"{mark}[{words}]({place.removeprefix('docs/')}{hash_sign}{anchor})"
        return f"{words} (`{place}`)" if words != place else f"`{words}`"

    blocks = text.split("```")
    blocks[::2] = [_LINK.sub(_link, prose) for prose in blocks[::2]]
    return "```".join(blocks)
