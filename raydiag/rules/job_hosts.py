"""Hosts that the scheduler gave the job and that Ray does not have.

The list is that of the job's own processes. Nothing is said where it may be meant for something
else: several jobs, lists that differ, or that lack a host on which they were found.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache

from raydiag.errors import UsageError
from raydiag.model import Confidence, Evidence, Finding, NodeReport, NodeStatus, Severity, Snapshot
from raydiag.nodeset import expand
from raydiag.probes.processes import RayProcess
from raydiag.rules.nodes import by_host, distinct

_LISTS = ("SLURM_JOB_NODELIST", "SLURM_NODELIST", "JOB_NODELIST")
_COUNTS = ("SLURM_JOB_NUM_NODES", "NNODES")
_MOST_NAMED = 20  # hosts with a finding each; more of them share one
_JOINED_S = 300.0  # after the start of the job; until then hosts may still be on their way

_Variables = Mapping[str, set[str]]  # name -> all values of it


def missing_hosts(snapshot: Snapshot) -> Iterator[Finding]:
    """Hosts of the job's node list that are no node of Ray; else their number, from its count.

    Nodes that Ray lists as dead or that do not answer are there, and have findings of their own.
    """
    if not snapshot.whole_cluster:
        return
    hosts = _variables(snapshot)
    together: dict[str, set[str]] = {}
    for variables in hosts.values():
        for name, values in variables.items():
            together.setdefault(name, set()).update(values)
    if len(together.get("SLURM_JOB_ID", ())) > 1:
        return
    named = _named(hosts)
    if named:
        source, listed = named
        present = {report.node.host.lower() for report in snapshot.nodes}
        missing = sorted(listed - present)
        text = f"{len(listed)} hosts, {len(listed & present)} of which are in the cluster"
        if len(missing) > _MOST_NAMED:
            text += f"; {missing[0]} is the first of {len(missing)} that are not"
            yield _finding(snapshot, source, text, len(listed), None)
            return
        for host in missing:
            yield _finding(snapshot, source, text, len(listed), host)
    else:
        yield from _too_few(snapshot, together)


def _variables(snapshot: Snapshot) -> Mapping[str, _Variables]:
    """What the processes on each host that answered say of the job."""
    hosts: dict[str, dict[str, set[str]]] = {}
    for host, reports in by_host(snapshot).items():
        variables = hosts.setdefault(host, {})
        processes: list[RayProcess] = distinct(reports, "processes", "pid", "start_time_s")
        for process in processes:
            for name, value in process.job.items():
                variables.setdefault(name, set()).add(value)
    return hosts


def _named(hosts: Mapping[str, _Variables]) -> tuple[str, frozenset[str]] | None:
    """The one list of all hosts, with the variables that hold it; None where they do not agree.

    A list without the host that it was found on holds other names than those of the machines.
    """
    lists: dict[frozenset[str], set[str]] = {}
    for host, variables in hosts.items():
        for name in _LISTS:
            for value in variables.get(name, ()):
                listed = _short_names(value)
                if host.lower() not in listed:
                    return None
                lists.setdefault(listed, set()).add(name)
    if len(lists) != 1:
        return None
    listed, names = next(iter(lists.items()))
    return ", ".join(sorted(names)), listed


@lru_cache(maxsize=64)  # a thousand hosts tell the same list
def _short_names(expression: str) -> frozenset[str]:
    """Lower-case short names; none when the text is no list of hosts."""
    try:
        names = expand(",".join(expression.split()))
    except UsageError:
        return frozenset()
    return frozenset(name.partition(".")[0].lower() for name in names)


def _too_few(snapshot: Snapshot, variables: _Variables) -> Iterator[Finding]:
    """One finding without a host when the job counts more nodes than Ray ever had."""
    counts = {
        (int(value), name)
        for name in _COUNTS
        for value in variables.get(name, ())
        if value.isascii() and value.isdigit() and len(value) < 7
    }
    if not counts:
        return
    expected, source = min(counts)
    nodes = [one for one in snapshot.nodes if not _is_mere_head(one)]
    alive = [one for one in nodes if one.status is not NodeStatus.DEAD and one.node.alive]
    # A dead node is known, and told of, unless its machine is back under another id.
    addresses = {report.node.address for report in alive}
    lost = {report.node.address for report in nodes} - addresses
    if expected > len(alive) + len(lost):
        text = f"{expected} nodes, {len(alive) + len(lost)} are known to Ray"
        yield _finding(snapshot, source, text, expected, None)


def _is_mere_head(report: NodeReport) -> bool:
    """A node that answered, without GPUs and without a process of the job: it is not one of its."""
    answered = report.status in (NodeStatus.OK, NodeStatus.PARTIAL)
    gpus = report.records("gpu_sensors") or report.records("nvidia")
    return answered and not gpus and not any(one.job for one in report.records("processes"))


def _finding(snapshot: Snapshot, source: str, text: str, value: int, host: str | None) -> Finding:
    """A remark while no job runs, or so short that hosts may still join."""
    start = snapshot.job_start
    joined = start is not None and snapshot.time - start >= _JOINED_S
    return Finding(
        "host-missing",
        host=host,
        severity=Severity.WARNING if joined else Severity.INFO,
        confidence=Confidence.LIKELY,
        evidence=(Evidence(f"{source} in /proc/<pid>/environ", text, float(value), snapshot.time),),
    )
