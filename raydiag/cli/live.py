"""What `diagnose` takes from a live cluster: its nodes, its job's log, the way to its metrics."""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import methodcaller
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from raydiag.cli import cluster_options, options, triage
from raydiag.errors import CannotRun, NoSuchJob

if TYPE_CHECKING:
    from raydiag.cluster.collect import Collected, ProbeRequest
    from raydiag.cluster.ray_job import RayJob
    from raydiag.cluster.submission import ClusterAccess
    from raydiag.explain.job import ExaminedJob, LiveNodes
    from raydiag.joblog.facts import JobFacts
    from raydiag.joblog.slurm import SlurmJob
    from raydiag.model import HostUnread
    from raydiag.triage.verdict import Moment

_PROBE_DEADLINE_S = 30.0
_MOST_OF_NAME = 200  # characters; a file name takes no more than 255 bytes
_RAYS_OWN_IDS = "raysubmit_"
_SEARCH_S = 40.0  # for a server on the head, one forward after the other
_RAY = "Ray's Jobs API"
_STATES = {"SUCCEEDED": "COMPLETED", "FAILED": "FAILED", "STOPPED": "CANCELLED"}  # as Slurm's
_NO_JOB = "no job was named"
_THIS_MACHINE = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class _Call:
    """What was asked, where to say how far it is, and what is closed at its end."""

    arguments: argparse.Namespace
    progress: options.ProgressLine
    stack: contextlib.ExitStack
    requests: Sequence[ProbeRequest] = ()  # to the nodes; empty: all probes, on all of them
    lost: list[HostUnread] = field(default_factory=list)  # what none of the sources tells
    answers: list[Collected] = field(default_factory=list)  # of the nodes, once they are there


@dataclass
class _LiveSources:
    """What could be had so far."""

    facts: JobFacts
    no_log: str = ""
    job: RayJob | None = None
    nodes: LiveNodes | None = None
    unread: tuple[HostUnread, ...] = ()
    notes: tuple[str, ...] = ()
    on_head: bool = False  # the dashboard is dead, and its machine is this one


def is_cluster_meant(arguments: argparse.Namespace) -> bool:
    """Whether a cluster is meant: it is named, or nothing else is."""
    if any(getattr(arguments, name) is not None for name in options.WAY_IN):
        return True
    return not (arguments.job or arguments.prometheus)


def may_be_of_ray(arguments: argparse.Namespace, name: str) -> bool:
    """Whether to ask a cluster for a job that is none of the files here.

    One is named, by an option or by Ray's variables, or the name is such as Ray gives.
    """
    named = any(getattr(arguments, option) is not None for option in options.WAY_IN)
    in_environment = os.environ.get("RAY_API_SERVER_ADDRESS") or os.environ.get("RAY_ADDRESS")
    return named or bool(in_environment) or name.startswith(_RAYS_OWN_IDS)


def triage_of_ray(
    arguments: argparse.Namespace, name: str, progress: options.ProgressLine
) -> tuple[JobFacts, Moment]:
    """What a job of Ray's has printed, and what Ray says of it. Raises CannotRun."""
    from raydiag.cluster import ray_job

    with contextlib.ExitStack() as stack:
        call = _Call(arguments, progress, stack)
        api, _ = stack.enter_context(cluster_options.cluster(arguments, progress))
        job = ray_job.named(api.jobs(), name)
        if job is None:
            raise CannotRun(_unknown_to(api))
        sources = _printed(call, api, job)
        if sources.no_log:
            raise CannotRun(sources.no_log)
        return sources.facts, _moment(arguments, sources)


def _unknown_to(api: ClusterAccess) -> str:
    return f"no such file, no job id here, and no job of the Ray cluster at {api.url}"


def examine_live(
    arguments: argparse.Namespace,
    progress: options.ProgressLine,
    requests: Sequence[ProbeRequest] = (),
) -> ExaminedJob:
    """Ask everything that there is, and judge it together.

    `requests`: to the nodes, where not all are asked for everything; see `_answers`.
    Raises CannotRun when nothing at all can be reached.
    """
    from raydiag.explain.job import DiagnosisRequest, examine

    with contextlib.ExitStack() as stack:
        call = _Call(arguments, progress, stack, requests)
        sources = _cluster(call)
        moment = _moment(arguments, sources)
        server = _metrics(call, sources)
        request = DiagnosisRequest(
            prometheus=server.url,
            every_playbook=arguments.all,
            deadline_s=arguments.deadline,
            say=progress.say,
            origin=server.origin,
            no_metrics=server.reason,
            no_log=sources.no_log,
            nodes=sources.nodes,
            unread=(*sources.unread, *call.lost),
            notes=() if sources.nodes is not None else sources.notes,
        )
        examined = examine(sources.facts, moment, request)
        for collected in call.answers:
            collected.remember(examined.case.known_findings)
        return examined


