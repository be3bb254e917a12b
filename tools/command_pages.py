"""A page for each command, from the parser: usage, options, examples, exit codes."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from raydiag.cli import command_line

_INDEX = """# Commands

| command | what it does |
|---|---|
"""


def pages() -> Iterator[tuple[str, str]]:
    """(name, Markdown) of the index and of each command's page."""
    parser = command_line()
    (commands,) = _actions(parser)
    rows = [f"| [`raydiag {row.dest}`]({row.dest}.md) | {inline(row.help)} |" for row in commands]
    yield "commands/index.md", _INDEX + "\n".join(rows) + "\n\n" + _options(parser, 2)
    for name, command in commands.choices.items():
        yield f"commands/{name}.md", _page(command, 1)


class _Commands(list[argparse.Action]):
    """Rows of the list in `--help`, and the parser of each."""

    def __init__(self, action: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
        super().__init__(action._choices_actions)
        self.choices = action.choices


def _actions(parser: argparse.ArgumentParser) -> list[_Commands]:
    """The commands below a parser; none for most."""
    actions = parser._actions
    return [
        _Commands(action) for action in actions if isinstance(action, argparse._SubParsersAction)
    ]


def _page(parser: argparse.ArgumentParser, level: int) -> str:
    """A command, and below it its actions, each one level deeper."""
    marks = "#" * level
    parts = [f"{marks} {parser.prog}", inline(parser.description), _usage(parser)]
    for commands in _actions(parser):
        parts += _epilog(parser, level)
        parts += [_page(action, level + 1) for action in commands.choices.values()]
        return "\n\n".join(filter(None, parts)) + "\n"
    parts += [_options(parser, level + 1), *_epilog(parser, level)]
    return "\n\n".join(filter(None, parts)) + "\n"


def _usage(parser: argparse.ArgumentParser) -> str:
    return f"```text\n{parser.format_usage().removeprefix('usage: ').rstrip()}\n```"


def _options(parser: argparse.ArgumentParser, level: int) -> str:
    """Tables of arguments, one for each group that `--help` shows."""
    tables = []
    for group in parser._action_groups:
        rows = [_row(action) for action in group._group_actions if _is_shown(action)]
        if rows:
            title = (group.title or "options").capitalize()
            head = f"{'#' * level} {title}\n\n| | |\n|---|---|"
            tables.append("\n".join([head, *rows]))
    return "\n\n".join(tables)


def _is_shown(action: argparse.Action) -> bool:
    return action.help != argparse.SUPPRESS and not isinstance(action, argparse._SubParsersAction)


def _row(action: argparse.Action) -> str:
    formatter = argparse.HelpFormatter("raydiag")
    name = formatter._format_action_invocation(action).replace("|", "&#124;")
    words = formatter._expand_help(action) if action.help else ""
    return f"| <code>{name.replace('<', '&lt;')}</code> | {inline(words)} |"


def _epilog(parser: argparse.ArgumentParser, level: int) -> list[str]:
    """What stands below the options: blocks that begin with a word and a colon keep their lines."""
    parts = []
    for block in (parser.epilog or "").strip().split("\n\n"):
        title, colon, rest = block.partition(":\n")
        if colon and rest.startswith("  "):
            heading = f"{'#' * (level + 1)} {title[:1].upper()}{title[1:]}"
            lines = [line.removeprefix("  ").rstrip() for line in rest.splitlines()]
            parts += [heading, "\n".join(["```text", *lines, "```"])]
        else:
            parts.append(inline(block))
    return parts


def inline(text: str | None) -> str:
    """Words of the parser as Markdown: as they are, but for what would be HTML or end a cell."""
    words = " ".join((text or "").split())
    quoted = words.split("`")
    quoted[::2] = [part.replace("<", "&lt;").replace("*", "\\*") for part in quoted[::2]]
    return "`".join(quoted).replace("|", "\\|")
