"""The picture in the README: small, and made by one command."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.tsdb import promtool

_CHECKOUT = Path(__file__).parent.parent
_MOST_BYTES = 200_000


def size_in_pixels(picture: Path) -> tuple[int, int]:
    """Of a PNG, by its header."""
    header = picture.read_bytes()[:24]
    assert header[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", header[16:24])
    return width, height


def test_the_readme_shows_a_small_picture() -> None:
    picture = _CHECKOUT / "docs" / "report.png"
    assert "](docs/report.png)" in (_CHECKOUT / "README.md").read_text(encoding="utf-8")
    assert picture.stat().st_size < _MOST_BYTES
    assert size_in_pixels(picture) == (1100, 1610)


@pytest.mark.slow
def test_a_headless_chromium_makes_it(tmp_path: Path) -> None:
    if not (shutil.which("chromium") or shutil.which("chromium-browser")):
        pytest.skip("no chromium on PATH (Debian: apt-get install chromium)")
    if find_spec("matplotlib") is None:
        pytest.skip("the extra `report` is not installed")
    target = tmp_path / "report.png"
    subprocess.run(
        [sys.executable, "tools/screenshot.py", str(target)],
        cwd=_CHECKOUT,
        env={**os.environ, "RAYDIAG_PROMETHEUS": promtool.program("prometheus")},
        check=True,
    )
    assert target.stat().st_size < _MOST_BYTES
    assert size_in_pixels(target) == (1100, 1610)
