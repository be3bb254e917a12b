"""The diagnosis of one job as text, Markdown and JSON: the verdict first, then what led to it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Optional

from raydiag import __version__
from raydiag.job import Examined
from raydiag.model import Confidence, Finding, Severity
from raydiag.nodeset import fold
from raydiag.playbooks.observed import Report, Row
from raydiag.render import document
from raydiag.render.document import severity_of
from raydiag.render.escape import fenced, markdown, terminal
from raydiag.render.groups import Group, groups, scope
from raydiag.render.layout import COLOURS, GREEN, YELLOW, Page, count, number, utc
from raydiag.render.triage_document import triage_document

SCHEMA = "raydiag.diagnose/1"
_EVIDENCE = 3
_STEPS = 12  # of a chain in the report for people; the JSON has all


# ---- JSON


def diagnose_document(examined: Examined, generated_at: float) -> dict[str, Any]:
    """The JSON object; `raydiag/schemas/diagnose.json` states its shape."""
    told = document.findings_and_coverage(examined.explained.diagnosis)
    findings = told["findings"]
    log = triage_document(examined.triage, generated_at)
    return {
        "schema": SCHEMA,
        "raydiag_version": __version__,
        "generated_at": document.rfc3339(generated_at),
        "verdict": _verdict(examined),
        "chains": [[findings[index] for index in chain] for chain in told["chains"]],
        "ruled_out": [
            {"class": one.failure_class, "why": one.why, "playbook": one.playbook}
            for one in examined.explained.ruled_out
        ],
        "log_only": examined.log_only or None,
        "status": examined.case.status,
        "triage": {k: v for k, v in log.items() if k not in ("schema", "raydiag_version")},
        "metrics": _metrics(examined),
        "playbooks": [_playbook(one, examined) for one in _reports(examined)],
        "notes": list(examined.notes),
        "findings": findings,
        "coverage": told["coverage"],
    }


def _verdict(examined: Examined) -> dict[str, Any]:
    one = examined.explained.verdict
    return {
        "class": one.failure_class,
        "hosts": list(one.hosts),
        "gpus": [{"host": host, "gpu": gpu} for host, gpu in one.gpus],
        "devices": [{"host": host, "device": device} for host, device in one.devices],
        "onset": _finite(one.onset),
        "uncertainty_s": _finite(one.uncertainty_s),
        "recovered": one.recovered,
        "kill_time": _finite(one.kill_time),
        "pattern": one.pattern,
        "confidence": one.confidence.value,
        "summary": one.summary,
    }


def _metrics(examined: Examined) -> Optional[dict[str, Any]]:
    seen = examined.metrics
    if seen is None:
        return None
    window = seen.context.window
    return {
        "origin": seen.origin,
        "identity": {"belief": seen.identity.belief.value, "reason": seen.identity.reason},
        "window": {"start": window.start, "end": window.end},
        "hosts": [one.name for one in seen.discovery.hosts],
        "missing": list(seen.discovery.missing),
        "families": [
            {
                "prefix": one.prefix,
                "metrics": len(one.metrics),
                "hosts": len(one.hosts),
                "resolution_s": _finite(one.resolution_s),
                "refresh_s": _finite(one.refresh_s),
                "lag_s": _finite(one.lag_s),
            }
            for one in seen.discovery.families
        ],
        "masks": [
            {
                "kind": one.kind,
                "start": _finite(one.start),
                "end": _finite(one.end),
                "host": one.host,
            }
            for one in seen.context.masks
        ],
        "queries": len(seen.asked),
    }


def _playbook(report: Report, examined: Examined) -> dict[str, Any]:
    asked = examined.metrics.asked if examined.metrics is not None else ()
    return {
        "id": report.playbook,
        "title": report.title,
        "analysis": report.analysis,
        "verdict": report.verdict,
        "window": {"start": report.window.start, "end": report.window.end},
        "queries": [
            {
                "id": one.id,
                "promql": one.promql,
                "start": one.start,
                "end": one.end,
                "step": one.step_s,
                "status": one.status.value,
                "reason": one.reason,
                "rows": one.rows,
            }
            for one in asked
            if one.id in report.questions
        ],
        "rows": [_row(one) for one in report.rows],
        "exclude": [
            {"host": one.host, "priority": one.priority, "reason": one.reason}
            for one in report.exclude
        ],
        "block": list(report.block),
    }


def _row(row: Row) -> dict[str, Any]:
    return {
        "row": row.row,
        "holds": row.holds,
        "interpretation": row.interpretation,
        "hosts": list(row.hosts),
        "gpu": row.gpu,
        "device": row.device,
        "value": _finite(row.value),
        "unit": row.unit,
        "query": row.question,
    }


def _finite(value: Optional[float]) -> Optional[float]:
    return float(value) if value is not None and math.isfinite(value) else None


def _reports(examined: Examined) -> Sequence[Report]:
    return examined.metrics.reports if examined.metrics is not None else ()


# ---- what both reports say


def _heading(examined: Examined) -> str:
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


def _chain(examined: Examined) -> list[Finding]:
    """The chain of the verdict; empty when nothing is its root."""
    chains = examined.explained.diagnosis.chains
    root = examined.explained.verdict.failure_class
    if not chains or chains[0].findings[0].failure_class != root:
        return []
    return list(chains[0].findings)


def _others(examined: Examined, every: bool) -> list[Group]:
    """What the verdict's chain does not hold; remarks only on demand."""
    told = {id(one) for one in _chain(examined)}
    kept = groups(examined.explained.diagnosis, every)
    rest = [one for one in kept if not any(id(f) in told for f in one.findings)]
    return [one for one in rest if every or one.severity is not Severity.INFO]


