"""The diagnosis of one job as a report: the verdict, what led to it, on what it rests."""

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import replace
from operator import attrgetter, itemgetter

from raydiag import __version__
from raydiag.explain.job import ExaminedJob, ticket
from raydiag.explain.job.driver_fault import investigated
from raydiag.explain.job.ticket import Correlation
from raydiag.model import Finding, Severity, Window
from raydiag.nodeset import fold
from raydiag.playbooks.observations import Report as PlaybookReport
from raydiag.playbooks.observations import ReportRow
from raydiag.render import formats
from raydiag.render import report as blocks
from raydiag.render.admin_report import admin_sections
from raydiag.render.document import severity_of
from raydiag.render.formats import count, filled, joined, since, utc
from raydiag.render.groups import groups, known_before, scope, source_and_text
from raydiag.render.host_grid import grid_of_job
from raydiag.render.job_coverage import missing_lines, seen_lines, untold_lines
from raydiag.render.metric_rows import metric_lines, metric_table
from raydiag.render.places import JobPlaces
from raydiag.render.report import (
    Block,
    Bullet,
    Event,
    Paragraph,
    Report,
    Section,
    Toned,
    Words,
    bullets,
)
from raydiag.render.why import why_of
from raydiag.tsdb.series import AskedQuery

_MOST_EVIDENCE = 3  # of one finding
_MOST_LINKS = 12  # of the chain; the JSON has all
_MOST_PLACES = 4  # GPUs and devices in the heading
_MOST_REPORTS = 4  # for administrators; the JSON has all
_MOST_OF_LINE = 400  # characters of a quoted line
_TONES = {"healthy": blocks.Tone.GOOD, "unknown": blocks.Tone.DOUBTFUL}
_SOURCE_TRACE = (
    "Suggested: from the event at the onset follow the calls, look for what is created and not "
    "freed and for other code paths, and check with the logs, in "
    "/workspace/maxtext/src/MaxText/, "
    "/opt/venv/lib/python3.12/site-packages/orbax/checkpoint/ and "
    "/opt/venv/lib/python3.12/site-packages/jax/."
)


def diagnosis_report(examined: ExaminedJob, show_all: bool, show_playbooks: bool = False) -> Report:
    """The report of `raydiag diagnose`; `show_all` shows all rows, evidence and notes.

    A terminal gets what each playbook concluded, and what was ruled out, with `show_playbooks`.
    """
    sections = list(_sections(examined, show_all, show_playbooks))
    return Report(sections, _footer(examined))


def query_lines(queries: Iterable[AskedQuery]) -> Iterator[str]:
    """`id: promql  [start to end step 15s]  rows 8`."""
    for query in queries:
        step = f" step {formats.number(query.step_s)}s" if query.step_s else ""
        window = f"{query.start:.3f} to {query.end:.3f}{step}"
        yield f"{query.id}: {query.promql}  [{window}]  rows {query.rows}"


