"""`--redact` for what is said of jobs: triage, diagnosis and comparison."""

from collections.abc import Iterator, Sequence
from itertools import chain
from operator import attrgetter

from raydiag.explain.comparison import Comparison
from raydiag.explain.job import ExaminedJob
from raydiag.model import Diagnosis
from raydiag.render.job_names import JobNames, hosts_of_tunnels, hosts_of_urls, named_values
from raydiag.render.redact import host_names
from raydiag.triage.verdict import Verdict
from raydiag.tsdb.discovery_types import is_address, short_name


def redacted_triage(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """The same about jobs, hosts and users without names."""
    names = JobNames(chain.from_iterable(map(_hosts_of_log, verdicts)), verdicts)
    for verdict in verdicts:
        _know(names, verdict)
    return names.value(list(verdicts))


def redacted_diagnosis(examined: ExaminedJob) -> ExaminedJob:
    """The same about one job and its cluster."""
    names = JobNames(_hosts_of_job(examined), examined)
    _know(names, examined.triage)
    for job in examined.nodes.jobs if examined.nodes is not None else ():
        names.know_job(job, None, ())
    return names.value(examined)


def redacted_comparison(comparison: Comparison) -> Comparison:
    """The same about several jobs, which are numbered."""
    hosts: list[str] = []
    for side in comparison.sides:
        hosts += _hosts_of_job(side.examined)
    for side in comparison.sides:
        hosts += side.facts.header.nodelist
    names = JobNames(hosts, comparison, numbered=True)
    for side in comparison.sides:
        _know(names, side.examined.triage, side.asked)
        for settings in (side.settings.given, side.settings.effective):
            for value in named_values(settings):
                names.know_value(value)
    return names.value(comparison)


def _know(names: JobNames, verdict: Verdict, given_path: str | None = None) -> None:
    resolved = verdict.resolved
    paths = [resolved.job_dir, verdict.log, given_path, *resolved.logs]
    paths += chain.from_iterable(resolved.attempts)
    name = resolved.name or verdict.job_name
    names.know_job(verdict.job_id, name, list(filter(None, paths)))
    for job_name in (resolved.name, verdict.job_name):
        names.know_value(job_name or "")


def _hosts_of_log(verdict: Verdict) -> Iterator[str]:
    yield from filter(None, map(attrgetter("host"), verdict.tasks))
    yield from hosts_of_tunnels(verdict.tunnels)
    yield str(verdict.dashboards.get("head") or "")
    yield from verdict.resolved.ray_log_hosts
    yield from _hosts_of_diagnosis(verdict.diagnosis)


def _hosts_of_job(examined: ExaminedJob) -> Iterator[str]:
    """The nodes' own names first: they are whole."""
    if examined.nodes is not None:
        yield from host_names(examined.nodes.snapshot, examined.nodes.cluster)
    yield from _hosts_of_log(examined.triage)
    if examined.metrics is not None:
        yield from examined.metrics.discovery.expected
        for host in examined.metrics.discovery.hosts:
            instances = [instance.rpartition(":")[0] for instance in host.instances]
            for name in (*host.labels, *instances, host.name):
                if not is_address(short_name(name)):
                    yield name
    yield from hosts_of_urls(_texts_with_urls(examined))
    yield from _hosts_of_diagnosis(examined.explained.diagnosis)


def _texts_with_urls(examined: ExaminedJob) -> Iterator[str]:
    """Texts that say what was asked, and what of it was not reached."""
    yield from (examined.log_only, examined.no_log, *examined.notes)
    for unread in examined.explained.diagnosis.coverage.unread:
        yield from (unread.source, unread.reason)
    if examined.metrics is not None:
        yield examined.metrics.origin


def _hosts_of_diagnosis(diagnosis: Diagnosis) -> Iterator[str]:
    coverage = diagnosis.coverage
    records = chain[object](diagnosis.findings, coverage.blind, coverage.unread)
    return filter(None, map(attrgetter("host"), records))