def without_log(subject: str) -> JobFacts:
    """Of a job of which no log is known."""
    from raydiag.joblog.facts import Resolved

    return _read(Resolved(subject, None, None, None, ()))


def _read(resolved: Any, directory: str = "") -> JobFacts:
    from raydiag.joblog import read
    from raydiag.triage.signatures import Classifier, make_selector

    return read.read(resolved, make_selector, Classifier(), directory=directory)


def _cluster(call: _Call) -> _LiveSources:
    """Nodes and log; a cluster that is not there is told where there is something else to read."""
    from raydiag.model import HostUnread, Status

    arguments, sources = call.arguments, None
    try:
        api, address = call.stack.enter_context(cluster_options.cluster(arguments, call.progress))
        jobs = api.jobs()
        sources = _log(call, api, jobs)
        nodes = _probed(call, sources, api, address)
    except NoSuchJob:
        raise
    except CannotRun as error:
        if sources is None or sources.no_log:
            sources = _left_on_this_head(call) or sources
        if sources is None:
            if arguments.job is None and arguments.prometheus is None:
                raise CannotRun(f"{error}; or name a job's directory, log or id") from None
            try:
                sources = _log_of(call)
            except NoSuchJob as unknown:
                raise CannotRun(f"{unknown}; and {error}") from None
        elif sources.no_log and arguments.prometheus is None:
            raise
        source = arguments.ssh or arguments.address or "the cluster"
        lost = HostUnread("", source, Status.ERROR, str(error))
        return replace(sources, unread=(*sources.unread, lost))
    ids = map(str, filter(None, map(methodcaller("get", "submission_id"), jobs)))
    return replace(sources, nodes=replace(nodes, jobs=tuple(ids)))


def _log_of(call: _Call) -> _LiveSources:
    """Of a directory, a file or an id below --outputs."""
    from raydiag.joblog import find

    arguments = call.arguments
    if arguments.job is None:
        return _LiveSources(without_log("the metrics alone"), _NO_JOB)
    call.progress.say("reading the job's log ...")
    return _LiveSources(_read(find.resolve(arguments.job, arguments.outputs or "outputs")))


def _left_on_this_head(call: _Call) -> _LiveSources | None:
    """What needs no dashboard, where that should be on this machine: the newest job's own log."""
    from raydiag.cluster import address
    from raydiag.joblog import driver_logs, find

    arguments = call.arguments
    if arguments.ssh is not None or arguments.job is not None or arguments.prometheus is not None:
        return None
    target = address.resolve(arguments.address)
    log = driver_logs.newest(time.time())
    is_here = not target.is_local and urlsplit(target.url).hostname in _THIS_MACHINE
    if log is None or not is_here or not driver_logs.is_ray_here():
        return None
    job_id = driver_logs.submission_id(log)
    note = f"without Ray's dashboard: the log is that of {job_id}, the newest in Ray's session here"
    return _LiveSources(_read(find.resolve(str(log), "outputs")), notes=(note,), on_head=True)


def _log(call: _Call, api: ClusterAccess, jobs: Sequence[Mapping[str, Any]]) -> _LiveSources:
    """Of the job that is named, or of the only one that runs: what its driver has printed."""
    from raydiag.cluster import ray_job

    now, named = time.time(), call.arguments.job
    job = ray_job.named(jobs, named) if named else ray_job.running(jobs, now)
    if job is None:
        try:
            sources = _log_of(call)
        except NoSuchJob:
            raise NoSuchJob(f"{named}: {_unknown_to(api)}") from None
        job, note = ray_job.beside(jobs, _written(sources.facts), now)
        return replace(sources, job=job, notes=(note,) if note else ())
    return _printed(call, api, job)


def _printed(call: _Call, api: ClusterAccess, job: RayJob) -> _LiveSources:
    """What the job's driver has printed, as Ray gives it."""
    from raydiag.model import HostUnread, Status

    noted = (job.note,) if job.note else ()
    if not job.id:
        return _LiveSources(without_log("the cluster"), job.reason, job, notes=noted)
    call.progress.say(f"reading what {job.id} has printed ...")
    printed = api.printed(job.id)
    if not printed.text.strip():
        missing = without_log(job.id)
        if not printed.reason:
            return _LiveSources(missing, f"Ray has no output of job {job.id}", job, notes=noted)
        lost = HostUnread("", f"{job.id}.log", Status.ERROR, printed.reason)
        return _LiveSources(missing, printed.reason, job, unread=(lost,), notes=noted)
    name = f"{job.id[:_MOST_OF_NAME]}.log".replace("/", "_")
    facts = facts_of_text(printed.text, name, job.id)
    return _LiveSources(facts, job=job, notes=tuple(filter(None, (job.note, printed.reason))))


