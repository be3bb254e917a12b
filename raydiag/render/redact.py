"""`--redact`: names and addresses are replaced before anything is rendered, alike in each format.

Replaced, each by the same stand-in throughout a report: names of the cluster's hosts, of mail-like
logins and of file servers (host-1), other names in the hosts' domains, IPv4, IPv6 and hardware
addresses (addr-1), users in /home/USER, /Users/USER and USER@ (user-1), Ray's session, submission
and node, worker and actor ids (session-1, job-1, id-1), and what follows the first word of a
command. Hosts of a kernel log are those that syslog and the NFS client name. Loopback addresses,
PCI addresses, paths below /sys, /proc and /dev, versions, times, numbers and classes stay.

Not promised: names that look like words (of actors, processes and functions, of projects in paths,
of hosts that are in no list and no domain of the cluster), a host whose name is only digits where
it stands inside a sentence, serial numbers of hardware, and who is recognised by what was wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from raydiag import nodeset
from raydiag.errors import UsageError
from raydiag.model import Diagnosis, Snapshot
from raydiag.render.document import chain_indices
from raydiag.render.names import Names

if TYPE_CHECKING:
    from raydiag.kmsg import ExaminedKernelLog

_NODE_LISTS = ("SLURM_JOB_NODELIST", "SLURM_NODELIST", "JOB_NODELIST")
_NFS_EVENTS = ("nfs-timeout", "nfs-ok")  # their device is a host
_FILE_SERVERS = re.compile(r"(?P<host>[A-Za-z][\w.-]*):/")  # HOST:/EXPORT


def redacted(
    snapshot: Snapshot, diagnosis: Diagnosis, cluster: Mapping[str, Any]
) -> tuple[Snapshot, Diagnosis, Mapping[str, Any]]:
    """The same report about hosts, users and addresses that have no names."""
    everything = (snapshot, diagnosis, cluster)
    names = Names(host_names(snapshot, cluster), _commands(snapshot), everything)
    for expression in _node_lists(snapshot):
        names.know(expression, f"{len(_expanded(expression))} hosts")
    redacted_snapshot = names.value(snapshot)
    return redacted_snapshot, _redacted_diagnosis(diagnosis, names), names.value(dict(cluster))


def redacted_log(examined: ExaminedKernelLog) -> ExaminedKernelLog:
    """The same for a kernel log. Names of processes stay, as in a probe's report."""
    hosts = list(map(attrgetter("host"), examined.events))
    hosts += [event.device for event in examined.events if event.event_class in _NFS_EVENTS]
    names = Names(filter(None, hosts), (), examined)
    return replace(
        examined,
        events=names.value(examined.events),
        diagnosis=_redacted_diagnosis(examined.diagnosis, names),
        unread=names.value(examined.unread),
    )


def _redacted_diagnosis(diagnosis: Diagnosis, names: Names) -> Diagnosis:
    # A chain holds findings of the list, and is looked up in it by identity.
    findings = list(map(names.value, diagnosis.findings))
    chains = []
    for chain, positions in zip(diagnosis.chains, chain_indices(diagnosis), strict=True):
        chains.append(replace(chain, findings=list(map(findings.__getitem__, positions))))
    return Diagnosis(findings, chains, names.value(diagnosis.coverage))


def host_names(snapshot: Snapshot, cluster: Mapping[str, Any]) -> Iterator[str]:
    """Every name that is known to be one of a host, those of the nodes first."""
    for report in snapshot.nodes:
        yield report.node.hostname
    yield str(cluster.get("ssh") or "").rpartition("@")[2]
    yield from map(_host_of_url, (cluster.get("address"), cluster.get("gcs_address")))
    for expression in _node_lists(snapshot):
        yield from _expanded(expression)
    for report in snapshot.nodes:
        for mount in report.records("storage"):
            server = _FILE_SERVERS.match(mount.device)
            if server:
                yield server["host"]


def _host_of_url(address: Any) -> str:
    """Of a URL or HOST:PORT; empty when there is none."""
    url = str(address or "")
    try:
        return urlsplit(url if "://" in url else f"//{url}").hostname or ""
    except ValueError:
        return ""


def _node_lists(snapshot: Snapshot) -> set[str]:
    """Node lists of the scheduler, such as gpu[001-064], as processes of the job carry them."""
    lists: set[str] = set()
    for report in snapshot.nodes:
        for process in report.records("processes"):
            lists.update(filter(None, map(process.job.get, _NODE_LISTS)))
    return lists


def _expanded(expression: str) -> tuple[str, ...]:
    """The names in a scheduler's node list; none when it is no list."""
    try:
        return tuple(nodeset.expand(",".join(expression.split())))
    except UsageError:
        return ()


def _commands(snapshot: Snapshot) -> set[str]:
    """Distinct commands that have arguments."""
    commands: set[str] = set()
    for report in snapshot.nodes:
        commands.update(map(attrgetter("command"), report.records("processes")))
    return {command for command in commands if " " in command}
