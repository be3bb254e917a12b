"""The list of all modules in ARCHITECTURE.md, made from their docstrings.

python tools/module_table.py            # print it
python tools/module_table.py --write    # put it into ARCHITECTURE.md
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGE = REPOSITORY / "raydiag"
DOCUMENT = REPOSITORY / "ARCHITECTURE.md"
HEADING = "## Every module\n"


def first_line(module: Path) -> str:
    """What a module says of itself, in one line."""
    docstring = ast.get_docstring(ast.parse(module.read_text(encoding="utf-8"))) or ""
    return docstring.partition("\n")[0]


def section() -> str:
    """The section of ARCHITECTURE.md, from its heading to the end."""
    return "\n".join([HEADING, *_lines()]) + "\n"


def document_with_section(document: str) -> str:
    """The document with its list of modules as it has to be now."""
    return document.partition(HEADING)[0] + section()


def _lines() -> Iterator[str]:
    yield "Made by `python tools/module_table.py --write` from the first line of each module."
    for directory in sorted({path.parent for path in PACKAGE.rglob("*.py")}):
        yield f"\n**{directory.relative_to(REPOSITORY)}/**\n"
        for module in sorted(directory.glob("*.py")):
            if line := first_line(module):
                yield f"- `{module.stem}`: {line}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--write", action="store_true", help="into ARCHITECTURE.md")
    if parser.parse_args().write:
        document = DOCUMENT.read_text(encoding="utf-8")
        DOCUMENT.write_text(document_with_section(document), encoding="utf-8")
    else:
        print(section(), end="")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
