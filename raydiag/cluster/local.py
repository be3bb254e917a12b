"""`--address local`: a throw-away Ray on this machine, for one call.

It shares nothing with any other Ray of this machine or user: its own temp directory (a cluster in
the default one would capture `address="auto"` of everybody else), its own token in its own
environment (Ray would write ~/.ray/auth_token and change later clusters of this user), its own
ports. Afterwards no process and no file of it is left.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Iterator

import psutil

from raydiag.cluster.jobs_api import JobsApi
from raydiag.errors import CannotRun

_OBJECT_STORE_BYTES = 80 << 20  # the least that Ray takes


@contextlib.contextmanager
def throwaway_ray() -> Iterator[JobsApi]:
    """Start Ray, yield its dashboard, and take everything away again. Raises CannotRun."""
    token = secrets.token_hex(32)
    directory = tempfile.mkdtemp(prefix="raydiag-", dir="/tmp")  # short: socket paths have a limit
    before = set(psutil.Process().children(recursive=True))
    saved = dict(os.environ)
    for name in [name for name in os.environ if name.startswith("RAY_")]:
        del os.environ[name]
    os.environ.update(
        RAY_AUTH_MODE="token",
        RAY_AUTH_TOKEN=token,
        RAY_USAGE_STATS_ENABLED="0",
        RAY_enable_metrics_collection="0",
        RAY_DASHBOARD_MAX_ACTORS_TO_CACHE="100",
    )
    try:
        import ray

        yield JobsApi(_start(ray, directory), token)
    finally:
        with contextlib.suppress(NameError):
            ray.shutdown()
        _end_children(before)
        os.environ.clear()
        os.environ.update(saved)
        shutil.rmtree(directory, ignore_errors=True)


def _start(ray: object, directory: str) -> str:
    try:
        context = ray.init(  # type: ignore[attr-defined]
            address="local",
            include_dashboard=True,
            dashboard_host="127.0.0.1",
            dashboard_port=_free_port(),
            num_cpus=1,
            num_gpus=0,
            object_store_memory=_OBJECT_STORE_BYTES,
            _temp_dir=directory,
            log_to_driver=False,
            logging_level="ERROR",
        )
    except Exception as error:
        text = " ".join(str(error).split())[:300]
        raise CannotRun(f"could not start a local Ray: {type(error).__name__}: {text}") from None
    return f"http://{context.dashboard_url}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _end_children(before: set[psutil.Process]) -> None:
    """End what ray.shutdown() may have left of the processes that this call started."""
    left = [p for p in psutil.Process().children(recursive=True) if p not in before]
    _, alive = psutil.wait_procs(left, timeout=3)
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(alive, timeout=3)
