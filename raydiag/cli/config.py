"""`--config FILE`: defaults of options, in YAML.

    address: http://head:8265      # common options at the top
    verbose: true
    probe:                         # those of one command below its name
      deadline: 60
      skip: [storage]

Keys are long names of options without the dashes. What the command line says wins, also against an
option that excludes what it says.
"""

import argparse
import contextlib
import copy
from collections.abc import Iterator, Mapping
from typing import Any

from raydiag.errors import CatalogError, UsageError

_LIMIT_BYTES = 1 << 16
_DEEPEST = 8
_NOT_HERE = ("help", "version", "config", "json")
COMMON = ("format", "output", "quiet", "verbose", "redact", "address", "ssh", "jump", "ssh-config")

Commands = Mapping[str, argparse.ArgumentParser]


def given(parser: argparse.ArgumentParser, commands: Commands, argv: Any) -> Mapping[str, Any]:
    """What the command line itself says, by destination."""
    spare, spares = copy.deepcopy((parser, commands))
    real = (parser, *commands.values())
    for copied, original in zip((spare, *spares.values()), real):
        copied.print_help = original.print_help  # type: ignore[method-assign]  # with defaults
        copied._defaults.clear()
        for action in copied._actions:
            action.default = argparse.SUPPRESS
            # The command's name is needed; anything else may stand in the file.
            action.required = isinstance(action, argparse._SubParsersAction)
        for group in copied._mutually_exclusive_groups:
            group.required = False
    return vars(spare.parse_known_args(argv)[0])


def apply(
    path: str,
    parser: argparse.ArgumentParser,
    commands: Commands,
    on_command_line: Mapping[str, Any],
) -> None:
    """Make what the file says the defaults, for the command that was `given` as `on_command_line`.

    Raises UsageError when the file cannot be read, or has a key or value that does not exist.
    """
    try:
        _apply(_settings(path), parser, commands, on_command_line)
    except _Wrong as wrong:
        raise UsageError(f"--config {path}: {wrong}") from None


class _Wrong(Exception):
    """What is wrong with the file, without its name."""


def _apply(
    settings: Mapping[str, Any],
    parser: argparse.ArgumentParser,
    commands: Commands,
    on_command_line: Mapping[str, Any],
) -> None:
    command = commands[on_command_line["command"]]
    actions = _options(command)
    values: dict[str, Any] = {}
    for key, value in settings.items():
        if key in COMMON and key in actions:
            values[key] = _value(key, actions[key], value)
    for name, section in _sections(settings, commands):
        checked = _section(name, section, commands[name])
        if name == on_command_line["command"]:
            values.update(checked)
    for group in command._mutually_exclusive_groups:
        members = {key for key, action in actions.items() if action in group._group_actions}
        chosen = [key for key in sorted(members & values.keys()) if values[key] is not False]
        if any(actions[key].dest in on_command_line for key in members):
            for key in chosen:
                del values[key]
        elif len(chosen) > 1:
            raise _Wrong(f"{on_command_line['command']}: {' and '.join(chosen)} exclude each other")
        elif chosen:
            group.required = False
    for key, value in values.items():
        action = actions[key]
        if action.dest not in on_command_line:
            # An option that may stand before the command's name has its default there.
            owner = parser if action.default is argparse.SUPPRESS else command
            owner.set_defaults(**{action.dest: value})


def _sections(
    settings: Mapping[str, Any], commands: Commands
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for key, value in settings.items():
        if key in commands:
            if not isinstance(value, dict):
                raise _Wrong(f"{key}: not options with their values")
            yield key, value
        elif key not in COMMON:
            names = ", ".join((*commands, *COMMON))
            raise _Wrong(f"no command or common option {key!r}; there are: {names}")


def _section(
    name: str, section: Mapping[str, Any], command: argparse.ArgumentParser
) -> Mapping[str, Any]:
    actions = _options(command)
    for key in section:
        if key not in actions:
            raise _Wrong(f"{name}: no option {key!r}; there are: {', '.join(sorted(actions))}")
    return {key: _value(f"{name}: {key}", actions[key], value) for key, value in section.items()}


def _options(command: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """Actions by the long names of their options."""
    by_name: dict[str, argparse.Action] = {}
    for action in command._actions:
        for option in action.option_strings:
            if option.startswith("--") and option[2:] not in _NOT_HERE:
                by_name[option[2:]] = action
    return by_name


def _value(name: str, action: argparse.Action, value: Any) -> Any:
    """The value as the command line would have given it."""
    if action.nargs == 0:
        if not isinstance(value, bool):
            raise _Wrong(f"{name}: must be true or false, not {value!r}")
        return value
    in_commas = isinstance(action.metavar, str) and action.metavar.endswith(",...")
    if in_commas or action.nargs == "+":
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
            raise _Wrong(f"{name}: must be a list of strings, not {value!r}")
        return ",".join(items) if in_commas else items
    numbers = (int, float) if action.type else ()
    if isinstance(value, bool) or not isinstance(value, (str, *numbers)):
        kind = "a number" if numbers else "a string"
        raise _Wrong(f"{name}: must be {kind}, not {value!r}")
    if action.choices is not None and value not in action.choices:
        raise _Wrong(f"{name}: {value!r} is none of: {', '.join(map(str, action.choices))}")
    if not callable(action.type):
        return value
    try:
        return action.type(str(value))
    except (argparse.ArgumentTypeError, ValueError) as error:
        raise _Wrong(f"{name}: {error}") from None


def _settings(path: str) -> Mapping[str, Any]:
    from raydiag.catalog.rows import loaded  # YAML only where it is needed
    from raydiag.untrusted import regular

    try:
        with open(path, "rb", opener=regular) as file:
            data = file.read(_LIMIT_BYTES + 1)
    except OSError as error:
        raise _Wrong(str(error.strerror)) from None
    if len(data) > _LIMIT_BYTES:
        raise _Wrong(f"has more than {_LIMIT_BYTES} bytes")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise _Wrong("not a text file") from None
    if _is_deep(text):
        raise _Wrong(f"nested more than {_DEEPEST} deep")
    try:
        settings = loaded(text, "not YAML")
    except CatalogError as error:
        raise _Wrong(str(error)) from None
    if settings is None:  # only comments
        return {}
    if not isinstance(settings, dict):
        raise _Wrong("not options with their values")
    return settings


def _is_deep(text: str) -> bool:
    """The loader in C crashes on deep nesting; the parser in Python goes level by level."""
    import yaml

    depth = 0
    with contextlib.suppress(yaml.YAMLError):  # the loader will say what is wrong
        for event in yaml.parse(text, yaml.SafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth > _DEEPEST:
                return True
    return False
