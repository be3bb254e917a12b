"""Try raydiag on old and new Rays, for real, and write what was seen into docs/compatibility.md.

    python -m tools.ray_versions                  the usual list; or: make ray-table
    python -m tools.ray_versions 2.46.0:3.13 ...  these alone; the other rows stay

Each Ray is installed from PyPI into a directory below .cache and removed afterwards. Pythons are
those that uv finds, or pyenv has. Some minutes each, most of them Ray's.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

from raydiag import __version__, confinement
from tools.ray_versions.checks import CHECKS, REPOSITORY, Outcome, Trial
from tools.ray_versions.environment import Broken, Combination, answer
from tools.ray_versions.page import with_rows

USUAL = (
    "2.9.3:3.9", "2.9.3:3.11", "2.20.0:3.10", "2.31.0:3.12", "2.34.0:3.9", "2.40.0:3.12",
    "2.44.1:3.11", "2.46.0:3.13", "2.49.2:3.9", "2.52.1:3.10", "2.55.1:3.13", "2.60.0:3.12",
)  # fmt: skip
_WORKPLACE = REPOSITORY / ".cache" / "ray-table"
_PAGE = REPOSITORY / "docs" / "compatibility.md"


def main() -> int:
    """Exit code 1 when something of a combination does not work."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("combination", nargs="*", default=USUAL, help="RAY:PYTHON")
    parser.add_argument("--only", action="append", choices=CHECKS, help="these checks alone")
    arguments = parser.parse_args()
    combinations = [Combination(*words.split(":")) for words in arguments.combination]
    confinement.adopt_orphans(True)  # so that nothing that a Ray starts slips away
    wheel = _wheel()
    outcomes = [
        _tried(combination, wheel, arguments.only or CHECKS) for combination in combinations
    ]
    return int(not all(outcome.is_well for outcome in outcomes))


def _tried(combination: Combination, wheel: Path, only: Sequence[str]) -> Outcome:
    started = time.monotonic()

    def say(words: str) -> None:
        elapsed_s = time.monotonic() - started
        print(f"{combination}: {elapsed_s:.0f} s: {words}", file=sys.stderr, flush=True)

    place = _WORKPLACE / f"{combination.ray}-{combination.python}"
    outcome = Trial(combination, place, say, only).run(wheel)
    words = ", ".join(f"{name}: {outcome.checks[name]}" for name in CHECKS)
    print(f"{combination}: {words}", flush=True)
    if not outcome.was_tried:
        return outcome
    # At once: a run that is broken off keeps what it has seen.
    today = datetime.now(timezone.utc).date().isoformat()
    page = with_rows(
        _PAGE.read_text(encoding="utf-8"), [outcome], f"raydiag {__version__}, {today}"
    )
    _PAGE.write_text(page, encoding="utf-8")
    return outcome


def _wheel() -> Path:
    """This checkout's, for the Pythons that the command runs on."""
    directory = _WORKPLACE / "wheel"
    try:
        answer(
            ["uv", "build", "--quiet", "--wheel", "--out-dir", str(directory), str(REPOSITORY)], 300
        )
    except Broken as error:
        raise SystemExit(f"no wheel: {error}") from None
    return max(directory.glob("raydiag-*.whl"), key=lambda path: path.stat().st_mtime)


if __name__ == "__main__":
    raise SystemExit(main())
