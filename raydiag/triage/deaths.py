"""Jobs that ended without a word, and nodes that failed: what can still be said of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Optional

from raydiag.joblog.facts import JobFacts
from raydiag.joblog.failure_facts import TaskExit
from raydiag.joblog.slurm import SlurmJob
from raydiag.triage.exits import meaning
from raydiag.triage.verdict import Moment

# State that the scheduler gives a job that is over -> failure class; others have none of their own.
_BY_STATE = {
    "TIMEOUT": "train-timeout",
    "DEADLINE": "train-timeout",
    "OUT_OF_MEMORY": "oom-host",
    "NODE_FAIL": "node-fail",
    "BOOT_FAIL": "node-fail",
    "CANCELLED": "cancelled",
    "REVOKED": "cancelled",
}
_PROLOG_SIGNAL = "RaisedSignal:53"
_PROLOG_S = 5.0  # a job that the prolog ended has not run longer


def scheduler_class(job: Optional[SlurmJob]) -> Optional[str]:
    """The failure class that the scheduler's own word for the end means."""
    return _BY_STATE.get(job.state) if job is not None and job.alive is False else None


def died_in_prolog(facts: JobFacts, job: Optional[SlurmJob]) -> bool:
    """Nothing was ever written: an empty directory, or the scheduler's word."""
    if job is not None and job.reason.startswith(_PROLOG_SIGNAL):
        return (job.run_time_s or 0.0) <= _PROLOG_S
    return facts.resolved.empty_dir and not facts.files


def sentences(facts: JobFacts, moment: Moment) -> Iterator[str]:
    """What speaks for which of the ways to die without a summary."""
    job = moment.scheduler
    if job is not None and job.state == "PREEMPTED":
        yield "Slurm preempted the job (state PREEMPTED)."
    elif job is not None and job.alive is False:
        told = meaning(job.exit_code or None, job.signal)
        yield f"Slurm: {job.state}{f', exit {told}' if told else ''}{_reason(job)}."
    cut = "" if facts.last_line_complete else ", its last line cut in the middle"
    yield f"The log ends without a summary{cut}: the job was ended from outside."
    if job is None or job.state != "PREEMPTED":
        yield "Most often that is the kernel's out-of-memory killer, or preemption."


def _reason(job: SlurmJob) -> str:
    return f", reason {job.reason}" if job.reason and job.reason != "NonZeroExitCode" else ""


def node_sentences(exits: Sequence[TaskExit], facts: JobFacts) -> Iterator[str]:
    """Which nodes failed, with which codes; equal ones together."""
    by_code: dict[str, list[str]] = {}
    for one in exits:
        host = one.host or (facts.hosts.get(one.task) if one.task is not None else None)
        name = host or (f"task {one.task}" if one.task is not None else one.where or "a process")
        by_code.setdefault(meaning(one.code, one.signal) or "an error", []).append(name)
    for told, names in list(by_code.items())[:3]:
        hosts = list(dict.fromkeys(names))
        more = f" and {len(hosts) - 5} more" if len(hosts) > 5 else ""
        yield f"{', '.join(hosts[:5])}{more}: exit {told}."


def exit_codes(facts: JobFacts) -> dict[int, int]:
    """The exit code by task; the first one that is not 0 counts."""
    index = {host: task for task, host in facts.hosts.items()}
    codes: dict[int, int] = {}
    for one in facts.exits:
        task = one.task if one.task is not None else index.get(one.host or "")
        code = one.code if one.code is not None else 128 + one.signal if one.signal else None
        if task is None or code is None:
            continue
        if codes.get(task, 0) == 0:
            codes[task] = code
    return codes
