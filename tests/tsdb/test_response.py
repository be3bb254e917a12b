"""Answers to range queries, read in two ways: both must say the same."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from raydiag.tsdb import response

ODD = {"host": 'a"b],[{"metric":{', "path": '\\n},"values":[[1,"2"]]}', "ü": "§"}


def body(result: list[dict[str, Any]], **more: object) -> bytes:
    """As Prometheus writes it: without spaces, letters beyond ASCII as they are."""
    document = {"status": "success", "data": {"resultType": "matrix", "result": result}, **more}
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def series(labels: dict[str, str], *values: str, start: float = 1_700_000_000.5) -> dict[str, Any]:
    return {"metric": labels, "values": [[start + 15 * i, v] for i, v in enumerate(values)]}


@pytest.mark.parametrize(
    "result",
    [
        [series({"host": "a"}, "1", "2.5", "1e-7"), series({"host": "b"}, "0.1")],
        [series({}, "1")],
        [series(ODD, "1", "2"), series(ODD, "3")],
        [series({"host": "a"}, "1", "NaN", "+Inf"), series({"host": "b"}, "-Inf", "NaN")],
        [series({"host": "a"}, "1", "2"), series({"host": "b"}, "3", start=1_600_000_000)],
        [{"metric": {"host": "a"}, "values": [[30, "3"], [15, "2"]]}],
    ],
)
def test_both_ways_read_the_same(result: list[dict[str, Any]]) -> None:
    text = body(result)
    quick = response.matrix(text + b"\n")
    slow = response.series(response.data(200, "application/json", text)[0])
    assert quick is not None and len(quick) == len(slow)
    for one, other in zip(quick, slow, strict=True):
        assert one.labels == other.labels
        for name in ("times", "values", "nan_times"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


@pytest.mark.parametrize(
    "text",
    [
        body([]),
        body([series({"host": "a"}, "1")], warnings=["half of it"]),
        body([series({"host": "a"}, "1")]).replace(b":", b": "),
        body([series({"host": "a"}, "1")])[:-8],
        body([series({"host": "a"}, "one")]),
        body([{"metric": {"host": "a"}, "histograms": [[1, {}]]}]),
        body([series({"host": "a"}, "1"), {"metric": {"host": "b"}, "histograms": [[1, [[]]]]}]),
        body([{**series({"host": "a"}, "1"), "histograms": []}, series({"host": "b"}, "1")]),
        body([series({"host": "a"}, "1")]).replace(b'"1"', b'"1",7'),
        b"",
        b"<html>",
    ],
)
def test_what_is_written_otherwise_goes_the_long_way(text: bytes) -> None:
    assert response.matrix(text) is None
