"""A probe run as Markdown, to paste into a ticket: the content of the text report, in its order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from raydiag.model import Diagnosis, NodeReport, Snapshot
from raydiag.render.coverage import answered, coverage_lines
from raydiag.render.escape import fenced, markdown
from raydiag.render.groups import Group, groups
from raydiag.render.node_table import tabulate
from raydiag.render.stacks import stacks_markdown
from raydiag.render.text import footer, summary


def probe_markdown(
    snapshot: Snapshot, diagnosis: Diagnosis, cluster: Mapping[str, Any], verbose: bool
) -> str:
    """The report of `raydiag probe`; arguments as for `text.probe_report`.

    What nodes said stands in code blocks, or is escaped.
    """
    seen = coverage_lines(snapshot, diagnosis.coverage, verbose)
    blocks = [
        f"**{markdown(summary(snapshot, diagnosis))}**",
        *(block for group in groups(diagnosis, verbose) for block in _section(group, verbose)),
        *_nodes(snapshot.nodes),
        *stacks_markdown(snapshot, verbose),
        "## Coverage",
        f"{answered(diagnosis.coverage)}.",
        "\n".join(f"- {markdown(line)}" for line in seen),
        "---",
        markdown(footer(snapshot, cluster)),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _section(group: Group, verbose: bool) -> list[str]:
    first = group.first
    name, *others = map(markdown, group.heading())
    evidence = group.evidence(verbose)
    return [
        f"## {group.severity.value.upper()} {name}",
        " · ".join(others),
        markdown(first.title),
        markdown(group.whose_evidence()),
        fenced(evidence) if evidence else "",
        markdown(first.explanation),
        markdown(group.accounts_for()),
        "Next steps:" if first.next_steps else "",
        "\n".join(f"{i}. {markdown(step)}" for i, step in enumerate(first.next_steps, start=1)),
    ]


def _nodes(reports: Sequence[NodeReport]) -> list[str]:
    table = tabulate(reports)
    if not table.rows:
        return []
    lines = [_row([*table.header, "NOTES"])]
    lines.append(_row(["---"] * (len(table.header) + 1)))
    for row in table.rows:
        *cells, last = (cell if cell == "-" else markdown(cell) for cell in row.cells)
        mount_point = markdown(row.mount_point)
        lines.append(_row([*cells, f"{last} {mount_point}", markdown("; ".join(row.notes))]))
    shared = f"All: {', '.join(table.versions)}" if table.versions else ""
    return ["## Nodes", "\n".join(lines), markdown(shared)]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.strip() for cell in cells)} |"
