"""The way to a cluster, as the options that several commands share describe it."""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from raydiag.cli import options
from raydiag.errors import UsageError

if TYPE_CHECKING:
    from raydiag.cluster.address import Address
    from raydiag.cluster.collect import Collected
    from raydiag.cluster.ssh import Way
    from raydiag.cluster.submission import ClusterAccess
    from raydiag.model import NodeReport, Snapshot

_VICTIM_WORDS = ("process", "task", "pid")  # in every kernel message that names one


@contextlib.contextmanager
def cluster(
    arguments: argparse.Namespace, progress: options.ProgressLine
) -> Iterator[tuple[ClusterAccess, Address]]:
    """The cluster that is meant, while the block runs. Raises CannotRun, UsageError."""
    from raydiag.cluster import address, jobs_api

    if arguments.ssh is not None:
        with _through_ssh(arguments, progress) as reached:
            yield reached
        return
    if arguments.jump is not None or arguments.ssh_config is not None:
        raise UsageError("-J and --ssh-config say how --ssh connects: give --ssh [USER@]HEAD too")
    target = address.resolve(arguments.address)
    if not target.is_local:
        yield jobs_api.JobsApi(target.url, jobs_api.token()), target
        return
    from raydiag.cluster.local import throwaway_ray

    progress.say("starting a temporary Ray on this machine ...")
    with throwaway_ray() as api:
        yield api, target


@contextlib.contextmanager
def _through_ssh(
    arguments: argparse.Namespace, progress: options.ProgressLine
) -> Iterator[tuple[ClusterAccess, Address]]:
    from raydiag.cluster import address, jobs_api, ssh

    the_way = way(arguments)
    login = the_way.head.destination
    target = address.seen_from(login, the_way.head.host, arguments.address)
    token = jobs_api.token()
    progress.say(f"connecting to {login} ...")
    with ssh.forward(the_way, target.url) as forward:
        yield jobs_api.JobsApi(target.url, token, forward), target


def way(arguments: argparse.Namespace) -> Way:
    """How --ssh gets to the head. Raises UsageError."""
    from raydiag.cluster import ssh

    return ssh.Way.parse(arguments.ssh, arguments.jump, arguments.ssh_config)


def selected_nodes(names: Sequence[str] | None) -> list[str] | None:
    """The nodes that --node names; None where it is not given. Raises UsageError."""
    from raydiag import nodeset

    if names is None:
        return None
    select = list(chain.from_iterable(map(nodeset.expand, names)))
    if not select:
        raise UsageError("--node: no node is named")
    return select


def probe_options() -> dict[str, dict[str, Any]]:
    """What probes are told from the catalog, which stays where the command runs."""
    from raydiag import catalog

    table = catalog.kernel_table()
    words, quiet, drivers = list(table.words), list(table.quiet), list(table.driver_names)
    return {"kernel_log": {"words": words, "quiet": quiet, "drivers": drivers}}


def _names_victim(node: NodeReport) -> bool:
    """Whether the node's kernel log may name a process."""
    for line in node.records("kernel_log"):
        if line.matched and any(word in line.text for word in _VICTIM_WORDS):
            return True
    return False


def snapshot(collected: Collected, api: ClusterAccess, whole_cluster: bool) -> Snapshot:
    """What came back, with the actors that its kernel logs may be about."""
    from raydiag.model import Snapshot

    # Actors join a kernel log's victim to a training rank, and name the ranks that should be there.
    # Without either of these there is no look-up, nor where the deadline has passed.
    needs_actors = any(map(_names_victim, collected.nodes)) or collected.job_start is not None
    return Snapshot(
        nodes=collected.nodes,
        time=collected.asked_at,
        job_start=collected.job_start,
        actors=api.actors() if needs_actors and time.monotonic() < api.limit else (),
        whole_cluster=whole_cluster,
        running=collected.running,
        known=collected.known,
    )
