"""The man pages: one for each command, which man shows without a complaint."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from raydiag.cli import command_line

pytest.importorskip("argparse_manpage", reason="argparse-manpage is not installed")
from tools import man_pages


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return man_pages.write(tmp_path_factory.mktemp("man1"))


def test_every_command_has_a_page(pages: list[Path]) -> None:
    names = {page.name for page in pages}
    (commands,) = (action.choices for action in command_line()._actions if action.dest == "command")
    assert names == {"raydiag.1", *(f"raydiag-{command}.1" for command in commands or ())}


def test_man_shows_them_without_a_complaint(pages: list[Path]) -> None:
    man = shutil.which("man")
    if man is None:
        pytest.skip("there is no man: apt-get install man-db")
    for page in pages:
        command = [man, "--warnings", "-E", "UTF-8", "-l", "-Tutf8", str(page)]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            env={**os.environ, "MANWIDTH": "100", "LC_ALL": "C.UTF-8", "PAGER": "cat"},
            check=True,
        )
        assert done.stderr == "", page.name
        shown = re.sub(".\x08", "", done.stdout)  # letters printed twice are bold
        assert page.name.removesuffix(".1") in shown
        typed = page.name.removesuffix(".1").replace("-", " +", 1)  # justified
        assert re.search(rf"\n {{7}}{typed} +\[-h\]", shown), page.name
    assert "EXAMPLES AND EXIT CODES" in shown
    assert "raydiag demo straggler -o page.html\n" in shown
