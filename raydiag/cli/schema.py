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

import argparse
import difflib
from importlib.resources import files

from raydiag.errors import UsageError

HELP = "print the JSON Schema of a command's document"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    words = "of a document: probe, kmsg, diagnose ... (default: list the names)"
    parser.add_argument("name", nargs="?", metavar="NAME", help=words)


def run(arguments: argparse.Namespace) -> int:
    """Print one schema, or the names of all."""
    schemas = files("raydiag").joinpath("schemas")
    names = sorted(path.name[:-5] for path in schemas.iterdir() if path.name.endswith(".json"))
    if arguments.name is None:
        print("\n".join(names))
        return 0
    if arguments.name not in names:
        near = difflib.get_close_matches(arguments.name, names, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names)}"
        raise UsageError(f"no schema {arguments.name!r}; {hint}")
    print(schemas.joinpath(f"{arguments.name}.json").read_text("utf-8").rstrip())
    return 0
