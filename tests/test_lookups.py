"""`raydiag explain` and `raydiag schema`: answers without a cluster, a job or a node."""

from __future__ import annotations

import json

import jsonschema
import pytest

from raydiag import catalog
from raydiag.catalog.entries import entry_of
from raydiag.cli import main, schema
from raydiag.render.explain import explain_document
from tests import schemas


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(words) == 0
    return capsys.readouterr().out


def test_explain_says_cause_effect_steps_lines_and_sources(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = printed(capsys, "explain", "gpu-memory-error")
    assert text.startswith("CRITICAL gpu-memory-error  Uncorrectable GPU memory error\n")
    headings = [line for line in text.splitlines() if line.isupper()]
    assert headings == [
        "WHAT CAUSES IT",
        "WHAT IT CAN CAUSE",
        "NEXT STEPS",
        "LINES OF THE KERNEL LOG",
        "SOURCES",
    ]
    assert "1. Let a job that still runs reach its next checkpoint" in text


def test_explain_shows_all_lines_when_asked(capsys: pytest.CaptureFixture[str]) -> None:
    short, whole = (printed(capsys, "explain", *more, "oom-host") for more in ([], ["-v"]))
    assert "forms more" in short and "more" not in whole.splitlines()[-1]
    assert whole.count("\n") > 2 * short.count("\n")


@pytest.mark.parametrize("words", [("xid", "79"), ("79",), ("amdgpu-cper",), ("rccl-hang",)])
def test_explain_in_json_is_of_its_schema(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    document = json.loads(printed(capsys, "explain", *words, "--json"))
    schemas.fits(document, "explain")
    assert (document["schema"], document["findings"]) == ("raydiag.explain/1", [])


def test_what_is_known_of_every_class_is_of_the_schema() -> None:
    for name in catalog.failures():
        document = explain_document(entry_of(name), generated_at=1_780_000_000.0)
        schemas.fits(document, "explain")
        assert document["class"] == name


def test_explain_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "rcl-hang"]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err) == (
        "",
        "raydiag: no class 'rcl-hang'; the nearest is 'rccl-hang'\n",
    )


def test_schema_lists_its_names(capsys: pytest.CaptureFixture[str]) -> None:
    names = printed(capsys, "schema").split()
    assert {"probe", "kmsg", "triage", "diagnose", "explain", "error"} <= set(names)
    assert names == sorted(names)


def test_schema_prints_what_documents_are_held_against(capsys: pytest.CaptureFixture[str]) -> None:
    for name in schema.names():
        printed_schema = json.loads(printed(capsys, "schema", name))
        assert printed_schema["$id"] == f"urn:raydiag:schema:{name}:1"
    of_explain = json.loads(printed(capsys, "schema", "explain"))
    document = json.loads(printed(capsys, "explain", "xid", "48", "--json"))
    jsonschema.validate(document, of_explain)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**document, "kind": "else"}, of_explain)


def test_a_schema_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", "diagnoze"]) == 2
    assert capsys.readouterr().err == "raydiag: no schema 'diagnoze'; did you mean 'diagnose'?\n"