def _link(finding: Finding) -> str:
    """One step of a chain: when, what, where."""
    when = utc(finding.onset) if finding.onset is not None else "(no time)"
    parts = [when, finding.failure_class, scope([finding]), finding.confidence.value]
    return "  ".join(part for part in parts if part)


def _seen(finding: Finding) -> list[str]:
    return [
        f"{item.source}: {item.text}" if item.text else item.source
        for item in finding.evidence[:_EVIDENCE]
    ]


def _steps(examined: Examined) -> Sequence[str]:
    chain = _chain(examined)
    if chain:
        return chain[0].next_steps
    problems = examined.explained.diagnosis.findings
    return problems[0].next_steps if problems else ()


def _holding(report: Report, every: bool) -> list[Row]:
    return [one for one in report.rows if every or one.holds]


def _said(row: Row) -> str:
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


def _coverage(examined: Examined) -> Iterator[str]:
    coverage = examined.explained.diagnosis.coverage
    if examined.log_only:
        yield f"Metrics: none. {examined.log_only[:1].upper()}{examined.log_only[1:]}."
    if coverage.asked:
        yield f"{coverage.answered} of {count(coverage.asked, 'node')} seen."
    for reason, hosts in _by(coverage.blind, lambda one: str(one.reason)):
        yield f"not seen: {fold(one.host for one in hosts)}: {reason}"
    for reason, items in _by(coverage.unread, lambda one: f"{one.source}: {one.reason}"):
        names = fold(one.host for one in items if one.host)
        yield f"unread: {names + ': ' if names else ''}{reason}"
    if coverage.window is not None:
        yield f"window: {utc(coverage.window.start)} to {utc(coverage.window.end)}"


def _by(items: Iterable[Any], key: Any) -> list[tuple[str, list[Any]]]:
    grouped: dict[str, list[Any]] = {}
    for one in items:
        grouped.setdefault(key(one), []).append(one)
    return list(grouped.items())


def _footer(examined: Examined) -> str:
    parts = [f"raydiag {__version__}", examined.triage.log]
    seen = examined.metrics
    if seen is not None:
        parts += [seen.origin, f"identity {seen.identity.belief.value}"]
        parts.append(count(len(seen.asked), "query").replace("querys", "queries"))
    return "  ".join(parts)


# ---- text


