"""`raydiag agent`: an agent that stays on the cluster, so that the next probe answers at once.

examples:
  raydiag agent up                    from then on, probe and diagnose go through it
  raydiag agent up --every 60s        and it looks at the nodes every minute, and remembers
  raydiag agent up --replace          another version is up, or other options are wanted
  raydiag agent status
  raydiag agent down                  nothing of it is left
  raydiag agent up --ssh me@head -J me@login

One job of Ray's, with 0 CPUs, and on each node one actor that sleeps until somebody asks. It
listens on loopback of the head, and answers whoever may use Ray's Jobs API and nobody else.

exit codes:
  0 it is up and of use, or down as asked    1 it is up and cannot be used    2 usage
  3 none is up                                                                4 could not run
"""

from __future__ import annotations

import argparse
import contextlib
import time
from typing import TYPE_CHECKING, Any, cast

from raydiag.cli import cluster_options, options, values
from raydiag.errors import UsageError

if TYPE_CHECKING:
    from raydiag.cluster.address import Address
    from raydiag.cluster.jobs_api import JobsApi
    from raydiag.cluster.resident.life import AgentState

HELP = "keep an agent on the cluster that answers probes at once, and remembers"
REMARK = " Off unless started; training is left alone."
_SHORTEST_ROUND_S = 10.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    actions = parser.add_subparsers(metavar="ACTION", dest="action", required=True)
    up = options.add_action(actions, "up", "start it; does nothing where it is up already")
    words = "have it look at the nodes by itself that often, and remember: 60s, 5m (default: never)"
    up.add_argument("--every", type=values.time_span, default=0.0, metavar="T", help=words)
    words = "serve its own metrics on this port of the head's loopback (default: not at all)"
    up.add_argument("--metrics-port", type=values.port, default=0, metavar="PORT", help=words)
    words = "stop the one that is up, whatever its version, and start this one"
    up.add_argument("--replace", action="store_true", help=words)
    status = options.add_action(actions, "status", "show whether it is up, and what it is at")
    down = options.add_action(actions, "down", "stop it, and leave nothing of it")
    words = "leave what it remembers on the head's disk, for the next one of this cluster"
    down.add_argument("--keep-memory", action="store_true", help=words)
    logs = options.add_action(actions, "logs", "show what its job has printed")
    for action in (up, status, down, logs):
        options.add_way_in(action)
        options.add_output(action)
    parser.set_defaults(reaches_cluster=True)


def run(arguments: argparse.Namespace) -> int:
    """Start, show or stop it; returns the exit code."""
    from raydiag.render.agent import agent_document, agent_report

    if arguments.action == "up" and 0 < arguments.every < _SHORTEST_ROUND_S:
        raise UsageError(
            f"--every: a round takes the nodes' time, {_SHORTEST_ROUND_S:g} s is least"
        )
    progress = options.ProgressLine(arguments.quiet)
    with contextlib.ExitStack() as stack:
        stack.callback(progress.clear)
        api, address = stack.enter_context(cluster_options.cluster(arguments, progress))
        if address.is_local:
            raise UsageError("a temporary Ray ends with the call: name a cluster with --address")
        progress.say("asking the cluster ...")
        there = _done(arguments, cast("JobsApi", api), address)
    answer = _answer(arguments.action, there)
    options.show(
        arguments, lambda: agent_document(answer, time.time()), lambda: agent_report(answer)
    )
    if arguments.action == "down":
        return 0
    return 3 if there.job is None else int(not there.is_usable)


def _done(arguments: argparse.Namespace, api: JobsApi, address: Address) -> AgentState:
    from raydiag.cluster.resident import life

    if arguments.action == "up":
        wanted = life.AgentOptions(arguments.every, arguments.metrics_port)
        told = cluster_options.probe_options()
        return life.up(api, address, wanted, told, arguments.replace)
    if arguments.action == "down":
        return life.down(api, arguments.keep_memory)
    if arguments.action == "logs":
        return life.printed(api)
    return life.state(api)


def _answer(command: str, there: AgentState) -> dict[str, Any]:
    job = there.job
    # Without the secret, which is nobody's business.
    listed = job and {"id": job.id, "version": job.version, "started_at": job.started_at}
    return {
        "command": command,
        "outcome": there.outcome,
        "usable": there.is_usable,
        "reason": there.reason,
        "job": listed,
        "status": there.status,
        "log": list(there.log),
    }
