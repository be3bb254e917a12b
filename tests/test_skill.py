"""The skill for AI agents: every command that it names is one, and its pages are all linked."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from raydiag.cli import _parser

SKILL = Path(__file__).parent.parent / "skills" / "raydiag"
PAGES = sorted(SKILL.glob("*.md"))
_INLINE = re.compile(r"`(raydiag [^`]+)`")


def commands(page: Path) -> list[str]:
    """Those in blocks, and those between backticks that have more than a name."""
    text = page.read_text(encoding="utf-8")
    blocks = text.split("```")[1::2]
    lines = [line for block in blocks for line in block.splitlines()]
    named = [line for line in lines if line.startswith("raydiag ")]
    return named + _INLINE.findall("".join(text.split("```")[::2]))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_are_understood(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parser, _ = _parser()
    for command in commands(page):
        words = shlex.split(command, comments=True)[1:]
        incomplete = words == ["hotfix", "apply"]  # named as what never to do
        try:
            parser.parse_args(words)
        except SystemExit:
            assert incomplete, (command, capsys.readouterr().err)


def test_every_page_has_commands_and_a_link() -> None:
    first_page = (SKILL / "SKILL.md").read_text(encoding="utf-8")
    for page in PAGES:
        assert commands(page), page
        assert page.name == "SKILL.md" or f"({page.name})" in first_page


def test_the_first_page_says_when_to_use_it() -> None:
    head = (SKILL / "SKILL.md").read_text(encoding="utf-8").split("---")[1]
    assert "name: raydiag" in head and "Use when" in head
