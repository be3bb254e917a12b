"""What jobs of Ray have printed, in the files of the session on this machine."""

import contextlib
import os
from pathlib import Path

_DAY_S = 86400.0
_RAY_PROCESSES = ("gcs_server", "raylet")
_PREFIX, _OURS = "job-driver-", "raydiag-"


def newest(now: float) -> Path | None:
    """Log of the submitted job that printed last, within a day; None where there is none."""
    logs = Path(os.environ.get("RAY_TMPDIR", "/tmp"), "ray", "session_latest", "logs")
    printed: list[tuple[float, Path]] = []
    for path in logs.glob(f"{_PREFIX}*.log"):
        if not submission_id(path).startswith(_OURS) and path.is_file():
            printed.append((path.stat().st_mtime, path))
    changed, path = max(printed, default=(0.0, Path()))
    return path if now - changed < _DAY_S else None


def is_ray_here() -> bool:
    """Whether a process of Ray's own lives on this machine, whatever its dashboard does."""
    for comm in Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if comm.read_text(errors="replace").strip() in _RAY_PROCESSES:
                return True
    return False


def submission_id(path: Path) -> str:
    """The job whose log it is."""
    return path.stem.removeprefix(_PREFIX)
