"""A call of a tool is what a person would type, and can be nothing else."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from raydiag.cli import _parser
from raydiag.errors import UsageError
from raydiag.mcp.tools import agent_tools

READ_ONLY = {
    "probe", "diagnose", "driver-fault", "triage", "kmsg", "compare", "kpi", "tsdb", "explain",
    "history", "doctor",
}  # fmt: skip


def test_tools_are_commands_that_change_nothing() -> None:
    assert {tool.command[0] for tool in agent_tools().values()} == READ_ONLY


@pytest.mark.parametrize("name", agent_tools())
def test_what_a_tool_types_is_understood(name: str) -> None:
    tool = agent_tools()[name]
    values = {"string": "now", "number": 30, "boolean": True, "array": ["n1", "n2"]}
    arguments: dict[str, Any] = {}
    for parameter_name, parameter in tool.parameters.items():
        arguments[parameter_name] = next(iter(parameter.choices), values[parameter.type])
    for moment in arguments.keys() & {"now", "start", "end"}:
        arguments[moment] = "1780000000"
    jsonschema.Draft202012Validator.check_schema(tool.input_schema())
    jsonschema.validate(arguments, tool.input_schema())
    parser, _ = _parser()
    understood = parser.parse_args(tool.call(arguments).words)
    assert understood.format == "json"
    if name == "probe":
        assert (understood.node, understood.only, understood.deadline) == (
            ["n1", "n2"],
            "n1,n2",
            30,
        )


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("triage", {}, "needs jobs"),
        ("triage", {"jobs": []}, "jobs is empty"),
        ("triage", {"jobs": "41"}, "jobs is no array"),
        ("triage", {"jobs": ["--output=/etc/passwd"]}, "begins with a dash"),
        ("triage", {"jobs": ["-o"]}, "begins with a dash"),
        ("triage", {"jobs": ["a\0b"]}, "begins with a dash"),
        ("triage", {"jobs": [["a"]]}, "no text"),
        ("triage", {"jobs": ["41"], "output": "x"}, "no parameter 'output'"),
        ("triage", {"jobs": ["41"], "job_state": "dead"}, "none of running, ended, auto"),
        ("tsdb_info", {"job": "http://203.0.113.9/"}, "fixed when"),
        ("diagnose", {"job": "x", "prometheus": "http://203.0.113.9/"}, "no parameter"),
        ("probe", {"address": "http://203.0.113.9/"}, "no parameter 'address'"),
        ("probe", {"deadline_s": True}, "deadline_s is no number"),
        ("probe", {"stacks": 1}, "stacks is no boolean"),
    ],
)
def test_calls_that_are_refused(name: str, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        agent_tools()[name].call(arguments)


def test_text_goes_to_stdin() -> None:
    line = agent_tools()["kmsg"].call({"text": "--help"})
    assert (line.stdin, line.words) == ("--help", ["kmsg", "--format", "json", "-"])
