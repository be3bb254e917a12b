"""The command line: one file per command, which parses, calls one function and shows the result.

A command's docstring is what its --help shows below the options.

Exit codes: 0 nothing wrong and everything was seen; 1 a problem was found; 2 usage; 3 nothing wrong
found, but not everything could be seen; 4 could not run; 130 interrupted. Runs on Python 3.9.
"""

from __future__ import annotations

import argparse
import difflib
import gc
import os
import signal
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import NoReturn

from raydiag import __version__
from raydiag.cli import (
    agent,
    compare,
    completion,
    config,
    demo,
    diagnose,
    doctor,
    driver_fault,
    explain,
    exporter,
    handover,
    history,
    hotfix,
    kmsg,
    kpi,
    mcp,
    options,
    pager,
    probe,
    recover,
    schema,
    serve_alerts,
    triage,
    tsdb,
    watch,
)
from raydiag.errors import RaydiagError, UsageError

# Objects between looks for garbage: what a thousand nodes say is a million objects and no garbage,
# and Python would look through them again and again.
COLLECTIONS_APART = 100_000
_INTERRUPTED, _NO_READER = 130, 141  # as shells report SIGINT and SIGPIPE
_MOST_OF_ERROR = 500  # characters
# fmt: off
_COMMANDS = (
    probe, kmsg, triage, diagnose, driver_fault, compare, kpi, tsdb, exporter, hotfix, agent,
    history, watch, recover, handover, serve_alerts, doctor, mcp, explain, schema, completion,
    demo,
)
# fmt: on


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    words = _plain_options(list(sys.argv[1:] if argv is None else argv))
    _ErrorReport.as_json = _wants_json(words)
    parser, commands = _parser()
    if not words:
        parser.print_help(sys.stderr)
        return UsageError.exit_code
    try:
        _configure(parser, commands, words)
    except RaydiagError as error:
        return _failed(error)
    arguments, unknown = parser.parse_known_args(words)
    command = commands[arguments.command]
    if unknown:
        command.error(f"unrecognized arguments: {' '.join(unknown)}")
    names_cluster = any(getattr(arguments, name) is not None for name in options.WAY_IN)
    if names_cluster and not arguments.reaches_cluster:
        command.error("this command uses no cluster: leave out --address, --ssh and the like")
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, _terminated)  # clean up as on Ctrl-C
    usual = gc.get_threshold()
    gc.set_threshold(COLLECTIONS_APART)
    try:
        return _run(arguments)
    finally:
        gc.set_threshold(*usual)
        pager.wait()


def _run(arguments: argparse.Namespace) -> int:
    try:
        return int(arguments.run(arguments))
    except RaydiagError as error:
        return _failed(error)
    except KeyboardInterrupt:
        print("raydiag: interrupted", file=sys.stderr)
        return _INTERRUPTED
    except BrokenPipeError:  # the reader of our output went away
        return _NO_READER
    except Exception as error:
        if os.environ.get("RAYDIAG_TRACEBACK"):
            raise
        description = _one_line(f"{type(error).__name__}: {error}")[:_MOST_OF_ERROR]
        hint = "please report it with the traceback that RAYDIAG_TRACEBACK=1 prints"
        return _failed(RaydiagError(f"internal error: {description}; {hint}"))


def _plain_options(words: list[str]) -> list[str]:
    """`help COMMAND` and `version` as the options that do the same."""
    if words[:1] == ["help"]:
        return [*words[1:], "--help"]
    return ["--version"] if words[:1] == ["version"] else words


def _configure(
    parser: argparse.ArgumentParser, commands: config.Commands, argv: Sequence[str]
) -> None:
    """Take defaults from the file of --config, else of RAYDIAG_CONFIG. Raises UsageError."""
    on_command_line = config.given(parser, commands, argv)
    path = on_command_line.get("config", os.environ.get("RAYDIAG_CONFIG"))
    if path:
        config.apply(path, parser, commands, on_command_line)


def _wants_json(words: Sequence[str]) -> bool:
    """Whether the command line asks for JSON; known before it is understood."""
    pairs = set(zip(words, [*words[1:], ""]))
    asking = {"--json", "--format=json", "--format=jsonl"}
    return bool(asking.intersection(words) or pairs & {("--format", "json"), ("--format", "jsonl")})


class _ErrorReport:
    """An error on stderr: one line, a document where JSON was asked for."""

    as_json = False

    @classmethod
    def text(cls, program: str, message: str, exit_code: int) -> str:
        """The line, with its end."""
        if not cls.as_json:
            return f"{program}: {message}\n"
        from raydiag.render.document import error_line

        return error_line(message, exit_code)


def _failed(error: RaydiagError) -> int:
    if sys.stderr is not None:
        sys.stderr.write(_ErrorReport.text("raydiag", _one_line(error), error.exit_code))
    return error.exit_code


class _ArgumentParser(argparse.ArgumentParser):
    """An argument parser whose errors are one line, and that knows what was nearly said."""

    def _check_value(self, action: argparse.Action, value: object) -> None:
        choices = list(map(str, action.choices or ()))
        if isinstance(action, argparse._SubParsersAction) and value not in choices:
            similar = difflib.get_close_matches(str(value), choices, n=1)
            hint = f"did you mean {similar[0]!r}?" if similar else f"choose {', '.join(choices)}"
            raise argparse.ArgumentError(action, f"invalid choice: {value!r}; {hint}")
        super()._check_value(action, value)

    def error(self, message: str) -> NoReturn:
        """One line, and where to read on."""
        help_hint = f"{_one_line(message)}; see `{self.prog} --help`"
        self.exit(2, _ErrorReport.text(self.prog, help_hint, UsageError.exit_code))


def _terminated(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def _one_line(error: object) -> str:
    from raydiag.render.escape import terminal

    return terminal(" ".join(str(error).split()))


def _examples_and_exit_codes(module: ModuleType) -> str:
    """What a command's docstring says below its first line."""
    return (module.__doc__ or "").partition("\n\n")[2]


def command_line() -> argparse.ArgumentParser:
    """All commands with their options: what completion and man pages are made from."""
    return _parser()[0]


def _parser() -> tuple[argparse.ArgumentParser, config.Commands]:
    parser = _ArgumentParser(
        prog="raydiag",
        description="Find out, from inside a Ray cluster, why a training job hangs, slows or dies.",
        epilog="`raydiag help COMMAND` explains a command.",
    )
    parser.add_argument("--version", action="version", version=f"raydiag {__version__}")
    options.add_config(parser)
    options.add_way_in(parser)
    parser.set_defaults(**dict.fromkeys(options.WAY_IN), reaches_cluster=False)
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    commands = {}
    for module in _COMMANDS:
        name = module.__name__.rpartition(".")[2].replace("_", "-")
        summary = f"{module.HELP[0].upper()}{module.HELP[1:]}."
        command = subparsers.add_parser(
            name,
            help=module.HELP,
            description=summary + getattr(module, "REMARK", ""),
            epilog=_examples_and_exit_codes(module),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        options.add_config(command)
        module.add_arguments(command)
        command.set_defaults(run=module.run)
        commands[name] = command
    return parser, commands
