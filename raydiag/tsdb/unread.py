"""Why a file of a job's directory could not be read."""

from __future__ import annotations

from pathlib import Path
from typing import Union

from raydiag.model import Status, Unread


def unread_file(path: Union[str, Path], error: OSError) -> Unread:
    """What `coverage.unread` says of it."""
    status = Status.DENIED if isinstance(error, PermissionError) else Status.ERROR
    return Unread(str(path), status, error.strerror or str(error))