def _sections(examined: ExaminedJob, show_all: bool, show_playbooks: bool) -> Iterator[Section]:
    job = examined.triage.resolved.job_dir or _place(examined)
    yield Section(
        f"TSDB Diagnosis: {job}", [_head(examined)], is_chapter=True, only_in_documents=True
    )
    verdict, steps = _verdict(examined), blocks.Steps(ticket.next_steps(examined))
    seen = list(seen_lines(examined))
    untold = untold_lines(examined)
    why = why_of(examined, steps.steps)
    yield verdict
    brief = [] if show_all else [why.brief()]
    yield from _first_screen(brief, steps, bullets([*untold, *seen]))
    findings = list(_findings(examined, show_all))
    yield Section("Findings", findings, has_brief=not show_all)
    more = [] if show_all else [why.further_evidence()]
    yield Section("Further evidence", more, only_on_a_terminal=True)
    yield Section("Around the onset", list(map(blocks.Plot, examined.picture.courses)))
    yield Section("Nodes and GPUs", [grid_of_job(examined)])
    yield Section("Best candidates", [bullets(_candidates(examined))])
    rows = metric_table(examined, show_all)
    yield Section("Metric evidence", [rows], has_brief=not show_all)
    lines = [] if show_all else [metric_lines(examined, why.is_told)]
    yield Section("Metric evidence", lines, only_on_a_terminal=True)
    yield Section("Anomalies detected", [_anomalies(examined)], only_in_documents=True)
    yield Section("Log evidence", list(_log(examined)), has_brief=True)
    told = () if show_all else why.told
    yield Section("Log evidence", list(_log(examined, told)), only_on_a_terminal=True)
    trace = "Not needed: the cause is not in the job's own software."
    if ticket.needs_source_trace(examined):
        trace = _SOURCE_TRACE
    yield Section("Source code trace", [Paragraph(trace)], only_in_documents=True)
    related = [Paragraph(_correlation(examined))]
    yield Section("Correlation with triage", related, only_in_documents=True)
    yield replace(_next_steps(steps), has_brief=True)
    playbooks = blocks.Bullets(list(_playbooks(examined, show_all)))
    yield Section("Playbooks", [playbooks], only_in_documents=not show_playbooks)
    ruled_out = examined.explained.ruled_out
    reasons = bullets(map("{0.failure_class}: {0.why}".format, ruled_out))
    yield Section("Ruled out", [reasons], only_in_documents=not show_playbooks)
    yield Section("Notes", [bullets(examined.notes)])
    queries = blocks.Quote(list(query_lines(ticket.asked_queries(examined))))
    yield Section("Queries", [queries.or_else("None was asked.")], only_in_documents=True)
    all_seen = bullets([*missing_lines(examined), *seen])
    yield Section("Coverage", [all_seen], has_brief=True)
    yield from _driver_faults(examined, show_all)


def _first_screen(
    why: Sequence[Block], steps: blocks.Steps, coverage: blocks.Bullets
) -> Iterator[Section]:
    """On a terminal of 80 x 25: below the verdict why, what now, and how much was seen."""
    for section in (
        Section("Findings", why),
        _next_steps(steps),
        Section("Coverage", [coverage]),
    ):
        yield replace(section, comes_first=True, only_on_a_terminal=True)


def _next_steps(steps: blocks.Steps) -> Section:
    return Section("Recommended next steps", [steps.or_else("None.")], comes_first=True)


def _driver_faults(examined: ExaminedJob, show_all: bool) -> Iterator[Section]:
    """A line for each node with a faulty GPU driver; in documents the report for its admin."""
    investigation = investigated(examined)
    nodes = investigation.faulty_by_findings
    lines = list(map("{0.host}: {0.verdict.value}. {0.reason}".format, nodes))
    if lines:
        lines.append("raydiag driver-fault has the report for the administrator.")
    yield Section("GPU drivers", [bullets(lines)])
    for node in nodes[:_MOST_REPORTS]:
        for section in admin_sections(node, investigation):
            yield replace(section, only_in_documents=not show_all)


def _head(examined: ExaminedJob) -> blocks.KeyValues:
    coverage = examined.explained.diagnosis.coverage
    nodes = str(coverage.asked)
    if examined.metrics is not None and examined.metrics.context.hosts:
        hosts = examined.metrics.context.hosts
        nodes = f"{len(hosts)} ({fold(hosts)})"
    rows = [("Analysis type", ticket.analysis_type(examined)), *_time_window(coverage.window)]
    return blocks.KeyValues([*rows, ("Nodes", nodes)])


def _time_window(window: Window | None) -> Iterator[tuple[str, str]]:
    if window is not None:
        minutes = (window.end - window.start) / 60
        yield "Time window", f"{utc(window.start)} to {utc(window.end)} ({minutes:.0f} min)"


