"""The diagnosis of one job as text: the verdict, what led to it, what was unseen; tables last."""

from __future__ import annotations

from collections.abc import Sequence

from raydiag.explain.job import ExaminedJob
from raydiag.model import Severity
from raydiag.playbooks.observations import Report
from raydiag.render.diagnose_content import (
    LINKS,
    coverage_lines,
    footer,
    heading,
    holding,
    link,
    next_steps,
    others,
    reports,
    ruled_out,
    said,
    seen,
    story,
    verdict_chain,
)
from raydiag.render.escape import terminal
from raydiag.render.groups import Group
from raydiag.render.layout import COLOURS, GREEN, YELLOW, ReportPage


def text_report(examined: ExaminedJob, colour: bool, width: int, every: bool) -> str:
    """The report for people. What came from logs and metrics is escaped."""
    page = ReportPage(max(width, 40), colour)
    told = [one for one in reports(examined) if _has_more(one, every)]
    quiet = [one for one in reports(examined) if not _has_more(one, every)]
    blocks = [
        _verdict(examined, page),
        _chain(examined, page),
        *(_group(one, examined, page, every) for one in others(examined, every)),
        _list(page, "LOG", [story(examined)]),
        _list(page, "NOTES", examined.notes),
        _list(page, "COVERAGE", list(coverage_lines(examined))),
        _list(page, "RULED OUT", [f"{o.failure_class}: {o.why}" for o in ruled_out(examined)]),
        *(_playbook(one, page, every) for one in told),
        _list(page, "OTHER PLAYBOOKS", [f"{one.playbook}: {one.verdict}" for one in quiet]),
        page.wrap(terminal(footer(examined))),
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def _verdict(examined: ExaminedJob, page: ReportPage) -> list[str]:
    one = examined.explained.verdict
    lines = page.wrap(terminal(f"VERDICT  {heading(examined)}"), "", "         ")
    colour = {"healthy": GREEN, "unknown": YELLOW}.get(
        one.failure_class, COLOURS[Severity.CRITICAL]
    )
    lines[0] = page.paint("VERDICT", colour) + lines[0][len("VERDICT") :]
    lines += page.wrap(terminal(one.summary), "  ", "  ")
    for index, step in enumerate(next_steps(examined)):
        lead = "  Next: " if index == 0 else " " * 8
        lines += page.wrap(terminal(f"{index + 1}. {step}"), lead, " " * 11)
    return lines


def _chain(examined: ExaminedJob, page: ReportPage) -> list[str]:
    chain = verdict_chain(examined)
    if not chain:
        return []
    lines = ["WHAT LED TO WHAT" if len(chain) > 1 else "EVIDENCE"]
    for finding in chain[:LINKS]:
        lines += page.wrap(terminal(link(finding)), "  ", "      ")
        for text in seen(finding, examined):
            lines += page.wrap(terminal(text), "      ", "        ")
    if len(chain) > LINKS:
        lines.append(f"  (+{len(chain) - LINKS} more: JSON has all)")
    return lines


def _group(group: Group, examined: ExaminedJob, page: ReportPage, every: bool) -> list[str]:
    word = group.severity.value.upper()
    name, *parts = map(terminal, group.heading())
    lines = page.wrap("  ".join([f"{word} {name}", *parts]), "", "    ")
    lines[0] = page.paint(word, COLOURS[group.severity]) + lines[0][len(word) :]
    lines += page.wrap(terminal(group.first.title), "  ", "  ")
    for text in seen(group.first, examined, every):
        lines += page.wrap(terminal(text), "    ", "      ")
    return lines


def _list(page: ReportPage, title: str, texts: Sequence[str]) -> list[str]:
    lines = [line for text in texts if text for line in page.wrap(terminal(text), "  ", "    ")]
    return [title, *lines] if lines else []


def _has_more(report: Report, every: bool) -> bool:
    """Than its one sentence."""
    return bool(holding(report, every) or report.block or report.exclude)


def _playbook(report: Report, page: ReportPage, every: bool) -> list[str]:
    lines = page.wrap(terminal(f"PLAYBOOK {report.playbook}: {report.title}"), "", "  ")
    lines += page.wrap(terminal(report.verdict), "  ", "  ") if report.verdict else []
    for row in holding(report, every):
        lines += page.wrap(terminal(said(row)), "    ", "      ")
    for text in report.block:
        lines += page.wrap(terminal(text), "    ", "      ")
    for one in report.exclude:
        lines += page.wrap(terminal(f"exclude {one.host} ({one.reason})"), "    ", "      ")
    return lines
