"""What `diagnose` takes from a live cluster: its nodes, its job's log, the way to its metrics."""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional
from urllib.parse import urlsplit

from raydiag.cli import cluster_options, options, triage
from raydiag.errors import CannotRun

if TYPE_CHECKING:
    from raydiag.cluster.ray_job import RayJob
    from raydiag.cluster.submission import ClusterAccess
    from raydiag.explain.job import ExaminedJob, LiveNodes
    from raydiag.joblog.facts import JobFacts
    from raydiag.model import HostUnread
    from raydiag.triage.verdict import Moment

_PROBE_DEADLINE_S = 30.0
_MOST_OF_NAME = 200  # characters; a file name takes no more than 255 bytes
_SEARCH_S = 40.0  # for a server on the head, one forward after the other
_NO_JOB = "no job was named"


@dataclass
class _LiveSources:
    """What could be had so far."""

    facts: JobFacts
    no_log: str = ""
    job: Optional[RayJob] = None
    nodes: Optional[LiveNodes] = None
    unread: tuple[HostUnread, ...] = ()
    notes: tuple[str, ...] = ()


def wanted(arguments: argparse.Namespace) -> bool:
    """Whether a cluster is meant: it is named, or nothing else is."""
    ways = (arguments.address, arguments.ssh, arguments.jump, arguments.ssh_config)
    return any(way is not None for way in ways) or not (arguments.job or arguments.prometheus)


def examined(arguments: argparse.Namespace, progress: options.ProgressLine) -> ExaminedJob:
    """Ask everything that there is, and judge it together.

    Raises CannotRun when nothing at all can be reached.
    """
    from raydiag.explain.job import DiagnosisRequest, examine

    with contextlib.ExitStack() as stack:
        found = _cluster(arguments, progress, stack)
        moment = _moment(arguments, found)
        url, origin, why = _metrics(arguments, found, progress, stack)
        request = DiagnosisRequest(
            prometheus=url,
            every_playbook=arguments.all,
            deadline_s=arguments.deadline,
            say=progress.say,
            origin=origin,
            no_metrics=why,
            no_log=found.no_log,
            nodes=found.nodes,
            unread=found.unread,
            notes=() if found.nodes is not None else found.notes,
        )
        return examine(found.facts, moment, request)


def without_log(asked: str) -> JobFacts:
    """Of a job of which no log is known."""
    from raydiag.joblog.facts import Resolved

    return _read(Resolved(asked, None, None, None, ()))


def _read(resolved: Any) -> JobFacts:
    from raydiag.joblog import read
    from raydiag.triage.signatures import Classifier, make_selector

    return read.read(resolved, make_selector, Classifier())


def _cluster(
    arguments: argparse.Namespace, progress: options.ProgressLine, stack: contextlib.ExitStack
) -> _LiveSources:
    """Nodes and log; a cluster that is not there is told where there is something else to read."""
    from raydiag.model import HostUnread, Status

    found = None
    try:
        api, address = stack.enter_context(cluster_options.cluster(arguments, progress))
        jobs = api.jobs()
        found = _log(arguments, api, jobs, progress)
        nodes = _probed(found, api, address, progress, stack)
    except CannotRun as error:
        if found is None:
            if arguments.job is None and arguments.prometheus is None:
                raise CannotRun(f"{error}; or name a job's directory, log or id") from None
            found = _log_of(arguments, progress)
        elif found.no_log and arguments.prometheus is None:
            raise
        source = arguments.ssh or arguments.address or "the cluster"
        lost = HostUnread("", source, Status.ERROR, str(error))
        return replace(found, unread=(*found.unread, lost))
    return replace(found, nodes=replace(nodes, jobs=_ids(jobs)))


