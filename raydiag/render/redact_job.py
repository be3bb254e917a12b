"""`--redact` for what is told of jobs: triage, diagnosis and comparison."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Optional

from raydiag.explain.comparison import Comparison
from raydiag.explain.job import ExaminedJob
from raydiag.model import Coverage, Finding
from raydiag.render.job_names import JobNames, hosts_of, hosts_of_urls, named
from raydiag.render.redact import host_names
from raydiag.triage.verdict import Verdict
from raydiag.tsdb.discovery_types import is_address, short_name


def redacted_triage(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """The same about jobs, hosts and users without names."""
    hosts = [name for one in verdicts for name in _of_log(one)]
    names = JobNames(hosts, verdicts)
    for one in verdicts:
        _know(names, one)
    return names.value(list(verdicts))


def redacted_diagnosis(examined: ExaminedJob) -> ExaminedJob:
    names = JobNames(_of_job(examined), examined)
    _know(names, examined.triage)
    for job in examined.nodes.jobs if examined.nodes is not None else ():
        names.know_job(job, None, ())
    return names.value(examined)


def redacted_comparison(found: Comparison) -> Comparison:
    hosts = [name for side in found.sides for name in _of_job(side.examined)]
    hosts += [name for side in found.sides for name in side.facts.header.nodelist]
    names = JobNames(hosts, found, numbered=True)
    for side in found.sides:
        _know(names, side.examined.triage, side.asked)
        for settings in (side.settings.given, side.settings.effective):
            for value in named(settings):
                names.know_value(value)
    return names.value(found)


def _know(names: JobNames, verdict: Verdict, asked: Optional[str] = None) -> None:
    resolved = verdict.resolved
    paths = [resolved.job_dir, verdict.log, asked, *resolved.logs]
    attempts = [path for one in resolved.attempts for path in one]
    name = resolved.name or verdict.job_name
    names.know_job(verdict.job_id, name, [path for path in (*paths, *attempts) if path])
    for other in (resolved.name, verdict.job_name):
        names.know_value(other or "")


def _of_log(verdict: Verdict) -> Iterator[str]:
    yield from (task.host for task in verdict.tasks if task.host)
    yield from hosts_of(verdict.tunnels)
    yield str(verdict.dashboards.get("head") or "")
    yield from verdict.resolved.ray_log_hosts
    yield from _of_findings(verdict.diagnosis.findings, verdict.diagnosis.coverage)


def _of_job(examined: ExaminedJob) -> Iterator[str]:
    """The nodes' own names first: they are whole."""
    if examined.nodes is not None:
        yield from host_names(examined.nodes.snapshot, examined.nodes.cluster)
    yield from _of_log(examined.triage)
    seen = examined.metrics
    if seen is not None:
        yield from seen.discovery.expected
        for host in seen.discovery.hosts:
            labels = (*host.labels, *(one.rpartition(":")[0] for one in host.instances), host.name)
            yield from (one for one in labels if not is_address(short_name(one)))
    found = examined.explained.diagnosis
    yield from hosts_of_urls(_told_of(examined))
    yield from _of_findings(found.findings, found.coverage)


def _told_of(examined: ExaminedJob) -> Iterator[str]:
    """Texts that say what was asked, and what of it was not reached."""
    yield from (examined.log_only, examined.no_log, *examined.notes)
    for one in examined.explained.diagnosis.coverage.unread:
        yield from (one.source, one.reason)
    if examined.metrics is not None:
        yield examined.metrics.origin


def _of_findings(findings: Iterable[Finding], coverage: Coverage) -> Iterator[str]:
    yield from (one.host for one in findings if one.host)
    yield from (one.host for one in coverage.blind if one.host)
    yield from (one.host for one in coverage.unread if one.host)
