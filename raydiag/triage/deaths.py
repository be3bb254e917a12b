"""Jobs that ended without logging an error, and nodes that failed: what can still be said."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from raydiag.joblog.facts import JobFacts, TaskExit
from raydiag.joblog.slurm import SlurmJob
from raydiag.triage.exits import host_of, meaning
from raydiag.triage.tables import TABLES
from raydiag.triage.verdict import Moment
from raydiag.triage.wording import listed

_CLASS_OF_STATE: Mapping[str, str] = TABLES["class_of_state"]
_PROLOG_SIGNAL = "RaisedSignal:53"
_PROLOG_S = 5.0  # a job that the prolog ended has not run longer
_NAMED_HOSTS, _NAMED_CODES = 5, 3  # in sentences


def scheduler_class(job: SlurmJob | None) -> str | None:
    """The failure class that the scheduler's own state for the end means."""
    if job is None or job.alive is not False:
        return None
    return _CLASS_OF_STATE.get(job.state)


def died_in_prolog(facts: JobFacts, job: SlurmJob | None) -> bool:
    """Nothing was ever written: an empty directory, or the scheduler says so."""
    if job is not None and job.reason.startswith(_PROLOG_SIGNAL):
        return (job.run_time_s or 0.0) <= _PROLOG_S
    return facts.resolved.empty_dir and not facts.files


def sentences(facts: JobFacts, moment: Moment) -> Iterator[str]:
    """What speaks for which of the ways to die without a summary."""
    job = moment.scheduler
    was_preempted = job is not None and job.state == "PREEMPTED"
    if was_preempted:
        yield "Slurm preempted the job (state PREEMPTED)."
    elif job is not None and job.alive is False:
        yield _end_sentence(job)
    cut = "" if facts.last_line_complete else ", its last line cut in the middle"
    yield f"The log ends without a summary{cut}: something outside the job ended it."
    if not was_preempted:
        yield "The usual causes are the kernel's out-of-memory killer and preemption."


def _end_sentence(job: SlurmJob) -> str:
    who = "Ray" if job.source.startswith("Ray") else "Slurm"
    sentence = f"{who}: {job.state}"
    exit_meaning = meaning(job.exit_code or None, job.signal)
    if exit_meaning:
        sentence += f", exit {exit_meaning}"
    if job.reason and job.reason != "NonZeroExitCode":
        sentence += f", reason {job.reason}"
    return f"{sentence}."


def node_sentences(exits: Sequence[TaskExit], facts: JobFacts) -> Iterator[str]:
    """Which nodes failed, with which codes; equal codes together."""
    names_of_code: dict[str, dict[str, None]] = {}  # meaning -> names, each once
    for task_exit in exits:
        code = meaning(task_exit.code, task_exit.signal) or "an error"
        names_of_code.setdefault(code, {})[_name(task_exit, facts)] = None
    for code, names in islice(names_of_code.items(), _NAMED_CODES):
        yield f"{listed(names, _NAMED_HOSTS)}: exit {code}."


def _name(task_exit: TaskExit, facts: JobFacts) -> str:
    host = host_of(task_exit, facts)
    if host or task_exit.task is None:
        return host or task_exit.where or "a process"
    return f"task {task_exit.task}"
