"""What every test may use."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

# Where `make test` puts Debian's prometheus and promtool, when the machine has none.
_PROMETHEUS = Path(__file__).parents[1] / ".cache" / "prometheus" / "usr" / "bin"
if not shutil.which("promtool") and _PROMETHEUS.is_dir():
    os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", ""), str(_PROMETHEUS)])


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update", action="store_true", help="rewrite the golden files")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden(name, text)`: text is that of golden/<name> beside the test; `--update` writes it."""

    def check(name: str, text: str) -> None:
        path = Path(request.path).parent / "golden" / name
        if request.config.getoption("--update"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert text == path.read_text(encoding="utf-8")

    return check
