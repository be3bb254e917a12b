"""The way to the cluster that a command's options name: its dashboard, ssh, a throw-away Ray."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from raydiag.cli import options
from raydiag.errors import UsageError

if TYPE_CHECKING:
    from raydiag.cluster.address import Address
    from raydiag.cluster.submission import Cluster


@contextlib.contextmanager
def cluster(
    arguments: argparse.Namespace, progress: options.Progress
) -> Iterator[tuple[Cluster, Address]]:
    """The cluster that the options name, for as long as the block runs.

    Raises UsageError and CannotRun.
    """
    from raydiag.cluster import address, jobs_api

    if arguments.ssh is not None:
        with _through_ssh(arguments, progress) as reached:
            yield reached
        return
    if arguments.jump is not None or arguments.ssh_config is not None:
        raise UsageError("-J and --ssh-config say how --ssh connects: give --ssh [USER@]HEAD too")
    found = address.resolve(arguments.address)
    if not found.is_local:
        yield jobs_api.JobsApi(found.url, jobs_api.token()), found
        return
    from raydiag.cluster.local import throwaway_ray

    progress.say("starting a throw-away Ray on this machine ...")
    with throwaway_ray() as api:
        yield api, found


@contextlib.contextmanager
def _through_ssh(
    arguments: argparse.Namespace, progress: options.Progress
) -> Iterator[tuple[Cluster, Address]]:
    from raydiag.cluster import address, jobs_api, ssh

    way = ssh.Way.parse(arguments.ssh, arguments.jump, arguments.ssh_config)
    login = way.head.destination
    found = address.seen_from(login, way.head.host, arguments.address)
    token = jobs_api.token()
    progress.say(f"connecting to {login} ...")
    with ssh.forward(way, found.url) as forward:
        yield jobs_api.JobsApi(found.url, token, forward), found
