"""`raydiag schema`: the JSON Schemas of what raydiag prints.

examples:
  raydiag schema                      their names
  raydiag schema diagnose             the schema of `raydiag diagnose --format json`
  raydiag diagnose 7877 --json > verdict.json
  raydiag schema diagnose > schema.json && check-jsonschema --schemafile schema.json verdict.json

A schema stands alone: what several documents share is in each. Fields may be added to a document;
what is there keeps its name and its meaning.

exit codes:
  0 printed    2 there is no such schema
"""

from __future__ import annotations

import argparse
import difflib
from importlib.resources import files
from typing import TYPE_CHECKING

from raydiag.errors import UsageError

if TYPE_CHECKING:
    from importlib.abc import Traversable

HELP = "print the JSON Schema of a command's document"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    words = "of a document: probe, kmsg, diagnose ... (default: list the names)"
    parser.add_argument("name", nargs="?", metavar="NAME", help=words)


def run(arguments: argparse.Namespace) -> int:
    """Print one schema, or the names of all."""
    known = names()
    if arguments.name is None:
        print("\n".join(known))
        return 0
    if arguments.name not in known:
        near = difflib.get_close_matches(arguments.name, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
        raise UsageError(f"no schema {arguments.name!r}; {hint}")
    print(_schemas().joinpath(f"{arguments.name}.json").read_text("utf-8").rstrip())
    return 0


def names() -> list[str]:
    """Every schema's."""
    paths = _schemas().iterdir()
    return sorted(path.name[:-5] for path in paths if path.name.endswith(".json"))


def _schemas() -> Traversable:
    return files("raydiag").joinpath("schemas")
