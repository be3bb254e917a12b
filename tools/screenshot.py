"""The picture in the README: an example's HTML report, as a headless Chromium shows it.

    python tools/screenshot.py [FILE]     or: make picture

Needs chromium and prometheus (Debian: apt-get install chromium prometheus), and the extra
`report`, with which Pillow comes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

_CHECKOUT = Path(__file__).parent.parent
_TARGET = _CHECKOUT / "docs" / "report.png"
_EXAMPLE = "oom-host"
_WIDTH, _HEIGHT = 1100, 1610
_COLOURS = 192  # enough for flat shades, a third of the bytes
_MOST_BYTES = 200_000


def take(target: Path) -> None:
    """Write the PNG. Raises SystemExit with what is missing."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        raise SystemExit("there is no chromium on PATH (Debian: apt-get install chromium)")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        page = Path(directory, "report.html")
        report = [sys.executable, "-m", "raydiag", "diagnose", f"examples/{_EXAMPLE}"]
        report += ["--format", "html", "-o", str(page)]
        subprocess.run(report, cwd=_CHECKOUT, check=False)  # 1: it has found the problem
        _shown_by(chromium, page, target)
    Image.open(target).convert("RGB").quantize(_COLOURS).save(target, optimize=True)
    size = target.stat().st_size
    if size > _MOST_BYTES:
        raise SystemExit(f"{target} has {size} bytes, more than {_MOST_BYTES}: show less of it")
    print(f"{target}  {size / 1000:.0f} kB")


def _shown_by(chromium: str, page: Path, target: Path) -> None:
    """Chromium's profile and cache stay in the page's directory."""
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    options += [f"--user-data-dir={page.parent / 'profile'}", "--force-color-profile=srgb"]
    options += [f"--window-size={_WIDTH},{_HEIGHT}", f"--screenshot={target}", page.as_uri()]
    environment = {**os.environ, "HOME": str(page.parent)}
    subprocess.run(
        [chromium, *options], check=True, env=environment, capture_output=True, timeout=120
    )


if __name__ == "__main__":
    take(Path(sys.argv[1]) if len(sys.argv) > 1 else _TARGET)
