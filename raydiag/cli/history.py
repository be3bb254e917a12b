"""`raydiag history`: what the resident agent has seen of the nodes.

examples:
  raydiag history                     all nodes: last seen, what was found and how often
  raydiag history node017             one node, with the end of its kernel log
  raydiag history --ssh me@head --format json

The agent remembers what probes found while it was up, and what its own rounds read (`raydiag agent
up --every 60s`). A node that is gone still has its last words here.

exit codes:
  0 there is a history    2 usage    3 no agent is up, so nothing is remembered
  4 could not run: no cluster, or a node that the agent has never seen
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from raydiag.cli import cluster_options, options
from raydiag.errors import CannotRun, UsageError

if TYPE_CHECKING:
    from raydiag.cluster.jobs_api import JobsApi

HELP = "what the resident agent has seen of a node: findings, how often, its kernel log"
REMARK = " Needs `raydiag agent up`."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    words = "host name, address or id of one node (default: all of them)"
    parser.add_argument("node", nargs="?", metavar="NODE", help=words)
    options.add_way_in(parser)
    parser.set_defaults(reaches_cluster=True)
    options.add_output(parser)


def run(arguments: argparse.Namespace) -> int:
    """Ask the agent, and show; returns the exit code."""
    from raydiag.render.history import history_document, history_report

    seen = _seen(arguments)
    if seen is not None and arguments.node is not None:
        seen = _of_node(seen, arguments.node)
    now = time.time()
    options.show(
        arguments,
        lambda: history_document(seen, now),
        lambda: history_report(seen, arguments.node, now),
    )
    return 3 if seen is None else 0


def _seen(arguments: argparse.Namespace) -> dict[str, Any] | None:
    """All that the agent remembers; None where none is up. Raises CannotRun."""
    from raydiag.cluster.resident import caller

    progress = options.ProgressLine(arguments.quiet)
    with contextlib.ExitStack() as stack:
        stack.callback(progress.clear)
        api, address = stack.enter_context(cluster_options.cluster(arguments, progress))
        if address.is_local:
            raise UsageError("a temporary Ray has no history: name a cluster with --address")
        progress.say("asking the resident agent ...")
        jobs_api = cast("JobsApi", api)
        agent = caller.listed(jobs_api.jobs())
        if agent is None:
            return None
        try:
            return caller.asked(jobs_api, agent, "history", caller.HISTORY_S)
        except caller.NoAgent as error:
            raise CannotRun(f"{error}: `raydiag agent status` says more") from None


def _of_node(seen: Mapping[str, Any], name: str) -> dict[str, Any]:
    """What is about one node. Raises CannotRun for one that was never seen."""
    nodes = [node for node in seen["nodes"] if name in _names(node)]
    if not nodes:
        known = ", ".join(sorted({node["host"] for node in seen["nodes"]})[:8]) or "no node yet"
        raise CannotRun(f"{name}: the resident agent has never seen it; it knows {known}")
    hosts = {node["host"] for node in nodes}
    addresses = {node["address"] for node in nodes}
    return {
        **seen,
        "nodes": nodes,
        "found": [known for known in seen["found"] if known["host"] in hosts],
        "kernel_log": [line for line in seen["kernel_log"] if line[1] in addresses],
    }


def _names(node: Mapping[str, Any]) -> tuple[str, ...]:
    host = str(node["host"])
    return host, host.partition(".")[0], str(node["address"]), str(node["node_id"])
