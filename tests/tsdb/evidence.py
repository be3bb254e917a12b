"""What a directory tree is made of, to see that nobody has touched it."""

from __future__ import annotations

import hashlib
from pathlib import Path


def digest(root: Path) -> dict[str, tuple[int, int, int, int, int, str]]:
    """Mode, owner, links, size, mtime and content of everything below and including `root`."""
    found = {}
    for path in [root, *sorted(root.rglob("*"))]:
        status = path.lstat()
        content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        found[str(path.relative_to(root))] = (
            *(status.st_mode, status.st_uid, status.st_nlink, status.st_size, status.st_mtime_ns),
            content,
        )
    return found
