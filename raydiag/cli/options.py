"""Options that several commands share, and where a report goes."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raydiag.cli import browser
from raydiag.errors import CannotRun

if TYPE_CHECKING:
    from raydiag.render.report import Report


_FORMATS = ("text", "json", "jsonl", "markdown", "html")
Pieces = Callable[[], Iterable[str]]
_WAY_IN = (
    (
        ("--address",),
        "URL|local",
        "dashboard of the cluster, or 'local' for a temporary Ray on this machine (default: "
        "RAY_API_SERVER_ADDRESS, RAY_ADDRESS, http://127.0.0.1:8265)",
    ),
    (
        ("--ssh",),
        "[USER@]HEAD",
        "reach the dashboard on that machine's loopback through ssh, for this call only; "
        "--address is then the address as seen from HEAD",
    ),
    (("-J", "--jump"), "[USER@]JUMP", "jump host for --ssh"),
    (("--ssh-config",), "FILE", "ssh configuration for --ssh, instead of ~/.ssh/config"),
)
WAY_IN = ("address", "ssh", "jump", "ssh_config")


def add_output(
    parser: argparse.ArgumentParser, redact: bool = False, more_formats: Sequence[str] = ()
) -> argparse._ArgumentGroup:
    """--format, -o, --open, -q and the like; the group of options.

    --redact for a command that can take names out; `more_formats`: what it writes besides.
    """
    group = parser.add_argument_group("output")
    group.add_argument("--format", choices=(*_FORMATS, *more_formats), default="text")
    words = "--format json"
    group.add_argument("--json", dest="format", action="store_const", const="json", help=words)
    words = "write the report to FILE instead of stdout; - is stdout"
    group.add_argument("-o", "--output", type=_output_file, metavar="FILE", help=words)
    words = (
        "write HTML and show it in a browser, where there is one; without -o in a temporary file"
    )
    group.add_argument("--open", action="store_true", help=words)
    group.add_argument("-q", "--quiet", action="store_true", help="no progress on stderr")
    words = "show all evidence and notes, and every finding by itself"
    group.add_argument("-v", "--verbose", "--full", action="store_true", help=words)
    words = "do not show the report in a pager where stdout is a terminal"
    group.add_argument("--no-pager", action="store_true", help=words)
    if redact:
        words = "replace host, user and job names, addresses, and arguments of commands"
        group.add_argument("--redact", action="store_true", help=words)
    return group


def add_config(parser: argparse.ArgumentParser) -> None:
    """--config: for a command, and before the command's name."""
    words = "defaults for options, in YAML; the command line overrides them (default: "
    words += "RAYDIAG_CONFIG)"
    parser.add_argument("--config", default=argparse.SUPPRESS, metavar="FILE", help=words)


def add_way_in(parser: argparse.ArgumentParser) -> None:
    """--address, --ssh, -J, --ssh-config: for a command, and before the command's name."""
    group = parser.add_argument_group("which cluster")
    for flags, metavar, words in _WAY_IN:
        # Without a default of its own, a command keeps what was said before its name.
        group.add_argument(*flags, default=argparse.SUPPRESS, metavar=metavar, help=words)


def add_fresh(parser: argparse.ArgumentParser) -> None:
    """--fresh: for a command that asks nodes."""
    words = "ask by a job of this call's own, also where a resident agent is up"
    parser.add_argument("--fresh", action="store_true", help=words)


def add_action(
    actions: argparse._SubParsersAction[argparse.ArgumentParser], name: str, words: str
) -> argparse.ArgumentParser:
    """One of several actions of a command, described by the same words in all places."""
    return actions.add_parser(name, help=words, description=f"{words[0].upper()}{words[1:]}.")


def _output_file(text: str) -> str | None:
    """The file of -o; None for stdout. Refused now rather than after a minute of probing."""
    if text == "-":
        return None
    directory = os.path.dirname(os.path.realpath(text))
    if os.path.isdir(text or "."):
        raise argparse.ArgumentTypeError(f"{text!r} is a directory: name a file in it")
    if not os.path.isdir(directory):
        raise argparse.ArgumentTypeError(f"{text!r}: there is no such directory")
    # A report takes the place of an old file; a pipe or device is written to as it is.
    is_special = os.path.exists(text) and not os.path.isfile(text)
    if not os.access(text if is_special else directory, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text!r} cannot be written: permission denied")
    return text


def wants_colour() -> bool:
    """Colour on a terminal, unless NO_COLOR is set or the terminal is dumb."""
    if sys.stdout is None or not sys.stdout.isatty():
        return False
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def width() -> int:
    """Columns of the terminal; 80 where there is none, as tickets and logs are read."""
    import shutil

    return shutil.get_terminal_size((80, 24)).columns


