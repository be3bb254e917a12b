"""README and the pages of docs/: their commands are understood, their tables are whole."""

from __future__ import annotations

import ast
import re
import shlex
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from raydiag import catalog, probes
from raydiag.catalog.kernel_table import parse_kernel_events
from raydiag.catalog.signatures import parse_signatures
from raydiag.cli import command_line

REPOSITORY = Path(__file__).parents[2]
DOCUMENTS = sorted(
    [
        *REPOSITORY.joinpath("docs").glob("*.md"),
        *(REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
        *(REPOSITORY / name / "README.md" for name in ("deploy", "examples")),
    ]
)
_BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_MOST_LINES_OF_README = 120


def text_of(document: Path) -> str:
    return document.read_text(encoding="utf-8")


def blocks(document: Path, language: str) -> list[str]:
    """Blocks of code of one language; "" are commands."""
    found = _BLOCK.findall(text_of(document))
    return [textwrap.dedent(body) for _, named, body in found if named == language]


def commands(document: Path) -> Iterator[str]:
    """Each call of raydiag in a block of commands, and between backticks where it has arguments."""
    for block in blocks(document, ""):
        for line in block.splitlines():
            for part in re.split(r"[|;]", line.split(" #")[0]):
                if re.match(r"(\$ )?raydiag ", part.strip()):
                    yield part.strip().removeprefix("$ ")
    prose = _BLOCK.sub("", text_of(document))
    yield from re.findall(r"`(raydiag [a-z][^`]* [^`]*)`", prose)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_commands_are_understood(document: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in commands(document):
        words = shlex.split(command.replace("\n", " "))[1:]
        if words[0] == "help":
            words = [*words[1:], "--help"]
        if {"...", "|"} & set(words) or "[" in command:
            words = [*words[:1], "--help"]  # its usage, not a call
        try:
            command_line().parse_args(words)
        except SystemExit as end:
            assert end.code == 0, (command, capsys.readouterr().err)


def test_some_commands_were_seen() -> None:
    """The test above would pass without any."""
    assert len(list(commands(REPOSITORY / "docs" / "nodes.md"))) > 10
    assert len(list(commands(REPOSITORY / "README.md"))) >= 8


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_targets_of_make_exist(document: Path) -> None:
    named = set(re.findall(r"(?:`|^)make ([a-z-]+)", text_of(document), re.MULTILINE))
    existing = set(re.findall(r"^([a-z-]+):", text_of(REPOSITORY / "Makefile"), re.MULTILINE))
    assert named <= existing


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_python_is_python(document: Path) -> None:
    for block in blocks(document, "python"):
        ast.parse(block)


def test_the_readme_is_short_and_names_every_command() -> None:
    text = text_of(REPOSITORY / "README.md")
    assert len(text.splitlines()) < _MOST_LINES_OF_README
    (choices,) = (row.choices for row in command_line()._actions if row.dest == "command")
    assert choices
    for command in choices:
        assert f"`{command}`" in text, command


def test_its_links_lead_somewhere() -> None:
    for document in (REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md"):
        for target in re.findall(r"\]\(([^)#]+)", text_of(document)):
            assert "://" in target or (REPOSITORY / target).exists(), target


def test_every_probe_is_described() -> None:
    rows = set(re.findall(r"^\| `(\w+)`", text_of(REPOSITORY / "docs" / "nodes.md"), re.MULTILINE))
    assert rows == set(probes.names())


def test_rows_to_copy_are_rows() -> None:
    """What docs/extend.md adds to the tables loads, and finds its own examples."""
    log_row, kernel_row = blocks(REPOSITORY / "docs" / "extend.md", "yaml")
    classes = catalog.failures()
    indented = textwrap.indent(log_row, "  ")
    (signature,) = parse_signatures(f"quotes: ['^#']\nsignatures:\n{indented}", classes).rows
    package = REPOSITORY / "raydiag" / "catalog" / "kernel_events.yaml"
    table = parse_kernel_events(
        text_of(package).replace("\nevents:\n", f"\nevents:\n{kernel_row}\n", 1), classes
    )
    matched = table.match("sitefs: server store7 does not answer")
    assert signature.pattern.search(signature.examples[0])
    assert not signature.pattern.search(signature.near_misses[0])
    assert matched and matched[0].event == "nfs-timeout"
    assert matched[1]["device"] == "store7"
