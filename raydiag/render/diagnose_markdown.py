"""The diagnosis of one job as Markdown, for a ticket, in the layout that its readers know."""

from __future__ import annotations

from collections.abc import Iterator

from raydiag.explain.job import ExaminedJob
from raydiag.model import Confidence, Severity
from raydiag.nodeset import fold
from raydiag.render.diagnose_content import (
    LINKS,
    coverage_lines,
    footer,
    heading,
    holding,
    link,
    next_steps,
    others,
    place,
    reports,
    ruled_out,
    seen,
    story,
    verdict_chain,
)
from raydiag.render.document import severity_of
from raydiag.render.escape import fenced, markdown
from raydiag.render.groups import scope
from raydiag.render.layout import number, utc


def markdown_report(examined: ExaminedJob, every: bool) -> str:
    """For a ticket, section by section; what came from logs and metrics is escaped."""
    where = examined.triage.resolved.job_dir or place(examined)
    coverage = examined.explained.diagnosis.coverage
    window = coverage.window
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
        f"## TSDB Diagnosis: {markdown(where)}",
        "  \n".join(facts),
        f"**Verdict**: {markdown(heading(examined))}",
        markdown(examined.explained.verdict.summary),
        "### Findings",
        *_findings(examined, every),
        *_of_nodes(examined, every),
        "### Metric evidence",
        _table(examined, every),
        "### Anomalies detected",
        _anomalies(examined),
        "### Log evidence",
        *_log(examined),
        "### Source code trace",
        _trace(examined),
        "### Correlation with triage",
        _correlation(examined),
        "### Recommended next steps",
        "\n".join(f"{i}. {markdown(s)}" for i, s in enumerate(next_steps(examined), 1)) or "None.",
        "### Queries",
        fenced(_queries(examined)) if reports(examined) else "None was asked.",
        "### Coverage",
        "\n".join(f"- {markdown(line)}" for line in coverage_lines(examined)),
        "---",
        markdown(footer(examined)),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _analysis(examined: ExaminedJob) -> str:
    root = verdict_chain(examined)[:1]
    found = examined.explained.observations[:1] if root else ()
    for one in found:
        for report in reports(examined):
            if report.playbook == one.playbook:
                return report.analysis
    return "log only" if examined.log_only else "job health"


def _findings(examined: ExaminedJob, every: bool) -> Iterator[str]:
    chain = verdict_chain(examined)
    links = [f"{i}. {markdown(link(one))}" for i, one in enumerate(chain[:LINKS], 1)]
    if links:
        yield "\n".join(links)
    rest = others(examined, every)
    if rest:
        yield "\n".join(f"- {markdown('  '.join(one.heading()))}" for one in rest)
    ruled = [
        f"- ruled out: {markdown(o.failure_class)}: {markdown(o.why)}" for o in ruled_out(examined)
    ]
    if ruled:
        yield "\n".join(ruled)
    if not links and not rest:
        yield "None."


def _of_nodes(examined: ExaminedJob, every: bool) -> Iterator[str]:
    """What nodes and metrics say of the verdict's chain; only of a live cluster."""
    if examined.nodes is None:
        return
    yield "### Evidence"
    chain = verdict_chain(examined)[:LINKS]
    lines = [text for one in chain for text in seen(one, examined, every)]
    yield fenced(lines) if lines else "None."


def _table(examined: ExaminedJob, every: bool) -> str:
    rows = [row for report in reports(examined) for row in holding(report, every)]
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


def _anomalies(examined: ExaminedJob) -> str:
    found = [
        one
        for one in examined.explained.diagnosis.findings
        if severity_of(one) is not Severity.INFO
    ]
    return "\n".join(f"- {markdown(one.title)} {markdown(scope([one]))}" for one in found) or "None"


def _log(examined: ExaminedJob) -> Iterator[str]:
    yield markdown(story(examined)) or "None."
    origin = examined.triage.origin
    if origin is not None:
        yield fenced([f"{origin.file}:{origin.line}: {origin.raw[:400]}"])


def _trace(examined: ExaminedJob) -> str:
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


def _correlation(examined: ExaminedJob) -> str:
    verdict, log = examined.explained.verdict, examined.triage.primary
    if examined.no_log:
        return f"There is no log: {markdown(examined.no_log)}."
    if examined.log_only and examined.nodes is None:
        return f"By the log alone: {markdown(examined.log_only)}."
    if log is None:
        return f"Triage: {examined.triage.status.value}, no failure."
    chain = {one.failure_class for one in verdict_chain(examined)}
    if log == verdict.failure_class:
        return f"Confirms triage ({log})."
    if log in chain:
        return f"Triage says {log}; the metrics explain it by {verdict.failure_class}."
    sure = verdict.confidence is Confidence.CONFIRMED
    word = "contradicts" if sure and verdict.failure_class != "unknown" else "does not confirm"
    what = "metrics" if examined.nodes is None else "nodes and metrics"
    return f"Triage says {log}; what the {what} show {word} it."


def _queries(examined: ExaminedJob) -> Iterator[str]:
    asked = examined.metrics.asked if examined.metrics is not None else ()
    for one in asked:
        step = f" step {number(one.step_s)}s" if one.step_s else ""
        window = f"{one.start:.3f} to {one.end:.3f}{step}"
        yield f"{one.id}: {one.promql}  [{window}]  rows {one.rows}"
