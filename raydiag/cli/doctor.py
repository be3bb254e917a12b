"""`raydiag doctor`: is this set-up safe, and is everything there that a diagnosis will need?

examples:
  raydiag doctor                                   on the head node
  raydiag doctor --ssh me@head -J me@login         from a laptop
  raydiag doctor --prometheus http://127.0.0.1:9190
  raydiag doctor --address local                   this machine, with a temporary Ray

It asks all nodes once, read-only, as `probe` does: who can reach Ray's services, whether a token
is needed, known weaknesses of this Ray, versions and clocks, what probes may not read and the line
that would let them, the Prometheus program and server, its targets and exporters.

exit codes:
  0 all well or advice only    1 a problem was found    2 usage
  3 no problem found, but not everything could be checked          4 could not run
"""

from __future__ import annotations

import argparse
import contextlib
import time
from typing import TYPE_CHECKING, Any

from raydiag import __version__
from raydiag.cli import cluster_options, options, values
from raydiag.errors import CannotRun

if TYPE_CHECKING:
    from raydiag.cluster.submission import ClusterAccess
    from raydiag.doctor.set_up import PrometheusSetUp, ScrapeTarget, SetUp
    from raydiag.model import Snapshot

HELP = "check whether the set-up is safe and complete: exposure, versions, privileges, metrics"

_PROBES = (
    *("kernel_log", "d_state", "processes", "listeners", "versions", "exporter", "ras", "ray_logs"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("--all-nodes", action="store_true", help="all nodes (the default)")
    words = "host names, addresses, node ids, or sets such as 'node[001-016]'"
    parser.add_argument("--node", nargs="+", action="extend", metavar="N", help=words)
    words = "the server that scrapes the cluster (default: one on this machine that does)"
    parser.add_argument("--prometheus", metavar="URL", help=words)
    words = "seconds from asking the nodes to the report (default %(default)g)"
    values.add_seconds(parser, "--deadline", (1, 300), 30.0, words)
    options.add_way_in(parser)
    parser.set_defaults(reaches_cluster=True)
    options.add_output(parser)


def run(arguments: argparse.Namespace) -> int:
    """Collect, check, show; returns the exit code."""
    from raydiag.cluster.collect import ProbeRequest, collect
    from raydiag.doctor import examined, exit_code
    from raydiag.render.doctor import doctor_document, doctor_report

    progress = options.ProgressLine(arguments.quiet)
    told = cluster_options.probe_options()
    select = cluster_options.selected_nodes(arguments.node)
    request = ProbeRequest(_PROBES, select, arguments.deadline, told, ())
    with contextlib.ExitStack() as stack:
        stack.callback(progress.clear)
        api, address = stack.enter_context(cluster_options.cluster(arguments, progress))
        progress.say("asking the cluster ...")
        collected = stack.enter_context(
            collect(api, address, request, progress.nodes, warn=progress.warn)
        )
        snapshot = cluster_options.snapshot(collected, api, whole_cluster=select is None)
        set_up = _set_up(arguments, snapshot, collected.cluster, api)
    checks = examined(set_up)
    covered = set_up.coverage
    options.show(
        arguments,
        lambda: doctor_document(checks, set_up, covered, time.time()),
        lambda: doctor_report(checks, covered, arguments.verbose),
    )
    return exit_code(checks, covered.answered == covered.asked)


def _set_up(
    arguments: argparse.Namespace, snapshot: Snapshot, cluster: Any, api: ClusterAccess
) -> SetUp:
    from raydiag.doctor.set_up import SetUp
    from raydiag.explain import diagnosis
    from raydiag.tsdb import server

    program = ""
    with contextlib.suppress(CannotRun):
        program = server.program()
    token_is_needed = None
    with contextlib.suppress(CannotRun):
        token_is_needed = api.token_is_needed()
    return SetUp(
        snapshot=snapshot,
        findings=diagnosis.explain(snapshot).findings,
        cluster=cluster,
        token_is_needed=token_is_needed,
        prometheus=_prometheus(arguments, snapshot),
        prometheus_program=program,
        coverage=diagnosis.coverage(snapshot),
        raydiag_version=__version__,
        probes_asked=_PROBES,
    )


def _prometheus(arguments: argparse.Namespace, snapshot: Snapshot) -> PrometheusSetUp:
    """The server that is named, else one on this machine that scrapes one of the nodes."""
    from raydiag.doctor.set_up import PrometheusSetUp
    from raydiag.tsdb import live

    url = arguments.prometheus
    if url is None and arguments.ssh is not None:
        return PrometheusSetUp(reason="from here none was looked for on the head: run it there")
    if url is None:
        hosts = [report.node.host for report in snapshot.nodes]
        url = live.find_watching([*hosts, *(report.node.address for report in snapshot.nodes)])
    if url is None:
        ports = ", ".join(map(str, live.USUAL))
        return PrometheusSetUp(reason=f"none on this machine's loopback (ports {ports}) does")
    return PrometheusSetUp(url=url, targets=list(map(_target, live.scrape_targets(url))))


def _target(target: dict[str, Any]) -> ScrapeTarget:
    from raydiag.doctor.set_up import ScrapeTarget
    from raydiag.tsdb import promql

    labels = target.get("labels") or {}
    return ScrapeTarget(
        job=str(labels.get("job", "")),
        address=str(target.get("scrapeUrl", "")),
        health=str(target.get("health", "unknown")),
        error=str(target.get("lastError", ""))[:200],
        interval_s=promql.duration_s(str(target.get("scrapeInterval", ""))),
    )
