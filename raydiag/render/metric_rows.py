"""The rows of the playbooks that hold: a table for documents, a list for a terminal."""

import re
from collections.abc import Callable, Iterator, Sequence

from raydiag.explain.job import ExaminedJob, ticket
from raydiag.nodeset import fold
from raydiag.playbooks.observations import ReportRow
from raydiag.render import report as blocks
from raydiag.render.formats import grouped, joined, or_dash, quantity
from raydiag.render.report import Block, table

_ANSWERS = {True: "", False: "no: ", None: "undecided: "}
_DIGITS = 4
_NUMBER = re.compile(r"\d+(?:\.\d+)?(?: [GM]B)?")


def metric_table(examined: ExaminedJob, show_all: bool) -> Block:
    """A row each, with the value that it was decided from."""
    rows = map(_cells, _shown_rows(examined, show_all))
    return table(("Host", "GPU", "Value", "Interpretation"), rows).or_else("None.")


def metric_lines(examined: ExaminedJob, is_told: Callable[[str], bool]) -> Block:
    """A line for each thing that was seen, of all its hosts; not what `is_told` above.

    A row without a place and a value is about how it was judged: documents have it.
    """
    lines = []
    for rows in grouped(_shown_rows(examined, show_all=False), _sense).values():
        first = rows[0]
        has_subject = first.hosts or first.value is not None
        if has_subject and not is_told(first.interpretation):
            places = joined([_places(rows), _values(rows)])
            lines.append(joined([places, _words(first)]))
    return blocks.bullets(lines)


def _shown_rows(examined: ExaminedJob, show_all: bool) -> Iterator[ReportRow]:
    for report in ticket.playbook_reports(examined):
        yield from (row for row in report.rows if show_all or row.holds)


def _cells(row: ReportRow) -> list[str]:
    place = " ".join(filter(None, [fold(row.hosts), row.device]))
    value = quantity(row.value, row.unit, _DIGITS)
    return [place or "-", or_dash(row.gpu), value, _words(row)]


def _words(row: ReportRow) -> str:
    return f"{_ANSWERS[row.holds]}{row.row}: {row.interpretation}"


def _sense(row: ReportRow) -> tuple[str, str, str]:
    return row.row, row.interpretation, row.unit


def _places(rows: Sequence[ReportRow]) -> str:
    """Hosts, with GPU or device where it is of one."""
    hosts = fold(host for row in rows for host in row.hosts)
    gpu, device = rows[0].gpu, rows[0].device
    if len(rows) > 1:
        return hosts
    return " ".join(filter(None, [hosts, f"gpu {gpu}" if gpu is not None else "", device]))


def _values(rows: Sequence[ReportRow]) -> str:
    """The value, or the smallest and the largest; nothing where the words have it."""
    values = sorted(row.value for row in rows if row.value is not None)
    told = _NUMBER.findall(rows[0].interpretation)
    if not values or not set(told).isdisjoint(_roundings(values[0])):
        return ""
    ends = (quantity(value, rows[0].unit, _DIGITS) for value in (values[0], values[-1]))
    return " to ".join(dict.fromkeys(ends))


def _roundings(value: float) -> tuple[str, ...]:
    """How a sentence may write a value."""
    sizes = f"{value / 1e9:.4g} GB", f"{value / 1e6:.4g} MB"
    return f"{value:.0f}", f"{value:.3g}", f"{value:.4g}", *sizes
