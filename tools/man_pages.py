"""Man pages from the parser: raydiag.1, and one for each command.

    python tools/man_pages.py [DIRECTORY]     or: make man, for dist/man/man1
    man -l dist/man/man1/raydiag-diagnose.1

Needs argparse-manpage, which `make` installs with what tests need.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from argparse_manpage.manpage import Manpage

from raydiag import __version__
from raydiag.cli import command_line

_TARGET = Path(__file__).parent.parent / "dist" / "man" / "man1"


def write(directory: Path) -> list[Path]:
    """All pages; returns where they are."""
    directory.mkdir(parents=True, exist_ok=True)
    parser = command_line()
    pages = [_page(parser, directory, "single-commands-section")]
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            pages += [_page(command, directory, "pretty") for command in action.choices.values()]
    return pages


def _page(parser: argparse.ArgumentParser, directory: Path, form: str) -> Path:
    """What a command's --help shows below its options keeps its lines: examples and exit codes."""
    epilog, parser.epilog = parser.epilog, None
    typed = parser.prog
    parser.prog = typed.replace(" ", "-")
    summary = (parser.description or "").partition(". ")[0].rstrip(".")
    data = {
        "project_name": "raydiag",
        "version": __version__,
        "manual_title": "raydiag",
        "manual_section": 1,
        "description": f"{summary[:1].lower()}{summary[1:]}",
    }
    text = str(Manpage(parser, data, format=form))
    text = text.replace(f".B {_escaped(parser.prog)}\n", f".B {typed}\n", 1)  # in the synopsis
    if epilog:
        text += f"\n.SH EXAMPLES AND EXIT CODES\n.nf\n{_escaped(epilog.strip())}\n.fi\n"
    path = directory / f"{parser.prog}.1"
    path.write_text(text, encoding="utf-8")
    return path


def _escaped(text: str) -> str:
    """For roff: backslashes, hyphens that are to be copied, and lines that look like requests."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^([.'])", r"\\&\1", escaped, flags=re.MULTILINE)


if __name__ == "__main__":
    written = write(Path(sys.argv[1]) if len(sys.argv) > 1 else _TARGET)
    print(f"{len(written)} pages: {written[0]} and its likes")