def _verdict(examined: ExaminedJob) -> Section:
    """`rdma-degraded  mi2034 ionic_3  since 2026-11-20 03:12:07Z  confirmed`, and a summary."""
    verdict = examined.explained.verdict
    places = [fold(verdict.hosts)]
    places += [f"gpu {gpu}" for _, gpu in verdict.gpus[:_MOST_PLACES]]
    places += map(itemgetter(1), verdict.devices[:_MOST_PLACES])
    where = Toned(" ".join(filter(None, places)), label="where")
    facts: list[Words] = [verdict.failure_class, where, since(verdict.onset)]
    if verdict.kill_time is not None:
        facts.append(f"killed {utc(verdict.kill_time)}")
    facts.append(filled("pattern {}", verdict.pattern))
    if verdict.recovered:
        facts.append("recovered")
    return Section(
        "Verdict",
        [Paragraph(verdict.summary)],
        tone=_TONES.get(verdict.failure_class, blocks.Tone.BAD),
        facts=[*facts, Toned(verdict.confidence.value, label="confidence")],
        comes_first=True,
    )


def _findings(examined: ExaminedJob, show_all: bool) -> Iterator[Block]:
    """What led to what, root first; then what else was found."""
    chain = ticket.verdict_chain(examined)
    events = list(_events(chain[:_MOST_LINKS], examined))
    unrelated = list(_other_findings(examined, show_all))
    yield blocks.Story(events)
    yield Paragraph(filled("(+{} more: JSON has all)", max(0, len(chain) - _MOST_LINKS) or None))
    yield blocks.Bullets(unrelated)
    if not events and not unrelated:
        yield Paragraph("None.")


def _events(chain: Sequence[Finding], examined: ExaminedJob) -> Iterator[Event]:
    """The steps of a chain: when, what, where."""
    for finding in chain:
        yield Event(
            _when(finding),
            finding.failure_class,
            (scope([finding]), finding.confidence.value, known_before([finding])),
            finding.title,
            _later(finding.onset, chain[0].onset),
            _evidence(finding, examined, show_all=False),
            blocks.TONES[severity_of(finding)],
        )


def _when(finding: Finding) -> str:
    """Since when; what has no onset was at least seen at some time."""
    if finding.onset is not None:
        return utc(finding.onset)
    seen_at = min(filter(None, map(attrgetter("time"), finding.evidence)), default=None)
    return "(no time)" if seen_at is None else f"seen {utc(seen_at)}"


def _later(onset: float | None, first: float | None) -> str:
    """How long after the root; nothing where that is not known, or at once."""
    if onset is None or first is None or onset - first < 1:
        return ""
    return f"{formats.span(round(onset - first))} later"


def _other_findings(examined: ExaminedJob, show_all: bool) -> Iterator[Bullet]:
    """What the verdict's chain does not hold; notes only with `show_all`."""
    in_chain = set(map(id, ticket.verdict_chain(examined)))
    for group in groups(examined.explained.diagnosis, show_all):
        is_shown = show_all or group.severity is not Severity.INFO
        if is_shown and in_chain.isdisjoint(map(id, group.findings)):
            details = [group.first.title, *_evidence(group.first, examined, show_all)]
            heading = joined([group.first.failure_class, *group.facts()])
            yield Bullet(heading, details, blocks.severity_label(group.severity))


def _candidates(examined: ExaminedJob) -> Iterator[str]:
    """The cause beside its best rival; nothing where it has none."""
    candidates = examined.explained.candidates
    for candidate in candidates if len(candidates) > 1 else ():
        against = filled(". Against it: {}", candidate.speaks_against)
        place = f"{candidate.failure_class} {candidate.host or ''}".strip()
        yield f"{place}: {candidate.speaks_for or 'nothing speaks for it'}{against}"


