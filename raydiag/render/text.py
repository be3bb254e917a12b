"""A probe run as text, for people at 3 a.m.: what is wrong, where, what to do, what is unseen."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from raydiag import __version__
from raydiag.model import Coverage, Diagnosis, Evidence, Finding, NodeStatus, Severity, Snapshot
from raydiag.render.coverage import coverage_section
from raydiag.render.document import chain_indices, severity_of
from raydiag.render.escape import terminal
from raydiag.render.layout import COLOURS, Page, count, hosts, number, shape, utc
from raydiag.render.node_table import node_table
from raydiag.render.nodeset import fold

EVIDENCE_LINES = 5
_SCOPE_NAMES = 3  # so many different devices are named, more are counted
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
    page = Page(max(width, 40), colour)
    sections = [
        page.wrap(summary(snapshot, diagnosis)),
        *_finding_blocks(diagnosis, page, verbose),
        node_table(snapshot.nodes, page),
        coverage_section(snapshot, diagnosis.coverage, page, verbose),
        page.wrap(_footer(snapshot, cluster)),
    ]
    return "\n\n".join("\n".join(section) for section in sections if section) + "\n"


def summary(snapshot: Snapshot, diagnosis: Diagnosis) -> str:
    """One sentence. A node counts as clean only when nothing was found and all of it was seen."""
    coverage = diagnosis.coverage
    problems = [item for item in diagnosis.findings if severity_of(item) is not Severity.INFO]
    remarks = len(diagnosis.findings) - len(problems)
    aside = f" {count(remarks, 'remark')} below." if remarks else ""
    sick = {finding.host for finding in problems}
    blind = {item.host for item in coverage.blind}
    partly = _partly_seen(snapshot, coverage) - blind
    if problems:
        clean = sum(report.node.host not in sick | blind | partly for report in snapshot.nodes)
        places = len(sick - {None})
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
    unread = {item.host for item in coverage.unread}
    return unread | {r.node.host for r in snapshot.nodes if r.status is not NodeStatus.OK}


def _gaps(coverage: Coverage, partly: int) -> list[str]:
    gaps = []
    if coverage.blind:
        gaps.append(f"{count(len(coverage.blind), 'node')} not seen")
    if partly:
        gaps.append(f"{count(partly, 'node')} seen only in part")
    return gaps


def _finding_blocks(diagnosis: Diagnosis, page: Page, verbose: bool) -> Iterator[list[str]]:
    """One block of lines per group of like findings, most severe first."""
    effects: dict[int, list[Finding]] = defaultdict(list)
    for root, *others in chain_indices(diagnosis):
        effects[root] += [diagnosis.findings[index] for index in others]
    groups: dict[Any, list[int]] = defaultdict(list)
    for index, finding in enumerate(diagnosis.findings):
        groups[index if verbose else _likeness(finding)].append(index)
    # sorted() is stable: within a severity, the order of the diagnosis stays.
    for group in sorted(
        groups.values(), key=lambda group: -severity_of(diagnosis.findings[group[0]]).rank
    ):
        findings = [diagnosis.findings[index] for index in group]
        accounts = [effect for index in group for effect in effects.get(index, ())]
        yield _block(findings, accounts, page, verbose)


def _likeness(finding: Finding) -> tuple[object, ...]:
    """Findings that agree in this are one block."""
    return (
        finding.failure_class,
        severity_of(finding),
        finding.confidence,
        finding.host is None,
        finding.title,
        shape(finding.explanation, finding.host),
        tuple(finding.next_steps),
    )


def _block(
    findings: Sequence[Finding], accounts: Sequence[Finding], page: Page, verbose: bool
) -> list[str]:
    first = findings[0]
    severity = severity_of(first)
    word = severity.value.upper()
    parts = [first.failure_class, scope(findings), _since(findings), first.confidence.value]
    heading = "  ".join([f"{word} {parts[0]}", *(part for part in parts[1:] if part)])
    lines = page.wrap(heading, "", _INDENT * 2)
    lines[0] = page.paint(word, COLOURS[severity]) + lines[0][len(word) :]

    def add(text: str, first_indent: str = _INDENT, rest: str = _INDENT) -> None:
        if text:
            lines.extend(page.wrap(terminal(text), first_indent, rest))

    add(first.title)
    if len(findings) > 1:
        add(f"{len(findings)} findings of this kind; the evidence is that of {scope([first])}:")
    shown = first.evidence if verbose else first.evidence[:EVIDENCE_LINES]
    for item in shown:
        add(_evidence(item), _INDENT * 2, _INDENT * 3)
    if len(first.evidence) > len(shown):
        add(f"(+{len(first.evidence) - len(shown)} more, all in --format json)", _INDENT * 2)
    add(first.explanation)
    if accounts:
        kinds = Counter(effect.failure_class for effect in accounts)
        add("Accounts for: " + ", ".join(f"{n} {name}" for name, n in kinds.items()))
    for index, step in enumerate(first.next_steps):
        add(f"{index + 1}. {step}", f"{_INDENT}Next: " if index == 0 else " " * 8, " " * 11)
    return lines


def scope(findings: Sequence[Finding]) -> str:
    """Where: hosts, GPUs, device, process, task of like findings; "" for the whole cluster."""
    gpus = sorted({item.gpu for item in findings if item.gpu is not None})
    devices = sorted({item.device for item in findings if item.device is not None})
    pids = sorted({item.pid for item in findings if item.pid is not None})
    tasks = sorted({item.task for item in findings if item.task is not None})
    parts = [hosts(item.host for item in findings if item.host is not None)]
    if gpus:
        parts.append(f"{'gpu' if len(gpus) == 1 else 'gpus'} {fold(map(str, gpus)).strip('[]')}")
    if gpus and len(devices) == 1:
        parts.append(f"({devices[0]})")
    elif devices and not gpus:
        parts.append(_names(devices, "devices"))
    if pids:
        parts.append(f"pid {pids[0]}" if len(pids) == 1 else f"{len(pids)} processes")
    if tasks:
        parts.append(f"task {fold(tasks)}")
    return terminal(" ".join(part for part in parts if part))


def _names(names: Sequence[str], noun: str) -> str:
    return ", ".join(names) if len(names) <= _SCOPE_NAMES else f"{len(names)} {noun}"


def _since(findings: Iterable[Finding]) -> str:
    onsets = {item.onset for item in findings if item.onset is not None}
    if not onsets:
        return ""
    return f"since {utc(min(onsets))}" + (" (the first)" if len(onsets) > 1 else "")


def _evidence(item: Evidence) -> str:
    aside = []
    if item.time is not None:
        aside.append(utc(item.time))
    text = f"{item.source}: {item.text}" if item.text else item.source
    if item.value is not None and not item.text:
        text += f" = {number(item.value)}"
    return text + (f"  ({', '.join(aside)})" if aside else "")


def _footer(snapshot: Snapshot, cluster: Mapping[str, Any]) -> str:
    known = [cluster.get(key) for key in ("address", "session_name")]
    parts = [f"raydiag {__version__}", *(str(value) for value in known if value)]
    if cluster.get("ray_version"):
        parts.append(f"Ray {cluster['ray_version']}")
    parts.append(utc(snapshot.time))
    slowest = max((report.duration_s for report in snapshot.nodes), default=0.0)
    took = f"took {cluster.get('duration_s') or slowest:.1f} s"
    limit = cluster.get("deadline_s")
    parts.append(f"{took} of {number(limit)} s" if limit else took)
    return terminal("  ".join(parts))
