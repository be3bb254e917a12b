"""Which rows of the playbooks stay undecided for want of series."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from raydiag.playbooks.tables import ROWS
from raydiag.timeline import queries

_BY_LOG_TOO = "training"  # steps, losses and saves come from the job's log where no series has them


@dataclass(frozen=True)
class UndecidedRows:
    """Rows that any of the metrics could decide, where none of these is there."""

    metrics: tuple[str, ...]
    rows: tuple[str, ...]


def undecided_rows(has: Callable[[str], bool]) -> list[UndecidedRows]:
    """In the order of the rows. `has`: whether any series of a metric is stored."""
    rows_by_metrics: dict[tuple[str, ...], list[str]] = {}
    for name, kind in ROWS.items():
        metrics = (kind.needs,) if kind.needs else tuple(_metrics(kind.query))
        if kind.query == _BY_LOG_TOO:
            continue
        if metrics and not any(map(has, metrics)):
            rows_by_metrics.setdefault(metrics, []).append(name)
    return [UndecidedRows(metrics, tuple(rows)) for metrics, rows in rows_by_metrics.items()]


def _metrics(query_id: str) -> Iterator[str]:
    for template_id in queries.template_ids(query_id):
        template = queries.template(template_id)
        if template is not None:
            yield from template.metrics
