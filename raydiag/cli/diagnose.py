"""`raydiag diagnose`: a job's log and metrics, a live cluster's nodes -> one verdict.

examples:
  raydiag diagnose outputs/7877-llama              a job's directory, log and metrics
  raydiag diagnose 7877 --job-state running        a job that still runs
  raydiag diagnose 7877 --now 2026-11-20T03:00     as it stood then
  raydiag diagnose 7877 --prometheus http://127.0.0.1:9190     ask that server instead
  raydiag diagnose 7877 --all --format markdown    every playbook, for a ticket
  raydiag diagnose 7877 --open                     with plots, in a browser; --plot: in text
  raydiag diagnose 7877 --format html -o report.html       one file, for a ticket
  raydiag diagnose 7877 --format trace -o trace.json       steps and findings for ui.perfetto.dev
  raydiag diagnose                                 the cluster of this head node, as it is now
  raydiag diagnose --ssh me@head -J me@login       the same from a laptop
  raydiag diagnose 7877 --address http://127.0.0.1:8265    a job's directory and its live cluster
  raydiag diagnose --prometheus http://127.0.0.1:9190      metrics only

For a job directory, no cluster is asked unless --address or --ssh is given. Its metrics are read by
a temporary Prometheus on this machine's loopback, through links: the directory is not modified. The
program `prometheus` is taken from PATH or RAYDIAG_PROMETHEUS.
On a cluster, all nodes are probed, the job's Prometheus is searched on the head's loopback, and the
log is that of the only running job, else of the newest one that ended within a day, or of JOB (a
submission id, Ray's number of a job, or a job directory).
Times without a zone are UTC.

exit codes:
  0 nothing wrong and everything was seen    1 a problem was found    2 usage
  3 nothing wrong found, but not everything could be seen             4 could not run
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from raydiag.cli import live, options, triage, values
from raydiag.errors import NoSuchJob, UsageError

if TYPE_CHECKING:
    from raydiag.cluster.collect import ProbeRequest
    from raydiag.explain.job import ExaminedJob
    from raydiag.joblog.facts import Resolved

_MOST_NAMED = 4

HELP = "find the root cause of a job that hangs, slows down or dies, from log, metrics and nodes"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    words = "job directory, log file, job id below --outputs, or a job of Ray's (default: the "
    words += "live cluster)"
    parser.add_argument("jobs", nargs="*", metavar="JOB", help=words)
    parser.add_argument("--outputs", metavar="DIR", help="where to look up job ids")
    words = "query this server; with --ssh, the URL as seen from HEAD (default: the job's own)"
    parser.add_argument("--prometheus", metavar="URL", help=words)
    triage.add_moment(parser, "diagnose")
    words = "show all playbooks, not only the matching ones"
    parser.add_argument("--all", action="store_true", help=words)
    words = "seconds for all metric queries together (default %(default)g)"
    values.add_seconds(parser, "--deadline", (1, 3600), 120.0, words)
    options.add_fresh(parser)
    options.add_way_in(parser)
    parser.set_defaults(reaches_cluster=True)
    output = options.add_output(parser, redact=True, more_formats=("trace",))
    options.add_plot(output)
    words = "all rows of all tables, not only outliers"
    output.add_argument("--all-rows", action="store_true", help=words)


def run(arguments: argparse.Namespace) -> int:
    """Read, ask, judge, show; returns the exit code."""
    progress = options.ProgressLine(arguments.quiet)
    try:
        examined = collected(arguments, progress, live.is_cluster_meant)
    finally:
        progress.clear()
    show(arguments, examined)
    return examined.exit_code


def collected(
    arguments: argparse.Namespace,
    progress: options.ProgressLine,
    is_cluster_meant: Callable[[argparse.Namespace], bool],
    requests: Sequence[ProbeRequest] = (),
) -> ExaminedJob:
    """All sources of the job that is meant, judged; `requests`: as of `live.examine_live`."""
    from raydiag.explain.job import DiagnosisRequest, examine
    from raydiag.joblog import find, read
    from raydiag.triage.signatures import Classifier, make_selector

    # The shell may have made several names of one job out of a pattern.
    resolved = _only_job(arguments) if len(arguments.jobs) > 1 else None
    arguments.job = next(iter(arguments.jobs), None)
    if resolved is None and is_cluster_meant(arguments):
        return live.examine_live(arguments, progress, requests)
    request = DiagnosisRequest(
        arguments.prometheus, arguments.all, arguments.deadline, progress.say
    )
    if arguments.job is None:
        facts = live.without_log(arguments.prometheus)
        request = replace(request, no_log="no job was named")
    else:
        progress.say("reading the job's log ...")
        try:
            job = resolved or find.resolve(arguments.job, arguments.outputs or "outputs")
        except NoSuchJob:
            if not live.may_be_of_ray(arguments, arguments.job):
                raise
            return live.examine_live(arguments, progress, requests)
        facts = read.read(job, make_selector, Classifier())
    return examine(facts, triage.when(facts, arguments), request)


def _only_job(arguments: argparse.Namespace) -> Resolved:
    """The one job that all the names mean. Raises CannotRun and UsageError."""
    from raydiag.joblog import find

    jobs, problems = find.resolve_all(arguments.jobs, arguments.outputs or "outputs")
    if problems:
        raise next(iter(problems.values()))
    if len(jobs) > 1:
        listed = ", ".join(job.name or job.asked for job in jobs[:_MOST_NAMED])
        raise UsageError(f"{len(jobs)} jobs are named ({listed}): diagnose one, or use triage")
    return jobs[0]


def show(arguments: argparse.Namespace, examined: ExaminedJob) -> None:
    """The report, in the format and at the place that were asked for."""
    from raydiag.render.diagnose import diagnosis_report
    from raydiag.render.diagnose_document import diagnose_document
    from raydiag.render.trace import trace_text

    if arguments.redact:
        from raydiag.render.redact_job import redacted_diagnosis

        examined = redacted_diagnosis(examined)
    options.show(
        arguments,
        lambda: diagnose_document(examined, time.time()),
        lambda: diagnosis_report(
            examined, arguments.verbose or arguments.all_rows, arguments.verbose or arguments.all
        ),
        more_formats={"trace": lambda: trace_text(examined)},
    )
