"""Files with tokens or addresses that nobody else may read."""

from __future__ import annotations

import os
import stat

from raydiag.errors import UsageError

_MOST_BYTES = 1 << 16


def private_lines(option: str, path: str) -> list[str]:
    """Its lines that are neither empty nor a comment. Raises UsageError, also where others read."""
    from raydiag.untrusted import regular

    try:
        with open(path, encoding="utf-8", opener=regular) as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(_MOST_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{option} {path}: {getattr(error, 'strerror', 'no text')}") from None
    if stat.S_IMODE(mode) & 0o077:
        raise UsageError(f"{option} {path}: others can read it: chmod 600 {path}")
    lines = [line.strip() for line in text.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]
