"""A probe run as a report: what is wrong, where, what to do, what is unseen."""

from collections.abc import Mapping
from operator import attrgetter
from typing import Any

from raydiag import __version__
from raydiag.model import Coverage, Diagnosis, NodeStatus, Severity, Snapshot
from raydiag.render.coverage import coverage_section
from raydiag.render.document import severity_of
from raydiag.render.formats import count, filled, joined, number, span, utc
from raydiag.render.groups import groups
from raydiag.render.host_grid import grid_of_nodes
from raydiag.render.node_table import nodes_section
from raydiag.render.report import TONES, Paragraph, Report, Section, Tone
from raydiag.render.stacks import stacks_section


def probe_report(
    snapshot: Snapshot, diagnosis: Diagnosis, cluster: Mapping[str, Any], verbose: bool
) -> Report:
    """The report of `raydiag probe`.

    `cluster` as for `document.probe_document`, and `duration_s` if known. Like findings are folded
    into one section; `verbose` keeps them apart, with all their evidence and every unread source.
    """
    lead = Paragraph(summary(snapshot, diagnosis), strong=True)
    sections = [Section(blocks=[lead, grid_of_nodes(snapshot, diagnosis)], tone=_tone(diagnosis))]
    sections += [group.section(verbose) for group in groups(diagnosis, verbose)]
    sections.append(nodes_section(snapshot.nodes, diagnosis.problems))
    sections.append(stacks_section(snapshot, verbose))
    sections.append(coverage_section(snapshot, diagnosis.coverage, verbose))
    return Report(sections, _footer(snapshot, cluster))


def summary(snapshot: Snapshot, diagnosis: Diagnosis) -> str:
    """One sentence. A node counts as clean only when nothing was found and all of it was seen."""
    ratings = list(map(severity_of, diagnosis.findings))
    notes = ratings.count(Severity.INFO)
    aside = f" {count(notes, 'note')} below." if notes else ""
    if notes < len(ratings):
        return f"{_problems(snapshot, diagnosis)}.{aside}"
    return f"{_no_problem(snapshot, diagnosis.coverage)}.{aside}"


def _tone(diagnosis: Diagnosis) -> Tone:
    if diagnosis.problems:
        worst = max(map(severity_of, diagnosis.problems), key=attrgetter("rank"))
        return TONES[worst]
    return Tone.GOOD if diagnosis.coverage.complete else Tone.DOUBTFUL


def _problems(snapshot: Snapshot, diagnosis: Diagnosis) -> str:
    coverage = diagnosis.coverage
    problems = [f for f in diagnosis.findings if severity_of(f) is not Severity.INFO]
    unhealthy = {(problem.host, problem.address) for problem in problems}
    places = len(unhealthy - {(None, None)})
    on_nodes = f" on {places} of {count(coverage.asked, 'node')}" if places else ""
    not_whole = _blind_hosts(coverage) | _partly_seen(snapshot, coverage)
    clean = 0
    for report in snapshot.nodes:
        node = report.node
        if report.status is NodeStatus.OK and node.host not in not_whole:
            clean += unhealthy.isdisjoint({(node.host, None), node.machine})
    total = f"{count(len(problems), 'problem')}{on_nodes}"
    return "; ".join([total, f"{count(clean, 'node')} clean", *_gaps(snapshot, coverage)])


def _no_problem(snapshot: Snapshot, coverage: Coverage) -> str:
    if coverage.asked == 0:
        return "No node was asked, so nothing is known"
    answered = f"{coverage.answered} of {count(coverage.asked, 'node')}"
    gaps = _gaps(snapshot, coverage)
    if gaps or not coverage.complete or coverage.answered < coverage.asked:
        reasons = ", ".join([f"{answered} answered", *gaps])
        return f"No problem found, but not everything could be seen: {reasons}"
    return f"No problem found on {answered}, everything was seen"


def _blind_hosts(coverage: Coverage) -> set[str]:
    return {blind.host for blind in coverage.blind}


def _partly_seen(snapshot: Snapshot, coverage: Coverage) -> set[str]:
    """A node without any answer is either blind, or gone and not missed."""
    partial = {r.node.host for r in snapshot.nodes if r.status is NodeStatus.PARTIAL}
    return partial.union(unread.host for unread in coverage.unread) - _blind_hosts(coverage)


def _gaps(snapshot: Snapshot, coverage: Coverage) -> list[str]:
    gaps = []
    if coverage.blind:
        gaps.append(f"{count(len(coverage.blind), 'node')} not seen")
    partly = len(_partly_seen(snapshot, coverage))
    if partly:
        gaps.append(f"{count(partly, 'node')} seen only in part")
    return gaps


def _footer(snapshot: Snapshot, cluster: Mapping[str, Any]) -> str:
    """Which version looked at which cluster, when and for how long."""
    place, login = cluster.get("address") or "", cluster.get("ssh")
    if login:
        place = f"{place} through ssh {login}"
    ray = filled("Ray {}", cluster.get("ray_version"))
    session = str(cluster.get("session_name") or "")
    duration = _duration(snapshot, cluster)
    agent = through_agent(cluster, snapshot.time)
    version = f"raydiag {__version__}"
    return joined([version, place, agent, session, ray, utc(snapshot.time), duration])


def through_agent(cluster: Mapping[str, Any], now_s: float) -> str:
    """That the nodes were asked by the resident agent, and since when it is up; "" otherwise."""
    agent = cluster.get("agent")
    if not agent:
        return ""
    since_s = agent.get("since")
    return f"through the resident agent, up {span(now_s - since_s) if since_s else ''}".rstrip(" ,")


def _duration(snapshot: Snapshot, cluster: Mapping[str, Any]) -> str:
    slowest = max((report.duration_s for report in snapshot.nodes), default=0.0)
    duration = f"took {cluster.get('duration_s') or slowest:.1f} s"
    limit = cluster.get("deadline_s")
    return f"{duration} of {number(limit)} s" if limit else duration
