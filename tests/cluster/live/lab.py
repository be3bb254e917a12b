"""Four simulated hosts, a watched toy training on them, and the questions to raydiag."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.cluster import fake_node, fake_rdma, fuse_hang, namespaces
from tests.cluster.conftest import RAYDIAG, environment
from tests.cluster.fuse_hang import HangingFile
from tests.cluster.live import toy_job
from tests.cluster.simulated_hosts import Cluster, HostSpec
from tests.cluster.watched import RAY_ARGS, Watched

HOSTS = tuple(f"node{number:03}" for number in range(1, 5))
VICTIM = os.environ.get("LAB_VICTIM", "node003")
SAVES, SAVES_BYTES = "/mnt", 4_000_000  # of each host its own
HUNG_GPU = 6  # the one whose counters can be made to hang
FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")
_ADDRESS = ("--address", "http://127.0.0.1:8265")
_START_S, _ANSWER_S = 90.0, 180.0
_RAY = str(Path(sys.executable).with_name("ray"))
_CANCELLED = "slurmstepd: error: *** JOB 88 ON node001 CANCELLED AT {at} ***\n"


def unavailable() -> str:
    """Why the lab cannot be set up here; empty where it can."""
    return (
        namespaces.unavailable()
        or fuse_hang.unavailable()
        or ("" if shutil.which("prometheus") else "no prometheus")
        or ("" if FAKETIME.exists() else f"a clock that is off needs {FAKETIME} (package faketime)")
    )


@dataclass
class Hosts:
    """Four simulated hosts, and what of the victim can be made to fail."""

    cluster: Cluster
    gpus: list[Path]  # of the victim, their directories in its /sys
    counters: HangingFile  # of one GPU of the victim
    data: HangingFile  # a file system of the victim
    clock: Path  # holds the offset of the victim's clock, in seconds


@contextlib.contextmanager
def four_hosts() -> Iterator[Hosts]:
    """Four well hosts, each with eight GPUs, RDMA ports and a quiet kernel log."""
    with contextlib.ExitStack() as stack:
        name = stack.enter_context(tempfile.TemporaryDirectory(prefix="rdlab-"))
        specs, gpus = [], {}
        clock, data = Path(name, "clock"), Path(name, "data")
        clock.write_text("+0\n")
        data.mkdir()
        (data / "index").write_text("0\n")
        for host in HOSTS:
            tree, kmsg = Path(name, f"sys-{host}"), Path(name, f"kmsg-{host}")
            gpus[host] = fake_node.write_amdgpu(tree)
            fake_rdma.write_rdma(tree)
            fake_node.write_kmsg(kmsg, fake_node.quiet_records())
            specs.append(
                HostSpec(
                    host,
                    sys=tree,
                    kmsg=kmsg,
                    tmpfs={SAVES: SAVES_BYTES},
                    ray_args=RAY_ARGS,
                    ray_env=_clock_of(clock) if host == VICTIM else {},
                )
            )
        counters = stack.enter_context(HangingFile(gpus[VICTIM][HUNG_GPU] / "ras"))
        mounted = stack.enter_context(HangingFile(data))
        cluster = stack.enter_context(Cluster(specs, start_deadline_s=240))
        for host in HOSTS:
            if host != VICTIM:
                cluster.unmount(host, data)
        yield Hosts(cluster, gpus[VICTIM], counters, mounted, clock)
        counters.release()
        mounted.release()


def _clock_of(file: Path) -> dict[str, str]:
    return {
        "LD_PRELOAD": str(FAKETIME),
        "FAKETIME_TIMESTAMP_FILE": str(file),
        "FAKETIME_NO_CACHE": "1",
    }


@dataclass(frozen=True)
class Answer:
    """What one command said, and how long it took."""

    way: str
    exit_code: int
    document: dict[str, Any]
    seconds: float
    complaint: str = ""


@dataclass
class Lab:
    """One watched cluster, and the trainings on it."""

    hosts: Hosts
    directory: Path  # the job's: outputs/88-toy, with its log beside it
    watched: Watched
    patient: bool = False  # the driver does not notice that a rank has died
    children: bool = False  # ranks are child processes of Ray's workers
    submitted: list[str] = field(default_factory=list)
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def cluster(self) -> Cluster:
        """The simulated hosts."""
        return self.hosts.cluster

    # ---- the job

    @property
    def steering(self) -> Path:
        """Where the toy job looks for its faults."""
        return self.directory / "steering"

    def submit(self, name: str, *, until_it_steps: bool = True) -> None:
        """Start a training through Ray's Jobs API; as a rule, wait until its ranks make steps."""
        self._ray_job("submit", "--no-wait", "--submission-id", name, "--", *self._argv())
        self.submitted.append(name)
        if until_it_steps:
            self._wait_for_steps()

    def start_alone(self) -> None:
        """Start a training as a plain program on the head, as a batch script does."""
        log = self.log.open("w")
        process = self.cluster.popen_on(
            self.cluster.head, self._argv(), stdout=log, stderr=log, env=environment()
        )
        log.close()
        self.started.append(process)
        self._wait_for_steps()

    def finish(self) -> None:
        """Let the training come to its end, and wait for that."""
        (self.steering / "finish").touch()
        self.wait_for_end()

    def wait_for_end(self, limit_s: float = 60.0) -> None:
        """Until no rank is left. Raises TimeoutError."""
        end = time.monotonic() + limit_s
        while any(self.ranks(host) for host in HOSTS):
            if time.monotonic() > end:
                raise TimeoutError("the training does not end")
            time.sleep(0.5)
        time.sleep(2)  # until Ray's list has it

    def ranks(self, host: str) -> list[int]:
        """Process ids, those of this machine, of the host's ranks."""
        titled = f"ray::{toy_job.TRAINER}"[:15]
        workers = [
            pid for pid in self.cluster.processes(host) if namespaces.comm(pid).startswith(titled)
        ]
        if not self.children:
            return workers
        return [child for worker in workers for child in namespaces.children(worker)]

    def own_pid(self, pid: int) -> int:
        """The number that the host's own processes know it by."""
        status = Path(f"/proc/{pid}/status").read_text()
        (line,) = [line for line in status.splitlines() if line.startswith("NSpid:")]
        return int(line.split()[-1])

    def signal_rank(self, host: str, number: int) -> None:
        """To the rank's own process, not to its threads' children."""
        for pid in self.ranks(host):
            os.kill(pid, number)

    def signal_agent(self, host: str, number: int) -> None:
        """To Ray's dashboard agent of that host."""
        for pid in self.cluster.processes(host):
            if namespaces.comm(pid) == "ray::DashboardAgent"[:15]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    @property
    def log(self) -> Path:
        """The job's log, beside its directory."""
        return self.directory.with_suffix(".log")

    def end_all(self) -> None:
        """Stop whatever still trains, and write the job's log as a scheduler would leave it."""
        is_cut = any(self.ranks(host) for host in HOSTS)
        for host in HOSTS:
            self.signal_agent(host, signal.SIGCONT)
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())
        for name in self.submitted:
            self._ray_job("stop", name, "--no-wait")
        printed = [_printed(self.cluster, name) for name in self.submitted[:1]]
        for process in self.started:
            if process.poll() is None:
                self.cluster.signal(process, signal.SIGTERM)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(20)
        if self.log.exists():
            printed.append(self.log.read_text(errors="replace"))
        self.log.write_text("".join(printed) + (_CANCELLED.format(at=at) if is_cut else ""))
        for host in HOSTS:
            self.signal_rank(host, signal.SIGCONT)
        with contextlib.suppress(TimeoutError):
            self.wait_for_end()

    def _argv(self) -> list[str]:
        self.steering.mkdir(parents=True, exist_ok=True)
        if self.patient:
            (self.steering / "patient").touch()
        if self.children:
            (self.steering / "children").touch()
        places = (self.steering, SAVES, self.hosts.data.directory)
        return [sys.executable, str(Path(toy_job.__file__)), *map(str, places)]

    def _ray_job(self, *arguments: str) -> None:
        argv = [_RAY, "job", *arguments]
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.cluster.run_on(self.cluster.head, argv, env=environment(), timeout=60)

    def _wait_for_steps(self, steps: int = 12) -> None:
        end = time.monotonic() + _START_S
        while self.newest_step() < steps:
            if time.monotonic() > end:
                raise TimeoutError("the training did not begin")
            time.sleep(0.5)

    def steps_end_within(self, limit_s: float, probes: int = 0) -> float | None:
        """Seconds until no step has come for ten seconds; None: they go on. Probes in between."""
        began = stepped = time.monotonic()
        newest = self.newest_step()
        while time.monotonic() - began < limit_s:
            if probes:
                probes -= 1
                self.probe()
            time.sleep(0.5)
            if self.newest_step() not in (newest, -1):
                newest, stepped = self.newest_step(), time.monotonic()
            elif time.monotonic() - stepped > 10:
                return stepped - began
        return None

    def newest_step(self) -> int:
        """Of the newest worker on the last host, by its own file; -1: it has none."""
        logs = self.cluster.directory / HOSTS[-1] / "ray"
        files = sorted(logs.glob("session_2*/logs/worker-*.out"), key=_changed)
        for file in reversed(files):
            text = file.read_text(errors="replace")
            count = text.count("completed step:") + text.count("elapsed time per iteration")
            if count:
                return count - 1 if time.time() - _changed(file) < 3 else -1
        return -1

    # ---- the questions

    def probe(self) -> Answer:
        """What `raydiag probe` says."""
        return self._ask("probe", "probe", *_ADDRESS)

    def diagnose(self) -> Answer:
        """What `raydiag diagnose --address` says."""
        return self._ask("live", "diagnose", *_ADDRESS)

    def diagnose_directory(self) -> Answer:
        """What it says of the job's directory alone."""
        return self._ask("directory", "diagnose", str(self.directory), "--job-state", "ended")

    def _ask(self, way: str, *arguments: str) -> Answer:
        began = time.monotonic()
        done = self.cluster.run_on(
            self.cluster.head,
            [*RAYDIAG, *arguments, "--format", "json"],
            env={**environment(), "PATH": os.environ["PATH"]},
            timeout=_ANSWER_S,
        )
        took_s = time.monotonic() - began
        document = json.loads(done.stdout) if done.stdout else {}
        return Answer(way, done.returncode, document, took_s, done.stderr)


def _changed(path: Path) -> float:
    with contextlib.suppress(OSError):
        return path.stat().st_mtime
    return 0.0


def _printed(cluster: Cluster, name: str) -> str:
    """What Ray kept of a job's output."""
    logs = (cluster.directory / cluster.head / "ray").glob(f"session_2*/logs/job-driver-{name}.log")
    return "".join(path.read_text(errors="replace") for path in logs)


@contextlib.contextmanager
def watched_lab(hosts: Hosts, outputs: Path) -> Iterator[Lab]:
    """A fresh job directory with its own Prometheus; whatever trains ends with it."""
    directory = outputs / "88-toy"
    directory.mkdir(parents=True)
    with Watched(hosts.cluster, directory, str(shutil.which("prometheus"))) as watched:
        lab = Lab(hosts, directory, watched)
        try:
            yield lab
        finally:
            lab.end_all()
