"""A comparison of jobs as Markdown, for a ticket, in the layout that its readers know."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from raydiag.explain.comparison import Comparison
from raydiag.explain.comparison.pair import Contrast
from raydiag.render import compare_content as content
from raydiag.render.escape import fenced, markdown
from raydiag.render.layout import number


def markdown_report(found: Comparison, every: bool) -> str:
    """Section by section; what came from logs and metrics is escaped."""
    blocks: list[str] = []
    for told in found.contrasts:
        blocks += _contrast(told, every)
    if not found.contrasts:
        blocks.append(f"## Saves of job {markdown(found.sides[0].label)}")
        blocks += [markdown(content.about(side)) for side in found.sides]
    for side, saves in zip(found.sides, found.saves, strict=True):
        if saves.loads:
            blocks.append(f"### Saves of job {markdown(side.label)}")
            blocks.append(_table(content.save_header(), content.save_rows(saves)))
    others = [
        f"- {markdown(content.finding_line(label, one))}"
        + "".join(f"\n  - {markdown(text)}" for text in content.seen(one, every))
        for label, one in content.others(found, every)
    ]
    steps = [f"{i}. {markdown(step)}" for i, step in enumerate(content.next_steps(found), 1)]
    for heading, lines in (
        ("Other findings", "\n".join(others)),
        ("Ruled out", _bullets(content.ruled_out(found))),
        ("Notes", _bullets(content.notes(found))),
        ("Recommended next steps", "\n".join(steps)),
    ):
        if lines:
            blocks += [f"### {heading}", lines]
    blocks += ["### Queries", fenced(_queries(found)) if any(found.asked) else "None was asked."]
    blocks += ["### Coverage", _bullets(content.coverage(found)) or "Logs only."]
    blocks += ["---", markdown(content.footer(found))]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _contrast(told: Contrast, every: bool) -> Iterator[str]:
    pair = told.pair
    yield f"## {markdown(content.title(told))}"
    yield "  \n".join(
        f"**Job {name}**: {markdown(content.about(side))}"
        for name, side in (("A", pair.a), ("B", pair.b))
    )
    yield "### Config differences"
    settings = [[one.parameter, one.a, one.b] for one in content.settings(told, every)]
    yield _table(["Parameter", "Job A", "Job B"], settings) or "None that may explain anything."
    range_of, *more = content.steps(told)
    yield f"### Overlapping step range: {markdown(range_of)}"
    yield "  \n".join(map(markdown, more))
    yield "### Metric comparison (steady-state means over the overlapping steps)"
    rows = [[row.metric, row.a, row.b, row.delta, row.cause] for row in content.rows(told, every)]
    yield _table(["Metric", "Job A", "Job B", "Delta", "Likely cause"], rows) or "None."
    yield "### Environment"
    yield _table(["", "Job A", "Job B"], content.environment(told, every)) or "The same."
    logs = _table(["", "Job A", "Job B"], content.logs(told))
    if logs:
        yield "### Log evidence"
        yield logs
    yield "### Root cause"
    first, *rest = content.cause(told)
    yield f"**{markdown(first)}**"
    yield _bullets(rest)
    evidence = list(content.evidence(told))
    yield fenced(evidence) if evidence else ""
    if content.trace(told):
        yield "### Source code trace"
        yield markdown(content.trace(told))


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Empty without rows."""
    cells = [f"| {' | '.join(markdown(cell) for cell in row)} |" for row in rows]
    if not cells:
        return ""
    return "\n".join([f"| {' | '.join(header)} |", f"|{' --- |' * len(header)}", *cells])


def _bullets(texts: Iterable[str]) -> str:
    return "\n".join(f"- {markdown(text)}" for text in texts if text)


def _queries(found: Comparison) -> Iterator[str]:
    for side, asked in zip(found.sides, found.asked, strict=True):
        for one in asked:
            step = f" step {number(one.step_s)}s" if one.step_s else ""
            window = f"{one.start:.3f} to {one.end:.3f}{step}"
            yield f"job {side.label}: {one.id}: {one.promql}  [{window}]  rows {one.rows}"