def _ids(jobs: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    return tuple(str(one["submission_id"]) for one in jobs if one.get("submission_id"))


def _log_of(arguments: argparse.Namespace, progress: options.ProgressLine) -> _LiveSources:
    """Of a directory, a file or an id below --outputs."""
    from raydiag.joblog import find

    if arguments.job is None:
        return _LiveSources(without_log("the metrics alone"), _NO_JOB)
    progress.say("reading the job's log ...")
    return _LiveSources(_read(find.resolve(arguments.job, arguments.outputs or "outputs")))


def _log(
    arguments: argparse.Namespace,
    api: ClusterAccess,
    jobs: Sequence[Mapping[str, Any]],
    progress: options.ProgressLine,
) -> _LiveSources:
    """Of the job that is named, or of the only one that runs: what its driver has printed."""
    from raydiag.cluster import ray_job
    from raydiag.model import HostUnread, Status

    job = ray_job.named(jobs, arguments.job) if arguments.job else ray_job.running(jobs)
    if job is None:
        found = _log_of(arguments, progress)
        job, note = ray_job.beside(jobs, _written(found.facts), time.time())
        return replace(found, job=job, notes=(note,) if note else ())
    if not job.id:
        return _LiveSources(without_log("the cluster"), job.why, job)
    progress.say(f"reading what {job.id} has printed ...")
    printed = api.printed(job.id)
    if not printed.text.strip():
        missing = without_log(job.id)
        why = printed.why or f"Ray has no output of job {job.id}"
        lost = (HostUnread("", f"{job.id}.log", Status.ERROR, printed.why),) if printed.why else ()
        return _LiveSources(missing, why, job, unread=lost)
    name = f"{job.id[:_MOST_OF_NAME]}.log".replace("/", "_")
    facts = facts_of_text(printed.text, name, job.id)
    return _LiveSources(facts, job=job, notes=(printed.why,) if printed.why else ())


def facts_of_text(text: str, name: str, job_id: Optional[str] = None) -> JobFacts:
    """Of a log that is in no file here; it goes by `name`."""
    from raydiag.joblog.facts import Resolved

    with tempfile.TemporaryDirectory(prefix="raydiag-") as directory, _inside(directory):
        # Read from there, so that the log goes by its own name and not by that of a copy.
        Path(name).write_text(text, encoding="utf-8", errors="replace")
        return _read(Resolved(job_id or name, job_id, None, None, (name,)))


def _written(facts: JobFacts) -> Optional[float]:
    """When the job last wrote anything that is seen here."""
    times = [one.mtime for one in facts.files if one.mtime is not None]
    return max(times, default=None)


@contextlib.contextmanager
def _inside(place: str) -> Iterator[None]:
    before = os.getcwd()
    os.chdir(place)
    try:
        yield
    finally:
        os.chdir(before)


def _probed(
    found: _LiveSources,
    api: ClusterAccess,
    address: Any,
    progress: options.ProgressLine,
    stack: Any,
) -> LiveNodes:
    from raydiag import catalog, probes
    from raydiag.cluster.collect import ProbeRequest, collect
    from raydiag.explain.job import LiveNodes

    progress.say("asking the cluster ...")
    request = ProbeRequest(
        probes=probes.defaults(),
        select=None,
        deadline_s=_PROBE_DEADLINE_S,
        options=cluster_options.probe_options(),
        driver_fault_symbols=catalog.driver_fault_symbols(),
    )
    collected = stack.enter_context(
        collect(api, address, request, progress.nodes, warn=progress.warn)
    )
    snapshot = cluster_options.snapshot(collected, api, whole_cluster=True)
    job = found.job
    if job is None:
        return LiveNodes(snapshot, collected.cluster)
    if job.start is not None or job.end is not None:
        # That of the job that is meant, not of whatever else runs.
        snapshot = replace(snapshot, job_start=job.start)
    # A job whose directory is named is asked about, whether Ray knows it or not.
    idle = job.idle and bool(found.no_log)
    return LiveNodes(
        snapshot, collected.cluster, job.id, idle, job.end, job.others, notes=found.notes
    )


def _moment(arguments: argparse.Namespace, found: _LiveSources) -> Moment:
    """As for a directory; whether the job lives Ray knows, where nobody else does."""
    moment = triage.when(found.facts, arguments)
    job = found.job
    known = job is not None and job.alive is not None
    if moment.alive is None and job is not None and known and arguments.now is None:
        return replace(moment, alive=job.alive, source="Ray's Jobs API")
    if moment.now is None:
        return replace(moment, now=time.time())
    return moment


def _metrics(
    arguments: argparse.Namespace,
    found: _LiveSources,
    progress: options.ProgressLine,
    stack: contextlib.ExitStack,
) -> tuple[Optional[str], str, str]:
    """URL of the server, what people call it, and why there is none."""
    from raydiag.tsdb import live

    named, ports = arguments.prometheus, []
    if found.facts.dashboards.prometheus_port:
        ports.append(found.facts.dashboards.prometheus_port)
    hosts = _hosts(found)
    if named is None and found.nodes is None:
        return None, "", "the cluster was not reached"
    if arguments.ssh is not None:
        return _through_ssh(arguments, found, ports, progress, stack)
    if named is not None:
        return named, "", ""
    progress.say("looking for the metrics ...")
    data = _data(found)
    if data is not None:
        # The job's own, or none: whoever else watches these nodes may have seen other jobs alone.
        return live.find(data, ports), "", _none("this machine's", ports)
    url = live.find_watching(hosts, ports)
    return url, "", "" if url is not None else _none("this machine's", ports)


def _data(found: _LiveSources) -> Optional[Path]:
    """Where the job's metrics are stored; None where that is not here."""
    place = found.facts.resolved.job_dir
    data = Path(place) / "prometheus" if place else None
    return data if data is not None and data.is_dir() else None


def _hosts(found: _LiveSources) -> list[str]:
    nodes = found.nodes
    return [*nodes.hosts, *nodes.addresses] if nodes is not None else []


def _none(whose: str, ports: Sequence[int]) -> str:
    from raydiag.tsdb import live

    asked = ", ".join(map(str, dict.fromkeys([*ports, *live.USUAL])))
    return (
        f"no Prometheus that scrapes the cluster's nodes answers on {whose} loopback (ports "
        f"{asked}): name one with --prometheus"
    )


def _through_ssh(
    arguments: argparse.Namespace,
    found: _LiveSources,
    ports: Sequence[int],
    progress: options.ProgressLine,
    stack: contextlib.ExitStack,
) -> tuple[Optional[str], str, str]:
    """The same on the head's loopback, a forward for each port that is tried."""
    from raydiag.cluster import ssh
    from raydiag.tsdb import live

    way = cluster_options.way(arguments)
    login = way.head.destination
    if arguments.prometheus is not None:
        named = arguments.prometheus
        seen = named if urlsplit(named).scheme else f"http://{named}"
        try:
            forward = stack.enter_context(ssh.forward(way, seen))
        except CannotRun as error:
            if found.nodes is None and found.no_log:
                raise
            return None, "", f"{seen} of {login} is not reached: {error}"
        return forward.url, f"{seen} of {login}", ""
    data, hosts = _data(found), _hosts(found)
    limit = time.monotonic() + _SEARCH_S
    for port in dict.fromkeys([*ports, *live.USUAL]):
        seen = f"http://127.0.0.1:{port}"
        progress.say(f"looking for the metrics on {login}, port {port} ...")
        if time.monotonic() > limit:
            why = f"{login} took too long to be asked for a Prometheus: name one with --prometheus"
            return None, "", why
        with contextlib.ExitStack() as attempt:
            try:
                forward = attempt.enter_context(ssh.forward(way, seen))
            except CannotRun as error:
                return None, "", f"{login} is no longer reached: {error}"
            own = data is None or live.stores_in(forward.url, data)
            if own and live.watches(forward.url, hosts):
                stack.enter_context(attempt.pop_all())
                return forward.url, f"{seen} of {login}", ""
    return None, "", _none(f"{login}'s", ports)
