"""A live diagnosis on one machine: `python examples/live/run.py [OPTIONS OF raydiag diagnose]`.

Starts a Ray of its own with a dashboard, submits `toy_training.py` to it, waits until the training
has stopped in the middle of a step, and runs `raydiag diagnose` against it. Then it takes
everything away again: no process and no file is left. Other Rays of the machine are not touched.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
from ray.job_submission import JobSubmissionClient

from raydiag import confinement

HERE = Path(__file__).parent
_START_S, _STOP_S = 120.0, 180.0  # on a busy machine; both take some seconds on an idle one
_STOPPED_S = 4.0  # without a new step
_RANKS, _STOPS_AT = 3, 25  # the step in whose middle the last rank stops
_OBJECT_STORE_BYTES = 80 << 20


class NotStarted(Exception):
    """The Ray or the training did not come as far as it should."""


def main(options: Sequence[str]) -> int:
    """Start, plant, diagnose, take away; the exit code of `raydiag diagnose`."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with _own_ray() as url:
            _say(f"a toy training of {_RANKS} ranks runs on {url}; one of them will stop ...")
            _train_until_it_stops(url)
            _say(f"$ raydiag diagnose --address {' '.join([url, *options])}")
            command = [sys.executable, "-m", "raydiag", "diagnose", "--address", url, *options]
            return subprocess.run(command, check=False).returncode
    except NotStarted as error:
        _say(str(error))
        return 4
    except KeyboardInterrupt:
        _say("interrupted")
        return 130


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def _own_ray() -> Iterator[str]:
    """The URL of the dashboard of a Ray that ends with the block, with all that it has started."""
    directory = Path(tempfile.mkdtemp(prefix="rdlive-", dir="/tmp"))  # Ray's socket names are long
    confinement.adopt_orphans(True)  # what loses its parent becomes our child
    try:
        yield _start_ray(directory)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _end_children()
        shutil.rmtree(directory, ignore_errors=True)


def _start_ray(directory: Path) -> str:
    port = _free_port()
    argv = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"]
    argv += ["--port", "0", "--node-ip-address", "127.0.0.1", "--num-cpus", "4"]
    argv += ["--dashboard-host", "127.0.0.1", "--dashboard-port", str(port)]
    argv += ["--dashboard-agent-listen-port", str(_free_port()), "--ray-client-server-port"]
    argv += [str(_free_port())]
    argv += ["--object-store-memory", str(_OBJECT_STORE_BYTES), "--temp-dir", str(directory)]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    with (directory / "ray-start.log").open("w") as log:
        ray = subprocess.Popen(
            argv,
            stdout=log,
            stderr=log,
            env={**kept, "RAY_USAGE_STATS_ENABLED": "0"},
            start_new_session=True,  # Ctrl-C is ours
        )
    url = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + _START_S
    while not _accepts_jobs(url):
        if ray.poll() is not None or time.monotonic() > deadline:
            said = (directory / "ray-start.log").read_text(errors="replace").strip()
            raise NotStarted(f"could not start a Ray: {said[-500:]}")
        time.sleep(0.5)
    return url


def _accepts_jobs(url: str) -> bool:
    with contextlib.suppress(Exception):  # of whatever kind while it starts
        JobSubmissionClient(url).list_jobs()
        return True
    return False


def _free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


def _train_until_it_stops(url: str) -> None:
    client = JobSubmissionClient(url)
    job = _submitted(client)
    deadline = time.monotonic() + _STOP_S
    printed, since = "", time.monotonic()
    while f"completed step: {_STOPS_AT}" not in printed or time.monotonic() - since < _STOPPED_S:
        status = client.get_job_status(job).value
        if status in ("FAILED", "STOPPED") or time.monotonic() > deadline:
            raise NotStarted(f"the toy training ({status}) did not get to its fault:\n{printed}")
        time.sleep(0.5)
        now = client.get_job_logs(job)
        if now != printed:
            printed, since = now, time.monotonic()


def _submitted(client: JobSubmissionClient) -> str:
    """The job's id. A dashboard refuses jobs for some seconds, until its agent is there."""
    deadline = time.monotonic() + _START_S
    entrypoint = f"{sys.executable} {HERE / 'toy_training.py'} {_RANKS} {_STOPS_AT}"
    while True:
        try:
            return str(client.submit_job(entrypoint=entrypoint))
        except (RuntimeError, OSError):
            if time.monotonic() > deadline:
                raise
            time.sleep(1.0)


def _end_children() -> None:
    """First politely, as Ray ends what it has started; a stopped rank needs a kill."""
    children = psutil.Process().children(recursive=True)
    for process in children[:1]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    psutil.wait_procs(children, timeout=5)
    for _ in range(10):  # an orphan that arrives meanwhile is met in the next round
        children = psutil.Process().children(recursive=True)
        for process in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(children, timeout=2)
        if not children:
            return


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
