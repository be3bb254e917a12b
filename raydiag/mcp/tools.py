"""The table of tools, and what a call of one is on the command line."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

import yaml

from raydiag.errors import UsageError

LEAST_BUDGET, MOST_BUDGET, USUAL_BUDGET = 6000, 400_000, 20_000  # characters
_BUDGET_WORDS = "characters that the answer may have; the rest is behind a cursor"
_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
}
_LONGEST_TEXT = 1 << 20


def budget_schema(words: str) -> dict[str, Any]:
    """Of the budget of an answer."""
    return {
        "type": "integer",
        "minimum": LEAST_BUDGET,
        "maximum": MOST_BUDGET,
        "default": USUAL_BUDGET,
        "description": words,
    }


@dataclass(frozen=True)
class Parameter:
    """One parameter of a tool and how it is typed."""

    type: str
    words: str
    option: str = ""
    place: str = "option"  # option, argument, stdin
    joined: bool = False
    required: bool = False
    local: bool = False  # names something on this machine, never a URL
    choices: Sequence[str] = ()

    def schema(self) -> dict[str, Any]:
        """As JSON Schema."""
        schema: dict[str, Any] = {"type": self.type, "description": self.words}
        if self.type == "array":
            schema["items"] = {"type": "string", "minLength": 1}
            schema["minItems"] = 1
        if self.choices:
            schema["enum"] = list(self.choices)
        return schema


@dataclass(frozen=True)
class AgentTool:
    """A command that an agent may call."""

    name: str
    command: Sequence[str]
    schema: str
    words: str
    parameters: Mapping[str, Parameter]
    way_in: Sequence[str] = ()

    def input_schema(self) -> dict[str, Any]:
        """Of the arguments of a call."""
        properties = {name: parameter.schema() for name, parameter in self.parameters.items()}
        required = [name for name, parameter in self.parameters.items() if parameter.required]
        properties["budget"] = budget_schema(_BUDGET_WORDS)
        return {
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": False,
        }

    def call(self, arguments: Mapping[str, Any]) -> "CommandLine":
        """Raises UsageError for arguments that are not of the schema, or look like options."""
        known = [*self.parameters, "budget"]
        for name in arguments:
            if name not in known:
                has = ", ".join(known)
                raise UsageError(f"{self.name} has no parameter {name!r}: it has {has}")
        line = CommandLine(list(self.command))
        for name, parameter in self.parameters.items():
            if name in arguments:
                line.add(name, parameter, arguments[name])
            elif parameter.required:
                raise UsageError(f"{self.name} needs {name}: {parameter.words}")
        return line


@dataclass
class CommandLine:
    """What a person would type."""

    command: list[str]
    options: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)
    stdin: str | None = None

    @property
    def words(self) -> list[str]:
        """After the program's name; JSON is the format."""
        return [*self.command, "--format", "json", *self.options, *self.arguments]

    def add(self, name: str, parameter: Parameter, value: Any) -> None:
        """One argument of the call. Raises UsageError."""
        _check(name, parameter, value)
        if parameter.place == "stdin":
            self.stdin = value
            self.arguments.append("-")
        elif parameter.place == "argument":
            self.arguments += _texts(name, value)
        elif value is True:
            self.options.append(parameter.option)
        elif value is not False:
            texts = list(_texts(name, value))
            if parameter.joined:
                texts = [",".join(texts)]
            self.options += [parameter.option, *texts]


def _check(name: str, parameter: Parameter, value: Any) -> None:
    """The type of a value; a boolean is no number."""
    is_right = isinstance(value, _TYPES[parameter.type])
    if not is_right or (type(value) is bool and parameter.type != "boolean"):
        raise UsageError(f"{name} is no {parameter.type}: {parameter.words}")
    if parameter.choices and value not in parameter.choices:
        raise UsageError(f"{name} is none of {', '.join(parameter.choices)}")
    if parameter.type == "array" and not value:
        raise UsageError(f"{name} is empty: {parameter.words}")
    if parameter.local and "://" in str(value):
        raise UsageError(f"{name}: which servers are asked is fixed when `raydiag mcp` is started")


def _texts(name: str, value: Any) -> Iterator[str]:
    """Each value as one word of a command line, never an option."""
    for entry in value if type(value) is list else [value]:
        if type(entry) not in (str, int, float):
            raise UsageError(f"{name} holds something that is no text")
        text = str(entry)
        if not text or text.startswith("-") or "\0" in text or len(text) > _LONGEST_TEXT:
            raise UsageError(f"{name}: {text[:80]!r} is empty, too long, or begins with a dash")
        yield text


@cache
def agent_tools() -> Mapping[str, AgentTool]:
    """All tools by name, as `tools.yaml` has them."""
    text = resources.files(__package__).joinpath("tools.yaml").read_text("utf-8")
    tools = {}
    for row in yaml.safe_load(text):
        parameters = {name: Parameter(**fields) for name, fields in row["parameters"].items()}
        tools[row["name"]] = AgentTool(**{**row, "parameters": parameters})
    return tools
