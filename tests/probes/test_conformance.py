"""What every probe keeps to, so that adding one touches its own file and its test only."""

from __future__ import annotations

import ast
import dataclasses
import io
import json
import tokenize
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from raydiag import probes, records
from raydiag.errors import ParseError

PACKAGE = Path(probes.__file__).parent
TESTS = Path(__file__).parent
FORBIDDEN_IMPORTS = ("subprocess", "raydiag.catalog", "raydiag.rules")

every_probe = pytest.mark.parametrize("name", probes.names())


def source_of(name: str) -> str:
    return (PACKAGE / f"{name}.py").read_text()


def imports(tree: ast.AST) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def test_there_are_probes() -> None:
    assert {"gpu_sensors", "ras", "versions", "memory", "storage"} <= set(probes.names())


@every_probe
def test_file_is_named_after_its_function(name: str) -> None:
    probe = probes.load(name)
    assert probe.name == name
    assert probe.function.__module__ == f"raydiag.probes.{name}"
    assert probe.timeout_s > 0


@every_probe
def test_docstring_names_the_source(name: str) -> None:
    assert "Source:" in (ast.get_docstring(ast.parse(source_of(name))) or "")


@every_probe
def test_record_is_frozen_with_a_comment_on_every_field(name: str) -> None:
    record = probes.load(name).record
    assert dataclasses.is_dataclass(record)
    assert record.__dataclass_params__.frozen  # type: ignore[attr-defined]  # not in typeshed
    source = source_of(name)
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    commented = {token.start[0] for token in tokens if token.type == tokenize.COMMENT}
    (definition,) = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ClassDef) and node.name == record.__name__
    ]
    fields = [node for node in definition.body if isinstance(node, ast.AnnAssign)]
    assert len(fields) == len(dataclasses.fields(record))
    bare = [ast.unparse(x) for x in fields if not commented & {x.lineno, x.end_lineno}]
    assert bare == []


@every_probe
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_record_survives_json(name: str, data: st.DataObject) -> None:
    record: Any = probes.load(name).record
    value = data.draw(st.builds(record))
    sent = json.dumps(dataclasses.asdict(value))
    try:
        received: Any = records.decode(record, json.loads(sent))
    except ParseError as error:
        assert "is not a number up to" in str(error) or "is not a 64-bit integer" in str(error)
        return
    assert type(received) is record
    assert json.dumps(dataclasses.asdict(received)) == sent


@every_probe
def test_record_is_found_again_by_fields_that_it_has(name: str) -> None:
    probe = probes.load(name)
    assert set(probe.identity) <= {field.name for field in dataclasses.fields(probe.record)}
    assert probe.identity or probe.samples == 1  # else no record of both samples would be paired


# Part of a test's name -> what its body has to mention, where that is a status of its own.
OUTCOMES: dict[str, tuple[str, ...]] = {
    "_ok": (),
    "_no_data": (),  # of some probes an empty answer
    "_denied": ("Denied", "DENIED"),
    "_malformed": (),
}


def can_fail(test: ast.FunctionDef) -> bool:
    """Whether a test asserts something, or expects an exception."""
    for node in ast.walk(test):
        if isinstance(node, ast.Assert) and not isinstance(node.test, ast.Constant):
            return True
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.raises":
            return True
    return False


def covered_outcomes(tree: ast.Module) -> set[str]:
    """The outcomes of a probe that a test file really looks at."""
    covered = set()
    for test in tree.body:
        if not isinstance(test, ast.FunctionDef) or not can_fail(test):
            continue
        body = "\n".join(map(ast.unparse, test.body))
        for outcome, mentions in OUTCOMES.items():
            is_meant = not mentions or any(mention in body for mention in mentions)
            if test.name.startswith("test_") and outcome in test.name and is_meant:
                covered.add(outcome)
    return covered


@every_probe
def test_tests_cover_ok_no_data_denied_and_malformed(name: str) -> None:
    tree = ast.parse((TESTS / f"test_{name}.py").read_text())
    assert OUTCOMES.keys() - covered_outcomes(tree) == set()


@pytest.mark.parametrize("body", ["pass", "assert True", "assert read() == []", "print(Denied)"])
def test_a_test_that_does_not_look_at_the_refusal_does_not_count(body: str) -> None:
    assert covered_outcomes(ast.parse(f"def test_denied(): {body}")) == set()
    real = "def test_denied():\n    with pytest.raises(Denied): read()"
    assert covered_outcomes(ast.parse(real)) == {"_denied"}


@every_probe
def test_probe_measures_only_and_runs_on_python_3_9(name: str) -> None:
    tree = ast.parse(source_of(name), feature_version=(3, 9))
    bad = [
        x for x in imports(tree) if f"{x}.".startswith(tuple(f"{y}." for y in FORBIDDEN_IMPORTS))
    ]
    assert bad == []


@every_probe
def test_files_are_opened_through_host_only(name: str) -> None:
    calls = [
        ast.unparse(x.func) for x in ast.walk(ast.parse(source_of(name))) if isinstance(x, ast.Call)
    ]
    assert [call for call in calls if call in ("open", "os.open", "io.open", "Path")] == []
