"""A Ray head node of its own, on loopback alone, that leaves nothing."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from raydiag.cluster.jobs_api import SUBMISSION_PREFIX
from tools.ray_versions.environment import Broken

_START_S, _STOP_S, _LEFT_S, _CALL_S = 150.0, 30.0, 60.0, 60.0
_WORDS = 160
_OURS = ("-m raydiag", "raydiag.cluster", "raydiag.runner", "RaydiagNodeActor")
_LOGS = ("session_latest/logs/dashboard.err", "session_latest/logs/dashboard.log", "start.log")
_TRAINING = """
import time
for step in range(100_000):
    print(f"completed step: {step}, seconds: 0.500, TFLOP/s/device: 310.125, "
          f"Tokens/s/device: 2210.500, total_weights: 65536, loss: 3.125", flush=True)
    time.sleep(0.5)
"""


class RunningRay:
    """The Ray of the environment at `place`: own temporary directory, own ports, own token."""

    def __init__(self, place: Path) -> None:
        self.place = place
        gcs, dashboard, *others = _free_ports(6)
        self.url = f"http://127.0.0.1:{dashboard}"
        self._token = secrets.token_hex(16)
        # Not below `place`: the paths of Ray's sockets must stay below 108 bytes.
        self._directory = Path(tempfile.mkdtemp(prefix="rt-", dir="/tmp"))
        self._argv = [str(place / "bin" / "ray"), "start", "--head", "--block"]
        self._argv += ["--node-ip-address", "127.0.0.1", "--port", str(gcs), "--num-cpus", "2"]
        self._argv += ["--dashboard-host", "127.0.0.1", "--dashboard-port", str(dashboard)]
        self._argv += ["--temp-dir", str(self._directory), "--object-store-memory", "80000000"]
        agents = ("dashboard-agent-listen", "dashboard-agent-grpc", "metrics-export")
        for name, port in zip((*agents, "ray-client-server"), others, strict=True):
            self._argv += [f"--{name}-port", str(port)]

    def environment(self) -> dict[str, str]:
        """For Ray, and for who asks it. A Ray before 2.52 knows no token, and ignores it."""
        ray = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": self._token}
        # On a busy machine Ray's agents take their time, and it ends itself when they are late.
        patience = {"RAY_agent_register_timeout_ms": f"{_START_S * 1000:.0f}"}
        return {**without_ray(), **ray, **patience, "RAY_USAGE_STATS_ENABLED": "0"}

    def __enter__(self) -> RunningRay:
        self._before = set(psutil.Process().children(recursive=True))
        with (self._directory / "start.log").open("wb") as log:
            self._process = subprocess.Popen(
                self._argv, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                env=self.environment(), cwd="/", start_new_session=True,
            )  # fmt: skip
        try:
            self._wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End what was started, each process by its id, and wait for it."""
        self._process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_S)
        end = time.monotonic() + _STOP_S
        while (left := children() - self._before) and time.monotonic() < end:
            for process in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(left, timeout=5)
        shutil.rmtree(self._directory, ignore_errors=True)

    def _wait(self) -> None:
        """Until it takes a job: the agent that starts jobs comes after the Jobs API."""
        end = time.monotonic() + _START_S
        while True:
            try:
                self.call("POST", "/api/jobs/", {"entrypoint": "true", "runtime_env": {}})
                return
            except (OSError, ValueError) as error:
                if self._process.poll() is not None or time.monotonic() > end:
                    raise Broken(f"{self._ended()}: {self._last_words() or error}") from None
            time.sleep(0.5)

    def _ended(self) -> str:
        status = self._process.poll()
        if status is None:
            return f"Ray takes no job within {_START_S:.0f} s"
        return f"Ray does not start, exit {status}"

    def _last_words(self) -> str:
        """Of its dashboard, which is what fails mostly, else of `ray start`."""
        for name in _LOGS:
            with contextlib.suppress(OSError):
                lines = (self._directory / name).read_text("utf-8", "replace").split("\n")
                if words := [line.strip() for line in lines if line.strip()]:
                    return f"{name}: {words[-1][:_WORDS]}"
        return ""

    def call(self, method: str, path: str, body: object = None) -> Any:
        """The reply's JSON. Raises OSError, or ValueError for what is none."""
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with direct.open(request, timeout=_CALL_S) as reply:
            return json.load(reply)

    @contextlib.contextmanager
    def training(self) -> Iterator[None]:
        """A job that prints a step twice a second, while the block runs."""
        program = self._directory / "training.py"
        program.write_text(_TRAINING, encoding="utf-8")
        entrypoint = f"{self.place / 'bin' / 'python'} {program}"
        body = {"entrypoint": entrypoint, "submission_id": "training", "runtime_env": {}}
        try:
            self.call("POST", "/api/jobs/", body)
            self._until(lambda: "step: 5," in self.call("GET", "/api/jobs/training/logs")["logs"])
            yield
        except urllib.error.HTTPError as error:
            raise Broken(f"no training: {error.read()[-_WORDS:]!r}") from None
        except OSError as error:
            raise Broken(f"no training: {error}") from None
        finally:
            with contextlib.suppress(OSError, ValueError):
                self.call("POST", "/api/jobs/training/stop")

    def _until(self, is_so: Callable[[], bool]) -> None:
        end = time.monotonic() + _START_S
        while not is_so():
            if time.monotonic() > end:
                raise Broken("the training prints no step")
            time.sleep(0.5)

    def left_over(self) -> str:
        """What of raydiag's outlasts its work by a minute; empty when nothing does."""
        end = time.monotonic() + _LEFT_S
        while (left := self._ours()) and time.monotonic() < end:
            time.sleep(0.5)
        return left

    def _ours(self) -> str:
        try:
            jobs = self.call("GET", "/api/jobs/")
        except OSError as error:
            return f"what its list of jobs would show: {error}"
        for job in jobs:
            if str(job.get("submission_id")).startswith(SUBMISSION_PREFIX):
                return f"job {job['submission_id']} ({job.get('status')})"
        for process in children():
            with contextlib.suppress(psutil.NoSuchProcess):
                words = " ".join(process.cmdline())
                if process.name().startswith("rd-") or any(mark in words for mark in _OURS):
                    return f"process {words[:60]}"
        return ""


def children() -> set[psutil.Process]:
    """All descendants of this process, orphans of them too (see `confinement.adopt_orphans`)."""
    return set(psutil.Process().children(recursive=True))


def without_ray() -> dict[str, str]:
    """Our environment, without what would lead to another Ray or another raydiag."""
    led = ("RAY_", "PYTHONPATH", "RAYDIAG_")
    return {name: value for name, value in os.environ.items() if not name.startswith(led)}


def _free_ports(count: int) -> list[int]:
    """Free now; all are held until the last is known, so that they differ."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]
