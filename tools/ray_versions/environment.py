"""One Ray on one Python, installed in a directory of its own.

Ray comes with what was on PyPI a month after its release, as on a cluster of that time: an old Ray
fails on today's versions of what it needs.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import urllib.request
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

_OLDEST_CALLER = (3, 10)
_SETTLED = timedelta(days=30)
_INSTALL_S, _WORDS = 600.0, 200
_LISTING = "application/vnd.pypi.simple.v1+json"


class Broken(Exception):
    """What did not work, in a line."""


@dataclass(frozen=True)
class Combination:
    """A Ray and the Python that it runs on."""

    ray: str  # "2.46.0"
    python: str  # "3.12"

    def __str__(self) -> str:
        return f"Ray {self.ray} on Python {self.python}"

    @property
    def runs_the_command(self) -> bool:
        """Whether raydiag's command runs on that Python too, not its probes alone."""
        return self.python_release >= _OLDEST_CALLER

    @property
    def python_release(self) -> tuple[int, ...]:
        """(3, 12)."""
        return tuple(map(int, self.python.split(".")))


def installed(combination: Combination, place: Path, wheel: Path) -> str:
    """Make the environment at `place`; returns its Python's whole version. Raises Broken."""
    shutil.rmtree(place, ignore_errors=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    interpreter = _interpreter(combination.python)
    _uv("venv", "--quiet", "--no-python-downloads", "--python", interpreter, str(place))
    python = str(place / "bin" / "python")
    ray = f"ray[default]=={combination.ray}"
    into = ("pip", "install", "--quiet", "--python", python)
    limit = (_released(combination.ray) + _SETTLED).date().isoformat()
    _uv(*into, "--exclude-newer", limit, ray, "setuptools")  # which an old Ray imports
    if combination.runs_the_command:
        _uv(*into, str(wheel), ray)
    return answer([python, "-c", "import platform; print(platform.python_version())"])


def _interpreter(version: str) -> str:
    """One of pyenv's, or what uv knows of. Raises Broken without one."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    candidates = [str(path) for path in pyenv.glob(f"{version}.*/bin/python{version}")]
    with contextlib.suppress(Broken):
        candidates.append(answer(["uv", "python", "find", "--no-python-downloads", version]))
    for candidate in candidates:
        with contextlib.suppress(Broken):
            answer([candidate, "-c", "import ssl, sqlite3"])
            return candidate
    raise Broken(f"there is no Python {version} here: uv python install {version}")


def _released(ray: str) -> datetime:
    """When that Ray came to PyPI. Raises Broken."""
    request = urllib.request.Request("https://pypi.org/simple/ray/", headers={"Accept": _LISTING})
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            files = json.load(reply)["files"]
    except (OSError, ValueError) as error:
        raise Broken(f"PyPI tells nothing of Ray: {error}") from None
    times = [file["upload-time"] for file in files if file["filename"].startswith(f"ray-{ray}-")]
    if not times:
        raise Broken(f"PyPI has no Ray {ray}")
    return datetime.fromisoformat(min(times).replace("Z", "+00:00"))


def _uv(*arguments: str) -> None:
    answer(["uv", *arguments], limit_s=_INSTALL_S)


def answer(argv: list[str], limit_s: float = 60.0) -> str:
    """What a command printed. Raises Broken with its last words."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=limit_s, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Broken(f"{argv[0]}: {error}") from None
    if done.returncode:
        raise Broken(f"{argv[0]}: {' '.join(done.stderr.split())[-_WORDS:]}")
    return done.stdout.strip()
