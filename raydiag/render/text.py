"""A probe run as text, for people at 3 a.m.: what is wrong, where, what to do, what is unseen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raydiag import __version__
from raydiag.model import Coverage, Diagnosis, NodeStatus, Severity, Snapshot
from raydiag.render.coverage import coverage_section
from raydiag.render.document import severity_of
from raydiag.render.escape import terminal
from raydiag.render.groups import Group, groups
from raydiag.render.layout import COLOURS, ReportPage, count, number, utc
from raydiag.render.node_table import node_table
from raydiag.render.stacks import stacks_section

_INDENT = "  "


def probe_report(
    snapshot: Snapshot,
    diagnosis: Diagnosis,
    cluster: Mapping[str, Any],
    colour: bool,
    width: int,
    verbose: bool,
) -> str:
    """The report of `raydiag probe`; ASCII apart from what nodes said, which is escaped.

    `cluster` as for `document.probe_document`, and `duration_s` if known. Like findings are folded
    into one block; `verbose` keeps them apart, with all their evidence and every unread source.
    """
    page = ReportPage(max(width, 40), colour)
    sections = [
        page.wrap(summary(snapshot, diagnosis)),
        *(_block(group, page, verbose) for group in groups(diagnosis, verbose)),
        node_table(snapshot.nodes, page),
        stacks_section(snapshot, page, verbose),
        coverage_section(snapshot, diagnosis.coverage, page, verbose),
        page.wrap(terminal(footer(snapshot, cluster))),
    ]
    return "\n\n".join("\n".join(section) for section in sections if section) + "\n"


def summary(snapshot: Snapshot, diagnosis: Diagnosis) -> str:
    """One sentence. A node counts as clean only when nothing was found and all of it was seen."""
    coverage = diagnosis.coverage
    problems = [item for item in diagnosis.findings if severity_of(item) is not Severity.INFO]
    remarks = len(diagnosis.findings) - len(problems)
    aside = f" {count(remarks, 'remark')} below." if remarks else ""
    sick = {(finding.host, finding.address) for finding in problems}
    blind = {item.host for item in coverage.blind}
    partly = _partly_seen(snapshot, coverage) - blind
    if problems:
        whole = [r.node for r in snapshot.nodes if r.status is NodeStatus.OK]
        whole = [node for node in whole if node.host not in blind | partly]
        clean = sum(not sick & {(node.host, None), node.machine} for node in whole)
        places = len(sick - {(None, None)})
        where = f" on {places} of {count(coverage.asked, 'node')}" if places else ""
        parts = [f"{count(len(problems), 'problem')}{where}", f"{count(clean, 'node')} clean"]
        parts += _gaps(coverage, len(partly))
        return f"{'; '.join(parts)}.{aside}"
    gaps = _gaps(coverage, len(partly))
    if coverage.asked == 0:
        return f"No node was asked, so nothing is known.{aside}"
    if gaps or not coverage.complete or coverage.answered < coverage.asked:
        answered = f"{coverage.answered} of {count(coverage.asked, 'node')} answered"
        told = ", ".join([answered, *gaps])
        return f"No problem found, but not everything could be seen: {told}.{aside}"
    seen = f"{coverage.answered} of {count(coverage.asked, 'node')}"
    return f"No problem found on {seen}, everything was seen.{aside}"


def _partly_seen(snapshot: Snapshot, coverage: Coverage) -> set[str]:
    """A node without any answer is either blind, or gone and not missed."""
    unread = {item.host for item in coverage.unread}
    return unread | {r.node.host for r in snapshot.nodes if r.status is NodeStatus.PARTIAL}


def _gaps(coverage: Coverage, partly: int) -> list[str]:
    gaps = []
    if coverage.blind:
        gaps.append(f"{count(len(coverage.blind), 'node')} not seen")
    if partly:
        gaps.append(f"{count(partly, 'node')} seen only in part")
    return gaps


def _block(group: Group, page: ReportPage, verbose: bool) -> list[str]:
    word = group.severity.value.upper()
    name, *others = map(terminal, group.heading())
    lines = page.wrap("  ".join([f"{word} {name}", *others]), "", _INDENT * 2)
    lines[0] = page.paint(word, COLOURS[group.severity]) + lines[0][len(word) :]

    def add(text: str, first_indent: str = _INDENT, rest: str = _INDENT) -> None:
        if text:
            lines.extend(page.wrap(terminal(text), first_indent, rest))

    add(group.first.title)
    add(group.whose_evidence())
    for line in group.evidence(verbose):
        add(line, _INDENT * 2, _INDENT * 3)
    add(group.first.explanation)
    add(group.accounts_for())
    for index, step in enumerate(group.first.next_steps):
        add(f"{index + 1}. {step}", f"{_INDENT}Next: " if index == 0 else " " * 8, " " * 11)
    return lines


def footer(snapshot: Snapshot, cluster: Mapping[str, Any]) -> str:
    """Which version looked at which cluster, when and for how long. Not escaped."""
    address, login = cluster.get("address"), cluster.get("ssh")
    place = f"{address} through ssh {login}" if login else address
    known = (place, cluster.get("session_name"))
    parts = [f"raydiag {__version__}", *(str(value) for value in known if value)]
    if cluster.get("ray_version"):
        parts.append(f"Ray {cluster['ray_version']}")
    parts.append(utc(snapshot.time))
    slowest = max((report.duration_s for report in snapshot.nodes), default=0.0)
    took = f"took {cluster.get('duration_s') or slowest:.1f} s"
    limit = cluster.get("deadline_s")
    parts.append(f"{took} of {number(limit)} s" if limit else took)
    return "  ".join(parts)
