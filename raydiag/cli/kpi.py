"""`raydiag kpi`: how much of a job's time was training that was kept.

examples:
  raydiag kpi 7877                            all attempts of a job, by its logs
  raydiag kpi outputs/7877-llama 7901         several jobs, and their sum
  raydiag kpi --outputs /data/outputs         all jobs there
  raydiag kpi --events events.jsonl --step-seconds 8.0

efficiency = productive time / wall time of all attempts and of the time between them.
Productive is the time of steps that were kept, at the job's usual pace. A step is kept when a
save holds it, when the next attempt goes on after it, or when the job completed or still runs.

An event file has a JSON object a line: event_type (job_started, checkpoint_loaded,
checkpoint_saved, job_terminated), timestamp, step of a checkpoint, job_name.

exit codes:
  0 the figures are there    2 usage    3 those of some job are not known    4 no such job
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from raydiag.cli import options, triage, values
from raydiag.errors import CannotRun, RaydiagError, UsageError

if TYPE_CHECKING:
    from raydiag.joblog.facts import Resolved
    from raydiag.watch.efficiency import JobEfficiency

HELP = "training-time efficiency of jobs over all their attempts, and where the rest went"
_STEP_LIMITS_S = (1e-6, 1e6)
REMARK = " Needs neither Ray nor a GPU."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    words = "job directory, log file or job id"
    parser.add_argument("jobs", nargs="*", metavar="PATH|JOBID", help=words)
    words = "where to look up job ids (default: outputs); without a job, all jobs there"
    parser.add_argument("--outputs", metavar="DIR", help=words)
    words = "an event file, instead of logs; may be given several times"
    parser.add_argument("--events", action="append", default=[], metavar="FILE", help=words)
    words = "seconds of a step at full speed (default: the median step of the job)"
    values.add_seconds(parser, "--step-seconds", _STEP_LIMITS_S, None, words)
    triage.add_moment(parser, "judge")
    options.add_output(parser)


def run(arguments: argparse.Namespace) -> int:
    """Read, sum up, show; returns the exit code."""
    if not arguments.jobs and not arguments.events and arguments.outputs is None:
        raise UsageError("name a job, --outputs DIR for all jobs there, or --events FILE")
    jobs, failed = _of_events(arguments)
    if arguments.jobs or arguments.outputs is not None:
        of_logs, problems = _of_logs(arguments)
        jobs += of_logs
        failed += problems
    if not jobs:
        raise CannotRun("; ".join(failed) or f"{arguments.outputs}: there is no job")
    progress = options.ProgressLine(arguments.quiet)
    for problem in failed:
        progress.warn(problem)
    _show(arguments, jobs)
    return 3 if failed or any(job.efficiency is None for job in jobs) else 0


def _show(arguments: argparse.Namespace, jobs: Sequence[JobEfficiency]) -> None:
    from raydiag.render.kpi import kpi_document, kpi_report

    options.show(arguments, lambda: kpi_document(jobs, time.time()), lambda: kpi_report(jobs))


def _of_events(arguments: argparse.Namespace) -> tuple[list[JobEfficiency], list[str]]:
    from raydiag.joblog.job_events import read_job_events
    from raydiag.watch.event_time import by_events

    jobs: list[JobEfficiency] = []
    failed = []
    for path in arguments.events:
        try:
            for events in read_job_events(path):
                jobs.append(by_events(events, arguments.step_seconds))
        except CannotRun as error:
            failed.append(str(error))
    return jobs, failed


def _of_logs(arguments: argparse.Namespace) -> tuple[list[JobEfficiency], list[str]]:
    from raydiag.joblog import find

    outputs = arguments.outputs or "outputs"
    names: list[str] = []
    for name in arguments.jobs:
        names += find.several_in(name) or [name]
    names = names or find.jobs_below(outputs)[0]
    resolved, problems = find.resolve_all(names, outputs)
    jobs, failed = [], list(map(str, problems.values()))
    for job in resolved:
        try:
            jobs.append(_of_log(job, arguments))
        except RaydiagError as error:
            failed.append(str(error))
    return jobs, failed


def _of_log(job: Resolved, arguments: argparse.Namespace) -> JobEfficiency:
    from raydiag.joblog import read, slurm
    from raydiag.triage import judge
    from raydiag.triage.signatures import Classifier, make_selector
    from raydiag.watch.attempt_time import by_logs

    facts = read.read(job, make_selector, Classifier())
    verdict = judge(facts, triage.when(facts, arguments))
    if arguments.now is not None or arguments.job_state != "auto":
        return by_logs(facts, verdict, arguments.step_seconds)
    return by_logs(facts, verdict, arguments.step_seconds, slurm.runs_of(verdict.job_id))
