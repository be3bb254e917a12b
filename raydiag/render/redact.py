"""`--redact`: names and addresses replaced before anything is rendered, so alike in each format.

Replaced, each by the same stand-in throughout a report: names of the cluster's hosts, of mail-like
logins and of file servers (host-1), other names in the hosts' domains, IPv4, IPv6 and hardware
addresses (addr-1), users in /home/USER, /Users/USER and USER@ (user-1), Ray's session, submission
and node, worker and actor ids (session-1, job-1, id-1), and what follows the first word of a
command. Hosts of a kernel log are those that syslog and the NFS client name. Loopback addresses,
PCI addresses, paths below /sys, /proc and /dev, versions, times, numbers and classes stay.

Not promised: names that nothing tells apart from words (of actors, processes and functions, of
projects in paths, of hosts
that are in no list and no domain of the cluster), a host whose name is only digits where it stands
inside a sentence, serial numbers of hardware, and who the reader can tell from what was wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from raydiag import nodeset
from raydiag.errors import UsageError
from raydiag.model import Diagnosis, Finding, Snapshot
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
        names.know(expression, f"{len(_listed(expression))} hosts")
    told = names.value(snapshot)
    return told, _redacted_diagnosis(diagnosis, names), names.value(dict(cluster))


def redacted_log(examined: ExaminedKernelLog) -> ExaminedKernelLog:
    """The same for a kernel log. Names of processes stay, as in a probe's report."""
    hosts = [event.host or "" for event in examined.events]
    hosts += [event.device or "" for event in examined.events if event.event_class in _NFS_EVENTS]
    names = Names(hosts, (), examined)
    return replace(
        examined,
        events=names.value(examined.events),
        diagnosis=_redacted_diagnosis(examined.diagnosis, names),
        unread=names.value(examined.unread),
    )


def _redacted_diagnosis(diagnosis: Diagnosis, names: Names) -> Diagnosis:
    # A chain holds findings of the list, and is looked up in it by identity.
    findings = [names.value(finding) for finding in diagnosis.findings]
    place = {id(finding): index for index, finding in enumerate(diagnosis.findings)}

    def same(finding: Finding) -> Finding:
        index = place.get(id(finding))
        return findings[diagnosis.findings.index(finding) if index is None else index]

    chains = [replace(one, findings=[same(f) for f in one.findings]) for one in diagnosis.chains]
    return Diagnosis(findings, chains, names.value(diagnosis.coverage))


def host_names(snapshot: Snapshot, cluster: Mapping[str, Any]) -> Iterator[str]:
    """Every name that is known to be one of a host, those of the nodes first."""
    for report in snapshot.nodes:
        yield report.node.hostname
    login = str(cluster.get("ssh") or "")
    yield login.rpartition("@")[2]
    for key in ("address", "gcs_address"):
        address = str(cluster.get(key) or "")
        try:
            yield urlsplit(address if "://" in address else f"//{address}").hostname or ""
        except ValueError:
            continue
    for expression in _node_lists(snapshot):
        yield from _listed(expression)
    for report in snapshot.nodes:
        for mount in report.records("storage"):
            server = _FILE_SERVERS.match(mount.device)
            if server:
                yield server["host"]


def _node_lists(snapshot: Snapshot) -> set[str]:
    """Node lists of the scheduler, such as gpu[001-064], as processes of the job carry them."""
    processes = (one for report in snapshot.nodes for one in report.records("processes"))
    return {one.job[name] for one in processes for name in _NODE_LISTS if name in one.job}


def _listed(expression: str) -> tuple[str, ...]:
    """The names in a scheduler's node list; none when it is no list."""
    try:
        return tuple(nodeset.expand(",".join(expression.split())))
    except UsageError:
        return ()


def _commands(snapshot: Snapshot) -> set[str]:
    """Distinct commands that have arguments."""
    records = (record for report in snapshot.nodes for record in report.records("processes"))
    return {record.command for record in records if " " in record.command}
