"""Nodes that are missing, dead or unreachable, and sources whose reads hang.

Which hosts the scheduler gave the job is known from the job's own processes. Nothing is said where
that list may belong to something else: several jobs, lists that differ, or that lack a host on
which they were found.
"""

import itertools
import re
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

from raydiag import catalog, model
from raydiag.errors import UsageError
from raydiag.model import Evidence, Finding, NodeStatus, Severity, Snapshot
from raydiag.nodeset import expand
from raydiag.probes.processes import RayProcess
from raydiag.rules.grades import warning_if
from raydiag.rules.machines import machine_names, machines

# Ray's DeathReason and its message. The word boundary matters: UNEXPECTED_TERMINATION holds
# EXPECTED_TERMINATION.
_PLANNED_END = re.compile(r"\bEXPECTED_TERMINATION\b|drain|autoscaler", re.IGNORECASE)
_UNPLANNED_END = "UNEXPECTED_TERMINATION"

_SILENT = (NodeStatus.TIMEOUT, NodeStatus.UNREACHABLE)
# Reasons of `cluster.collect` and `cluster.actor` where the node did answer.
_ANSWER_UNUSABLE = (
    "its answer was lost",
    "its answer cannot be decoded",
    "another one on the head",  # another version of Python
    "node runner: ended before it answered",
)

NODE_TABLE = "Ray node table (GCS)"
_LISTS = ("SLURM_JOB_NODELIST", "SLURM_NODELIST", "JOB_NODELIST")
_COUNTS = ("SLURM_JOB_NUM_NODES", "NNODES")
_MOST_NAMED = 20  # hosts with a finding each; more of them share one
_JOINED_S = 300.0  # after the start of the job; until then hosts may still be on their way

_Variables = Mapping[str, Mapping[str, set[str]]]  # name -> each value of it -> hosts, lower case


def departed(snapshot: Snapshot) -> Mapping[str, str]:
    """Ids of dead nodes whose absence is no fault, with the reason why.

    Ray ended the node on purpose; or its machine is in the cluster again under another id, which
    the address tells, since another machine may have the same host name; or it was lost before
    the job that runs now began (without a job: more than a day ago).
    """
    live_reports = itertools.filterfalse(is_dead, snapshot.nodes)
    addresses = {report.node.address for report in live_reports} - {""}
    reasons: dict[str, str] = {}
    for report in filter(is_dead, snapshot.nodes):
        if reason := _departure(snapshot, report.node, addresses):
            reasons[report.node.node_id] = reason
    return reasons


def _departure(snapshot: Snapshot, node: model.Node, live_addresses: set[str]) -> str:
    """Why the absence of a dead node is no fault; empty when it may be one."""
    if node.address in live_addresses:
        return "the machine has rejoined the cluster under another node id"
    reason = node.death_reason
    if _UNPLANNED_END not in reason.upper() and _PLANNED_END.search(reason):
        return "Ray ended this node on purpose"
    if node.ended_at is None or node.ended_at >= snapshot.news_since:
        return ""
    ended = datetime.fromtimestamp(node.ended_at, timezone.utc)
    return f"it ended {ended:%Y-%m-%d %H:%M} UTC, before what runs now"


def dead_nodes(snapshot: Snapshot) -> Iterator[Finding]:
    """Nodes that Ray's global control store lists as dead."""
    departures, names = departed(snapshot), machine_names(snapshot)
    for report in filter(is_dead, snapshot.nodes):
        node = report.node
        reason = node.death_reason or report.reason or "no reason given"
        text = f"node {node.node_id} at {node.address} is dead: {reason}"
        known: dict[str, Any] = {"severity": Severity.CRITICAL, "onset": node.ended_at}
        listed = Evidence(NODE_TABLE, text, time=node.ended_at)
        evidence = (listed, *_last_words(snapshot, report))
        if departure := departures.get(node.node_id):
            known.update(severity=Severity.INFO, explanation=f"Not a present fault: {departure}.")
            evidence = (listed,)
        yield Finding("ray-node-dead", names[node.machine], evidence=evidence, **known)


