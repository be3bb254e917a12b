"""`raydiag demo`: diagnose an example incident, as a first look.

examples:
  raydiag demo                  a GPU whose memory fails; the job dies, and the driver hangs
  raydiag demo --list           which others there are; the wheel carries one, the sources six
  raydiag demo straggler

It needs the program `prometheus` (PATH or RAYDIAG_PROMETHEUS), and neither Ray nor a GPU.

exit codes:
  0 the report was written    2 no such example    4 could not run
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from raydiag.cli import diagnose, options
from raydiag.errors import CannotRun, UsageError

HELP = "diagnose an example incident, without a cluster: a first look"

_FIRST = "gpu-memory-error"  # the one that the wheel carries


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    words = f"which example (default: {_FIRST})"
    parser.add_argument("name", nargs="?", metavar="NAME", default=_FIRST, help=words)
    parser.add_argument("--list", action="store_true", help="list the examples that are here")
    options.add_output(parser)


def run(arguments: argparse.Namespace) -> int:
    """Find the example, diagnose it, show the report."""
    from raydiag.tsdb import server

    places = dict(_examples())
    if arguments.list:
        print("\n".join(f"{name:18} {_title(place)}" for name, place in places.items()))
        return 0
    place = _chosen(arguments.name, places)
    server.program()  # without it the verdict would be half of what it is
    if not arguments.quiet:
        print(f"$ raydiag diagnose {place}", file=sys.stderr)
    diagnose.run(_for_diagnose(place, arguments))
    return 0  # what is found is meant to be found


def _examples() -> Iterator[tuple[str, Path]]:
    """Name and directory of each: inside the package when installed, beside it in a checkout."""
    package = Path(__file__).resolve().parent.parent
    for parent in (package / "examples", package.parent / "examples"):
        for expected in sorted(parent.glob("*/expected.json")):
            yield expected.parent.name, expected.parent


def _title(place: Path) -> str:
    return str(json.loads((place / "expected.json").read_text(encoding="utf-8"))["title"])


def _chosen(name: str, places: Mapping[str, Path]) -> Path:
    """The example's directory, from here where that is shorter. Raises UsageError and CannotRun."""
    if not places:
        raise CannotRun("there are no examples here: they come with the wheel and with the sources")
    if name not in places:
        similar = difflib.get_close_matches(name, places, n=1)
        hint = f"did you mean {similar[0]!r}?" if similar else f"choose {', '.join(places)}"
        raise UsageError(f"no example {name!r}; {hint}")
    return min(places[name], Path(os.path.relpath(places[name])), key=lambda path: len(str(path)))


def _for_diagnose(place: Path, arguments: argparse.Namespace) -> argparse.Namespace:
    """The arguments of `raydiag diagnose PLACE`, with the output options of this command."""
    parser = argparse.ArgumentParser()
    diagnose.add_arguments(parser)
    parser.set_defaults(**dict.fromkeys(options.WAY_IN))
    return argparse.Namespace(**{**vars(parser.parse_args([str(place)])), **vars(arguments)})