def facts_of_text(text: str, name: str, job_id: str | None = None) -> JobFacts:
    """Of a log that is in no file here; it goes by `name`."""
    from raydiag.joblog.facts import Resolved

    with tempfile.TemporaryDirectory(prefix="raydiag-") as directory:
        Path(directory, name).write_text(text, encoding="utf-8", errors="replace")
        return _read(Resolved(job_id or name, job_id, None, None, (name,)), directory)


def _written(facts: JobFacts) -> float | None:
    """When the job last wrote anything that is seen here."""
    times = [file.mtime for file in facts.files if file.mtime is not None]
    return max(times, default=None)


def probe_request(
    names: Sequence[str],
    select: Sequence[str] | None = None,
    force_ras: bool = False,
    more: Mapping[str, dict[str, Any]] | None = None,
) -> ProbeRequest:
    """For those probes, on all nodes or on some; `more`: what some probes are told besides."""
    from raydiag import catalog
    from raydiag.cluster.collect import ProbeRequest

    told, symbols = cluster_options.probe_options(), catalog.kernel_table().driver_fault_symbols
    options_of = {**told, **(more or {})}
    return ProbeRequest(names, select, _PROBE_DEADLINE_S, options_of, symbols, force_ras)


def _answers(call: _Call, api: ClusterAccess, address: Any) -> Collected:
    """Of the first request, with the answers to later ones joined to those of the same nodes.

    A later one that fails costs its own answers only, which is told.
    """
    from raydiag import probes
    from raydiag.cli import closer_look
    from raydiag.cluster.collect import collect
    from raydiag.model import HostUnread, Status

    first, *closer = call.requests or (probe_request(probes.defaults()),)
    call.progress.say("asking the cluster ...")

    def _collected(request: ProbeRequest) -> Collected:
        progress, chosen = call.progress, replace(request, fresh=call.arguments.fresh)
        running = collect(api, address, chosen, progress.nodes, warn=progress.warn)
        return call.stack.enter_context(running)

    collected = _collected(first)
    for request in closer:
        try:
            looked_at = {report.node.node_id: report for report in _collected(request).nodes}
        except CannotRun as error:
            source = "a closer look at the nodes that were named"
            call.lost.append(HostUnread("", source, Status.ERROR, str(error)))
            continue
        nodes = []
        for report in collected.nodes:
            closer_report = looked_at.get(report.node.node_id)
            if closer_report is not None:
                call.lost.extend(closer_look.not_seen(report, closer_report))
                report = closer_look.joined(report, closer_report)
            nodes.append(report)
        collected = replace(collected, nodes=nodes)
    return collected


def _probed(call: _Call, sources: _LiveSources, api: ClusterAccess, address: Any) -> LiveNodes:
    from raydiag.explain.job import LiveNodes

    collected = _answers(call, api, address)
    call.answers.append(collected)
    snapshot = cluster_options.snapshot(collected, api, whole_cluster=True)
    job = sources.job
    if job is None:
        return LiveNodes(snapshot, collected.cluster)
    if job.start is not None or job.end is not None:
        # That of the job that is meant, not of whatever else runs.
        snapshot = replace(snapshot, job_start=job.start)
    # A job whose directory is named is asked about, whether Ray knows it or not.
    idle = job.idle and bool(sources.no_log)
    nodes = LiveNodes(snapshot, collected.cluster, job.id, idle, job.end, job.other_jobs)
    nodes = replace(nodes, notes=sources.notes, ray_id=job.ray_id)
    if job.other_jobs:
        paces = [f"Ray job {pace.job_id}: {pace.text}" for pace in nodes.paces]
        nodes = replace(nodes, notes=(*nodes.notes, *paces))
    return nodes


def _moment(arguments: argparse.Namespace, sources: _LiveSources) -> Moment:
    """As for a directory; where nobody else knows whether the job is running, Ray does."""
    moment = triage.when(sources.facts, arguments)
    job = sources.job
    asks_ray = moment.alive is None and arguments.now is None
    if asks_ray and job is not None and job.alive is not None:
        return replace(moment, alive=job.alive, source=_RAY, scheduler=_scheduled(job))
    if moment.now is None:
        return replace(moment, now=time.time())
    return moment


def _scheduled(job: RayJob) -> SlurmJob | None:
    """How it ended, as a scheduler says it."""
    from raydiag.joblog.slurm import SlurmJob

    state = _STATES.get(job.status) if job.alive is False else None
    return SlurmJob(state, source=_RAY) if state is not None else None


