"""The verdict on a job's logs as text and as Markdown: one layout, in the same order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from raydiag.model import Finding
from raydiag.render.document import severity_of
from raydiag.render.escape import fenced, markdown, terminal
from raydiag.render.layout import COLOURS, GREEN, RED, YELLOW, ReportPage, count
from raydiag.render.triage_content import (
    attempts,
    dashboards,
    place,
    primary_finding,
    projection,
    secondary,
    start_up,
    throughput,
    whom,
)
from raydiag.triage.verdict import JobStatus, Verdict

_STATUS_COLOURS = {
    JobStatus.COMPLETED: GREEN,
    JobStatus.RUNNING: GREEN,
    JobStatus.FAILED: RED,
    JobStatus.HANGING: RED,
}
_QUOTED = 8  # lines of evidence in the report; all of them stand in the JSON


# ---- text


def text_report(
    verdicts: Sequence[Verdict], colour: bool, width: int, verbose: bool
) -> Iterator[str]:
    """The report for people, job after job."""
    page = ReportPage(max(width, 40), colour)
    for number, verdict in enumerate(verdicts):
        yield "\n\n" if number else ""
        blocks = [block for block in _blocks(verdict, page, verbose) if block]
        yield "\n\n".join("\n".join(block) for block in blocks) + "\n"


def _blocks(verdict: Verdict, page: ReportPage, verbose: bool) -> Iterator[list[str]]:
    yield _title(verdict, page)
    yield _section(page, "WHAT HAPPENED", [" ".join(verdict.story)])
    yield _evidence(verdict, page, verbose)
    yield _table(page, "TRAINING PROGRESS", list(projection(verdict)))
    yield _table(page, "THROUGHPUT", list(throughput(verdict.progress)))
    yield _section(page, "START-UP", list(start_up(verdict)))
    yield _section(page, "ATTEMPTS", list(attempts(verdict)))
    yield _others(verdict, page, verbose)
    yield _section(page, "DASHBOARDS", list(dashboards(verdict)))
    yield _numbered(page, "NEXT STEPS", verdict.next_steps)
    yield _section(page, "NOTES", list(verdict.notes))
    unread = [f"{one.source}: {one.reason}" for one in verdict.diagnosis.coverage.unread]
    yield _section(page, "NOT READ", unread)


def _title(verdict: Verdict, page: ReportPage) -> list[str]:
    status = verdict.status.value.upper()
    lines = page.wrap(terminal(f"Job triage: {verdict.log}"), "", "  ")
    colour = _STATUS_COLOURS.get(verdict.status, YELLOW)
    lines.append(f"Status:          {page.paint(status, colour)}")
    primary = verdict.primary or "none"
    lines.append(terminal(f"Primary failure: {primary}{whom(verdict)}"))
    if verdict.stage:
        lines += page.wrap(terminal(f"Stage:           {verdict.stage}"))
    if len(verdict.cascade) > 1:
        told = " -> ".join(verdict.cascade)
        lines += page.wrap(f"Cascade:         {told}", "", " " * 17)
    return lines + page.wrap(terminal(f"Decided by:      {verdict.rule}"), "", " " * 17)


def _section(page: ReportPage, title: str, paragraphs: Sequence[str]) -> list[str]:
    """Empty without anything to say."""
    lines = [line for text in paragraphs for line in page.wrap(terminal(text), "  ", "  ")]
    return [title, *lines] if lines else []


def _numbered(page: ReportPage, title: str, steps: Sequence[str]) -> list[str]:
    lines = []
    for number, step in enumerate(steps, 1):
        lines += page.wrap(terminal(step), f"  {number}. ", "     ")
    return [title, *lines] if lines else []


def _table(page: ReportPage, title: str, rows: Sequence[tuple[str, str]]) -> list[str]:
    if not rows:
        return []
    left = max(len(name) for name, _ in rows) + 4
    lines = []
    for name, value in rows:
        lines += page.wrap(terminal(value), f"  {name}".ljust(left), " " * left)
    return [title, *lines]


def _evidence(verdict: Verdict, page: ReportPage, verbose: bool) -> list[str]:
    first = primary_finding(verdict)
    if first is None or not first.evidence:
        return []
    lines = ["EVIDENCE"]
    shown = first.evidence if verbose else first.evidence[:_QUOTED]
    for item in sorted(shown, key=place):
        mark = "> " if item is first.evidence[0] else "  "
        lines += page.wrap(terminal(f"{item.source}: {item.text}"), mark, "    ")
    return lines


def _others(verdict: Verdict, page: ReportPage, verbose: bool) -> list[str]:
    """What else was seen: problems first, what the job got over folded unless `verbose`."""
    lines = []
    for finding in secondary(verdict):
        word = severity_of(finding).value
        colour = COLOURS[severity_of(finding)]
        head = f"{word.upper()} {finding.failure_class}: {finding.title}"
        wrapped = page.wrap(terminal(head), "  ", "    ")
        wrapped[0] = wrapped[0].replace(word.upper(), page.paint(word.upper(), colour), 1)
        lines += wrapped
        for item in finding.evidence if verbose else finding.evidence[:1]:
            lines += page.wrap(terminal(f"{item.source}: {item.text}"), "    ", "      ")
    return ["ADDITIONAL FINDINGS", *lines] if lines else []


# ---- Markdown


def markdown_report(verdicts: Sequence[Verdict], verbose: bool) -> Iterator[str]:
    """The same content, to paste into a ticket."""
    for number, verdict in enumerate(verdicts):
        yield "\n" if number else ""
        yield "\n\n".join(block for block in _markdown(verdict, verbose) if block) + "\n"


def _markdown(verdict: Verdict, verbose: bool) -> Iterator[str]:
    yield f"## Job triage: {markdown(verdict.log)}"
    yield f"**Status:** {verdict.status.value}"
    yield f"**Primary failure:** {markdown((verdict.primary or 'none') + whom(verdict))}"
    yield f"**Stage:** {markdown(verdict.stage)}" if verdict.stage else ""
    yield f"**Decided by:** {markdown(verdict.rule)}"
    yield _part("What happened", markdown(" ".join(verdict.story)))
    first = primary_finding(verdict)
    shown = first.evidence if first and verbose else first.evidence[:_QUOTED] if first else []
    lines = [f"{item.source}: {item.text}" for item in sorted(shown, key=place)]
    yield _part("Evidence", fenced(lines) if lines else "")
    rows = [f"| {markdown(name)} | {markdown(value)} |" for name, value in projection(verdict)]
    table = "\n".join(["| Metric | Value |", "|---|---|", *rows]) if rows else ""
    yield _part("Training progress projection", table)
    yield _part("TGS analysis", _listed(f"{k}: {v}" for k, v in throughput(verdict.progress)))
    yield _part("Start-up", _listed(start_up(verdict)))
    yield _part("Attempts", _listed(attempts(verdict)))
    yield _part("Additional findings", _listed(_told(one) for one in secondary(verdict)))
    yield _part("Live dashboards", _listed(dashboards(verdict)) if verdict.live else "")
    steps = [f"{n}. {markdown(step)}" for n, step in enumerate(verdict.next_steps, 1)]
    yield _part("Recommended next steps", "\n".join(steps))
    yield _part("Notes", _listed(verdict.notes))
    unread = (f"{one.source}: {one.reason}" for one in verdict.diagnosis.coverage.unread)
    yield _part("Not read", _listed(unread))


def _told(finding: Finding) -> str:
    where = f" {finding.evidence[0].source}: {finding.evidence[0].text}" if finding.evidence else ""
    return f"{severity_of(finding).value} {finding.failure_class}: {finding.title}.{where}"


def _part(title: str, text: str) -> str:
    return f"### {title}\n\n{text}" if text else ""


def _listed(items: Iterable[str]) -> str:
    return "\n".join(f"- {markdown(item)}" for item in items)


# ---- all jobs of a directory


def table(verdicts: Sequence[Verdict], colour: bool, width: int) -> Iterator[str]:
    """One line per job: what it is, how it stands, why, and how far it came."""
    page = ReportPage(max(width, 40), colour)
    rows = [_row(verdict) for verdict in verdicts]
    head = ("JOB", "STATUS", "PRIMARY", "STEP", "WHERE", "NAME")
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head) - 1)]
    for index, row in enumerate([head, *rows]):
        cells = [cell.ljust(size) for cell, size in zip(row, widths, strict=False)]
        text = "  ".join([*cells, row[-1]]).rstrip()
        line = text[: page.width]
        if index:
            status = verdicts[index - 1].status
            word = status.value
            line = line.replace(word, page.paint(word, _STATUS_COLOURS.get(status, YELLOW)), 1)
        yield f"{line}\n"
    by = {one: sum(v.status is one for v in verdicts) for one in JobStatus}
    told = ", ".join(f"{number} {one.value}" for one, number in by.items() if number)
    yield f"\n{count(len(verdicts), 'job')}: {told or 'none'}.\n"


def _row(verdict: Verdict) -> tuple[str, ...]:
    one, first = verdict.progress, primary_finding(verdict)
    step = "-" if one.last_step is None else str(one.last_step)
    where = first.host or (f"task {first.task}" if first.task else "-") if first else "-"
    name = verdict.resolved.name or verdict.job_name or verdict.log
    job = verdict.job_id or "-"
    primary = verdict.primary or "-"
    return tuple(terminal(c) for c in (job, verdict.status.value, primary, step, where, name))
