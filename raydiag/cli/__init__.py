"""One file per command group: parse, call one function, render, exit code. No logic.

Exit codes: 0 nothing wrong and everything was seen; 1 a problem was found; 2 usage; 3 nothing wrong
found, but not everything could be seen; 4 could not run; 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn, Optional

from raydiag import __version__
from raydiag.cli import (
    compare,
    config,
    diagnose,
    exporter,
    hotfix,
    kmsg,
    options,
    probe,
    triage,
    tsdb,
)
from raydiag.errors import RaydiagError

_COMMANDS = (probe, kmsg, triage, diagnose, compare, tsdb, exporter, hotfix)


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run one command; returns the exit code."""
    parser, commands = _parser()
    try:
        _configure(parser, commands, argv)
    except RaydiagError as error:
        return _failed(error)
    arguments = parser.parse_args(argv)
    given = any(getattr(arguments, name) is not None for name in options.WAY_IN)
    if given and not arguments.reaches_cluster:
        parser.error("this command asks no cluster: leave out --address, --ssh and the like")
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, _terminated)  # clean up as on Ctrl-C
    try:
        return int(arguments.run(arguments))
    except RaydiagError as error:
        return _failed(error)
    except KeyboardInterrupt:
        print("raydiag: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output went away
        return 141
    except Exception as error:
        if os.environ.get("RAYDIAG_TRACEBACK"):
            raise
        words = _one_line(f"{type(error).__name__}: {error}")[:500]
        hint = "please report it with the traceback that RAYDIAG_TRACEBACK=1 shows"
        print(f"raydiag: a bug of raydiag's own: {words}; {hint}", file=sys.stderr)
        return RaydiagError.exit_code


def _configure(
    parser: argparse.ArgumentParser, commands: config.Commands, argv: Optional[Sequence[str]]
) -> None:
    """Take defaults from the file of --config, else of RAYDIAG_CONFIG. Raises UsageError."""
    said = config.given(parser, commands, argv)
    path = said.get("config", os.environ.get("RAYDIAG_CONFIG"))
    if path:
        config.apply(path, parser, commands, said)


def _failed(error: RaydiagError) -> int:
    print(f"raydiag: {_one_line(error)}", file=sys.stderr)
    return error.exit_code


class _ArgumentParser(argparse.ArgumentParser):
    """An argument parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {_one_line(message)}; see `{self.prog} --help`\n")


def _terminated(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def _one_line(error: object) -> str:
    from raydiag.render.escape import terminal

    return terminal(" ".join(str(error).split()))


def _parser() -> tuple[argparse.ArgumentParser, config.Commands]:
    parser = _ArgumentParser(
        prog="raydiag",
        description="Find out, from inside a Ray cluster, why a training job hangs or dies.",
    )
    parser.add_argument("--version", action="version", version=f"raydiag {__version__}")
    options.add_config(parser)
    options.add_way_in(parser)
    parser.set_defaults(**dict.fromkeys(options.WAY_IN), reaches_cluster=False)
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    commands = {}
    for module in _COMMANDS:
        command = subparsers.add_parser(
            module.NAME,
            help=module.HELP,
            description=module.DESCRIPTION,
            epilog=module.EPILOG,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        options.add_config(command)
        module.add_arguments(command)
        command.set_defaults(run=module.run)
        commands[module.NAME] = command
    return parser, commands
