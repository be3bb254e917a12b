"""Which rows the series of a cluster leave undecided."""

from __future__ import annotations

from raydiag.playbooks.tables import ROWS
from raydiag.playbooks.undecided import undecided_rows
from raydiag.timeline import queries

EVERY_METRIC = {metric for template in queries.templates() for metric in template.metrics}


def rows_without(*absent: str) -> set[str]:
    """Rows that are undecided where everything but these metrics is there."""
    undecided = undecided_rows((EVERY_METRIC - set(absent)).__contains__)
    return {row for rows in undecided for row in rows.rows}


def test_where_everything_is_measured_nothing_is_undecided() -> None:
    assert rows_without() == set()


def test_a_metric_that_a_row_cannot_do_without() -> None:
    assert "driver" in rows_without("hw_dmesg_gpu_errors_total")
    assert "xid" in rows_without("hw_gpu_xid")


def test_one_of_several_metrics_will_do() -> None:
    several = next(t for t in queries.templates() if len(t.metrics) > 2 and t.id in used_queries())
    first, *others = several.metrics
    rows = {name for name, kind in ROWS.items() if kind.query == several.id and not kind.needs}
    assert rows
    assert rows.isdisjoint(rows_without(*others))
    assert rows <= rows_without(first, *others)


def used_queries() -> set[str]:
    """Queries that rows rest on without needing one metric of them."""
    return {kind.query for kind in ROWS.values() if not kind.needs}


def test_nothing_at_all_names_every_row_but_those_that_the_log_decides() -> None:
    undecided = undecided_rows(lambda metric: False)
    assert all(rows.metrics and rows.rows for rows in undecided)
    named = {row for rows in undecided for row in rows.rows}
    by_log = {name for name, kind in ROWS.items() if kind.query == "training"}
    assert named.isdisjoint(by_log)
    assert {"driver", "xid", "measured"} <= named
