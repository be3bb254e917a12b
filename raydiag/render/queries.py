"""What Prometheus was asked, a line for each query."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from raydiag.render.formats import number
from raydiag.tsdb.series import AskedQuery


def query_lines(queries: Iterable[AskedQuery]) -> Iterator[str]:
    """`id: promql  [start to end step 15s]  rows 8`."""
    for query in queries:
        step = f" step {number(query.step_s)}s" if query.step_s else ""
        window = f"{query.start:.3f} to {query.end:.3f}{step}"
        yield f"{query.id}: {query.promql}  [{window}]  rows {query.rows}"
