"""Hosts that the scheduler gave the job and that Ray does not have.

The list is that of the job's own processes. Nothing is said where the list may belong to something
else: several jobs, lists that differ, or that lack a host on which they were found.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from functools import lru_cache
from operator import attrgetter
from typing import NamedTuple

from raydiag.errors import UsageError
from raydiag.model import Confidence, Evidence, Finding, NodeReport, NodeStatus, Snapshot
from raydiag.nodeset import expand
from raydiag.probes.processes import RayProcess
from raydiag.rules.grades import warning_if
from raydiag.rules.machines import machines
from raydiag.rules.nodes import is_dead

_LISTS = ("SLURM_JOB_NODELIST", "SLURM_NODELIST", "JOB_NODELIST")
_COUNTS = ("SLURM_JOB_NUM_NODES", "NNODES")
_MOST_NAMED = 20  # hosts with a finding each; more of them share one
_JOINED_S = 300.0  # after the start of the job; until then hosts may still be on their way

_Variables = Mapping[str, Mapping[str, set[str]]]  # name -> each value of it -> hosts, lower case


class _NodeList(NamedTuple):
    variables: str  # that hold it
    hosts: frozenset[str]


def missing_hosts(snapshot: Snapshot) -> Iterator[Finding]:
    """Hosts of the job's node list that are no node of Ray; else their number, from its count.

    Nodes that Ray lists as dead or that do not answer are there, and have findings of their own.
    """
    if not snapshot.whole_cluster:
        return
    variables = _job_variables(snapshot)
    if len(variables.get("SLURM_JOB_ID", ())) > 1:
        return
    node_list = _agreed_list(variables)
    if node_list:
        yield from _not_in_cluster(snapshot, node_list)
    else:
        yield from _too_few(snapshot, variables)


def _not_in_cluster(snapshot: Snapshot, node_list: _NodeList) -> Iterator[Finding]:
    variables, hosts = node_list
    present = {report.node.host.lower() for report in snapshot.nodes}
    missing = sorted(hosts - present)
    text = f"{len(hosts)} hosts, {len(hosts & present)} of which are in the cluster"
    if len(missing) > _MOST_NAMED:
        text += f"; {missing[0]} is the first of {len(missing)} that are not"
        yield _finding(snapshot, variables, text, len(hosts))
        return
    for host in missing:
        yield _finding(snapshot, variables, text, len(hosts), host)


def _job_variables(snapshot: Snapshot) -> _Variables:
    """What the processes on the hosts that answered say of the job, and the hosts that they do."""
    variables: dict[str, dict[str, set[str]]] = {}
    for machine in machines(snapshot):
        for process in machine.records(RayProcess):
            for name, value in process.job.items():
                hosts = variables.setdefault(name, {}).setdefault(value, set())
                hosts.add(machine.name.lower())
    return variables


def _agreed_list(variables: _Variables) -> _NodeList | None:
    """The one list of all hosts; None where they do not agree.

    A list without the host that it was found on holds other names than those of the machines.
    """
    names_of_list: dict[frozenset[str], set[str]] = {}
    for name in _LISTS:
        for value, found_on in variables.get(name, {}).items():
            names_of_list.setdefault(_short_names(value), set()).add(name)
            if not found_on <= _short_names(value):
                return None
    if len(names_of_list) != 1:
        return None
    hosts, names = next(iter(names_of_list.items()))
    return _NodeList(", ".join(sorted(names)), hosts)


@lru_cache(maxsize=64)  # a thousand hosts have the same list
def _short_names(expression: str) -> frozenset[str]:
    """Lower-case short names; none when the text is no list of hosts."""
    try:
        names = expand(",".join(expression.split()))
    except UsageError:
        return frozenset()
    return frozenset(name.partition(".")[0].lower() for name in names)


def _too_few(snapshot: Snapshot, variables: _Variables) -> Iterator[Finding]:
    """One finding without a host when the job counts more nodes than Ray ever had."""
    known = _known_nodes(snapshot)
    expected, source = min(_count_settings(variables), default=(0, ""))
    if expected > known:
        yield _finding(snapshot, source, f"{expected} nodes, {known} are known to Ray", expected)


def _count_settings(variables: _Variables) -> Iterator[tuple[int, str]]:
    for name in _COUNTS:
        for value in variables.get(name, ()):
            if value.isascii() and value.isdigit() and len(value) < 7:
                yield int(value), name


def _known_nodes(snapshot: Snapshot) -> int:
    """Nodes of the job: those that live, and machines that were lost."""
    nodes = list(itertools.filterfalse(_is_mere_head, snapshot.nodes))
    alive = [report.node.address for report in nodes if not is_dead(report)]
    # A dead node is known, and reported, unless its machine is back under another id.
    return len(alive) + len({report.node.address for report in nodes} - set(alive))


def _is_mere_head(report: NodeReport) -> bool:
    """A node that answered, without GPUs and without a process of the job: it is not one of its."""
    answered = report.status in (NodeStatus.OK, NodeStatus.PARTIAL)
    gpus = report.records("gpu_sensors") or report.records("nvidia")
    return answered and not gpus and not any(map(attrgetter("job"), report.records("processes")))


def _finding(
    snapshot: Snapshot, variables: str, text: str, value: int, host: str | None = None
) -> Finding:
    """A note while no job runs, or so short that hosts may still join."""
    start, source = snapshot.job_start, f"{variables} in /proc/<pid>/environ"
    return Finding(
        "host-missing",
        host=host,
        severity=warning_if(start is not None and snapshot.time - start >= _JOINED_S),
        confidence=Confidence.LIKELY,
        evidence=(Evidence(source, text, float(value), snapshot.time),),
    )
