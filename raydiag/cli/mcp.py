"""`raydiag mcp`: the read-only commands as tools for AI agents.

examples:
  raydiag mcp                                      on stdin and stdout, as agents start it
  raydiag mcp --ssh me@head -J me@login            of that cluster, through ssh for each call
  raydiag mcp --prometheus http://127.0.0.1:9190   with that server's series
  raydiag mcp --http 8300 --token-file ~/.raydiag-token        on 127.0.0.1, with a token

The tools are probe, diagnose, driver_fault, triage, kmsg, compare, kpi, tsdb_info, tsdb_query and
explain. None changes anything, and none chooses the cluster: that is what these options are for.
Answers are bounded, say first what could not be seen, and mark text of nodes and logs as data.
In an agent's settings: {"command": "raydiag", "args": ["mcp"]}

exit codes:
  0 the client has gone    2 usage    4 the MCP SDK is missing, or the port is taken
"""

from __future__ import annotations

import argparse
import socket
from collections.abc import Mapping

from raydiag.cli import options, values
from raydiag.cli.secret_files import private_lines
from raydiag.errors import CannotRun, UsageError

HELP = "serve the read-only commands to AI agents (Model Context Protocol)"
_LEAST_TOKEN = 16  # characters
_MISSING = "the MCP SDK is missing: pip install 'raydiag[mcp]'"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    words = "query this server, in tools that read metrics (default: the job's own)"
    parser.add_argument("--prometheus", metavar="URL", help=words)
    words = "serve streamable HTTP on 127.0.0.1:PORT instead of stdin and stdout"
    parser.add_argument("--http", type=values.port, metavar="PORT", help=words)
    words = "file with the bearer token that clients of --http need, readable by you alone"
    parser.add_argument("--token-file", metavar="FILE", help=words)
    options.add_way_in(parser)
    parser.set_defaults(reaches_cluster=True)


def run(arguments: argparse.Namespace) -> int:
    """Serve until the client goes."""
    token = ""
    if arguments.http is not None:
        if arguments.token_file is None:
            raise UsageError("--http needs --token-file FILE: others may be on this machine")
        token = token_of(arguments.token_file)
        _check_port(arguments.http)
    try:
        from raydiag.mcp import server
    except ImportError:
        raise CannotRun(_MISSING) from None
    if arguments.http is None:
        server.serve_stdio(_way_in(arguments))
    else:
        server.serve_http(_way_in(arguments), arguments.http, token)
    return 0


def _way_in(arguments: argparse.Namespace) -> Mapping[str, str]:
    names = (*options.WAY_IN, "prometheus")
    chosen = {name: getattr(arguments, name) for name in names}
    return {name: value for name, value in chosen.items() if value is not None}


def token_of(path: str) -> str:
    """The token of a file that nobody else can read. Raises UsageError."""
    lines = private_lines("--token-file", path)
    token = " ".join(lines)
    if len(token) < _LEAST_TOKEN or not token.isascii() or len(token.split()) != 1:
        least = f"one word of {_LEAST_TOKEN} characters or more"
        raise UsageError(f"--token-file {path}: needs {least}")
    return token


def _check_port(port: int) -> None:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError as error:
            raise CannotRun(f"--http {port}: {error.strerror}; choose another port") from None
