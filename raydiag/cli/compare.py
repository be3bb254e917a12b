"""`raydiag compare`: two or more jobs -> why does one run slower.

examples:
  raydiag compare 7879 7882                        two jobs below outputs/
  raydiag compare outputs/7879-llama outputs/7882-llama --format markdown
  raydiag compare 7879 7882 7890                   each with the first
  raydiag compare 7879 7882 --prometheus 7882=http://127.0.0.1:9191    one of them runs
  raydiag compare 7879                             its checkpoint saves with each other

Jobs are compared by training step, not by time: over the steps that both completed, without warm-up
and without checkpoint saves. Metrics are read by a temporary Prometheus for each job on this
machine's loopback; of a running job its own server is queried where it listens here. For a job
without metrics (RAY=0) the log is used. Options of the form JOB=VALUE are for one job.

exit codes:
  0 no problem, or settings explain it    1 a problem was found    2 usage
  3 none found, but not all could be seen or compared                    4 could not run
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from raydiag.cli import options, triage, values
from raydiag.errors import UsageError

if TYPE_CHECKING:
    from raydiag.explain.comparison import AskedJob, Comparison

HELP = "find out why one job is slower than another: settings, then speed step by step"
REMARK = " The first job is the baseline."
_WIDEST = 100  # columns


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    words = "job directory, log file or job id below --outputs"
    parser.add_argument("jobs", nargs="*", metavar="JOB", help=words)
    parser.add_argument("--outputs", metavar="DIR", help="where to look up job ids")
    for name, metavar, words in (
        ("--prometheus", "JOB=URL", "query this server for that job (default: the job's own)"),
        ("--now", "[JOB=]T|log-end", "compare as of this time"),
        ("--job-state", "[JOB=]running|ended|auto", triage.STATE_WORDS),
    ):
        parser.add_argument(name, action="append", default=[], metavar=metavar, help=words)
    words = "seconds for one round of metric queries of one job (default %(default)g)"
    values.add_seconds(parser, "--deadline", (1, 3600), 120.0, words)
    output = options.add_output(parser, redact=True)
    options.add_plot(output)
    words = "all metrics and settings, also those that are equal"
    output.add_argument("--all-rows", action="store_true", help=words)


def run(arguments: argparse.Namespace) -> int:
    """Read, ask, compare, show; returns the exit code."""
    from raydiag.explain.comparison import compare, exit_code

    jobs: list[str] = arguments.jobs
    if not jobs:
        raise UsageError("name two jobs to compare, or one to compare its saves")
    if len(set(jobs)) < len(jobs):
        raise UsageError("one job is named twice")
    progress = options.ProgressLine(arguments.quiet)
    try:
        comparison = compare(_read_jobs(arguments, progress), arguments.deadline, progress.say)
    finally:
        progress.clear()
    _show(arguments, comparison)
    return exit_code(comparison)


def _read_jobs(arguments: argparse.Namespace, progress: options.ProgressLine) -> list[AskedJob]:
    """The logs of all jobs, read before anything else."""
    from functools import cache

    from raydiag.explain.comparison import AskedJob
    from raydiag.joblog import find, read
    from raydiag.triage.signatures import Classifier, make_selector

    jobs: list[str] = arguments.jobs
    urls = _by_job("--prometheus", arguments.prometheus, jobs, all_jobs=len(jobs) == 1)
    times = {job: _time(text) for job, text in _by_job("--now", arguments.now, jobs).items()}
    states = _by_job("--job-state", arguments.job_state, jobs)
    for state in states.values():
        if state not in triage.JOB_STATES:
            raise UsageError(f"--job-state {state}: running, ended or auto")
    selector = cache(make_selector)  # building one takes longer than reading a small log
    read_jobs: list[AskedJob] = []
    job_of_log: dict[str, str] = {}
    for job in jobs:
        progress.say(f"reading the log of {job} ...")
        resolved = find.resolve(job, arguments.outputs or "outputs")
        log = resolved.logs[-1] if resolved.logs else resolved.asked
        if job_of_log.setdefault(log, job) != job:
            raise UsageError(f"{job_of_log[log]} and {job} are one job")
        facts = read.read(resolved, selector, Classifier())
        job_options = argparse.Namespace(now=times.get(job), job_state=states.get(job, "auto"))
        read_jobs.append(AskedJob(job, facts, triage.when(facts, job_options), urls.get(job)))
    return read_jobs


def _by_job(
    option: str, texts: Sequence[str], jobs: Sequence[str], all_jobs: bool = True
) -> Mapping[str, str]:
    """Values by job; one without a job is for all, where `all_jobs` allows it."""
    value_of: dict[str, str] = {}
    for text in texts:
        job = max((job for job in jobs if text.startswith(f"{job}=")), key=len, default=None)
        if job is not None:
            value_of[job] = text[len(job) + 1 :]
        elif all_jobs:
            value_of = {**dict.fromkeys(jobs, text), **value_of}
        else:
            raise UsageError(f"{option} {text}: say of which job, as in {option} {jobs[-1]}=...")
    return value_of


def _time(text: str) -> float | str:
    try:
        return values.moment_or_log_end(text)
    except argparse.ArgumentTypeError as error:
        raise UsageError(f"--now {error}") from None


def _show(arguments: argparse.Namespace, comparison: Comparison) -> None:
    from raydiag.render.compare import comparison_report
    from raydiag.render.compare_document import compare_document

    if arguments.redact:
        from raydiag.render.redact_job import redacted_comparison

        comparison = redacted_comparison(comparison)
    options.show(
        arguments,
        lambda: compare_document(comparison, time.time()),
        lambda: comparison_report(comparison, arguments.verbose or arguments.all_rows),
        min(options.width(), _WIDEST),
    )
