"""What Slurm says about a job: squeue, scontrol and sacct, each only where it is installed.

Source: squeue -h -j ID -o '%T|%r', scontrol show job ID, sacct -n -P -X -j ID -o State,...
A controller that does not answer in time says nothing; it is never waited for.
"""

import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from raydiag.joblog.numbers import decimal_number, seconds_of, whole_number
from raydiag.joblog.tables import table

_TIMEOUT_S = 5.0
_JOB_ID = re.compile(r"\d{1,10}(?:_\d{1,7})?")
_FIELD = re.compile(r"(?:^|\s)([A-Za-z]{1,40})=(\S+)")
# The one value with blanks: it goes on until the next field.
_REASON = re.compile(r"\bReason=(.*)")

_STATES: Mapping[str, Sequence[str]] = table("slurm_states")


@dataclass(frozen=True)
class SlurmJob:
    """One job as the scheduler sees it."""

    state: str  # e.g. "RUNNING", "NODE_FAIL"
    reason: str = ""  # e.g. "job requeued in held state", "RaisedSignal:53(Real-time_signal_19)"
    exit_code: int | None = None
    signal: int | None = None
    run_time_s: float | None = None
    restarts: int | None = None
    source: str = "squeue"

    @property
    def alive(self) -> bool | None:
        """True on its nodes, False when over; None while it waits in the queue."""
        if self.state in _STATES["alive"]:
            return True
        return False if self.state in _STATES["ended"] else None

    @property
    def waiting(self) -> bool:
        """In the queue."""
        return self.state in _STATES["waiting"]

    @property
    def held(self) -> bool:
        """Waits until somebody releases it."""
        return self.waiting and ("held" in self.reason.lower() or self.state == "REQUEUE_HOLD")


@dataclass(frozen=True)
class SlurmRun:
    """One attempt of a job; times are Unix seconds."""

    submitted: float  # or requeued
    start: float
    end: float | None  # None: it runs


Run = Callable[[Sequence[str]], str]


def ask(job_id: str | None, run: Run | None = None, name: str | None = None) -> SlurmJob | None:
    """The job's state; None without Slurm, for another kind of id, and when nothing answers.

    With a `name`, a job of another name is another job.
    """
    if not job_id or not _JOB_ID.fullmatch(job_id):
        return None
    run = run or _output
    named = [f"--name={name}"] if name else []
    columns = ["-o", "State,ExitCode,ElapsedRaw,Reason"]
    return (
        _from_scontrol(run(["scontrol", "show", "job", job_id]), name)
        or _from_squeue(run(["squeue", "-h", "-j", job_id, *named, "-o", "%T|%r"]))
        or _from_sacct(run(["sacct", "-n", "-P", "-X", "-j", job_id, *named, *columns]))
    )


def runs_of(job_id: str | None, run: Run | None = None) -> list[SlurmRun]:
    """The attempts of a job, oldest first; empty without Slurm's accounting."""
    if not job_id or not _JOB_ID.fullmatch(job_id):
        return []
    seconds = ["env", "SLURM_TIME_FORMAT=%s"]
    columns = ["-o", "Submit,Start,End"]
    text = (run or _output)([*seconds, "sacct", "-n", "-P", "-D", "-X", "-j", job_id, *columns])
    runs = []
    for line in text.splitlines():
        submitted, start, end = (*map(decimal_number, line.split("|")[:3]), None, None, None)[:3]
        if submitted is not None and start is not None:
            runs.append(SlurmRun(submitted, start, end))
    return sorted(runs, key=lambda slurm_run: slurm_run.start)


def _output(command: Sequence[str]) -> str:
    """What a command prints; empty when it is missing, fails or takes too long."""
    program = shutil.which(command[0])
    if program is None:
        return ""
    try:
        answer = subprocess.run(
            [program, *command[1:]],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    if answer.returncode != 0:
        return ""
    return answer.stdout.decode(errors="replace")


def _from_squeue(text: str) -> SlurmJob | None:
    for line in text.splitlines():
        state, _, reason = line.strip().partition("|")
        if state.isupper():
            return SlurmJob(state, _without_none(reason), source="squeue")
    return None


def _from_scontrol(text: str, name: str | None) -> SlurmJob | None:
    fields = dict(_FIELD.findall(text))
    if "JobState" not in fields or (name and fields.get("JobName") != name):
        return None
    code, signal = _exit(fields.get("ExitCode", ""))
    return SlurmJob(
        state=fields["JobState"],
        reason=_without_none(_scontrol_reason(text)),
        exit_code=code,
        signal=signal,
        run_time_s=seconds_of(fields.get("RunTime", "")),
        restarts=whole_number(fields.get("Restarts")),
        source="scontrol",
    )


def _scontrol_reason(text: str) -> str:
    match = _REASON.search(text)
    if not match:
        return ""
    reason = match[1].partition(" Dependency=")[0].strip()
    return reason.replace("_", " ") if "held" in reason else reason


def _from_sacct(text: str) -> SlurmJob | None:
    """The newest record: a requeued job has one for each attempt."""
    records = [line.split("|") for line in text.splitlines() if line.count("|") >= 3]
    if not records:
        return None
    state, exit_code, elapsed, reason = records[-1][:4]
    words = state.split()  # "CANCELLED by 1001"
    if not words:
        return None
    code, signal = _exit(exit_code)
    return SlurmJob(
        state=words[0],
        reason=_without_none(reason),
        exit_code=code,
        signal=signal,
        run_time_s=decimal_number(elapsed),
        restarts=len(records) - 1,
        source="sacct",
    )


def _without_none(reason: str) -> str:
    """Slurm prints None for no reason."""
    return "" if reason == "None" else reason


def _exit(text: str) -> tuple[int | None, int | None]:
    """`137:0` as code and signal."""
    code, _, signal = text.partition(":")
    return whole_number(code), whole_number(signal) or None
