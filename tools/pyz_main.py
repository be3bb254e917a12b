"""`raydiag.pyz`: raydiag in one file, without what its commands for clusters and series need."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType
from typing import Optional

_LEFT_OUT = ("numpy", "psutil", "ray", "requests", "shtab")
_OF_NODES = (["exporter", "run"], ["exporter", "once"])  # what runs on Python 3.9 as well
_TOO_OLD = (
    "raydiag.pyz: on Python 3.9 only `exporter run` and `exporter once` work, with no option before"
    " them; all else needs 3.10 or newer: python3.11 raydiag.pyz ..."
)


class _LeftOut(MetaPathFinder):
    """The last to be asked for a module: says what this file lacks, where nothing else has it."""

    def find_spec(
        self, name: str, path: Optional[Sequence[str]], target: Optional[ModuleType] = None
    ) -> None:
        """Raises CannotRun for what was left out."""
        from raydiag.errors import CannotRun

        if name in _LEFT_OUT:
            hint = "install raydiag's wheel for it (`pip install raydiag-*.whl`)"
            text = f"raydiag.pyz leaves out {', '.join(_LEFT_OUT)}, and this command needs {name}"
            raise CannotRun(f"{text}: {hint}")


def _start() -> int:
    """Run the command line; returns the exit code."""
    if sys.version_info < (3, 10):
        sys.orig_argv = [sys.executable, *sys.argv]  # for the watchdog, which starts it again
        if sys.argv[1:3] not in _OF_NODES:
            print(_TOO_OLD, file=sys.stderr)
            return 4
    sys.meta_path.append(_LeftOut())
    import raydiag.__main__  # an early Ctrl-C ends quietly from here on

    return raydiag.cli.main()


if __name__ == "__main__":
    sys.exit(_start())
