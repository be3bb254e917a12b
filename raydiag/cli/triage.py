"""`raydiag triage`: what a job's logs say.

examples:
  raydiag triage outputs/7877-llama           a job directory
  raydiag triage outputs/7877-llama.log       a log
  raydiag triage 7877 7879                    job ids, below outputs/
  raydiag triage --outputs /data/outputs      all jobs there, one line each
  raydiag triage job.log --now log-end        as of the end of the log
  raydiag triage 7877 --job-state running     where no scheduler can be asked
  raydiag triage raysubmit_x --ssh me@head    a job of Ray's, by its submission id

A name that is nothing here is asked of the Ray cluster of --address, --ssh, RAY_API_SERVER_ADDRESS
or RAY_ADDRESS. Slurm, where it is installed, is asked about the job, unless --now or --job-state is
given.
Times without a zone are UTC.

exit codes:
  0 completed, running, or cancelled without a failure    1 a problem was found    2 usage
  3 nothing wrong found, but not everything could be read or decided                 4 no such job
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from raydiag import __version__
from raydiag.cli import options, values
from raydiag.errors import CannotRun, NoSuchJob, RaydiagError, UsageError

if TYPE_CHECKING:
    from raydiag.joblog.facts import JobFacts, Resolved
    from raydiag.joblog.log_line import MakeSelector
    from raydiag.joblog.state import PassState
    from raydiag.render.report import Report
    from raydiag.triage.verdict import Moment, Verdict

HELP = "classify a job's logs: status, first failure, progress lost, next steps"
REMARK = " Needs no GPU, and Ray only for Ray's own jobs."

JOB_STATES = ("running", "ended", "auto")
STATE_WORDS = "whether the job is still running (default: ask Slurm, where it is installed)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    words = "job directory, log file, job id, or id of a job of Ray's; - is a log on stdin"
    parser.add_argument("jobs", nargs="*", metavar="PATH|JOBID", help=words)
    words = "where to look up job ids (default: outputs); without a job, all jobs there"
    parser.add_argument("--outputs", metavar="DIR", help=words)
    add_moment(parser, "judge")
    words = "remember how far logs were read; the next call reads only new lines"
    parser.add_argument("--state", metavar="FILE", help=words)
    options.add_way_in(parser)
    parser.set_defaults(reaches_cluster=True)
    options.add_output(parser, redact=True)


def add_moment(parser: argparse.ArgumentParser, verb: str) -> None:
    """--now and --job-state: what `when` reads."""
    words = f"{verb} as of this time: Unix seconds, ISO 8601, or the last time in the log"
    kind = values.moment_or_log_end
    parser.add_argument("--now", type=kind, metavar="T|log-end", help=words)
    parser.add_argument("--job-state", choices=JOB_STATES, default="auto", help=STATE_WORDS)


def run(arguments: argparse.Namespace) -> int:
    """Find, read, judge, show; returns the exit code."""
    from raydiag.triage import exit_code

    if not arguments.jobs and arguments.outputs is None:
        raise UsageError("name a job directory, a log or a job id, or --outputs DIR for all jobs")
    state = _state(arguments.state)
    verdicts, failed = verdicts_of(arguments, state)
    if not verdicts:
        raise CannotRun("; ".join(failed) or f"{arguments.outputs}: there is no job")
    progress = options.ProgressLine(arguments.quiet)
    for problem in failed:
        progress.warn(problem)  # on the terminal of whoever knows the names; no part of the report
    _show(arguments, verdicts)
    if arguments.state is not None and state is not None:
        options.write_report([state.dumps()], arguments.state)
    codes = {exit_code(verdict) for verdict in verdicts}
    return 1 if 1 in codes else 3 if failed or 3 in codes else 0


def verdicts_of(
    arguments: argparse.Namespace, state: PassState | None
) -> tuple[list[Verdict], list[str]]:
    """One verdict for each job that could be read, and why the others could not."""
    from functools import cache, partial

    from raydiag.joblog import find
    from raydiag.triage.signatures import make_selector

    outputs = arguments.outputs or "outputs"
    selector = cache(make_selector)  # building one takes longer than reading a small log
    jobs: list[str] = []
    for name in arguments.jobs:
        jobs += find.several_in(name) or [name]
    jobs = jobs or find.jobs_below(outputs)[0]
    resolved, problems = find.resolve_all((job for job in jobs if job != "-"), outputs)
    works: list[Callable[[], Verdict]] = []
    for job in resolved:
        works.append(partial(_verdict, job, arguments, state, selector))
    for name, problem in problems.items():
        works.append(partial(_verdict_elsewhere, arguments, name, problem))
    works += [partial(_verdict_of_stdin, arguments)] if "-" in jobs else []
    verdicts, failed = [], []
    for work in works:
        try:
            verdicts.append(work())
        except RaydiagError as error:
            if len(jobs) == 1:
                raise
            failed.append(str(error))
    return verdicts, failed


def _verdict(
    job: Resolved, arguments: argparse.Namespace, state: PassState | None, selector: MakeSelector
) -> Verdict:
    from raydiag.joblog import read
    from raydiag.triage import judge
    from raydiag.triage.signatures import Classifier

    facts = read.read(job, selector, Classifier(), state=state)
    return judge(facts, when(facts, arguments))


def _verdict_elsewhere(arguments: argparse.Namespace, name: str, problem: CannotRun) -> Verdict:
    """Of what is no file here: a job of Ray's, where a cluster can be asked. Raises CannotRun."""
    from raydiag.cli import live
    from raydiag.triage import judge

    if not isinstance(problem, NoSuchJob) or not live.may_be_of_ray(arguments, name):
        raise problem
    progress = options.ProgressLine(arguments.quiet)
    try:
        return judge(*live.triage_of_ray(arguments, name, progress))
    except CannotRun as error:
        raise CannotRun(f"{name}: {error}") from None
    finally:
        progress.clear()


