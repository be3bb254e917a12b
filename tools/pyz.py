"""Build `raydiag.pyz`: what of raydiag needs no Ray, in one file that any Python runs.

    python tools/pyz.py [FILE]

It holds the package, its entrypoints, and PyYAML without its compiled part.
"""

from __future__ import annotations

import shutil
import sys
import zipapp
from importlib.metadata import distribution
from pathlib import Path
from tempfile import TemporaryDirectory

_CHECKOUT = Path(__file__).parent.parent


def build(target: Path) -> None:
    """Write the file, executable."""
    with TemporaryDirectory() as directory:
        content = Path(directory)
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(_CHECKOUT / "raydiag", content / "raydiag", ignore=ignore)
        shutil.copytree(
            _CHECKOUT / "entrypoints", content / "raydiag" / "entrypoints", ignore=ignore
        )
        shutil.copy(_CHECKOUT / "LICENSE", content)
        shutil.copy(_CHECKOUT / "tools" / "pyz_main.py", content / "__main__.py")
        for file in distribution("pyyaml").files or ():
            if (file.parts[0] == "yaml" and file.suffix == ".py") or file.name == "LICENSE":
                place = content / file
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(str(file.locate()), place)
        target.parent.mkdir(parents=True, exist_ok=True)
        zipapp.create_archive(content, target, "/usr/bin/env python3", compressed=True)
    target.chmod(0o755)


if __name__ == "__main__":
    build(Path(sys.argv[1] if len(sys.argv) > 1 else "dist/raydiag.pyz"))
