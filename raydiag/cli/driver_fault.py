"""`raydiag driver-fault`: is a GPU driver at fault, and the report to send its administrator.

examples:
  raydiag driver-fault                             all nodes of the cluster, on its head node
  raydiag driver-fault --node node017              a close look at one, the others for comparison
  raydiag driver-fault --ssh me@head --format markdown -o report.md     to send
  raydiag driver-fault outputs/7877-llama          a job's metrics alone, no node is asked
  raydiag driver-fault --kmsg kern.log             kernel logs alone

Nodes are read in the order kernel log, blocked tasks, exporter; RAS files come last, and not at all
where these show the fault. With --node, the other nodes are asked for the first three alone. The
job's Prometheus is looked for as `diagnose` does.

exit codes:
  0 all nodes are clean      1 a fault was found    2 usage
  3 no fault was found, but not every node could be checked             4 could not run
"""

from __future__ import annotations

import argparse
import os
import time
from typing import TYPE_CHECKING

from raydiag.cli import cluster_options, diagnose, live, options, triage, values
from raydiag.errors import CannotRun, UsageError

if TYPE_CHECKING:
    from raydiag.cluster.collect import ProbeRequest
    from raydiag.explain.driver_fault.types import Investigation

HELP = "investigate GPU driver faults: which nodes, since when, and the report for their admin"

# Of a node that is looked at closely, and of the others. None of the others touches the driver.
_CLOSE = (
    *("kernel_log", "d_state", "exporter", "versions", "pids", "previous_boot", "processes"),
    *("ray_logs", "gpu_sensors", "nvidia", "pcie", "ras", "bad_pages"),
)
_MORE = {"nvidia": {"remapped": True}}
_LIGHT = ("kernel_log", "d_state", "exporter", "versions")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    words = "job directory, log file, job id below --outputs, or a job of Ray's, whose metrics "
    words += "are read as well (default: the running job's)"
    parser.add_argument("jobs", nargs="*", metavar="JOB", help=words)
    words = "host names, addresses, node ids, or sets such as 'node[001-016]'"
    parser.add_argument("--node", nargs="+", action="extend", metavar="N", help=words)
    words = "read kernel log text from these files and nothing else; - is stdin"
    parser.add_argument("--kmsg", nargs="+", metavar="FILE", help=words)
    words = "read the RAS counters even where there are signs of the fault (may leave one more "
    words += "process stuck)"
    parser.add_argument("--force-ras", action="store_true", help=words)
    parser.add_argument("--outputs", metavar="DIR", help="where to look up job ids")
    words = "query this server; with --ssh, the URL as seen from HEAD (default: the job's own)"
    parser.add_argument("--prometheus", metavar="URL", help=words)
    triage.add_moment(parser, "investigate")
    words = "seconds for all metric queries together (default %(default)g)"
    values.add_seconds(parser, "--deadline", (1, 3600), 120.0, words)
    options.add_fresh(parser)
    options.add_way_in(parser)
    parser.set_defaults(reaches_cluster=True, all=False)
    options.add_output(parser, redact=True)


def run(arguments: argparse.Namespace) -> int:
    """Ask, judge, show; returns the exit code."""
    progress = options.ProgressLine(arguments.quiet)
    try:
        investigation = _investigation(arguments, progress)
    finally:
        progress.clear()
    _show(arguments, investigation)
    return investigation.exit_code


def _investigation(arguments: argparse.Namespace, progress: options.ProgressLine) -> Investigation:
    if arguments.kmsg:
        return _of_kernel_logs(arguments)
    _part_nodes_from_job(arguments)
    from raydiag.explain.job.driver_fault import investigated

    examined = diagnose.collected(arguments, progress, _is_cluster_meant, _requests(arguments))
    if arguments.redact:
        from raydiag.render.redact_job import redacted_diagnosis

        examined = redacted_diagnosis(examined)
    return investigated(examined, bool(arguments.node), arguments.force_ras)


def _part_nodes_from_job(arguments: argparse.Namespace) -> None:
    """`--node N ... JOB`: the last of the names may be the job, where it cannot be a node."""
    last = (arguments.node or [""])[-1]
    is_job = os.path.exists(last) or last.startswith("raysubmit_")
    if is_job and len(arguments.node) > 1 and not arguments.jobs:
        arguments.jobs = [arguments.node.pop()]


def _is_cluster_meant(arguments: argparse.Namespace) -> bool:
    """Nodes are asked unless a job's directory alone is named."""
    return live.is_cluster_meant(arguments) or arguments.job is None or bool(arguments.node)


def _requests(arguments: argparse.Namespace) -> list[ProbeRequest]:
    """All nodes closely; or all of them for comparison, and then those that are named."""
    select = cluster_options.selected_nodes(arguments.node)
    close = live.probe_request(_CLOSE, select, arguments.force_ras, _MORE)
    return [close] if select is None else [live.probe_request(_LIGHT), close]


def _of_kernel_logs(arguments: argparse.Namespace) -> Investigation:
    from raydiag.explain.diagnosis import explain
    from raydiag.explain.driver_fault import of_logs
    from raydiag.kmsg import logs_as_nodes

    if arguments.jobs or arguments.node:
        raise UsageError("--kmsg reads files alone: leave out JOB and --node")
    logs = logs_as_nodes(arguments.kmsg)
    if not logs.snapshot.nodes:
        raise CannotRun("; ".join(map("{0.source}: {0.reason}".format, logs.unread)))
    snapshot, diagnosis = logs.snapshot, explain(logs.snapshot)
    if arguments.redact:
        from raydiag.render.redact import redacted

        snapshot, diagnosis, _ = redacted(snapshot, diagnosis, {})
    return of_logs(snapshot, diagnosis, logs.undated, time.time())


def _show(arguments: argparse.Namespace, investigation: Investigation) -> None:
    from raydiag.render.driver_fault import driver_fault_report
    from raydiag.render.driver_fault_document import driver_fault_document

    now = time.time()
    options.show(
        arguments,
        lambda: driver_fault_document(investigation, now),
        lambda: driver_fault_report(investigation, now, arguments.verbose),
    )