def show(
    arguments: argparse.Namespace,
    document: Callable[[], Mapping[str, Any]],
    report: Callable[[], Report],
    columns: int | None = None,
    more_formats: Mapping[str, Pieces] | None = None,
) -> None:
    """Write the document or the report in the format that was asked for. Raises CannotRun.

    Text is as wide as the terminal, unless `columns` are given. What cannot be written to the file
    is printed, so that the work is not lost. `more_formats` write what only this command has.
    """
    if arguments.open:
        arguments.format = "html"
        arguments.output = arguments.output or browser.temporary_file(arguments.command)
    written = (more_formats or {}).get(arguments.format)
    if written is None:
        written = partial(_written, arguments, document, report, columns)
    try:
        chunks = written()
        if not _paged(arguments, chunks):
            write_report(chunks, arguments.output)
    except CannotRun:
        if arguments.output is not None:
            write_report(written(), None)
        raise
    if arguments.open:
        browser.show(arguments.output)


def _written(
    arguments: argparse.Namespace,
    document: Callable[[], Mapping[str, Any]],
    report: Callable[[], Report],
    columns: int | None,
) -> Iterable[str]:
    """The text of it, in pieces."""
    if arguments.format == "json":
        from raydiag.render.document import lines

        return lines(document())
    if arguments.format == "jsonl":
        from raydiag.render.document import one_line

        return [one_line(document())]
    if arguments.format == "markdown":
        from raydiag.render.markdown import markdown_text

        return [markdown_text(report())]
    if arguments.format == "html":
        from raydiag.render.html import html_text

        return [html_text(report(), f"raydiag {arguments.command}")]
    from raydiag.render.text import text

    colour = wants_colour() and arguments.output is None
    bars = _bars(arguments) if getattr(arguments, "plot", False) else ""
    return [text(report(), columns or width(), colour, bars)]


def add_plot(group: argparse._ArgumentGroup) -> None:
    """--plot: for a command whose report has series."""
    words = "in text, also draw the series that tell what happened"
    group.add_argument("--plot", action="store_true", help=words)


def _bars(arguments: argparse.Namespace) -> str:
    """Letters to draw with, that the output has."""
    from raydiag.render.sparkline import BARS, DIGITS

    encoding = getattr(sys.stdout, "encoding", None) or "ascii"
    try:
        BARS.encode("utf-8" if arguments.output else encoding)
    except (UnicodeEncodeError, LookupError):
        return DIGITS
    return BARS


def _paged(arguments: argparse.Namespace, chunks: Iterable[str]) -> bool:
    """Show it in a pager; whether there is one."""
    from raydiag.cli import pager

    command = None
    is_read = arguments.output is None and arguments.format in ("text", "markdown")
    if is_read and not arguments.no_pager:
        command = pager.command()
    if command is None:
        return False
    pager.page(command, "".join(chunks))
    return True


def write_report(chunks: Iterable[str], output: str | None) -> None:
    """Print the report, or put it into a file, whole or not at all. Raises CannotRun."""
    if output is None:
        _print(chunks)
        return
    try:
        if os.path.exists(output) and not os.path.isfile(output):
            # /dev/null, a pipe: a rename would put a file in its place.
            with open(output, "w", encoding="utf-8") as stream:
                stream.writelines(chunks)
        else:
            _replace(Path(os.path.realpath(output)), chunks)
    except OSError as error:
        raise CannotRun(f"-o {output}: cannot write there: {error.strerror}") from None


def _print(chunks: Iterable[str]) -> None:
    if sys.stdout is None:
        raise CannotRun("cannot write the report: stdout is closed; name a file with -o")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a node's words in any locale
    try:
        sys.stdout.writelines(chunks)
        sys.stdout.flush()
    except OSError as error:
        # What is left in the buffer would fail again, loudly, when Python exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if isinstance(error, BrokenPipeError):
            raise
        raise CannotRun(f"cannot write the report to stdout: {error.strerror}") from None


def _replace(target: Path, chunks: Iterable[str]) -> None:
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with open(handle, "w", encoding="utf-8") as stream:
            stream.writelines(chunks)
        os.chmod(name, 0o666 & ~_umask())  # mkstemp is private; a report is not
        os.replace(name, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


class ProgressLine:
    """A line on stderr that says how many nodes have answered; silent unless it is a terminal."""

    def __init__(self, quiet: bool) -> None:
        self._shown = not quiet and sys.stderr is not None and sys.stderr.isatty()
        self._width = 0

    def say(self, text: str) -> None:
        """Replace the line."""
        if self._shown:
            from raydiag.render.escape import terminal

            shown = terminal(text)
            print(f"\r{shown.ljust(self._width)}", end="", file=sys.stderr, flush=True)
            self._width = len(shown)

    def nodes(self, answered: int, total: int) -> None:
        """A bar of the nodes that have answered."""
        filled = 30 * answered // max(1, total)
        self.say(f"[{'#' * filled}{'.' * (30 - filled)}] {answered} of {total} nodes answered")

    def warn(self, text: str) -> None:
        """A line on stderr that changes no verdict."""
        from raydiag.render.escape import terminal

        self.clear()
        print(f"raydiag: {terminal(text)}", file=sys.stderr)

    def clear(self) -> None:
        """Take the line away, before anything else is printed."""
        if self._width:
            print("\r" + " " * self._width + "\r", end="", file=sys.stderr, flush=True)
            self._width = 0
