"""The table of RDMA counters, and that those who use it agree."""

from __future__ import annotations

from collections import Counter

import pytest

from raydiag.exporter.metrics import REGISTRY
from raydiag.rdma_names import (
    HARDWARE_COUNTERS,
    STANDARD_COUNTERS,
    STANDARD_TRAFFIC,
    SYNONYMS,
    UNITS_OF_4_BYTES,
    files_of,
)

SERVED = [
    name.removeprefix("hw_rdma_").removesuffix("_total")
    for name in REGISTRY
    if name.startswith("hw_rdma_") and name.endswith("_total")
]


def test_a_counter_has_one_meaning() -> None:
    counts = Counter(files_of(*SYNONYMS))
    assert [name for name, count in counts.items() if count > 1] == []
    assert HARDWARE_COUNTERS.isdisjoint(STANDARD_COUNTERS)
    assert UNITS_OF_4_BYTES <= STANDARD_COUNTERS


def test_the_exporter_serves_nothing_else() -> None:
    assert set(SERVED) <= SYNONYMS.keys()
    assert STANDARD_TRAFFIC.keys() <= set(SERVED)


@pytest.mark.parametrize("quantity", SERVED)
def test_a_metric_names_the_file_that_it_is_read_from(quantity: str) -> None:
    source = REGISTRY[f"hw_rdma_{quantity}_total"].source
    named = STANDARD_TRAFFIC.get(quantity, SYNONYMS[quantity][0])
    assert f"/{named}" in source