def _verdict_of_stdin(arguments: argparse.Namespace) -> Verdict:
    from raydiag.triage import judge

    facts = _facts_of_stdin()
    return judge(facts, when(facts, arguments))


def _facts_of_stdin() -> JobFacts:
    from raydiag.cli.live import facts_of_text

    if sys.stdin is None:
        raise CannotRun("-: stdin is closed")
    return facts_of_text(sys.stdin.buffer.read().decode("utf-8", "replace"), "stdin")


def when(facts: JobFacts, arguments: argparse.Namespace) -> Moment:
    """The moment that is asked about, and what is known of the job from outside its logs."""
    from raydiag.joblog import artefacts, slurm
    from raydiag.triage.verdict import Moment

    if arguments.now == "log-end":
        now, log_end = facts.last_time, True
    else:
        now, log_end = (time.time() if arguments.now is None else arguments.now), False
    scheduler = None
    if arguments.now is None and arguments.job_state == "auto":
        resolved = facts.resolved
        scheduler = slurm.ask(resolved.job_id or facts.header.job_id, name=resolved.slurm_name)
    alive = {"running": True, "ended": False}.get(arguments.job_state)
    source = "" if alive is None else "--job-state"
    if scheduler is not None:
        alive, source = scheduler.alive, scheduler.source
    return Moment(now, log_end, alive, source, scheduler, artefacts.newest(facts))


def _show(arguments: argparse.Namespace, verdicts: Sequence[Verdict]) -> None:
    from raydiag.render.document import one_line
    from raydiag.render.triage import documents_of_jobs, triage_document

    if arguments.redact:
        from raydiag.render.redact_job import redacted_triage

        verdicts = redacted_triage(verdicts)
    options.show(
        arguments,
        lambda: triage_document(verdicts, time.time()),
        lambda: _report(verdicts, arguments),
        more_formats={"jsonl": lambda: map(one_line, documents_of_jobs(verdicts, time.time()))},
    )


def _report(verdicts: Sequence[Verdict], arguments: argparse.Namespace) -> Report:
    from raydiag.render.triage import overview, triage_report

    # Whoever names directories of jobs wants to see which one to look at.
    is_overview = len(verdicts) > len(arguments.jobs)
    if is_overview and arguments.format == "text":
        return overview(verdicts)
    return triage_report(verdicts, arguments.verbose)


def _state(path: str | None) -> PassState | None:
    """What an earlier call has remembered; empty when the file is new or of another version."""
    if path is None:
        return None
    from raydiag.joblog.state import PassState
    from raydiag.untrusted import regular

    try:
        with open(path, encoding="utf-8", opener=regular) as file:
            text = file.read()
    except FileNotFoundError:
        text = ""
    except (OSError, UnicodeDecodeError) as error:
        raise CannotRun(f"--state {path}: {getattr(error, 'strerror', 'not a text')}") from None
    return PassState.loads(text, _fingerprint())


def _fingerprint() -> str:
    """Changes with the signatures, with which what is remembered was read."""
    from hashlib import sha256

    from raydiag.catalog.signatures import table

    rows = [
        (row.id, row.pattern.pattern, row.failure_class, row.role, row.when, sorted(row.instead_of))
        for row in table().rows
    ]
    return sha256(repr((__version__, rows)).encode()).hexdigest()
