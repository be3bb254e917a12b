"""A comparison of jobs as text: the answer first, then what it rests on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from raydiag.explain.comparison import Comparison
from raydiag.explain.comparison.pair import Contrast
from raydiag.render import compare_content as content
from raydiag.render.escape import terminal
from raydiag.render.layout import GREEN, RED, YELLOW, ReportPage

_CELL = 40  # columns of one cell, at most
_LEAST_ROOM = 24  # of the last column; with less it stands on a line of its own


def text_report(found: Comparison, colour: bool, width: int, every: bool) -> str:
    """The report for people. What came from logs and metrics is escaped."""
    page = ReportPage(max(width, 60), colour)
    blocks: list[list[str]] = []
    for told in found.contrasts:
        blocks += _contrast(told, page, every)
    if not found.contrasts:
        blocks.append(_list(page, "JOB", [content.about(side) for side in found.sides]))
    for side, saves in zip(found.sides, found.saves, strict=True):
        if saves.loads:
            rows = list(content.save_rows(saves))
            blocks.append(_table(page, f"SAVES OF JOB {side.label}", content.save_header(), rows))
    steps = [f"{i}. {step}" for i, step in enumerate(content.next_steps(found), 1)]
    blocks += [
        _findings(found, page, every),
        _list(page, "RULED OUT", content.ruled_out(found)),
        _list(page, "NOTES", content.notes(found)),
        _list(page, "NEXT STEPS", steps),
        _list(page, "COVERAGE", content.coverage(found)),
        page.wrap(terminal(content.footer(found))),
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def _contrast(told: Contrast, page: ReportPage, every: bool) -> list[list[str]]:
    head = page.wrap(terminal(content.title(told)))
    first, *rest = content.cause(told)
    colour = {"healthy": GREEN, "unknown": YELLOW}.get(told.answer.failure_class, RED)
    line = page.wrap(terminal(f"ROOT CAUSE  {first}"), "", "    ")
    line[0] = page.paint("ROOT CAUSE", colour) + line[0][len("ROOT CAUSE") :]
    for text in rest:
        line += page.wrap(terminal(text), "  ", "    ")
    pair = (("A", told.pair.a), ("B", told.pair.b))
    jobs = [f"{name}: {content.about(side)}" for name, side in pair]
    settings = [[one.parameter, one.a, one.b] for one in content.settings(told, every)]
    metrics = [[r.metric, r.a, r.b, r.delta, r.cause] for r in content.rows(told, every)]
    environment = [list(row) for row in content.environment(told, every)]
    logs = [list(row) for row in content.logs(told)]
    return [
        head,
        line,
        _list(page, "JOBS", jobs),
        _table(page, "CONFIG DIFFERENCES", ["Parameter", "Job A", "Job B"], settings)
        or ["CONFIG DIFFERENCES", "  none that may explain anything"],
        _list(page, "OVERLAPPING STEP RANGE", content.steps(told)),
        _table(
            page,
            "METRIC COMPARISON (steady means over these steps)",
            ["Metric", "Job A", "Job B", "Delta", "Likely cause"],
            metrics,
        ),
        _table(page, "ENVIRONMENT", ["", "Job A", "Job B"], environment),
        _table(page, "WORKER LOGS", ["", "Job A", "Job B"], logs),
        _list(page, "EVIDENCE", content.evidence(told)),
        _list(page, "SOURCE CODE TRACE", [content.trace(told)]),
    ]


def _findings(found: Comparison, page: ReportPage, every: bool) -> list[str]:
    lines = []
    for label, one in content.others(found, every):
        lines += page.wrap(terminal(content.finding_line(label, one)), "  ", "    ")
        for text in content.seen(one, every):
            lines += page.wrap(terminal(text), "    ", "      ")
    return ["FINDINGS", *lines] if lines else []


def _list(page: ReportPage, title: str, texts: Iterable[str]) -> list[str]:
    lines = [line for text in texts if text for line in page.wrap(terminal(text), "  ", "    ")]
    return [title, *lines] if lines else []


def _table(
    page: ReportPage, title: str, header: Sequence[str], rows: Sequence[Sequence[str]]
) -> list[str]:
    """Columns as wide as they need; the last one is wrapped below itself."""
    if not rows:
        return []
    cells = [[terminal(cell) for cell in row] for row in [list(header), *rows]]
    widths = [min(_CELL, max(len(row[i]) for row in cells)) for i in range(len(header) - 1)]
    lines = []
    for row in cells:
        start = "  " + "".join(
            f"{cell.ljust(width)}  " for cell, width in zip(row[:-1], widths, strict=True)
        )
        if page.width - len(start) >= max(_LEAST_ROOM, min(len(row[-1]), _CELL)):
            lines += page.wrap(row[-1], start, " " * len(start))
        else:
            lines += [start.rstrip(), *page.wrap(row[-1], "      ", "      ")]
    return [title, *lines]