def text_report(examined: Examined, colour: bool, width: int, every: bool) -> str:
    """The report for people. What came from logs and metrics is escaped."""
    page = Page(max(width, 40), colour)
    blocks = [
        _text_verdict(examined, page),
        _text_chain(examined, page),
        *(_text_group(one, page, every) for one in _others(examined, every)),
        _text_list(page, "RULED OUT", [f"{o.failure_class}: {o.why}" for o in _ruled(examined)]),
        *(_text_playbook(one, page, every) for one in _reports(examined)),
        _text_list(page, "LOG", [" ".join(examined.triage.story)]),
        _text_list(page, "NOTES", examined.notes),
        _text_list(page, "COVERAGE", list(_coverage(examined))),
        page.wrap(terminal(_footer(examined))),
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def _ruled(examined: Examined) -> Sequence[Any]:
    return examined.explained.ruled_out


def _text_verdict(examined: Examined, page: Page) -> list[str]:
    one = examined.explained.verdict
    lines = page.wrap(terminal(f"VERDICT  {_heading(examined)}"), "", "         ")
    colour = {"healthy": GREEN, "unknown": YELLOW}.get(
        one.failure_class, COLOURS[Severity.CRITICAL]
    )
    lines[0] = page.paint("VERDICT", colour) + lines[0][len("VERDICT") :]
    lines += page.wrap(terminal(one.summary), "  ", "  ")
    for index, step in enumerate(_steps(examined)):
        lead = "  Next: " if index == 0 else " " * 8
        lines += page.wrap(terminal(f"{index + 1}. {step}"), lead, " " * 11)
    return lines


def _text_chain(examined: Examined, page: Page) -> list[str]:
    chain = _chain(examined)
    if not chain:
        return []
    lines = ["WHAT LED TO WHAT" if len(chain) > 1 else "EVIDENCE"]
    for finding in chain[:_STEPS]:
        lines += page.wrap(terminal(_link(finding)), "  ", "      ")
        for text in _seen(finding):
            lines += page.wrap(terminal(text), "      ", "        ")
    if len(chain) > _STEPS:
        lines.append(f"  (+{len(chain) - _STEPS} more: JSON has all)")
    return lines


def _text_group(group: Group, page: Page, every: bool) -> list[str]:
    word = group.severity.value.upper()
    name, *others = map(terminal, group.heading())
    lines = page.wrap("  ".join([f"{word} {name}", *others]), "", "    ")
    lines[0] = page.paint(word, COLOURS[group.severity]) + lines[0][len(word) :]
    lines += page.wrap(terminal(group.first.title), "  ", "  ")
    for text in group.evidence(every)[: None if every else _EVIDENCE]:
        lines += page.wrap(terminal(text), "    ", "      ")
    return lines


def _text_list(page: Page, title: str, texts: Sequence[str]) -> list[str]:
    lines = [line for text in texts if text for line in page.wrap(terminal(text), "  ", "    ")]
    return [title, *lines] if lines else []


def _text_playbook(report: Report, page: Page, every: bool) -> list[str]:
    lines = page.wrap(terminal(f"PLAYBOOK {report.playbook}: {report.title}"), "", "  ")
    lines += page.wrap(terminal(report.verdict), "  ", "  ") if report.verdict else []
    for row in _holding(report, every):
        lines += page.wrap(terminal(_said(row)), "    ", "      ")
    for text in report.block:
        lines += page.wrap(terminal(text), "    ", "      ")
    for one in report.exclude:
        lines += page.wrap(terminal(f"exclude {one.host} ({one.reason})"), "    ", "      ")
    return lines


# ---- Markdown


def markdown_report(examined: Examined, every: bool) -> str:
    """For a ticket, section by section; what came from logs and metrics is escaped."""
    place = examined.triage.resolved.job_dir or examined.triage.log
    seen = examined.explained.diagnosis
    window, coverage = seen.coverage.window, seen.coverage
    analysis = _analysis(examined)
    hosts = examined.metrics.context.hosts if examined.metrics is not None else ()
    facts = [f"**Analysis type**: {analysis}"]
    if window is not None:
        lasted = (window.end - window.start) / 60
        facts.append(
            f"**Time window**: {utc(window.start)} – {utc(window.end)} ({lasted:.0f} min)"  # noqa: RUF001
        )
    names = f" ({markdown(fold(hosts))})" if hosts else ""
    facts.append(f"**Nodes**: {len(hosts) or coverage.asked}{names}")
    blocks = [
        f"## TSDB Diagnosis: {markdown(place)}",
        "  \n".join(facts),
        f"**Verdict**: {markdown(_heading(examined))}",
        markdown(examined.explained.verdict.summary),
        "### Findings",
        *_markdown_findings(examined, every),
        "### Metric evidence",
        _markdown_table(examined, every),
        "### Anomalies detected",
        _markdown_anomalies(examined),
        "### Log evidence",
        *_markdown_log(examined),
        "### Source code trace",
        _trace(examined),
        "### Correlation with triage",
        _correlation(examined),
        "### Recommended next steps",
        "\n".join(f"{i}. {markdown(s)}" for i, s in enumerate(_steps(examined), 1)) or "None.",
        "### Queries",
        fenced(_queries(examined)) if _reports(examined) else "None was asked.",
        "### Coverage",
        "\n".join(f"- {markdown(line)}" for line in _coverage(examined)),
        "---",
        markdown(_footer(examined)),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _analysis(examined: Examined) -> str:
    root = _chain(examined)[:1]
    found = examined.explained.observations[:1] if root else ()
    for one in found:
        for report in _reports(examined):
            if report.playbook == one.playbook:
                return report.analysis
    return "log only" if examined.log_only else "job health"


def _markdown_findings(examined: Examined, every: bool) -> Iterator[str]:
    chain = _chain(examined)
    links = [f"{i}. {markdown(_link(one))}" for i, one in enumerate(chain[:_STEPS], 1)]
    if links:
        yield "\n".join(links)
    others = _others(examined, every)
    if others:
        yield "\n".join(f"- {markdown('  '.join(one.heading()))}" for one in others)
    ruled = [
        f"- ruled out: {markdown(o.failure_class)}: {markdown(o.why)}" for o in _ruled(examined)
    ]
    if ruled:
        yield "\n".join(ruled)
    if not links and not others:
        yield "None."


def _markdown_table(examined: Examined, every: bool) -> str:
    rows = [row for report in _reports(examined) for row in _holding(report, every)]
    if not rows:
        return "None."
    lines = ["| Host | GPU | Value | Interpretation |", "| --- | --- | --- | --- |"]
    for row in rows:
        host = markdown(fold(row.hosts)) if row.hosts else "-"
        gpu = str(row.gpu) if row.gpu is not None else "-"
        value = f"{number(row.value)} {row.unit}".strip() if row.value is not None else "-"
        text = markdown(f"{row.row}: {row.interpretation}")
        lines.append(f"| {host} | {gpu} | {markdown(value)} | {text} |")
    return "\n".join(lines)


def _markdown_anomalies(examined: Examined) -> str:
    found = [
        one
        for one in examined.explained.diagnosis.findings
        if severity_of(one) is not Severity.INFO
    ]
    return "\n".join(f"- {markdown(one.title)} {markdown(scope([one]))}" for one in found) or "None"


def _markdown_log(examined: Examined) -> Iterator[str]:
    yield markdown(" ".join(examined.triage.story)) or "None."
    origin = examined.triage.origin
    if origin is not None:
        yield fenced([f"{origin.file}:{origin.line}: {origin.raw[:400]}"])


def _trace(examined: Examined) -> str:
    """Where to read on, when an anomaly is in the software and not in a node."""
    classes = {"rccl-communicator-leak", "rccl-hang", "thread-oversubscription", "unknown"}
    if examined.explained.verdict.failure_class not in classes:
        return "Not needed: the cause is not in the job's own software."
    return (
        "Suggested: from the event at the onset follow the calls, look for what is created and not "
        "freed and for other code paths, and check with the logs, in "
        "`/workspace/maxtext/src/MaxText/`, "
        "`/opt/venv/lib/python3.12/site-packages/orbax/checkpoint/` and "
        "`/opt/venv/lib/python3.12/site-packages/jax/`."
    )


def _correlation(examined: Examined) -> str:
    verdict, log = examined.explained.verdict, examined.triage.primary
    if examined.log_only:
        return f"By the log alone: {markdown(examined.log_only)}."
    if log is None:
        return f"Triage: {examined.triage.status.value}, no failure."
    chain = {one.failure_class for one in _chain(examined)}
    if log == verdict.failure_class:
        return f"Confirms triage ({log})."
    if log in chain:
        return f"Triage says {log}; the metrics explain it by {verdict.failure_class}."
    sure = verdict.confidence is Confidence.CONFIRMED
    word = "contradicts" if sure and verdict.failure_class != "unknown" else "does not confirm"
    return f"Triage says {log}; what the metrics show {word} it."


def _queries(examined: Examined) -> Iterator[str]:
    asked = examined.metrics.asked if examined.metrics is not None else ()
    for one in asked:
        step = f" step {number(one.step_s)}s" if one.step_s else ""
        window = f"{one.start:.3f} to {one.end:.3f}{step}"
        yield f"{one.id}: {one.promql}  [{window}]  rows {one.rows}"
