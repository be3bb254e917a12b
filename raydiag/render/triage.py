"""The verdict on a job's logs as a report, where several jobs stand below each other, and as JSON.

`raydiag/schemas/triage.json` states the shape.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

from raydiag.model import Chain, Coverage, Diagnosis, Evidence, Finding, HostUnread
from raydiag.render import document, report
from raydiag.render.coverage import not_read
from raydiag.render.document import picked, plain, severity_of
from raydiag.render.first_screen import ROWS, rows_of
from raydiag.render.formats import beginning, count, counted, filled, or_dash, span, utc
from raydiag.render.groups import source_and_text
from raydiag.render.places import JobPlaces
from raydiag.render.progress import projection, throughput
from raydiag.render.report import Block, Bullet, Paragraph, Report, Section, Words, bullets, table
from raydiag.triage.verdict import Attempt, Attempts, JobStatus, Verdict

_TONES = {
    JobStatus.COMPLETED: report.Tone.GOOD,
    JobStatus.RUNNING: report.Tone.GOOD,
    JobStatus.FAILED: report.Tone.BAD,
    JobStatus.HANGING: report.Tone.BAD,
}
_MOST_QUOTED = 8  # lines of evidence in the report; all of them stand in the JSON
_ROWS_OF_HEAD = 14  # of a terminal: above what happened, all headings, the deciding line's second
_MOST_TUNNELS = 2
_STEPS = ("start", "first_step", "last_step", "total_steps", "steps_this_run", "percent")
_TIMES = ("step_time_s", "last_step_time", "expected_step", "stalled_s")
_CHECKPOINTS = ("checkpoint_period", "last_checkpoint", "progress_lost_steps", "progress_lost_s")
_REST = ("time_remaining_s", "unexplained_s", "complete", "source")


def triage_report(verdicts: Sequence[Verdict], verbose: bool) -> Report:
    """The report of `raydiag triage`, job after job."""
    sections: list[Section] = []
    for verdict in verdicts:
        sections += _sections(verdict, verbose)
    return Report(sections)


def overview(verdicts: Sequence[Verdict]) -> Report:
    """One line per job: what it is, how it stands, why, and how far it came."""
    header = ("Job", "Status", "Primary", "Step", "Where", "Name")
    by_status = Counter(map(attrgetter("status"), verdicts))
    statuses = counted({status.value: by_status[status] for status in JobStatus})
    total = f"{count(len(verdicts), 'job')}: {statuses or 'none'}."
    rows = map(_overview_row, verdicts)
    return Report([Section(blocks=[table(header, rows)]), Section(blocks=[Paragraph(total)])])


def _overview_row(verdict: Verdict) -> list[Words]:
    return [
        verdict.job_id or "-",
        _status(verdict),
        verdict.primary or "-",
        or_dash(verdict.progress.last_step),
        _where(_primary_finding(verdict)) or "-",
        verdict.resolved.name or verdict.job_name or verdict.log,
    ]


def _sections(verdict: Verdict, verbose: bool) -> Iterator[Section]:
    yield Section(f"Job triage: {verdict.log}", [_head(verdict)], is_chapter=True)
    # The answer comes first where it is read on a terminal: what happened, why, what now.
    happened = Section("What happened", [Paragraph(" ".join(verdict.story))])
    yield from _first_on_a_terminal(happened, happened)
    yield from _evidence(verdict, verbose)
    progress = report.KeyValues(list(projection(verdict)), columns=("Metric", "Value"))
    yield Section("Training progress projection", [progress])
    yield Section("TGS analysis", [report.KeyValues(list(throughput(verdict.progress)))])
    yield Section("Start-up", [bullets(_start_up(verdict))])
    yield Section("Attempts", [bullets(_attempts(verdict.attempts))])
    yield Section("Additional findings", [_other_findings(verdict, verbose)])
    dashboards = "Live dashboards" if verdict.live else "Dashboards"
    yield Section(dashboards, [bullets(_dashboards(verdict))])
    steps = Section("Recommended next steps", [report.Steps(verdict.next_steps)])
    yield from _first_on_a_terminal(steps, steps)
    yield Section("Notes", [bullets(verdict.notes)])
    yield not_read(verdict.diagnosis.coverage.unread)


def _head(verdict: Verdict) -> report.KeyValues:
    """How the job stands, what failed first and where, and by which rule."""
    place = filled("  ({})", _where(_primary_finding(verdict), " on "))
    primary = f"{verdict.primary or 'none'}{place}"
    rows: list[tuple[str, Words]] = [("Status", _status(verdict)), ("Primary failure", primary)]
    if verdict.stage:
        rows.append(("Stage", verdict.stage))
    primary_finding = _primary_finding(verdict)
    if primary_finding is not None and primary_finding.onset is not None:
        rows.append(("Since", utc(primary_finding.onset)))
    if len(verdict.cascade) > 1:
        rows.append(("Cascade", " -> ".join(verdict.cascade)))
    return report.KeyValues([*rows, ("Decided by", verdict.rule)])


def _status(verdict: Verdict) -> report.Toned:
    return report.Toned(verdict.status.value, _TONES.get(verdict.status, report.Tone.DOUBTFUL))


def _primary_finding(verdict: Verdict) -> Finding | None:
    findings = verdict.diagnosis.findings
    if verdict.primary is not None and findings:
        return findings[0]
    return None


def _where(finding: Finding | None, between: str = "") -> str:
    """Task and host where it began; without `between` the host, else the task."""
    if finding is None:
        return ""
    places = list(filter(None, [filled("task {}", finding.task or ""), finding.host]))
    return between.join(places if between else places[-1:])


def _evidence(verdict: Verdict, verbose: bool) -> Iterator[Section]:
    """Lines of the primary failure as they stand in the files; a terminal has room for fewer."""
    in_documents = Section("Evidence", _quoted(verdict, verbose, _MOST_QUOTED))
    answer = [*verdict.story, *verdict.next_steps]
    room = ROWS - _ROWS_OF_HEAD - sum(map(rows_of, answer))
    most = max(1, min(room, _MOST_QUOTED))
    brief = Section("Evidence", _quoted(verdict, verbose, most))
    return _first_on_a_terminal(in_documents, brief)


def _first_on_a_terminal(in_documents: Section, brief: Section) -> Iterator[Section]:
    """Documents keep the order that tickets have."""
    yield replace(in_documents, has_brief=True)
    yield replace(brief, only_on_a_terminal=True, comes_first=True)


def _quoted(verdict: Verdict, verbose: bool, most: int) -> list[Block]:
    """The deciding line, marked, and those around it."""
    finding = _primary_finding(verdict)
    if finding is None or not finding.evidence:
        return []
    ordered = sorted(beginning(finding.evidence, most, verbose), key=_place_in_file)
    places = JobPlaces(verdict)
    lines = [f"{places.short(evidence.source)}: {evidence.text}" for evidence in ordered]
    marked = ordered.index(finding.evidence[0])
    return [report.Quote(lines, marked, around=not verbose)]


def _place_in_file(evidence: Evidence) -> tuple[str, int]:
    file, _, line = evidence.source.rpartition(":")
    return (file, int(line)) if line.isdigit() else (evidence.source, 0)


def _other_findings(verdict: Verdict, verbose: bool) -> report.Bullets:
    """What else was seen, each with its first evidence; all of it with `verbose`."""
    findings, places = verdict.diagnosis.findings, JobPlaces(verdict)
    entries = []
    for finding in findings if verdict.primary is None else findings[1:]:
        evidence = beginning(finding.evidence, 1, verbose)
        heading = f"{finding.failure_class}: {finding.title}"
        details = [places.short(source_and_text(piece)) for piece in evidence]
        entries.append(Bullet(heading, details, report.severity_label(severity_of(finding))))
    return report.Bullets(entries)


def _start_up(verdict: Verdict) -> Iterator[str]:
    phase = verdict.phase
    if phase is None or phase.name == "training":
        return
    lasted = "" if phase.seconds is None else f" for {span(phase.seconds)}"
    yield (
        f"Phase {phase.number} of 7, {phase.name}{lasted}; up to {span(phase.normal_s)} is normal."
    )
    if phase.late:
        yield phase.advice


def _attempts(attempts: Attempts | None) -> Iterator[str]:
    if attempts is None:
        return
    yield from map(_attempt, attempts.attempts)
    if attempts.held:
        yield "The job is requeued and held; it starts again when it is released."
    if attempts.requeues_left is not None:
        yield f"Automatic restarts left: {attempts.requeues_left}."
    if attempts.efficiency is not None:
        yield (
            f"Efficiency {100 * attempts.efficiency:.1f} %: time up to the last save of each"
            " attempt, of all wall time (raydiag's own definition)."
        )
    if attempts.downtime_s is not None:
        yield f"Downtime between attempts: {span(attempts.downtime_s)}."


def _attempt(attempt: Attempt) -> str:
    outcome = f"{attempt.index}: {attempt.status.value}"
    outcome += filled(" ({})", attempt.primary)
    if attempt.last_step is not None:
        outcome += f", steps {attempt.first_step}-{attempt.last_step}"
    saved = "reached a save" if attempt.reached_save else "reached no save"
    return f"{outcome}, {saved}: {attempt.log}"


def _dashboards(verdict: Verdict) -> Iterable[str]:
    """The way to them while the job lives, then where its series are."""
    if not verdict.dashboards:
        return ()
    if verdict.live:
        return _live_dashboards(verdict)
    return _stored_series(verdict)


def _live_dashboards(verdict: Verdict) -> Iterator[str]:
    ports = verdict.dashboards
    for tunnel in verdict.tunnels[:_MOST_TUNNELS]:
        yield tunnel.strip()
    head = filled(" of {}", ports.get("head"))
    yield (
        f"On the loopback{head}: Ray {ports['ray']}, TensorBoard {ports['tensorboard']},"
        f" Prometheus {ports['prometheus']}. The tunnel binds these ports on your own machine."
    )


def _stored_series(verdict: Verdict) -> Iterator[str]:
    there, printed = verdict.resolved.series_dir, verdict.dashboards["prometheus_dir"]
    if there or printed:
        place = f"its series are in {there}" if there else f"it wrote its series to {printed}"
        yield f"The job is over and its dashboards are gone; {place}."


# ---- JSON


def triage_document(verdicts: Sequence[Verdict], generated_at: float) -> dict[str, Any]:
    """One job's object, or a document with a list of several."""
    if len(verdicts) == 1:
        return next(documents_of_jobs(verdicts, generated_at))
    return _jobs_document(verdicts, generated_at)


