"""`raydiag probe`: run probes on nodes, judge, report.

examples:
  raydiag probe                                    all nodes, on the head node of the cluster
  raydiag probe --address local                    this machine, with a temporary Ray
  raydiag probe --ssh me@head -J me@login          from a laptop
  raydiag probe --node 'node[001-016]' --only kernel_log,d_state
  raydiag probe --format json -o report.json

exit codes:
  0 nothing wrong and everything was seen    1 a problem was found    2 usage
  3 nothing wrong found, but not everything could be seen             4 could not run
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from raydiag.cli import cluster_options, options, values
from raydiag.errors import UsageError

if TYPE_CHECKING:
    from raydiag.cluster.collect import ProbeRequest
    from raydiag.model import Diagnosis, Snapshot

HELP = "run read-only probes on the nodes of a Ray cluster and report unhealthy nodes"
_LONGEST_DEADLINE_S = 600.0
_READING_S = 3.0  # what the two samples of counters take besides the interval, at most


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    nodes = parser.add_mutually_exclusive_group()
    words = "every node of the cluster (the default)"
    nodes.add_argument("--all-nodes", action="store_true", help=words)
    words = "host names, addresses, node ids, or sets such as 'node[001-016]'"
    nodes.add_argument("--node", nargs="+", action="extend", metavar="N", help=words)
    parser.add_argument("--only", metavar="P,...", help="run these probes only")
    parser.add_argument("--skip", metavar="P,...", help="run all probes but these")
    words = "seconds from asking the nodes to the report (default %(default)g)"
    values.add_seconds(parser, "--deadline", (1, _LONGEST_DEADLINE_S), 30.0, words)
    words = "read the RAS counters even where there are signs of a GPU driver fault (may leave "
    words += "one more process stuck)"
    parser.add_argument("--force-ras", action="store_true", help=words)
    words = "seconds between the two samples of counters (default: 0.2; 1 on nodes where an error "
    words += "counter is above zero or training prints steps)"
    values.add_seconds(parser, "--interval", (0.1, 60), None, words)
    words = "also read the Python stacks of workers and their child processes, without pausing "
    words += "them (needs py-spy on the nodes)"
    parser.add_argument("--stacks", action="store_true", help=words)
    options.add_fresh(parser)
    options.add_way_in(parser)
    parser.set_defaults(reaches_cluster=True)
    options.add_output(parser, redact=True)


@dataclass(frozen=True)
class ProbedCluster:
    """What the nodes answered, and what that means."""

    snapshot: Snapshot
    diagnosis: Diagnosis
    cluster: Mapping[str, Any]  # address, session, version, deadline


def run(arguments: argparse.Namespace) -> int:
    """Collect, judge, show; returns the exit code."""
    progress = options.ProgressLine(arguments.quiet)
    with probed(arguments, progress) as found:
        from raydiag.explain import diagnosis

        _show(arguments, found.snapshot, found.diagnosis, found.cluster)
    return diagnosis.exit_code(found.diagnosis)


@contextlib.contextmanager
def probed(
    arguments: argparse.Namespace, progress: options.ProgressLine
) -> Iterator[ProbedCluster]:
    """Collect and judge; after the block the cluster is left as it was, which may take a moment.

    Raises CannotRun and UsageError.
    """
    from raydiag.cluster.collect import collect

    request = _request(arguments)
    with contextlib.ExitStack() as stack:
        stack.callback(progress.clear)  # also before the message of an error
        api, address = stack.enter_context(cluster_options.cluster(arguments, progress))
        progress.say("asking the cluster ...")
        collected = stack.enter_context(
            collect(
                api, address, request, progress.nodes, warn=progress.warn, meanwhile=_import_judges
            )
        )
        from raydiag.explain import diagnosis

        snapshot = cluster_options.snapshot(collected, api, whole_cluster=request.select is None)
        explained = diagnosis.explain(snapshot)
        collected.remember(explained.findings)
        progress.clear()
        yield ProbedCluster(snapshot, explained, collected.cluster)


def _import_judges() -> None:
    """What is needed after the answers, loaded while the cluster works on them."""
    for name in ("raydiag.explain.diagnosis", "raydiag.render.probe", "raydiag.render.document"):
        importlib.import_module(name)


def _request(arguments: argparse.Namespace) -> ProbeRequest:
    from raydiag import catalog
    from raydiag.cluster.collect import ProbeRequest

    select = cluster_options.selected_nodes(arguments.node)
    if arguments.interval is not None and arguments.interval + _READING_S > arguments.deadline:
        raise UsageError(
            f"--interval {arguments.interval:g} leaves no time to read a second time before the "
            f"deadline of {arguments.deadline:g} s: give a longer --deadline"
        )
    return ProbeRequest(
        probes=_chosen(arguments.only, arguments.skip, arguments.stacks),
        select=select,
        deadline_s=arguments.deadline,
        options=cluster_options.probe_options(),
        driver_fault_symbols=catalog.kernel_table().driver_fault_symbols,
        force_ras=arguments.force_ras,
        interval_s=arguments.interval,
        fresh=arguments.fresh,
    )


def _chosen(only: str | None, skip: str | None, stacks: bool) -> list[str]:
    """Names of the probes to run. Raises UsageError for unknown ones, or when none is left."""
    from raydiag import probes

    selected, skipped = _probe_names("--only", only), _probe_names("--skip", skip)
    if only is None:
        selected = set(probes.defaults())
    if stacks:
        selected.add("stacks")
    chosen = [name for name in probes.names() if name in selected - skipped]
    if not chosen:
        raise UsageError("no probe is left to run: look at --only and --skip")
    return chosen


def _probe_names(option: str, text: str | None) -> set[str]:
    from raydiag import probes

    names = values.names(text or "")
    for name in names:
        if name not in probes.names():
            existing = ", ".join(probes.names())
            raise UsageError(f"{option}: no probe {name!r}; there are: {existing}")
    return set(names)


def _show(
    arguments: argparse.Namespace,
    snapshot: Snapshot,
    explained: Diagnosis,
    cluster: Mapping[str, Any],
) -> None:
    from raydiag.render.document import probe_document
    from raydiag.render.probe import probe_report

    if arguments.redact:
        from raydiag.render.redact import redacted

        snapshot, explained, cluster = redacted(snapshot, explained, cluster)
    options.show(
        arguments,
        lambda: probe_document(snapshot, explained, cluster, time.time()),
        lambda: probe_report(snapshot, explained, cluster, arguments.verbose),
    )
