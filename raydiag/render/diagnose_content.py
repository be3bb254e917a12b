"""What the reports on a job's diagnosis say, in text as in Markdown. Not escaped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from raydiag import __version__
from raydiag.explain.job import ExaminedJob
from raydiag.model import Blind, Finding, HostUnread, Severity
from raydiag.nodeset import fold
from raydiag.playbooks.observations import Report, ReportRow, RuledOut
from raydiag.render.groups import Group, groups, scope
from raydiag.render.layout import count, number, utc

EVIDENCE = 3
LINKS = 12  # of a chain in the report for people; the JSON has all

_Item = TypeVar("_Item", Blind, HostUnread)


def ruled_out(examined: ExaminedJob) -> Sequence[RuledOut]:
    return examined.explained.ruled_out


def reports(examined: ExaminedJob) -> Sequence[Report]:
    return examined.metrics.reports if examined.metrics is not None else ()


def heading(examined: ExaminedJob) -> str:
    """`rdma-degraded  mi2034 ionic_3  since 2026-11-20 03:12:07Z  confirmed`."""
    one = examined.explained.verdict
    where = [fold(one.hosts)] if one.hosts else []
    where += [f"gpu {gpu}" for _, gpu in one.gpus[:4]]
    where += [device for _, device in one.devices[:4]]
    parts = [one.failure_class, " ".join(where)]
    if one.onset is not None:
        parts.append(f"since {utc(one.onset)}")
    parts.append(f"killed {utc(one.kill_time)}" if one.kill_time is not None else "")
    parts.append(f"pattern {one.pattern}" if one.pattern else "")
    parts.append("recovered" if one.recovered else "")
    parts.append(one.confidence.value)
    return "  ".join(part for part in parts if part)


def verdict_chain(examined: ExaminedJob) -> list[Finding]:
    """The chain of the verdict; empty when nothing is its root."""
    chains = examined.explained.diagnosis.chains
    root = examined.explained.verdict.failure_class
    if not chains or chains[0].findings[0].failure_class != root:
        return []
    return list(chains[0].findings)


def others(examined: ExaminedJob, every: bool) -> list[Group]:
    """What the verdict's chain does not hold; remarks only on demand."""
    told = {id(one) for one in verdict_chain(examined)}
    kept = groups(examined.explained.diagnosis, every)
    rest = [one for one in kept if not any(id(f) in told for f in one.findings)]
    return [one for one in rest if every or one.severity is not Severity.INFO]


def link(finding: Finding) -> str:
    """One step of a chain: when, what, where."""
    when = utc(finding.onset) if finding.onset is not None else "(no time)"
    parts = [when, finding.failure_class, scope([finding]), finding.confidence.value]
    return "  ".join(part for part in parts if part)


def seen(finding: Finding, examined: ExaminedJob, every: bool = False) -> list[str]:
    """Evidence, a line each. A query goes by its id; the JSON spells it out."""
    names = _query_names(examined)
    shown = finding.evidence if every else finding.evidence[:EVIDENCE]
    lines = []
    for item in shown:
        source = names.get(item.source, item.source)
        text = f"{source}: {item.text}" if item.text else source
        lines.append(text if item.time is None else f"{text}  ({utc(item.time)})")
    return list(dict.fromkeys(lines))  # triage may quote one line as step and as end


def _query_names(examined: ExaminedJob) -> dict[str, str]:
    asked = examined.metrics.asked if examined.metrics is not None else ()
    return {one.promql: one.id for one in asked}


def next_steps(examined: ExaminedJob) -> Sequence[str]:
    """Those of the verdict's root; of the gravest problem where there is none."""
    chain = verdict_chain(examined)
    if chain:
        return chain[0].next_steps
    found = examined.explained.diagnosis.findings
    problems = [one for one in found if one.severity is not Severity.INFO]
    return problems[0].next_steps if problems else ()


def holding(report: Report, every: bool) -> list[ReportRow]:
    return [one for one in report.rows if every or one.holds]


def said(row: ReportRow) -> str:
    """A row in one line, with the value that it was decided from."""
    answer = {True: "yes", False: "no", None: "open"}[row.holds]
    where = fold(row.hosts) if row.hosts else ""
    if row.gpu is not None:
        where += f" gpu {row.gpu}"
    where += f" {row.device}" if row.device else ""
    value = f" ({number(row.value)} {row.unit})".rstrip() if row.value is not None else ""
    value = value.replace(" )", ")")
    place = f" on {where.strip()}" if where.strip() else ""
    return f"{answer}: {row.row}{place}{value}: {row.interpretation}"


def coverage_lines(examined: ExaminedJob) -> Iterator[str]:
    coverage = examined.explained.diagnosis.coverage
    for what, why in (("Log", examined.no_log), ("Metrics", examined.log_only)):
        if why:
            begin = why[:1] if why.startswith(("http", "/")) else why[:1].upper()
            yield f"{what}: none. {begin}{why[1:]}."
    if examined.training:
        yield f"training series: {examined.training}"
    if coverage.asked:
        yield f"{coverage.answered} of {count(coverage.asked, 'node')} seen."
    for reason, hosts in _by(coverage.blind, lambda one: str(one.reason)):
        yield f"not seen: {fold(one.host for one in hosts)}: {reason}"
    unread = [one for one in coverage.unread if one.reason != examined.log_only]  # told above
    for reason, items in _by(unread, lambda one: f"{one.source}: {one.reason}"):
        names = fold(one.host for one in items if one.host)
        yield f"unread: {names + ': ' if names else ''}{reason}"
    if coverage.window is not None:
        yield f"window: {utc(coverage.window.start)} to {utc(coverage.window.end)}"


def _by(items: Iterable[_Item], key: Callable[[_Item], str]) -> list[tuple[str, list[_Item]]]:
    grouped: dict[str, list[_Item]] = {}
    for one in items:
        grouped.setdefault(key(one), []).append(one)
    return list(grouped.items())


def place(examined: ExaminedJob) -> str:
    """What was diagnosed: the log, else the cluster, else the server."""
    if not examined.no_log:
        return examined.triage.log
    if examined.nodes is not None:
        return str(examined.nodes.cluster.get("address") or examined.triage.log)
    return examined.metrics.origin if examined.metrics is not None else examined.triage.log


def story(examined: ExaminedJob) -> str:
    """What the log tells; "" without one."""
    return "" if examined.no_log else " ".join(examined.triage.story)


def footer(examined: ExaminedJob) -> str:
    parts = [f"raydiag {__version__}", place(examined)]
    if examined.nodes is not None and examined.nodes.cluster.get("address") != parts[-1]:
        parts.append(str(examined.nodes.cluster.get("address")))
    seen = examined.metrics
    if seen is not None:
        parts += [seen.origin, f"identity {seen.identity.belief.value}"]
        parts.append(count(len(seen.asked), "query").replace("querys", "queries"))
    return "  ".join(parts)
