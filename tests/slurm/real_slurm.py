"""A real Slurm of two nodes on this machine's loopback, from Debian's packages, not installed.

All of it ends with the test: munged, slurmctld, a slurmd for each node. Before and after each job
the prolog and the epilog of deploy/ run, and leave a file behind that says so.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.loopback_sshd import free_port

ROOT = Path(__file__).parents[2]
PACKAGES = ROOT / ".cache" / "slurm"
NODES = ("n1", "n2")
_LIBRARIES = PACKAGES / "usr/lib/x86_64-linux-gnu"
_PLUGINS = _LIBRARIES / "slurm-wlm"
_COMMANDS = ("sbatch", "scancel", "scontrol", "sinfo", "squeue", "srun", "sacct")
_START_S, _JOB_S = 30.0, 90.0
_CONFIGURATION = """\
ClusterName=lab
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmctldPort={controller_port}
AuthType=auth/munge
AuthInfo=socket={directory}/munge/socket
PluginDir={plugins}
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool-%n
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MailProg=/bin/true
ReturnToService=2
Prolog={directory}/prolog.d/*
Epilog={directory}/epilog.d/*
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={port_1} CPUs=2 State=UNKNOWN
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={port_2} CPUs=2 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def unavailable() -> str:
    """Why no Slurm can be had here; empty where it can."""
    if os.geteuid() != 0:
        return "a Slurm of the test's own needs root"
    if not (PACKAGES / "complete").exists():
        return "no Slurm: .ci/fetch-slurm .cache/slurm could not get it"
    return ""


class Slurm:
    """The daemons, and commands that talk to them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.outputs = directory / "work" / "outputs"

    @property
    def environment(self) -> dict[str, str]:
        """For commands: Slurm's programs and this checkout's raydiag come first."""
        own = {
            "PATH": f"{self.directory}/bin:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "SLURM_CONF": str(self.directory / "slurm.conf"),
            "PYTHONPATH": str(ROOT),
        }
        return {**os.environ, **own}

    def run(self, *argv: str, code: int | None = 0) -> str:
        """What a command in the work directory prints; `code` None: whatever it exits with."""
        done = subprocess.run(
            argv,
            cwd=self.outputs.parent,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert code in (None, done.returncode), f"{argv}: {done.returncode}: {done.stderr}"
        return done.stdout

    def submit(self, script: str, *options: str) -> str:
        """The id of a new batch job, whose log is outputs/<id>-llama.log."""
        path = self.outputs.parent / "job.sh"
        path.write_text(f"#!/bin/bash\n{script}")
        named = ("--job-name=llama", "--output=outputs/%j-llama.log", "--open-mode=append")
        return self.run("sbatch", "--parsable", *named, *options, str(path)).strip()

    def log(self, job: str) -> Path:
        """The job's log."""
        return self.outputs / f"{job}-llama.log"

    def printed(self, job: str) -> str:
        """What the log has so far; it begins some time after the job."""
        path = self.log(job)
        return path.read_text() if path.exists() else ""

    def state(self, job: str) -> str:
        """E.g. "RUNNING"."""
        fields = self.run("scontrol", "show", "job", job).split()
        return next(field[9:] for field in fields if field.startswith("JobState="))

    def wait_for(self, job: str, *states: str) -> str:
        """Until the job is in one of these. Raises TimeoutError."""
        end = time.monotonic() + _JOB_S
        while (state := self.state(job)) not in states:
            if time.monotonic() > end:
                raise TimeoutError(
                    f"job {job} is {state}: {self.run('scontrol', 'show', 'job', job)}"
                )
            time.sleep(0.3)
        return state

    def node_states(self) -> dict[str, str]:
        """E.g. {"n1": "idle", "n2": "drained"}; the asterisk of a late daemon is left out."""
        lines = self.run("sinfo", "-h", "-N", "-o", "%N %T").replace("*", "").splitlines()
        return dict(line.split() for line in lines)

    def node_reason(self, node: str) -> str:
        """Why it was drained."""
        return self.run("sinfo", "-h", "-n", node, "-o", "%E").strip()


@contextlib.contextmanager
def running(directory: Path) -> Iterator[Slurm]:
    """A Slurm that answers, with both nodes idle. Raises TimeoutError."""
    slurm = Slurm(directory)
    _lay_out(slurm)
    with contextlib.ExitStack() as stack:
        for daemon in _daemons(directory):
            stack.enter_context(_started(slurm, daemon))
        end = time.monotonic() + _START_S
        while set(_states_or_none(slurm)) != {"idle"}:
            if time.monotonic() > end:
                logs = [path.read_text()[-800:] for path in sorted(directory.glob("*.out"))]
                raise TimeoutError("\n".join(logs))
            time.sleep(0.3)
        yield slurm


def _states_or_none(slurm: Slurm) -> list[str]:
    lines = slurm.run("sinfo", "-h", "-N", "-o", "%T", code=None).split()
    return lines if len(lines) == len(NODES) else []


def _lay_out(slurm: Slurm) -> None:
    directory = slurm.directory
    slurm.outputs.mkdir(parents=True)
    for name in ("state", "bin", "prolog.d", "epilog.d", "munge", *(f"spool-{n}" for n in NODES)):
        (directory / name).mkdir()
    (directory / "munge").chmod(0o755)
    key = directory / "munge.key"
    key.write_bytes(os.urandom(64))
    key.chmod(0o400)
    ports = {"controller_port": free_port(), "port_1": free_port(), "port_2": free_port()}
    text = _CONFIGURATION.format(
        host=socket.gethostname().partition(".")[0],
        directory=directory,
        plugins=_PLUGINS,
        **ports,
    )
    (directory / "slurm.conf").write_text(text)
    for kind in ("prolog", "epilog"):
        scripts = directory / f"{kind}.d"
        (scripts / "1").symlink_to(ROOT / "deploy/slurm" / f"{kind}.sh")
        (scripts / "2").write_text(f"#!/bin/sh\ntouch {directory}/{kind}-ran\n")
        (scripts / "2").chmod(0o755)
    for name in _COMMANDS:
        # Raydiag's children get no LD_LIBRARY_PATH, nor should they.
        wrapper = directory / "bin" / name
        program = shlex.quote(str(PACKAGES / "usr/bin" / name))
        wrapper.write_text(f'#!/bin/sh\n{_libraries()} exec {program} "$@"\n')
        wrapper.chmod(0o755)


def _libraries() -> str:
    return f"LD_LIBRARY_PATH={shlex.quote(f'{_LIBRARIES}:{_PLUGINS}')}"


def _daemons(directory: Path) -> Iterator[tuple[str, list[str]]]:
    programs = PACKAGES / "usr/sbin"
    munge = ["--foreground", "--force", "--key-file", str(directory / "munge.key")]
    for option, name in (
        ("--socket", "munge/socket"),
        ("--pid-file", "munge/pid"),
        ("--seed-file", "munge/seed"),
        ("--log-file", "munged.log"),
    ):
        munge += [option, str(directory / name)]
    configured = ["-D", "-f", str(directory / "slurm.conf")]
    yield "munged", [str(programs / "munged"), *munge]
    yield "slurmctld", [str(programs / "slurmctld-wlm"), *configured]
    stepd = str(programs / "slurmstepd-wlm")
    for node in NODES:
        yield f"slurmd-{node}", [str(programs / "slurmd-wlm"), "-N", node, "-d", stepd, *configured]


@contextlib.contextmanager
def _started(slurm: Slurm, daemon: tuple[str, Sequence[str]]) -> Iterator[None]:
    name, argv = daemon
    libraries = {"LD_LIBRARY_PATH": f"{_LIBRARIES}:{_PLUGINS}"}
    with (slurm.directory / f"{name}.out").open("w") as log:
        process = subprocess.Popen(
            argv, stdout=log, stderr=log, env={**slurm.environment, **libraries}
        )
    try:
        if name == "munged":
            end = time.monotonic() + _START_S
            while not (slurm.directory / "munge/socket").exists() and time.monotonic() < end:
                time.sleep(0.1)
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(15)
