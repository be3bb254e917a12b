"""`--address local`: a temporary Ray on this machine, for one call.

It shares nothing with any other Ray of this machine or user: its own temp directory (a cluster in
the default one would capture `address="auto"` of everybody else), its own token in its own
environment (Ray would write ~/.ray/auth_token and change later clusters of this user), its own
ports. Afterwards no process and no file of it is left.

There is no dashboard, whose agent wants a fixed port that another Ray of the machine may hold, and
which takes most of the time that Ray needs to start. So the job is a child process of ours instead
of a submission; everything after that is the same.
"""

import contextlib
import importlib
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Optional

import psutil

from raydiag import confinement, environment
from raydiag.cluster.interrupts import handle, undisturbed
from raydiag.cluster.jobs_api import PrintedLog
from raydiag.errors import CannotRun
from raydiag.memory_import import STORE
from raydiag.model import Actor

_OBJECT_STORE_BYTES = 80 << 20  # the least that Ray takes
_PATIENCE_S = 5.0
_LONGEST_PARENT = 24


class LocalRay:
    """What `collect` asks of a cluster, for one that has no dashboard."""

    url = "local"

    def __init__(self, ray: Any, directory: Path) -> None:
        self._ray = ray
        self._log = directory / "job.log"
        self._job: Optional[subprocess.Popen[bytes]] = None
        self.limit = 0.0  # calls do not block here

    def version(self) -> dict[str, Any]:
        """{"ray_version", "session_name"}."""
        return {"ray_version": self._ray.__version__, "session_name": self._directory_name()}

    def token_is_needed(self) -> None:
        """There is no dashboard to ask."""

    def _directory_name(self) -> str:
        """Ray calls the session as it calls its directory."""
        return os.path.basename(os.path.realpath(self._log.with_name("session_latest")))

    def upload(self, name: str, content: bytes) -> None:
        """Put a package of ours into the control store."""
        from ray.experimental import internal_kv

        internal_kv._internal_kv_put(f"{STORE}{name}", content)

    def submit(self, entrypoint: str, submission_id: str, metadata: Mapping[str, str]) -> None:
        """Start the job, as Ray would: a shell with its own session, all output in one log."""
        address = self._ray.get_runtime_context().gcs_address
        with self._log.open("wb") as log:
            self._job = subprocess.Popen(
                ["sh", "-c", entrypoint],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "RAY_ADDRESS": address},
                start_new_session=True,
            )

    def head_time(self) -> float:
        """This machine is the head."""
        return time.time()

    def job(self, submission_id: str) -> dict[str, Any]:
        """Its status in the Jobs API's words."""
        code = None if self._job is None else self._job.poll()
        if code is None:
            return {"status": "RUNNING", "message": ""}
        return {"status": "FAILED" if code else "SUCCEEDED", "message": f"exit status {code}"}

    def logs(self, submission_id: str) -> str:
        """Everything the job has printed so far."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def printed(self, submission_id: str) -> PrintedLog:
        """As `logs`."""
        return PrintedLog(self.logs(submission_id))

    def stop(self, submission_id: str) -> None:
        """End the job; it is a child of ours."""
        if self._job is not None:
            self._job.terminate()

    def jobs(self) -> list[dict[str, Any]]:
        """No job but ours runs here."""
        return []

    def delete(self, submission_id: str) -> None:
        """Nothing remembers a job here."""

    forget = delete

    def check_head(self) -> None:
        """It is ours, and just started."""

    def node_ends(self) -> dict[str, float]:
        """The only node lives."""
        return {}

    def actors(self) -> list[Actor]:
        """No actor but ours lives here."""
        return []


@contextlib.contextmanager
def throwaway_ray() -> Iterator[LocalRay]:
    """Start Ray, yield it, and take everything away again. Raises CannotRun."""
    parent = tempfile.gettempdir()
    # The paths of Ray's sockets must stay below 108 bytes.
    short = parent if len(parent) <= _LONGEST_PARENT else "/tmp"
    directory = Path(tempfile.mkdtemp(prefix="raydiag-", dir=short))
    before = set(psutil.Process().children(recursive=True))
    saved = dict(os.environ)
    kept = environment.named()
    os.environ.clear()  # Ray's processes inherit it
    os.environ.update({name: kept[name] for name in kept if not name.startswith("RAY_")})
    os.environ.update(
        RAY_AUTH_MODE="token",
        RAY_AUTH_TOKEN=secrets.token_hex(32),
        RAY_USAGE_STATS_ENABLED="0",
    )
    # What loses its parent becomes our child, so that nothing of it can slip away.
    confinement.adopt_orphans(True)
    ray = None
    try:
        ray = _disconnected_ray()
        _read_token_again()
        _start(ray, directory)
        yield LocalRay(ray, directory)
    finally:
        with undisturbed():
            if ray is not None:
                ray.shutdown()
            _end_children(before)
            confinement.adopt_orphans(False)
            os.environ.clear()
            os.environ.update(saved)
            if ray is not None:
                _read_token_again()
            shutil.rmtree(directory, ignore_errors=True)


def _disconnected_ray() -> Any:
    """The module, where this process uses no Ray; what a program does with its own is not ended."""
    import ray

    if ray.is_initialized():
        raise CannotRun(
            "could not start a local Ray: this process is connected to another one: "
            "give that one's address, or call ray.shutdown() first"
        )
    return ray


def _read_token_again() -> None:
    """Let Ray forget the token it has read: it does so once a process, and each Ray has its own."""
    raylet: Any = importlib.import_module("ray._raylet")
    if hasattr(raylet, "AuthenticationTokenLoader"):  # before 2.52 Ray asks for no token
        raylet.Config.initialize("")
        raylet.AuthenticationTokenLoader.instance().reset_cache()


def _start(ray: Any, directory: Path) -> None:
    handler = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(
            address="local",
            include_dashboard=False,
            num_cpus=1,
            num_gpus=0,
            object_store_memory=_OBJECT_STORE_BYTES,
            _temp_dir=str(directory),
            log_to_driver=False,
            logging_level="ERROR",
        )
    except Exception as error:
        text = " ".join(str(error).split())[:300]
        raise CannotRun(f"could not start a local Ray: {type(error).__name__}: {text}") from None
    finally:
        handle(signal.SIGTERM, handler)  # ray.init installs its own


def _end_children(before: set[psutil.Process]) -> None:
    """End what ray.shutdown() may have left of the processes that this call started."""
    patience_s = _PATIENCE_S
    for _ in range(10):  # an orphan that arrives while we wait is met in the next round
        remaining = [
            process
            for process in psutil.Process().children(recursive=True)
            if process not in before
        ]
        if not remaining:
            return
        _, alive = psutil.wait_procs(remaining, timeout=patience_s)
        patience_s = 1.0
        for process in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