def _evidence(finding: Finding, examined: ExaminedJob, show_all: bool) -> list[str]:
    """Evidence, a line each. A query goes by its id; the JSON spells it out."""
    queries, places = ticket.asked_queries(examined), JobPlaces(examined.triage)
    lines: dict[str, None] = {}  # triage may quote one line as step and as end
    for evidence in formats.beginning(finding.evidence, _MOST_EVIDENCE, show_all):
        source = evidence.source
        for query in queries:
            source = source.replace(query.promql, query.id)
        line = places.short(source_and_text(evidence, source))
        lines[formats.timed(line, evidence.time)] = None
    return list(lines)


def _shown_rows(report: PlaybookReport, show_all: bool) -> list[ReportRow]:
    return [row for row in report.rows if show_all or row.holds]


def _playbooks(examined: ExaminedJob, show_all: bool) -> Iterator[Bullet]:
    """What each playbook concluded; those that found more than a sentence first."""
    brief = []
    for report in ticket.playbook_reports(examined):
        excluded = map("exclude {0.host} ({0.reason})".format, report.exclude)
        details = [*report.block, *excluded]
        bullet = Bullet(f"{report.playbook}: {report.title}. {report.verdict}".strip(), details)
        if details or _shown_rows(report, show_all):
            yield bullet
        else:
            brief.append(bullet)
    yield from brief


def _anomalies(examined: ExaminedJob) -> Block:
    problems = examined.explained.diagnosis.problems
    anomalies = [f"{finding.title} {scope([finding])}" for finding in problems]
    return bullets(anomalies).or_else("None")


def _log(examined: ExaminedJob, told: Container[str] = ()) -> Iterator[Block]:
    """What the log tells, and the line where it began; not what was `told` above."""
    origin, story = examined.triage.origin, " ".join(examined.triage.story)
    if story not in told:
        yield Paragraph("None." if examined.no_log else story or "None.")
    if origin is not None and origin.raw.strip() not in told:
        line = f"{origin.file}:{origin.line}: {origin.raw[:_MOST_OF_LINE]}"
        yield blocks.Quote([JobPlaces(examined.triage).short(line)])


def _correlation(examined: ExaminedJob) -> str:
    primary, root = examined.triage.primary, examined.explained.verdict.failure_class
    sources = "metrics"
    if examined.nodes is not None:
        sources = "nodes and metrics"
    sentences = {
        Correlation.NO_LOG: f"There is no log: {examined.no_log}.",
        Correlation.LOG_ALONE: f"By the log alone: {examined.log_only}.",
        Correlation.NO_FAILURE: f"Triage: {examined.triage.status.value}, no failure.",
        Correlation.CONFIRMED: f"Confirms triage ({primary}).",
        Correlation.EXPLAINED: f"Triage says {primary}; the metrics explain it by {root}.",
        Correlation.CONTRADICTED: f"Triage says {primary}; what the {sources} show contradicts it.",
        Correlation.UNCONFIRMED: (
            f"Triage says {primary}; what the {sources} show does not confirm it."
        ),
    }
    return sentences[ticket.correlation(examined)]


def _place(examined: ExaminedJob) -> str:
    """What was diagnosed: the log, else the cluster, else the server."""
    log = examined.triage.log
    if not examined.no_log:
        return log
    if examined.nodes is not None:
        return str(examined.nodes.cluster.get("address") or log)
    if examined.metrics is not None:
        return examined.metrics.origin
    return log


def _footer(examined: ExaminedJob) -> str:
    place = _place(examined)
    parts = [f"raydiag {__version__}", place if examined.no_log else f"log: {place}"]
    if examined.nodes is not None:
        parts.append(str(examined.nodes.cluster.get("address")))
    metrics = examined.metrics
    if metrics is not None:
        queries = count(len(metrics.asked), "query", "queries")
        parts += [metrics.origin, f"identity {metrics.identity.belief.value}", queries]
    ruled_out = len(examined.explained.ruled_out)
    parts.append(f"{count(ruled_out, 'cause')} ruled out (-v: why, and what each playbook says)")
    return joined(dict.fromkeys(parts))