def unreachable_nodes(snapshot: Snapshot) -> Iterator[Finding]:
    """Nodes that Ray believes alive and that gave no answer, or none that could be used."""
    names = machine_names(snapshot)
    expected = list(itertools.filterfalse(is_dead, snapshot.nodes))
    silent = [report for report in expected if report.status in _SILENT]
    is_shared = len(silent) == len(expected) > 1
    for report in silent:
        node = report.node
        reason = report.reason or f"no answer ({report.status.value})"
        source, waited_s = f"node {node.node_id} at {node.address}", report.duration_s or None
        known: Mapping[str, Any] = {"severity": Severity.CRITICAL}
        if is_shared:
            known = catalog.variant("node-unreachable", "all-nodes")
        if any(phrase in reason for phrase in _ANSWER_UNUSABLE):
            known = catalog.variant("node-unreachable", "unusable-answer")
        asked = Evidence(source, reason, waited_s, snapshot.time)
        evidence = (asked, *_last_words(snapshot, report))
        yield Finding("node-unreachable", names[node.machine], evidence=evidence, **known)


def _last_words(snapshot: Snapshot, report: model.NodeReport) -> Iterator[Evidence]:
    """What the resident agent has of a node from before it fell silent, the newest line first."""
    words = report.last_words
    if words is None:
        return
    age_s = snapshot.time - words.last_seen
    text = f"last seen {age_s:.0f} s before this probe"
    yield Evidence("resident agent", text, age_s, words.last_seen)
    for time_s, text in reversed(words.kernel_log):
        yield Evidence("its kernel log, as last seen", text, time=time_s)


def hung_reads(snapshot: Snapshot) -> Iterator[Finding]:
    """Sources whose reads hang: reader processes that hang in the kernel, or had to be killed.

    A wait for NFS can be killed, so of a hung mount no stuck reader is left.
    """
    names = machine_names(snapshot)
    stuck_sources = set()
    for report in snapshot.nodes:
        for reader in report.stuck:
            stuck_sources.add((report.node.machine, reader.source))
            yield _hung_read(names[report.node.machine], reader, report.collected_at or None)
    for report in snapshot.nodes:
        for unread in _unread_mounts(report):
            if (report.node.machine, unread.source) not in stuck_sources:
                yield _hung_mount(names[report.node.machine], unread, report.collected_at or None)


def _unread_mounts(report: model.NodeReport) -> Iterator[model.Unread]:
    """Mount points that had all their time; not those that the runner reached late or never."""
    storage = report.probes.get("storage")
    for unread in storage.unread if storage else ():
        reason = unread.reason.removeprefix(f"{unread.source}: ")
        timed_out = unread.status is model.Status.TIMEOUT and reason.startswith("no answer within")
        if timed_out and unread.source.startswith("/"):
            yield unread


def _hung_mount(host: str, unread: model.Unread, read_at: float | None) -> Finding:
    evidence = (Evidence(unread.source, unread.reason, time=read_at),)
    known = catalog.variant("hung-read", "mount")
    return Finding("hung-read", host, device=unread.source, evidence=evidence, **known)


def _hung_read(host: str, reader: model.StuckReader, read_at: float | None) -> Finding:
    symbol = reader.wchan or "an unknown place"
    text = f"pid {reader.pid} of probe {reader.probe} waits in {symbol} for {reader.seconds:.0f} s"
    evidence = (Evidence(reader.source, text, reader.seconds, read_at),)
    known = dict(catalog.variant("hung-read", "stuck-reader"), device=reader.source)
    # When the read began: the source has hung at least since then.
    known["onset"] = read_at - reader.seconds if read_at else None
    return Finding("hung-read", host, pid=reader.pid, evidence=evidence, **known)


def is_dead(report: model.NodeReport) -> bool:
    """Whether Ray lists the node as dead."""
    return report.status is NodeStatus.DEAD or not report.node.alive


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


def _is_mere_head(report: model.NodeReport) -> bool:
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
        confidence=model.Confidence.LIKELY,
        evidence=(Evidence(source, text, float(value), snapshot.time),),
    )
