"""`raydiag completion`: completion of commands, options, job ids and node names for a shell.

examples:
  raydiag completion bash > ~/.local/share/bash-completion/completions/raydiag
  raydiag completion zsh > ~/.zfunc/_raydiag           a directory of fpath, before compinit
  raydiag completion fish > ~/.config/fish/completions/raydiag.fish

Ids of jobs, and nodes that had one, are those below outputs/ where the shell stands; no cluster is
asked. Print it again after an update of raydiag.

exit codes:
  0 printed    2 usage
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

HELP = "print completion for bash, zsh or fish"

_SHELLS = ("bash", "zsh", "fish")
# Run by the shell at each completion, so they have to take a moment only. bash expands the words
# that it completes, and directories may be anybody's: what is no plain name stays out.
_JOB_IDS = r"""sh -c 'ls outputs 2>/dev/null | sed -n "s/^\([0-9][0-9]*\)-.*/\1/p" | sort -u'"""
_NODES = (
    "sh -c 'ls -d outputs/*/ray_logs/*/ 2>/dev/null"
    """ | sed -n "s,/$,,;s,.*/,,;/^[A-Za-z0-9._-]*$/p" | sort -u'"""
)
# What completes names of files, in each shell.
_FILES = (
    '  _shtab_compgen_files "$1"\n',
    "  _files\n",
    "  __fish_complete_path (commandline -ct)\n",
)
Completer = Mapping[str, Any]  # by shell, as shtab takes it


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("shell", choices=_SHELLS, help="whose completion to print")


def run(arguments: argparse.Namespace) -> int:
    """Print the script."""
    import shtab

    from raydiag.cli import command_line

    parser = command_line()
    completers = _completers()
    for command, action in _actions(parser):
        named = completers.get(f"{command} {action.metavar}") or completers.get(action.metavar)
        by_option = map(completers.get, action.option_strings)
        completer = next(filter(None, by_option), named)
        if completer and not action.choices:
            action.complete = completer  # type: ignore[attr-defined] # how shtab wants it said
    print(shtab.complete(parser, arguments.shell))
    return 0


def _completers() -> dict[Any, Completer]:
    """What completes a value, by its option, its name in the usage, or that of one command."""
    import shtab

    from raydiag import catalog, probes
    from raydiag.cli import demo, schema

    jobs = _printed_by("_raydiag_jobs", _JOB_IDS, with_files=True)  # a job is named by either
    nodes = _printed_by("_raydiag_nodes", _NODES)
    probe_names = _words("_raydiag_probes", probes.names())
    return {
        "FILE": shtab.FILE,
        "DIR": shtab.DIRECTORY,
        "JOB": jobs,
        "PATH|JOBID": jobs,
        "JOB|URL": jobs,
        "HOST": nodes,
        "--node": nodes,
        "--only": probe_names,
        "--skip": probe_names,
        "CLASS|XID|SXID": _words("_raydiag_classes", catalog.failures()),
        "schema NAME": _words("_raydiag_schemas", schema.names()),
        "demo NAME": _words("_raydiag_examples", dict(demo.examples())),
    }


def _words(name: str, words: Iterable[str]) -> Completer:
    return _printed_by(name, f"printf '%s\\n' {' '.join(sorted(words))}")


def _printed_by(name: str, command: str, with_files: bool = False) -> Completer:
    """What a command prints when it is wanted, and the files that lie there."""
    bash, zsh, fish = _FILES if with_files else ("", "", "")
    return {
        "bash": name,
        "zsh": name,
        "fish": f"({name})",
        "preamble": {
            "bash": f'{name}() {{\n  compgen -W "$({command})" -- "$1"\n{bash}}}\n',
            "zsh": f"{name}() {{\n  compadd -- $({command})\n{zsh}}}\n",
            "fish": f"function {name}\n  {command}\n{fish}end\n",
        },
    }


def _actions(
    parser: argparse.ArgumentParser, command: str = ""
) -> Iterator[tuple[str, argparse.Action]]:
    """Every argument of every command, with the command's name."""
    for action in parser._actions:
        yield command, action
        if isinstance(action, argparse._SubParsersAction):
            for name, subparser in action.choices.items():
                yield from _actions(subparser, name)