def documents_of_jobs(verdicts: Sequence[Verdict], generated_at: float) -> Iterator[dict[str, Any]]:
    """A document of each job: the same shape for one as for several."""
    for verdict in verdicts:
        yield {**document.head("triage", generated_at), **job_object(verdict)}


def _jobs_document(verdicts: Sequence[Verdict], generated_at: float) -> dict[str, Any]:
    """Several jobs; `findings` and `coverage` are those of all of them."""
    findings: list[Finding] = []
    chains: list[Chain] = []
    unread: list[HostUnread] = []
    for verdict in verdicts:
        findings += verdict.diagnosis.findings
        chains += verdict.diagnosis.chains
        unread += verdict.diagnosis.coverage.unread
    merged = Diagnosis(findings, chains, Coverage(0, 0, (), unread))
    return {
        **document.head("triage", generated_at),
        "jobs": list(map(job_object, verdicts)),
        **document.findings_and_coverage(merged),
    }


def job_object(verdict: Verdict) -> dict[str, Any]:
    """What triage says of one job, without the head of a document."""
    return {
        "log": verdict.log,
        "job_dir": verdict.resolved.job_dir,
        **picked(verdict, "job_id", "job_name", "status", "primary", "stage", "cascade", "rule"),
        "what_happened": " ".join(verdict.story),
        "progress": {
            **picked(verdict.progress, *_STEPS, *_TIMES, *_CHECKPOINTS, *_REST),
            "throughput": plain(verdict.progress.throughput) or {},
        },
        **picked(verdict, "tasks", "dashboards", "phase", "attempts", "notes", "next_steps"),
        **document.findings_and_coverage(verdict.diagnosis),
    }