# ---- metrics


@dataclass(frozen=True)
class _MetricsServer:
    """The Prometheus to ask; without a URL, the reason."""

    url: str | None = None
    origin: str = ""  # what people call it, where that is not the URL
    reason: str = ""


def _metrics(call: _Call, sources: _LiveSources) -> _MetricsServer:
    """The server that is named, else the job's own, else one that watches the cluster's nodes."""
    url = call.arguments.prometheus
    if url is None and sources.nodes is None and not sources.on_head:
        return _MetricsServer(reason="the cluster was not reached")
    if call.arguments.ssh is not None and url is not None:
        return _named_through_ssh(call, sources, url)
    if call.arguments.ssh is not None:
        return _searched_through_ssh(call, sources)
    if url is not None:
        return _MetricsServer(url)
    call.progress.say("looking for the metrics ...")
    return _local_server(sources)


def _local_server(sources: _LiveSources) -> _MetricsServer:
    from raydiag.tsdb import live

    data, ports = _data(sources), _logged_ports(sources)
    if data is not None:
        # The job's own, or none: another server on these nodes may have seen other jobs only.
        url = live.find(data, ports)
    else:
        url = live.find_watching(_hosts(sources), ports)
        if url is not None:
            return _MetricsServer(url)
    return _MetricsServer(url, reason=_no_server("this machine's", _tried_ports(sources)))


def _named_through_ssh(call: _Call, sources: _LiveSources, url: str) -> _MetricsServer:
    from raydiag.cluster import ssh

    route = cluster_options.way(call.arguments)
    if not urlsplit(url).scheme:
        url = f"http://{url}"
    origin = f"{url} of {route.head.destination}"
    try:
        forward = call.stack.enter_context(ssh.forward(route, url))
    except CannotRun as error:
        if sources.nodes is None and sources.no_log:
            raise
        return _MetricsServer(reason=f"{origin} is not reached: {error}")
    return _MetricsServer(forward.url, origin)


def _searched_through_ssh(call: _Call, sources: _LiveSources) -> _MetricsServer:
    """On the head's loopback, with a forward for each port that is tried."""
    from raydiag.cluster import ssh

    route = cluster_options.way(call.arguments)
    login, ports = route.head.destination, _tried_ports(sources)
    limit = time.monotonic() + _SEARCH_S
    for port in ports:
        url = f"http://127.0.0.1:{port}"
        call.progress.say(f"looking for the metrics on {login}, port {port} ...")
        if time.monotonic() > limit:
            slow = f"{login} took too long to be asked for a Prometheus"
            return _MetricsServer(reason=f"{slow}: name one with --prometheus")
        with contextlib.ExitStack() as attempt:
            try:
                forward = attempt.enter_context(ssh.forward(route, url))
            except CannotRun as error:
                return _MetricsServer(reason=f"{login} is no longer reached: {error}")
            if _is_of_job(forward.url, sources):
                call.stack.enter_context(attempt.pop_all())
                return _MetricsServer(forward.url, f"{url} of {login}")
    return _MetricsServer(reason=_no_server(f"{login}'s", ports))


def _is_of_job(url: str, sources: _LiveSources) -> bool:
    """Whether the server stores the job's metrics and watches its hosts."""
    from raydiag.tsdb import live

    data = _data(sources)
    return (data is None or live.stores_in(url, data)) and live.watches(url, _hosts(sources))


def _logged_ports(sources: _LiveSources) -> list[int]:
    """The port that the job's log names, if any."""
    port = sources.facts.dashboards.prometheus_port
    return [port] if port else []


def _tried_ports(sources: _LiveSources) -> list[int]:
    """The one that the log names, then the usual ones."""
    from raydiag.tsdb import live

    return list(dict.fromkeys([*_logged_ports(sources), *live.USUAL]))


def _data(sources: _LiveSources) -> Path | None:
    """Where the job's metrics are stored; None where that is not here."""
    job_dir = sources.facts.resolved.job_dir
    data = Path(job_dir or "/nonexistent") / "prometheus"
    return data if data.is_dir() else None


def _hosts(sources: _LiveSources) -> list[str]:
    nodes = sources.nodes
    if nodes is None:
        return [*sources.facts.header.nodelist, socket.gethostname()]
    return [*nodes.hosts, *nodes.addresses]


def _no_server(whose: str, ports: Sequence[int]) -> str:
    return (
        f"no Prometheus that scrapes the cluster's nodes answers on {whose} loopback (ports "
        f"{', '.join(map(str, ports))}): name one with --prometheus"
    )
