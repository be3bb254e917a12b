"""`raydiag demo`: diagnose an example incident, and draw its page: a first look.

examples:
  raydiag demo                  a GPU whose memory fails; the job dies, and the driver hangs
  raydiag demo --list           which others there are; the wheel carries one, the sources six
  raydiag demo straggler -o page.html
  raydiag demo --format json

The verdict is printed; its page goes to raydiag-demo-NAME.html in this directory, or to the file of
-o, and opens in a browser where there is a screen. It needs the program `prometheus` (PATH or
RAYDIAG_PROMETHEUS), for plots the extra `report`, and neither a cluster nor a GPU.

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
from typing import TYPE_CHECKING

from raydiag.cli import browser, diagnose, live, options
from raydiag.errors import CannotRun, UsageError

if TYPE_CHECKING:
    from raydiag.explain.job import ExaminedJob

HELP = "diagnose an example incident, without a cluster: a first look"

_FIRST = "gpu-memory-error"  # the one that the wheel carries
_HERE = Path()  # where the page goes, unless it is said
_AS_TEXT = {"format": "text", "output": None}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    words = f"which example (default: {_FIRST})"
    parser.add_argument("name", nargs="?", metavar="NAME", default=_FIRST, help=words)
    parser.add_argument("--list", action="store_true", help="list the examples that are here")
    output = options.add_output(parser)
    words = "do not show the page in a browser"
    output.add_argument("--no-open", dest="open", action="store_false", help=words)
    parser.set_defaults(format="html", output=_HERE, open=True)


def run(arguments: argparse.Namespace) -> int:
    """Find the example, diagnose it, show the report."""
    places = dict(examples())
    if not places:
        raise CannotRun("there are no examples here: they come with the wheel and with the sources")
    if arguments.list:
        for name, place in places.items():
            print(f"{name:18} {_title(place)}")
        return 0
    asked = _for_diagnose(_chosen(arguments.name, places), arguments)
    if arguments.output == _HERE:
        page = f"raydiag-demo-{arguments.name}.html"
        asked.output = page if asked.format == "html" else None
    _show(asked, _examined(asked))
    return 0  # what is found is meant to be found


def _examined(asked: argparse.Namespace) -> ExaminedJob:
    """The example, diagnosed. Raises CannotRun."""
    from raydiag.tsdb import server

    server.program()  # without it the verdict would be half of what it is
    if not asked.quiet:
        print(f"$ raydiag diagnose {asked.jobs[0]}", file=sys.stderr)
    progress = options.ProgressLine(asked.quiet)
    try:
        return diagnose.collected(asked, progress, live.is_cluster_meant)
    finally:
        progress.clear()


def _show(asked: argparse.Namespace, examined: ExaminedJob) -> None:
    """The report as it was asked for; for a page the text as well, and where the page is."""
    opens, asked.open = asked.open, False
    diagnose.show(asked, examined)
    if asked.format == "html" and asked.output:
        page = str(Path(asked.output).resolve())
        diagnose.show(argparse.Namespace(**{**vars(asked), **_AS_TEXT}), examined)
        print(f"\nThe same with plots: {page}")
        if opens and browser.has_screen():
            browser.show(page)


def examples() -> Iterator[tuple[str, Path]]:
    """Name and directory of each: inside the package when installed, beside it in a checkout."""
    package = Path(__file__).resolve().parent.parent
    for parent in (package / "examples", package.parent / "examples"):
        for expected in sorted(parent.glob("*/expected.json")):
            yield expected.parent.name, expected.parent


def _title(place: Path) -> str:
    return str(json.loads((place / "expected.json").read_text(encoding="utf-8"))["title"])


def _chosen(name: str, places: Mapping[str, Path]) -> Path:
    """The example's directory, from here where that is shorter. Raises UsageError."""
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
